"""Who may have which meshes made for them: rules, read from a file with every mistake named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from ..errors import SpecError
from ..kube.login import parse_yaml
from ..spec import suggest

VOLUMES = ("configMap", "downwardAPI", "emptyDir")
"""The kinds of volumes that show nothing of the machine and nothing secret."""
_ACCOUNT = "system:serviceaccount:"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the API server knows them."""

    username: str
    groups: Sequence[str] = ()
    uid: str = ""
    """What tells an account from a later one of the same name."""

    @property
    def account(self) -> str:
        """`namespace/name` of a ServiceAccount; empty for anybody else."""
        name = self.username.removeprefix(_ACCOUNT)
        return name.replace(":", "/", 1) if name != self.username else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What some callers may have. In patterns `*` stands for anything, slashes too."""

    name: str
    service_accounts: Sequence[str] = ()
    """Patterns of `namespace/name`."""
    groups: Sequence[str] = ()
    namespaces: Sequence[str]
    images: Sequence[str]
    max_hosts: int
    """In one mesh."""
    max_gpus: int
    """In one mesh."""
    max_total_hosts: int | None = None
    """In all meshes made by this rule; None: no limit."""
    max_total_gpus: int | None = None
    priority_classes: Sequence[str] = ()
    """Those that may be named; none need be."""
    queues: Sequence[str] = ()
    """Kueue's queues, of which one must be named; empty: none may be."""
    volumes: Sequence[str] = VOLUMES
    """Kinds of volumes, such as `hostPath`."""
    secrets: Sequence[str] = ()
    """Names of Secrets that pods may read, mount or pull images with."""
    pod_service_accounts: Sequence[str] = ("default",)
    capabilities: Sequence[str] = ()
    """What containers may add, such as `IPC_LOCK`."""
    privileged: bool = False
    """Whether pods may do with their machine what they like."""

    def is_for(self, caller: Caller) -> bool:
        """Whether the rule speaks of this caller."""
        if caller.account and matches(caller.account, self.service_accounts):
            return True
        return any(matches(group, self.groups) for group in caller.groups)


def matches(word: str, patterns: Sequence[str]) -> bool:
    """Whether a word is among those that the patterns allow."""
    return any(fnmatchcase(word, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules. What none of them allows is denied."""

    rules: Sequence[Rule] = ()

    def rules_for(self, caller: Caller) -> list[Rule]:
        """The rules that speak of a caller."""
        return [rule for rule in self.rules if rule.is_for(caller)]


# Reading


def load_policy(path: Path) -> Policy:
    """The policy in a file."""
    try:
        return parse_policy(parse_yaml(path.read_text("utf-8")))
    except SpecError as error:
        raise SpecError(f"{path}: {error.what}", seen=error.seen, hint=error.hint) from error
    except (OSError, ValueError) as error:
        raise SpecError(f"the policy {path} cannot be read", seen=str(error)) from error


def parse_policy(data: Any) -> Policy:
    """Rules from plain data; an error names every field that is wrong."""
    wrong: list[str] = []
    rules = _parse_top(data, wrong)
    made = [_parse_rule(rule, f"rules[{index}]", wrong) for index, rule in enumerate(rules)]
    names = [rule.name for rule in made if rule is not None]
    wrong += [
        f"rules: two are named {name!r}" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if wrong:
        raise SpecError(f"the policy is wrong in {len(wrong)} places", seen="\n".join(wrong))
    return Policy([rule for rule in made if rule is not None])


def _parse_top(data: Any, wrong: list[str]) -> list[Any]:
    if not isinstance(data, Mapping):
        wrong.append("the policy is a mapping with the key `rules`")
        return []
    given = cast("Mapping[str, Any]", data)
    wrong += [_unknown(key, key, ["rules"]) for key in given if key != "rules"]
    rules = given.get("rules")
    if not isinstance(rules, list):
        wrong.append("rules: a list of rules is missing")
        return []
    return cast("list[Any]", rules)


def _parse_rule(data: Any, path: str, wrong: list[str]) -> Rule | None:
    if not isinstance(data, Mapping):
        wrong.append(f"{path}: a rule is a mapping")
        return None
    given = cast("Mapping[str, Any]", data)
    before = len(wrong)
    wrong += [
        _unknown(f"{path}.{key}", key, list(_READERS)) for key in given if key not in _READERS
    ]
    wrong += [f"{path}.{key}: missing" for key in _REQUIRED if key not in given]
    if not given.get("serviceAccounts") and not given.get("groups"):
        wrong.append(f"{path}: serviceAccounts or groups must say whom it is for")
    values = {
        _READERS[key][0]: _READERS[key][1](value, f"{path}.{key}", wrong)
        for key, value in given.items()
        if key in _READERS
    }
    return Rule(**values) if len(wrong) == before else None


def _unknown(path: str, key: str, known: Sequence[str]) -> str:
    hint = suggest(str(key), known)
    return f"{path}: there is no such key{f'; {hint}' if hint else ''}"


def _read_name(value: Any, path: str, wrong: list[str]) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        wrong.append(f"{path}: lowercase letters, digits and dashes, not {value!r}")
    return str(value)


def _read_words(value: Any, path: str, wrong: list[str]) -> tuple[str, ...]:
    words = cast("list[Any]", value) if isinstance(value, list) else []
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in words):
        wrong.append(f"{path}: a list of texts, not {value!r}")
    return tuple(map(str, words))


def _read_count(value: Any, path: str, wrong: list[str]) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        wrong.append(f"{path}: a whole number from 0 on, not {value!r}")
        return 0
    return value


def _read_switch(value: Any, path: str, wrong: list[str]) -> bool:
    if not isinstance(value, bool):
        wrong.append(f"{path}: true or false, not {value!r}")
    return bool(value)


_Reader = Callable[[Any, str, list[str]], Any]
_COUNTS = {"max_hosts", "max_gpus", "max_total_hosts", "max_total_gpus"}
_REQUIRED = ("name", "namespaces", "images", "maxHosts", "maxGpus")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _reader(name: str) -> _Reader:
    if name in _COUNTS:
        return _read_count
    return {"name": _read_name, "privileged": _read_switch}.get(name, _read_words)


_READERS = {_camel(f.name): (f.name, _reader(f.name)) for f in fields(Rule)}
"""The keys of a rule in a file: the field they fill, and how they are read."""

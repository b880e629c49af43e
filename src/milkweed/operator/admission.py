"""Whether a mesh may be made for somebody: the rule that allows it, or by how much each rule is broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .podcheck import PRIORITY, QUEUE, Complaint, check_template, count_gpus
from .policy import Caller, Policy, Rule, matches
from .reading import Object, items, mapping, name_of, number, pick, text

RULE_LABEL = "monarch.pytorch.org/provision-rule"
"""On meshes that were made by a rule, so that its totals can be counted."""
REQUESTED_BY = "monarch.pytorch.org/requested-by"
REQUESTED_BY_UID = f"{REQUESTED_BY}-uid"
"""Who asked for an object, and may see and delete it: the name, and what tells an account from a later one."""
SECRETS_NOTE = "monarch.pytorch.org/provision-secrets"
"""Which Secrets came with a mesh, so that its pods may use them."""
_METADATA = frozenset({"name", "namespace", "labels", "annotations"})
_SPEC = frozenset({"replicas", "port", "podTemplate"})
_TOP = frozenset({"apiVersion", "kind", "metadata", "spec"})
_OURS = (RULE_LABEL, REQUESTED_BY, REQUESTED_BY_UID, SECRETS_NOTE)


@dataclass(frozen=True, slots=True)
class Usage:
    """How much there is."""

    hosts: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that one rule does not allow."""

    rule: str
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rule that allows a request, or why none does."""

    rule: Rule | None
    violations: Sequence[Violation] = ()


def sign(caller: Caller) -> dict[str, str]:
    """The annotations that say who asked."""
    return {REQUESTED_BY: caller.username, REQUESTED_BY_UID: caller.uid}


def is_of(found: Object, caller: Caller) -> bool:
    """Whether an object was asked for by this very caller."""
    notes = mapping(found, "metadata", "annotations")
    return bool(caller.username) and all(notes.get(key) == by for key, by in sign(caller).items())


def measure(mesh: Object) -> Usage:
    """How much a mesh is."""
    hosts = number(mesh, "spec", "replicas")
    return Usage(hosts, hosts * count_gpus(pick(mesh, "spec", "podTemplate")))


def measure_rule(meshes: Sequence[Object], rule: str) -> Usage:
    """How much was made by a rule so far."""
    ours = [mesh for mesh in meshes if text(mesh, "metadata", "labels", RULE_LABEL) == rule]
    sizes = [measure(mesh) for mesh in ours]
    return Usage(sum(size.hosts for size in sizes), sum(size.gpus for size in sizes))


def check_shape(mesh: Any, namespace: str) -> Iterator[Complaint]:
    """What is wrong with a request whoever makes it."""
    for found, allowed, path in (
        (mapping(mesh), _TOP, ""),
        (mapping(mesh, "metadata"), _METADATA, "metadata."),
        (mapping(mesh, "spec"), _SPEC, "spec."),
    ):
        yield from ((f"{path}{key}", "is not allowed") for key in found if key not in allowed)
    if not name_of(mapping(mesh)):
        yield "metadata.name", "is missing"
    if text(mesh, "metadata", "namespace") not in {"", namespace}:
        yield "metadata.namespace", f"is not {namespace!r}, which was asked"
    yield from check_replicas(pick(mesh, "spec", "replicas"), "spec.replicas")
    if not items(mesh, "spec", "podTemplate", "spec", "containers"):
        yield "spec.podTemplate.spec.containers", "is missing"
    for key in _OURS:
        for part in ("labels", "annotations"):
            if key in mapping(mesh, "metadata", part):
                yield f"metadata.{part}.{key}", "is not yours to say"


def check_replicas(found: Any, path: str) -> Iterator[Complaint]:
    """A number of hosts; what JSON calls true is none."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        yield path, "is a whole number from 1 on"


def admit(
    policy: Policy,
    caller: Caller,
    mesh: Object,
    used: Mapping[str, Usage],
    *,
    namespace: str,
    secrets: Sequence[str] = (),
) -> Verdict:
    """The first rule that allows a mesh.

    Args:
        policy: All rules.
        caller: Who asks.
        mesh: What for.
        used: What each rule has made so far.
        namespace: Where.
        secrets: The mesh's own Secrets, which its pods may use whatever a rule says.
    """
    rules = policy.rules_for(caller)
    if not rules:
        return Verdict(None, [Violation("", "", f"no rule is for {caller.username}")])
    violations: list[Violation] = []
    for rule in rules:
        wide = replace(rule, secrets=(*rule.secrets, *secrets))
        found = list(_check(wide, namespace, mesh, used.get(rule.name, Usage())))
        if not found:
            return Verdict(rule)
        violations += [Violation(rule.name, field, words) for field, words in found]
    return Verdict(None, violations)


def _check(rule: Rule, namespace: str, mesh: Object, used: Usage) -> Iterator[Complaint]:
    if not matches(namespace, rule.namespaces):
        yield "metadata.namespace", f"{namespace!r} is not among {', '.join(rule.namespaces)}"
    asked = measure(mesh)
    yield from _check_limit("hosts", asked.hosts, rule.max_hosts)
    yield from _check_limit("GPUs", asked.gpus, rule.max_gpus)
    yield from _check_limit("hosts", asked.hosts, rule.max_total_hosts, used.hosts)
    yield from _check_limit("GPUs", asked.gpus, rule.max_total_gpus, used.gpus)
    yield from _check_queue(rule, mesh)
    yield from check_template(pick(mesh, "spec", "podTemplate"), rule)


def _check_limit(what: str, asked: int, limit: int | None, used: int = 0) -> Iterator[Complaint]:
    if limit is None or asked + used <= limit:
        return
    field = "spec.replicas" if what == "hosts" else "spec.podTemplate"
    beside = f" beside {used} in use" if used else ""
    yield (
        field,
        f"{asked} {what} asked for{beside}, at most {limit}: {asked + used - limit} too many",
    )


def _check_queue(rule: Rule, mesh: Object) -> Iterator[Complaint]:
    places = ("metadata",), ("spec", "podTemplate", "metadata")
    named = False
    for place in places:
        for part in ("labels", "annotations"):
            found, where = mapping(mesh, *place, part), f"{'.'.join(place)}.{part}"
            for key, allowed in ((QUEUE, rule.queues), (PRIORITY, rule.priority_classes)):
                if key in found and not matches(str(found[key]), allowed):
                    yield f"{where}.{key}", f"{found[key]!r} is not allowed"
            named = named or (place == ("metadata",) and part == "labels" and QUEUE in found)
    if rule.queues and not named:
        yield f"metadata.labels.{QUEUE}", f"is missing; one of {', '.join(rule.queues)}"

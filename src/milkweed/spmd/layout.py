"""Which rank runs where, with which environment: pure values, as torchrun would have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from .launch import Launch

PREFIX = "[${role_name}${rank}]:"
"""What stands before a rank's lines; torchrun counts ranks of one machine only, since it shows only one's."""
PASSED_ON = (
    "OMP_NUM_THREADS",
    "PYTHON_EXEC",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
"""Variables of the person's own environment that torchrun reads, or would hand on changed."""
WELL_KNOWN = re.compile(r"(NCCL|GLOO|CUDA|TORCH(?!_ELASTIC))_\w+|PYTHONPATH")
"""Variables of which people expect that ranks have them."""
PREFIX_ENV = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_RUN_PATH = (
    "import runpy,sys; sys.argv=sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks of one host."""

    host: str
    rank: int
    """The host's own number among those that take part."""
    first: int
    """The number of its first rank."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """All ranks of one attempt."""

    groups: tuple[Group, ...]
    master_addr: str
    master_port: int
    attempt: int
    """How many attempts there were before, for whatever reason."""
    restarts: int
    """How many of them count as restarts."""

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(group.count for group in self.groups)


def lay_out(counts: Sequence[tuple[str, int]]) -> tuple[Group, ...]:
    """Number the ranks host by host."""
    groups: list[Group] = []
    first = 0
    for number, (host, count) in enumerate(counts):
        groups.append(Group(host=host, rank=number, first=first, count=count))
        first += count
    return tuple(groups)


def make_environment(launch: Launch, all_: Gathering, group: Group, local: int) -> dict[str, str]:
    """The variables of one rank."""
    rank = str(group.first + local)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(all_.size),
        "LOCAL_WORLD_SIZE": str(group.count),
        "GROUP_RANK": str(group.rank),
        "GROUP_WORLD_SIZE": str(len(all_.groups)),
        "ROLE_NAME": launch.role,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": str(all_.size),
        "MASTER_ADDR": all_.master_addr,
        "MASTER_PORT": str(all_.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(all_.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.max_restarts),
        "TORCHELASTIC_RUN_ID": launch.run_id,
        # The store is rank 0's own: a host needs no torch to hold one for it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(launch.signals),
    }


def make_command(
    launch: Launch, wrapper: Sequence[str] = (), *, python: str | None = None
) -> list[str | None]:
    """The command of every rank; None stands for the host's own Python."""
    words: list[str | None] = [*wrapper]
    if launch.form == "command":
        return [*words, launch.script, *launch.args]
    words += [python, "-u"]
    if launch.form == "path":
        words += ["-c", _RUN_PATH]
    elif launch.form == "module":
        words.append("-m")
    return [*words, launch.script, *launch.args]


def make_prefix(launch: Launch, template: str, rank: int, local: int) -> str:
    """What stands before a rank's lines."""
    return Template(template).safe_substitute(role_name=launch.role, rank=rank, local_rank=local)


def make_ranks(
    launch: Launch, all_: Gathering, group: Group, template: str
) -> list[dict[str, Any]]:
    """What a host is told about its ranks."""
    return [
        {
            "rank": group.first + local,
            "local": local,
            "env": make_environment(launch, all_, group, local),
            "prefix": make_prefix(launch, template, group.first + local, local),
            **_make_streams(launch, local),
        }
        for local in range(group.count)
    ]


def _make_streams(launch: Launch, local: int) -> dict[str, dict[str, bool]]:
    """Which streams go to files, and which are shown."""
    files: dict[str, bool] = {}
    shown: dict[str, bool] = {}
    visible = launch.local_ranks_filter is None or local in launch.local_ranks_filter
    for name, (redirected, teed) in launch.streams(local).items():
        files[name] = (redirected or teed) and launch.keeps_logs
        shown[name] = not launch.keeps_logs or (visible and (teed or not redirected))
    return {"files": files, "shown": shown}


def pick_known(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Well-known variables of the person's own environment that nobody gives to the ranks."""
    found = {key: value for key, value in environ.items() if WELL_KNOWN.fullmatch(key)}
    return {key: value for key, value in found.items() if key not in given}


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the person's own environment goes to the ranks."""
    return {key: environ[key] for key in PASSED_ON if key in environ}

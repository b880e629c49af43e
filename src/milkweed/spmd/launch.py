"""What a torchrun command line asks for, as one value that was checked before anything is started."""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import SpecError
from ..spec import check_env, suggest
from .arguments import START_METHODS, parse_namespace
from .rendezvous import (
    Backend,
    check_seconds,
    make_id,
    make_meeting,
    parse_conf,
    parse_waits,
    render_idle,
)

Form = Literal["script", "module", "command", "path"]
Streams = int | Mapping[int, int]
"""Which streams, 1 for output and 2 for errors: of all local ranks, or of those named."""

DEVICES = ("auto", "cpu", "gpu", "xpu")
"""Words for «as many processes as a host has of these»."""
MONITOR_S = 0.1
"""Torchrun's own time between two looks."""
SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_ONE_MASK = re.compile(r"[0-3]$")
_MASKS = re.compile(r"\d:[0-3](,\d:[0-3])*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One program on all its nodes."""

    min_nodes: int
    max_nodes: int
    nproc: int | str
    """Processes on each host: a number, or what to count there (`auto`, `cpu`, `gpu`, `xpu`)."""
    form: Form
    script: str
    args: tuple[str, ...]
    role: str
    run_id: str
    rdzv_backend: Backend
    rdzv_host: str | None
    """What was said in `--rdzv-endpoint`, maybe with variables that nobody filled in."""
    rdzv_port: int | None
    master_addr: str | None
    """Where rank 0 must listen; None lets milkweed choose."""
    master_port: int | None
    join_timeout_s: float | None
    last_call_timeout_s: float | None
    node_rank: int
    local_addr: str | None
    max_restarts: int
    monitor_interval_s: float
    shutdown_timeout_s: float
    signals: tuple[str, ...]
    start_method: str
    event_log_handler: str
    log_dir: str | None
    redirects: Streams
    tee: Streams
    local_ranks_filter: frozenset[int] | None
    stdout_filters: tuple[str, ...]
    """Teed lines of output with one of these words are collected in a file."""
    stderr_filters: tuple[str, ...]
    numa_binding: str | None
    virtual_local_rank: bool
    job: str | None
    mesh: str | None
    env: Mapping[str, str]
    notes: tuple[str, ...]
    """What was said but has no effect, and why: for people."""

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return self.min_nodes < self.max_nodes

    @property
    def keeps_logs(self) -> bool:
        """Whether files are written at all."""
        return self.log_dir != os.devnull

    def streams(self, local_rank: int) -> dict[str, tuple[bool, bool]]:
        """For `out` and `err` of a local rank: whether it is redirected, and whether it is teed."""
        redirects, tee = _mask(self.redirects, local_rank), _mask(self.tee, local_rank)
        bits = {"out": 1, "err": 2}
        return {name: (bool(redirects & bit), bool(tee & bit)) for name, bit in bits.items()}


def _mask(streams: Streams, local_rank: int) -> int:
    return streams if isinstance(streams, int) else streams.get(local_rank, 0)


def parse(
    argv: Sequence[str], environ: Mapping[str, str], *, new_id: Callable[[], str] = make_id
) -> Launch:
    """Read and check a torchrun command line."""
    return make_launch(parse_namespace(argv, environ), environ=environ, new_id=new_id)


def make_launch(
    asked: argparse.Namespace,
    *,
    environ: Mapping[str, str] | None = None,
    new_id: Callable[[], str] = make_id,
) -> Launch:
    """Check what was asked for; the environment gives the default of `--shutdown-timeout`."""
    notes: list[str] = []
    min_nodes, max_nodes = _parse_nodes(asked, notes)
    conf = parse_conf(asked.rdzv_conf)
    meeting = make_meeting(asked, max_nodes, conf, notes, new_id)
    _check_places(asked, meeting.backend, max_nodes, notes)
    _check_words(asked, notes)
    join_timeout_s, last_call_timeout_s = parse_waits(conf, notes)
    return Launch(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc=_parse_nproc(asked.nproc_per_node),
        form=_parse_form(asked, notes),
        script=asked.training_script,
        args=tuple(asked.training_script_args),
        role=asked.role,
        run_id=meeting.run_id,
        rdzv_backend=meeting.backend,
        rdzv_host=meeting.host,
        rdzv_port=meeting.port,
        master_addr=meeting.master_addr,
        master_port=meeting.master_port,
        join_timeout_s=join_timeout_s,
        last_call_timeout_s=last_call_timeout_s,
        node_rank=asked.node_rank,
        local_addr=asked.local_addr or None,
        max_restarts=_parse_restarts(asked.max_restarts),
        monitor_interval_s=check_seconds("--monitor-interval", asked.monitor_interval),
        shutdown_timeout_s=_parse_shutdown(asked.shutdown_timeout, environ or {}),
        signals=_parse_signals(asked.signals_to_handle),
        start_method=asked.start_method,
        event_log_handler=asked.event_log_handler,
        log_dir=asked.log_dir or None,
        redirects=parse_streams("--redirects", asked.redirects),
        tee=parse_streams("--tee", asked.tee),
        local_ranks_filter=_parse_filter(asked.local_ranks_filter),
        stdout_filters=tuple(asked.duplicate_stdout_filters),
        stderr_filters=tuple(asked.duplicate_stderr_filters),
        numa_binding=asked.numa_binding,
        virtual_local_rank=asked.virtual_local_rank,
        job=asked.job,
        mesh=asked.mesh,
        env=_parse_env(asked.set_env),
        notes=tuple(notes),
    )


def _parse_nodes(asked: argparse.Namespace, notes: list[str]) -> tuple[int, int]:
    """The fewest and the most nodes."""
    text = asked.nnodes
    try:
        numbers = [int(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in {1, 2}:
        raise SpecError(
            f"--nnodes: {text!r} is not a number of nodes",
            hint="write a number, or MIN:MAX such as 2:4",
        )
    fewest, most = numbers[0], numbers[-1]
    if not 0 < fewest <= most:
        raise SpecError(f"--nnodes: {text!r} must be more than zero, and MAX not less than MIN")
    if not asked.standalone or most == 1:
        return fewest, most
    if fewest > 1:
        raise SpecError(f"--standalone: is for one node, but --nnodes asks for {fewest}")
    notes.append(render_idle("--nnodes", text, "--standalone means one node"))
    return 1, 1


def _parse_nproc(text: str) -> int | str:
    if text in DEVICES:
        return text
    try:
        count = int(text)
    except ValueError:
        raise SpecError(
            f"--nproc-per-node: {text!r} is not a number of processes",
            hint=f"write a number, or one of {', '.join(DEVICES)}",
        ) from None
    if count < 1:
        raise SpecError(f"--nproc-per-node: {count} is not more than zero")
    return count


def _parse_form(asked: argparse.Namespace, notes: list[str]) -> Form:
    """How the script is run; `--run-path` comes before all others."""
    if not asked.training_script:
        raise SpecError("SCRIPT: is empty")
    if asked.run_path:
        flags = {"--module": asked.module, "--no-python": asked.no_python}
        notes += [f"{flag}: has no effect beside --run-path" for flag in flags if flags[flag]]
        return "path"
    if asked.no_python and asked.module:
        raise SpecError(
            "--no-python and --module: a module needs Python", hint="leave out one of them"
        )
    if asked.no_python:
        return "command"
    return "module" if asked.module else "script"


def _check_places(
    asked: argparse.Namespace, backend: Backend, max_nodes: int, notes: list[str]
) -> None:
    """Refuse what one node would be told about itself: here all nodes are told at once."""
    if asked.node_rank and backend == "c10d":
        notes.append(
            render_idle("--node-rank", asked.node_rank, "only the static rendezvous uses it")
        )
    elif asked.node_rank:
        raise SpecError(
            f"--node-rank: {asked.node_rank} cannot be chosen: milkweed starts all nodes itself",
            hint="leave --node-rank out",
        )
    if asked.local_addr and max_nodes > 1:
        raise SpecError(
            f"--local-addr: {asked.local_addr} can be the address of one node only, "
            f"but --nnodes is {asked.nnodes}",
            hint="leave --local-addr out: every node is asked for its own",
        )


def _check_words(asked: argparse.Namespace, notes: list[str]) -> None:
    """Refuse words that only torch's own plugins could explain."""
    if asked.event_log_handler not in {"null", "console"}:
        raise SpecError(
            f"--event-log-handler: {asked.event_log_handler!r} is not known",
            hint="write null or console",
        )
    if asked.logs_specs not in {None, "default"}:
        raise SpecError(
            f"--logs-specs: {asked.logs_specs!r} is a plugin of torch, which milkweed does not load",
            hint="leave --logs-specs out",
        )
    if asked.start_method not in START_METHODS:  # a variable's value is no choice of the parser's
        raise SpecError(
            f"--start-method: {asked.start_method!r} is not known",
            hint=f"write one of {', '.join(START_METHODS)}",
        )
    if asked.monitor_interval != MONITOR_S:
        why = "a rank's end is seen when it happens"
        notes.append(render_idle("--monitor-interval", f"{asked.monitor_interval:g}", why))
    if asked.start_method != "spawn":
        why = "every process is a program of its own"
        notes.append(render_idle("--start-method", asked.start_method, why))


def _parse_restarts(count: int) -> int:
    if count < 0:
        raise SpecError(f"--max-restarts: {count} is less than zero")
    return count


def _parse_shutdown(seconds: int | None, environ: Mapping[str, str]) -> float:
    """The flag, else the variable, else 30 seconds."""
    where, value = "--shutdown-timeout", seconds
    if value is None:
        where, text = SHUTDOWN_VARIABLE, environ.get(SHUTDOWN_VARIABLE, "30")
        try:
            value = int(text)
        except ValueError:
            raise SpecError(f"{where}: {text!r} is not a whole number of seconds") from None
    if value < 0:
        raise SpecError(f"{where}: {value} is less than zero")
    return float(value)


def _parse_signals(text: str) -> tuple[str, ...]:
    """Names of signals; those that nobody can handle are refused."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in signal.Signals.__members__:
            known = suggest(name, [*signal.Signals.__members__])
            raise SpecError(f"--signals-to-handle: {name!r} is not a signal", hint=known)
        if name in {"SIGKILL", "SIGSTOP"}:
            raise SpecError(f"--signals-to-handle: no program can handle {name}")
    return names


def parse_streams(flag: str, text: str) -> Streams:
    """Read `3`, or `0:1,1:2` with one digit for each local rank."""
    if _ONE_MASK.match(text):
        return int(text)
    if _MASKS.match(text):
        pairs = (part.split(":") for part in text.split(","))
        return {int(rank): int(mask) for rank, mask in pairs}
    raise SpecError(
        f"{flag}: {text!r} does not say which streams",
        hint="0 none, 1 output, 2 errors, 3 both; or RANK:STREAMS with commas between, "
        "for local ranks 0 to 9",
    )


def _parse_filter(text: str) -> frozenset[int] | None:
    if not text:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise SpecError(
            f"--local-ranks-filter: {text!r} is not a list of local ranks",
            hint="write numbers with commas between, such as 0,1",
        ) from None


def _parse_env(pairs: Sequence[str]) -> dict[str, str]:
    """Variables for every process; a later one of the same name counts."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"--set-env: {pair!r} is not KEY=VALUE")
        found[key] = value
    check_env(found, where="--set-env")
    return found

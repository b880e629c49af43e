"""How the nodes of a torchrun command line were to find each other, and what of it still counts.

milkweed starts all nodes, so nothing has to be found. What remains is where rank 0 listens, if somebody said
so, how long nodes are waited for, and the name of the run. Of the rest, people are told that it has no effect.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import SpecError
from ..spec import suggest
from .arguments import Unsaid

Backend = Literal["static", "c10d"]
DEFAULT_PORT = 29500
WAITS = ("timeout", "join_timeout", "last_call_timeout")
STORE_KEYS = (
    *("is_host", "store_type", "read_timeout", "close_timeout", "heartbeat_timeout"),
    *("keep_alive_interval", "keep_alive_max_attempt", "rank", "use_libuv"),
)
"""Keys of `--rdzv-conf` about a store, or about agents that find each other in one."""
NO_SERVICE = "milkweed itself brings the hosts together, and no rendezvous service is used"
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[\w.:-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How the nodes come together, as torchrun would have it."""

    backend: Backend
    run_id: str
    host: str | None = None
    port: int | None = None
    master_addr: str | None = None
    master_port: int | None = None


def make_meeting(
    asked: argparse.Namespace,
    max_nodes: int,
    conf: Mapping[str, str],
    notes: list[str],
    new_id: Callable[[], str],
) -> Meeting:
    """Decide as torchrun does: `--standalone`, then c10d, then one node that asked for nothing, then static."""
    if asked.standalone:
        return _meet_alone(asked, "--standalone", notes, new_id)
    if asked.rdzv_backend == "c10d":
        return _meet_c10d(asked, conf, notes, new_id)
    if asked.rdzv_backend != "static":
        raise SpecError(
            f"--rdzv-backend: {asked.rdzv_backend!r} cannot be used: {NO_SERVICE}",
            hint="leave --rdzv-backend out, or write c10d",
        )
    if not asked.rdzv_endpoint and asked.master_port is None and max_nodes == 1:
        return _meet_alone(asked, "one node without --master-port", notes, new_id)
    return _meet_static(asked, max_nodes, notes, new_id)


def _meet_alone(
    asked: argparse.Namespace, who: str, notes: list[str], new_id: Callable[[], str]
) -> Meeting:
    """One node that asked for no port: everything is chosen, whatever else was said."""
    why = f"{who} chooses it"
    if asked.rdzv_backend not in {"static", "c10d"}:
        notes.append(render_idle("--rdzv-backend", asked.rdzv_backend, why))
    if asked.rdzv_endpoint:
        notes.append(render_idle("--rdzv-endpoint", asked.rdzv_endpoint, why))
    if asked.rdzv_id != "none":
        notes.append(render_idle("--rdzv-id", asked.rdzv_id, why))
    _note_master(asked, why, notes)
    return Meeting(backend="c10d", run_id=new_id())


def _meet_c10d(
    asked: argparse.Namespace,
    conf: Mapping[str, str],
    notes: list[str],
    new_id: Callable[[], str],
) -> Meeting:
    host, port = None, None
    if asked.rdzv_endpoint:
        notes.append(render_idle("--rdzv-endpoint", asked.rdzv_endpoint, NO_SERVICE))
        if conf.get("store_type", "tcp").lower() == "tcp":  # else it is the path of a file
            host, port = parse_endpoint("--rdzv-endpoint", asked.rdzv_endpoint)
    _note_master(asked, "only the static rendezvous uses it", notes)
    return Meeting(backend="c10d", run_id=asked.rdzv_id or new_id(), host=host, port=port)


def _note_master(asked: argparse.Namespace, why: str, notes: list[str]) -> None:
    if not isinstance(asked.master_addr, Unsaid):
        notes.append(render_idle("--master-addr", asked.master_addr, why))
    if asked.master_port is not None:
        notes.append(render_idle("--master-port", asked.master_port, why))


def _meet_static(
    asked: argparse.Namespace, max_nodes: int, notes: list[str], new_id: Callable[[], str]
) -> Meeting:
    """Rank 0 listens where it was told; of what was not told, milkweed chooses what works."""
    run_id = asked.rdzv_id or new_id()
    if not asked.rdzv_endpoint:
        addr, port = _parse_master(asked, max_nodes, notes)
        return Meeting(backend="static", run_id=run_id, master_addr=addr, master_port=port)
    host, port = parse_endpoint("--rdzv-endpoint", asked.rdzv_endpoint)
    addr = _filled_in("--rdzv-endpoint", host, notes)
    if addr and port is None:
        raise SpecError(
            f"--rdzv-endpoint: {asked.rdzv_endpoint!r} has no port", hint="write HOST:PORT"
        )
    _note_master(asked, "--rdzv-endpoint says it", notes)
    return Meeting(
        backend="static",
        run_id=run_id,
        host=host,
        port=port,
        master_addr=addr,
        master_port=port or None,
    )


def _parse_master(
    asked: argparse.Namespace, max_nodes: int, notes: list[str]
) -> tuple[str | None, int | None]:
    """What `--master-addr` and `--master-port` say; unsaid, 127.0.0.1 is right for one node alone."""
    port = asked.master_port
    if port is not None:
        _check_port("--master-port", port)
    if max_nodes > 1 and isinstance(asked.master_addr, Unsaid):
        return None, port or None
    host, _ = parse_endpoint("--master-addr", f"{asked.master_addr}:{port or DEFAULT_PORT}")
    return _filled_in("--master-addr", host, notes), port or None


def _filled_in(flag: str, host: str, notes: list[str]) -> str | None:
    """A host that can be asked for; variables would have been filled in where there is a shell."""
    if "$" not in host:
        return host
    notes.append(
        render_idle(flag, host, "no shell filled it in: the first node's address is taken")
    )
    return None


def parse_endpoint(flag: str, text: str) -> tuple[str, int | None]:
    """Read `HOST:PORT`; a host with variables that a shell was to fill in stays as it is."""
    text = text.strip()
    host, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]") or ("$" in text and not _PORT.fullmatch(digits)):
        host, digits = text, None
    if digits is not None and not _PORT.fullmatch(digits):
        raise SpecError(f"{flag}: {text!r} has no number as its port", hint="write HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if "$" not in host and not _HOST.fullmatch(host):
        raise SpecError(
            f"{flag}: {text!r} has neither a host's name nor an address before its port"
        )
    return host, None if digits is None else _check_port(flag, int(digits))


def _check_port(flag: str, port: int) -> int:
    """Refuse what is no port; 0 means any that is free."""
    if not 0 <= port < 2**16:
        raise SpecError(f"{flag}: {port} is not a port", hint="write a number from 1 to 65535")
    return port


def render_idle(flag: str, value: object, why: str) -> str:
    """A note that something has no effect."""
    return f"{flag} {value}: has no effect, since {why}"


def make_id() -> str:
    """A fresh name for a run."""
    import uuid

    return str(uuid.uuid4())


def parse_conf(text: str) -> dict[str, str]:
    """Read `--rdzv-conf`: `KEY=VALUE` with commas between, a later one of the same key counts."""
    pairs = [part.partition("=") for part in text.split(",")] if text.strip() else []
    found: dict[str, str] = {}
    for key, _, value in pairs:
        if not key.strip() or not value.strip():
            raise SpecError(
                f"--rdzv-conf: {text!r} is not a list of keys with values",
                hint="write KEY=VALUE,KEY=VALUE",
            )
        found[key.strip()] = value.strip()
    return found


def parse_waits(conf: Mapping[str, str], notes: list[str]) -> tuple[float | None, float | None]:
    """How long nodes are waited for, and how long for more than the fewest."""
    for key, value in conf.items():
        if key in STORE_KEYS:
            notes.append(render_idle("--rdzv-conf", f"{key}={value}", NO_SERVICE))
        elif key not in WAITS:
            hint = suggest(key, (*WAITS, *STORE_KEYS))
            raise SpecError(f"--rdzv-conf: {key!r} is not known", hint=hint)
    waits = {key: _parse_seconds(key, conf[key]) for key in WAITS if key in conf}
    if "timeout" in waits and "join_timeout" in waits:
        notes.append(
            render_idle("--rdzv-conf", f"timeout={conf['timeout']}", "join_timeout is given")
        )
    return waits.get("join_timeout", waits.get("timeout")), waits.get("last_call_timeout")


def _parse_seconds(key: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise SpecError(f"--rdzv-conf: {key}={text} is not a number of seconds") from None
    return check_seconds(f"--rdzv-conf {key}", seconds)


def check_seconds(flag: str, seconds: float) -> float:
    """Refuse what nobody can wait for."""
    if not 0 < seconds < math.inf:  # false for nan, too
        raise SpecError(f"{flag}: {seconds:g} is not a number of seconds above zero")
    return seconds

"""Ranks of SPMD programs: processes of one host that are started together and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from . import children
from .children import Child, Output
from .counting import count_aside
from .fleet import Fleet, HostEntry
from .outbox import Outbox
from .ports import hold_port
from .rank_env import find_cpus, find_unlike, host_base, make_base, make_env
from .rank_logs import RankLogs, Stream, Tee, read_streams, read_tail

GANG_ENV = "MILKWEED_GANG"
"""Carried by all that a gang starts, so that what it leaves behind is found."""
RANK_FOLDER = "ranks"
SWEEP_S = 0.5
KILL_RACE_S = 0.2
CLIENT_PATIENCE_S = 30.0
"""How long ranks go on without their client, whose connection may only be broken."""

Message = Mapping[str, Any]
Tell = Callable[[str, Message], None]


@dataclass(eq=False, repr=False)
class Gang:
    """The ranks of one attempt on one host."""

    number: str
    client: str
    entry: HostEntry
    logs: RankLogs
    outbox: Outbox
    running: dict[int, Child] = field(default_factory=dict[int, Child])
    tees: dict[int, dict[str, Tee]] = field(default_factory=dict[int, dict[str, Tee]])
    halted: bool = False
    signals: set[str] = field(default_factory=set[str])
    """What its ranks were sent: what a client says twice is done once."""
    error: str = ""

    @property
    def mark(self) -> str:
        """What tells its processes from those of other hosts on this machine."""
        return f"{self.number}@{self.entry.label}"


class Gangs:
    """All gangs of a keeper."""

    def __init__(self, fleet: Fleet, run: Path, tell: Tell) -> None:
        self._fleet = fleet
        self._run = run
        self._tell = tell
        self._gangs: dict[tuple[str, str], Gang] = {}
        self._ports: dict[str, list[socket.socket]] = {}
        self._places: dict[tuple[str, str], list[str]] = {}
        """Where the GPUs are that ranks will run near, by attempt and host: the driver is asked once."""
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    # Orders

    def prepare(self, client: str, order: Message) -> None:
        """Say how many ranks this host takes, and hold a port where one is asked for."""
        label, number = str(order["host"]), str(order["id"])
        env = host_base(self._fleet, self._fleet.entry(label), order)

        answer = {"ev": "prepared", "id": number, "host": label}
        try:
            held = self._hold(client) if order["port"] else None
        except OSError as error:
            self._tell(client, {**answer, "error": str(error)})
            return

        def tell(found: Message) -> None:
            if "error" in found:
                self._let_go(client, held)
                self._tell(client, {**answer, "error": found["error"]})
                return
            if found["addresses"] is not None:
                self._places[number, label] = found["addresses"]
            port = held.getsockname()[1] if held and held.fileno() >= 0 else 0
            unlike = find_unlike(env, order.get("known", {}))
            told = {"nproc": found["nproc"], "port": port, "unlike": unlike}
            self._tell(client, {**answer, **told})

        count_aside(self._fleet, order, env, tell)

    def _hold(self, client: str) -> socket.socket:
        held = hold_port()
        self._ports.setdefault(client, []).append(held)
        return held

    def _let_go(self, client: str, held: socket.socket | None) -> None:
        left = [other for other in self._ports.pop(client, ()) if other is not held]
        if left:
            self._ports[client] = left
        if held:
            held.close()

    def launch(self, client: str, order: Message) -> None:
        """Start ranks; what cannot be started is told, and nothing of it is left."""
        label, number = str(order["host"]), str(order["id"])
        answer = {"ev": "launched", "id": number, "host": label}
        entry = self._fleet.entry(label)
        if entry is None:
            self._tell(client, {**answer, "error": f"there is no host {label} here"})
            return
        if (number, label) not in self._gangs:
            outbox = Outbox(functools.partial(self._tell, client))
            gang = Gang(number, client, entry, self._make_logs(order), outbox)
            self._gangs[number, label] = gang
            try:
                self._start(gang, order)
            except (OSError, ValueError) as error:
                gang.error = str(error)
                self._kill(gang)
                gang.logs.close()
        # A client whose connection broke says it again, and is told again.
        gang = self._gangs[number, label]
        pids = {str(rank): child.pid for rank, child in gang.running.items()}
        found = {"pids": pids, "logs": str(gang.logs.folder)}
        found = {"error": gang.error} if gang.error else found
        self._tell(client, {**answer, **found})

    def _make_logs(self, order: Message) -> RankLogs:
        cwd = order["cwd"] or self._fleet.cwd
        base = Path(cwd, order["log_dir"]) if order["log_dir"] else self._run / RANK_FOLDER
        return RankLogs(base / order["folder"], int(order["attempt"]), order["filters"])

    def halt(self, _client: str, order: Message) -> None:
        """End the ranks of a gang: a signal first, and after a while the one that cannot be ignored."""
        for gang in self._find(str(order["id"]), str(order["host"])):
            gang.halted = True
            if order["signal"] not in gang.signals:
                gang.signals.add(order["signal"])
                _signal_groups(gang, signal.Signals[order["signal"]])
            loop = asyncio.get_running_loop()
            loop.call_later(float(order["grace_s"]), self._kill, gang)

    def report(self, _client: str, order: Message) -> None:
        """Say once more what ranks printed and how they ended: the client was away and may have missed it."""
        for gang in self._find(str(order["id"]), str(order["host"])):
            gang.outbox.repeat(int(order["number"]))

    def heard(self, _client: str, order: Message) -> None:
        """The client has what it was told of a gang, up to a number."""
        for gang in self._find(str(order["id"]), str(order["host"])):
            gang.outbox.heard(int(order["number"]))

    def _find(self, number: str, host: str | None = None) -> list[Gang]:
        """A gang's share on one host, or on all that are here."""
        return [
            gang
            for (known, label), gang in self._gangs.items()
            if known == number and host in {None, label}
        ]

    # Clients come and go

    def saw_client(self, client: str) -> None:
        """A client is there, perhaps again."""
        if handle := self._waiting.pop(client, None):
            handle.cancel()

    def lost_client(self, client: str, *, patience_s: float) -> None:
        """A client is gone; its ranks end unless it comes back."""
        self.saw_client(client)  # of two losses the later one counts
        if client in self._ports or self._has_gangs(client):
            loop = asyncio.get_running_loop()
            self._waiting[client] = loop.call_later(patience_s, self._end_client, client)

    def _has_gangs(self, client: str) -> bool:
        return any(gang.client == client for gang in self._gangs.values())

    def _end_client(self, client: str) -> None:
        self._waiting.pop(client, None)
        for gang in [gang for gang in self._gangs.values() if gang.client == client]:
            self._kill(gang, signal.SIGTERM)
            self._forget(gang)
        self._release(client)

    def _release(self, client: str) -> None:
        for held in self._ports.pop(client, ()):
            held.close()

    # Starting

    def _start(self, gang: Gang, order: Message) -> None:
        cwd = order["cwd"] or self._fleet.cwd
        if not os.path.isdir(cwd):
            raise ValueError(f"the folder {cwd} is not on host {gang.entry.label}")
        gang.logs.make(int(rank["local"]) for rank in order["ranks"])
        base = {**make_base(self._fleet, gang.entry, order), GANG_ENV: gang.mark}
        # Whatever is wrong with any rank is found before the first one is there.
        envs = [self._make_env(gang, rank, order, base) for rank in order["ranks"]]
        locals_ = [int(rank["local"]) for rank in order["ranks"]]
        places = self._places.pop((gang.number, gang.entry.label), None)
        cpus_of = find_cpus(order["numa"], locals_, base, places)
        for rank, env in zip(order["ranks"], envs, strict=True):
            self._start_rank(gang, rank, order, env, cpus_of.get(int(rank["local"])), cwd)

    @staticmethod
    def _make_env(
        gang: Gang, rank: Message, order: Message, base: Mapping[str, str]
    ) -> dict[str, str]:
        error = str(gang.logs.error_path(int(rank["local"]))) if order["errors"] else ""
        return make_env(base, rank, error=error, virtual=bool(order["virtual"]))

    def _start_rank(  # noqa: PLR0917  all of one order
        self,
        gang: Gang,
        rank: Message,
        order: Message,
        env: Mapping[str, str],
        cpus: set[int] | None,
        cwd: str,
    ) -> None:
        number, local = int(rank["rank"]), int(rank["local"])
        argv = list(order["argv"])
        python = env.get("PYTHON_EXEC") or sys.executable
        argv = [python if word is None else str(word) for word in argv]
        fixed = int(order.get("fixed", len(argv)))
        argv[fixed:] = [Template(word).safe_substitute(local_rank=local) for word in argv[fixed:]]
        streams = read_streams(rank)
        outputs = self._make_outputs(gang, rank, streams)
        child = Child("rank", gang.entry.label, 0, rank=str(number), client=gang.client)
        child.on_exit = lambda status: self._rank_ended(gang, rank, child, outputs, status)
        files = {
            name: str(gang.logs.path(local, name)) if stream.file else os.devnull
            for name, stream in streams.items()
            if not stream.piped
        }

        def run(_fd: int) -> int:
            os.setsid()
            if cpus:
                os.sched_setaffinity(0, cpus)
            _redirect(files)
            return children.execute(argv, env)

        self._fleet.fork(child, run, outputs, env=env, cwd=cwd)
        gang.running[number] = child

    def _make_outputs(
        self, gang: Gang, rank: Message, streams: Mapping[str, Stream]
    ) -> tuple[Output, Output]:
        number, local = int(rank["rank"]), int(rank["local"])
        head = {"ev": "out", "id": gang.number, "host": gang.entry.label, "rank": str(number)}

        def take(name: str) -> Callable[[list[str]], None]:
            def out(lines: list[str]) -> None:
                gang.entry.log.write(f"[{number}] ", lines)
                if streams[name].file:
                    gang.logs.filter(name, str(rank["prefix"]), lines)
                gang.outbox.put({**head, "kind": "rank", "stream": name, "lines": lines})

            return out

        tees: dict[str, Tee] = {}
        for name, stream in streams.items():
            written = stream.file and stream.piped
            tees[name] = Tee(gang.logs.path(local, name) if written else None, take(name))
        gang.tees[number] = tees
        outputs = Output(tees["out"]), Output(tees["err"])
        gang.outbox.watch(*outputs)
        return outputs

    # Ending

    def _rank_ended(
        self, gang: Gang, rank: Message, child: Child, outputs: tuple[Output, Output], status: int
    ) -> None:
        for output in outputs:
            output.drain()
        number, local = int(rank["rank"]), int(rank["local"])
        gang.running.pop(number, None)
        code = children.decode_status(status)
        message = {
            "ev": "rank-exit",
            "id": gang.number,
            "host": gang.entry.label,
            "rank": number,
            "local": local,
            "pid": child.pid,
            "code": code,
            "at": time.time(),
            "halted": gang.halted,
            "error": gang.logs.error(local) if code else "",
            "tail": self._tail(gang, number, local) if code else [],
        }
        if code == -signal.SIGTERM and not gang.halted:
            # A scheduler that ends a job tells all its processes at once: the keeper may hear it last.
            asyncio.get_running_loop().call_later(KILL_RACE_S, gang.outbox.put, message)
        else:
            gang.outbox.put(message)
        if not gang.running:
            self._finish(gang)

    def _tail(self, gang: Gang, number: int, local: int) -> list[str]:
        """The last lines of a rank: what it said about its end is on standard error, if anywhere."""
        for name in ("err", "out"):
            lines = list(gang.tees[number][name].tail) or read_tail(gang.logs.path(local, name))
            if lines:
                return lines
        return []

    def _finish(self, gang: Gang) -> None:
        """All ranks of an attempt have ended; what they left behind goes, too."""
        gang.logs.close()
        loop = asyncio.get_running_loop()
        loop.call_later(SWEEP_S, self._sweep, gang.mark)

    def _sweep(self, mark: str) -> None:
        if left := left_behind(mark):
            self._fleet.end_pids(left)

    def _kill(self, gang: Gang, number: signal.Signals = signal.SIGKILL) -> None:
        if gang.running:
            gang.halted = True
            _signal_groups(gang, number)
            self._fleet.end(gang.running.values())

    def _forget(self, gang: Gang) -> None:
        gang.outbox.close()
        self._gangs.pop((gang.number, gang.entry.label), None)

    def done(self, client: str, order: Message) -> None:
        """The client has all it wants to know of a run."""
        self._places.pop((str(order["id"]), str(order["host"])), None)
        for gang in self._find(str(order["id"]), str(order["host"])):
            self._kill(gang)
            self._forget(gang)
        if not self._has_gangs(client):
            self._release(client)


def _signal_groups(gang: Gang, number: signal.Signals) -> None:
    """Signal every rank, and what it started in its own group."""
    for child in gang.running.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:  # it was forked just now, and has no group of its own yet
                os.kill(child.pid, number)


def _redirect(files: Mapping[str, str]) -> None:
    """Send streams of this very process to files."""
    for name, path in files.items():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(fd, {"out": 1, "err": 2}[name])
        os.close(fd)


def left_behind(mark: str) -> list[int]:
    """Processes below this one that an ended gang has started."""
    wanted = f"{GANG_ENV}={mark}".encode()
    found: list[int] = []
    for pid in children.tree([os.getpid()]):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found

"""A machine's hosts and gangs of ranks in this very process: real processes, and no client."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from milkweed.worker import children
from milkweed.worker.fleet import Fleet
from milkweed.worker.ranks import Gangs
from unit.keepers import WAIT_S

Message = Mapping[str, Any]
_PR_SET_CHILD_SUBREAPER = 36
BOTH = {"out": True, "err": True}
NEITHER = {"out": False, "err": False}


def become_subreaper(on: bool) -> None:
    """Adopt what ranks leave behind, as a keeper does."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def make_start(folder: Path, *labels: str, **env: str) -> dict[str, Any]:
    """What a keeper of these hosts is told."""
    hosts = [
        {
            "mesh": label.partition("/")[0],
            "rank": int(label.partition("/")[2]),
            "log": str(folder / f"{label.replace('/', '.')}.log"),
            "env": env,
            "transport": "ipc",
            "address": f"ipc://{folder}/{label.replace('/', '.')}.sock",
        }
        for label in labels
    ]
    lease = {"keep": True, "idle_timeout_s": 1000.0, "time_limit_s": None}
    return {"cwd": str(folder), "hosts": hosts, "apply_id": "job", **lease}


def make_rank(rank: int, local: int, **more: Any) -> dict[str, Any]:
    """What a host is told of one rank."""
    said = {"rank": rank, "local": local, "prefix": f"[{rank}]:", "files": NEITHER, "shown": BOTH}
    return {**said, "env": {"RANK": str(rank), "LOCAL_RANK": str(local)}, **more}


def make_order(code: str = "", ranks: int = 1, **more: Any) -> dict[str, Any]:
    """An order to launch ranks that run a piece of shell, on host w/0 unless another is named."""
    host = more.pop("host", "w/0")
    first = more.pop("first", 0)
    streams = {key: more.pop(key) for key in ("files", "shown") if key in more}
    return {
        "op": "launch",
        "id": "T.0",
        "host": host,
        "argv": ["sh", "-c", code],
        "env": {},
        "cwd": "",
        "log_dir": None,
        "errors": True,
        "folder": f"run_{host.replace('/', '_')}",
        "attempt": 0,
        "filters": {"out": [], "err": []},
        "numa": None,
        "virtual": False,
        "ranks": [make_rank(first + local, local, **streams) for local in range(ranks)],
        **more,
    }


class Machine:
    """Hosts w/0 and w/1, and a loop that runs while somebody waits for something."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.told: list[tuple[str, Message]] = []
        """What clients were told: which client, and what."""
        self.news: list[Message] = []
        """What everybody was told."""
        self.loop = asyncio.new_event_loop()
        self.fleet = Fleet(folder, make_start(folder, "w/0", "w/1", **env), self.news.append)
        self.gangs = Gangs(self.fleet, folder, lambda *words: self.told.append(words))
        self.loop.add_signal_handler(signal.SIGCHLD, self.fleet.reap)
        become_subreaper(True)

    def do(self, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Have something done where the loop runs."""

        async def call() -> Any:
            return work(*args, **more)

        return self.loop.run_until_complete(call())

    def launch(self, code: str = "", ranks: int = 1, **more: Any) -> Message:
        """Launch ranks that run a piece of shell, for client «me»; the answer."""
        order = make_order(code, ranks, **more)
        before = len(self.told)
        self.do(self.gangs.launch, "me", order)
        [answer] = [message for _, message in self.told[before:] if message["ev"] == "launched"]
        return answer

    def order(self, op: str, **more: Any) -> None:
        """Give an order about the gang."""
        order = {"op": op, "id": "T.0", "host": "w/0", **more}
        self.do(getattr(self.gangs, op), "me", order)

    def halt(self, name: str = "SIGTERM", grace_s: float = 30.0, **more: Any) -> None:
        """Halt the gang."""
        self.order("halt", signal=name, grace_s=grace_s, **more)

    def until(self, true: Callable[[], Any]) -> None:
        """Let the loop run until something is true."""
        deadline_s = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < deadline_s, f"it did not come true: {self.told}"
            self.rest(0.005)

    def rest(self, seconds: float) -> None:
        """Let the loop run for a while."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def exits(self, count: int = 1) -> list[Message]:
        """What is told of ranks that ended, once so many have."""

        def found() -> list[Message]:
            return [message for _, message in self.told if message["ev"] == "rank-exit"]

        self.until(lambda: len(found()) >= count)
        return found()

    def codes(self, count: int = 1) -> dict[int, int]:
        """How so many ranks ended."""
        return {message["rank"]: message["code"] for message in self.exits(count)}

    def lines(self, stream: str = "out") -> list[tuple[str, str]]:
        """What clients were told that ranks printed: which rank, and a line."""
        outs = [message for _, message in self.told if message["ev"] == "out"]
        return [
            (message["rank"], line)
            for message in outs
            if message["stream"] == stream
            for line in message["lines"]
        ]

    def up(self, name: str = "up") -> None:
        """Wait until a rank has made a file."""
        self.until((self.folder / name).exists)

    @property
    def processes(self) -> list[int]:
        """All processes that ranks have started, and that live."""
        mark = f"MILKWEED_RUN={self.folder}".encode()
        return [pid for pid in children.tree([os.getpid()]) if _carries(pid, mark)]

    def close(self) -> None:
        """End everything."""
        for client in list(self.gangs._ports):
            self.gangs._release(client)
        self.until(self._end)
        for entry in self.fleet._hosts.values():
            entry.log.close()
        self.loop.close()
        become_subreaper(False)

    def _end(self) -> bool:
        left = {*self.fleet._children, *self.processes}
        children.send(left, signal.SIGKILL)
        open_ = [output for output in self.fleet._outputs if output.read_fd >= 0]
        return not left and not open_


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False

"""An image's steps on this host: done one after another, for one client at a time, and remembered.

What steps set and install is there for whatever starts afterwards: later steps, commands, procs, hosts. Where a
host serves already, some things stay as they are until it is started again: its server's own variables, and what
the keeper has imported, which procs have from it: the engine's library and the packages that it needs (see
`warm`). So a step that installs another engine wants new hosts.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from . import children, files, installing, leaving, wire
from .children import Child, Lines, Output
from .clients import Client
from .fleet import Fleet
from .pipe import Pipe

ALIVE_S = 5.0
"""How often those who wait hear that there is still somebody here."""
HELD = "its image's steps have not been done yet"


class Done(NamedTuple):
    """A step that went well."""

    digest: str
    env: dict[str, str]
    cwd: str = ""


@dataclass(eq=False, repr=False)
class Claim:
    """A client that wants to change this host, or does."""

    client: Client
    who: str
    granted: bool = False


@dataclass(eq=False, repr=False)
class Work:
    """What is being done now."""

    claim: Claim
    id: int
    number: int
    """The number of the step; -1 for folders that are only kept alike."""
    digest: str
    text: str
    child: Child
    pipe: Pipe | None = None
    tail: list[str] = field(default_factory=list[str])
    began_s: float = field(default_factory=time.monotonic)


class Steps:
    """Takes orders about steps: `claim`, `step`, `files`, `release`."""

    def __init__(self, run: Path, fleet: Fleet, is_held: Callable[[], bool]) -> None:
        self._run = run
        self._is_held = is_held
        self._fleet = fleet
        self._own_cwd = fleet.cwd
        self._line: list[Claim] = []
        self._work: Work | None = None
        self._ticking = False
        self._done = _load(run / wire.STEPS_FILE)
        self.fresh = False
        """Whether something was done that the keeper has not taken notice of."""
        self._apply()

    def take(self, client: Client, message: Mapping[str, Any]) -> None:
        """Carry out an order."""
        getattr(self, message["op"])(client, message)

    # Who may change this host

    def claim(self, client: Client, message: Mapping[str, Any]) -> None:
        """Get in line: whoever is first may change this host, until it releases it or goes."""
        if not any(claim.client is client for claim in self._line):
            self._line.append(Claim(client, str(message.get("client", ""))))
        self._advance()
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(ALIVE_S, self._tick)

    def release(self, client: Client, _message: Mapping[str, Any]) -> None:
        """Let the next one in line."""
        self.gone(client)

    def gone(self, client: Client) -> None:
        """A client has left: what it had begun is ended, and counts as not done."""
        self._line = [claim for claim in self._line if claim.client is not client]
        if self._work and self._work.claim.client is client:
            self._fleet.end([self._work.child])
            if self._work.pipe:
                self._work.pipe.close()
        self._advance()

    def _advance(self) -> None:
        """The first in line has the host once nothing of the one before runs; the others hear what is done."""
        if self._line and self._work is None and not self._line[0].granted:
            self._line[0].granted = True
            answer = {"ev": "claimed", "done": [done.digest for done in self._done]}
            self._line[0].client.send(
                {**answer, "held": self._is_held(), "hosts": self._fleet.labels}
            )
        for claim in self._line:
            if not claim.granted:
                claim.client.send({"ev": "busy", **self._describe()})

    def _describe(self) -> dict[str, Any]:
        who = self._line[0].who if self._line[0].granted else "a client that has gone"
        work = self._work
        for_s = time.monotonic() - work.began_s if work else 0.0
        return {"who": who, "text": work.text if work else "", "for_s": round(for_s, 1)}

    def _tick(self) -> None:
        self._ticking = bool(self._line)
        if self._line:
            asyncio.get_running_loop().call_later(ALIVE_S, self._tick)
            if self._line[0].granted:
                self._line[0].client.send({"ev": "alive"})
            self._advance()

    def _holder(self, client: Client) -> Claim:
        if not self._line or self._line[0].client is not client or not self._line[0].granted:
            raise ValueError("claim this host first: another client may be changing it")
        return self._line[0]

    # Steps

    def step(self, client: Client, message: Mapping[str, Any]) -> None:
        """Do one step; what comes after it is no longer done."""
        claim = self._holder(client)
        kind, text = str(message["kind"]), str(message["text"])
        self._forget_from(int(message["number"]))
        env = self._env()
        if kind in {"run", "pip"}:
            self._start(claim, message, lambda _fd: installing.run(kind, text, env), env)
            return
        code, tail = 0, list[str]()
        try:
            self._remember(self._settle(kind, text, str(message["digest"]), env))
        except (OSError, ValueError) as error:
            code, tail = 1, [str(error)]
        shown = text.partition("=")[0] if kind == "env" else text  # values may be secrets
        self._fleet.log([f"milkweed: {kind} {shown}", *tail])
        client.send({"ev": "step-exit", "id": message["id"], "code": code, "tail": tail})

    def _env(self) -> dict[str, str]:
        """What a step has in its environment: all that a host has."""
        entries = map(self._fleet.entry, self._fleet.labels)
        envs = [self._fleet.host_env(entry) for entry in entries if entry]
        return envs[0] if envs else {**os.environ, **self._fleet.image_env}

    def _settle(self, kind: str, text: str, digest: str, env: Mapping[str, str]) -> Done:
        """A step that needs no process."""
        if kind == "env":
            return Done(digest, installing.read_env(text, env))
        if kind != "workdir":
            raise ValueError(f"this host knows no steps of kind {kind!r}: it has another milkweed")
        cwd = os.path.normpath(installing.resolve(text, env, self._fleet.cwd))
        os.makedirs(cwd, exist_ok=True)
        return Done(digest, {}, cwd)

    def files(self, client: Client, message: Mapping[str, Any]) -> None:
        """Receive files, in a child that answers for itself."""
        claim = self._holder(client)
        if message["do"] != "begin":
            if self._work and self._work.pipe and self._work.id == message["id"]:
                self._work.pipe.write(client.line)
            return
        if message["number"] >= 0:
            self._forget_from(int(message["number"]))
        env = self._env()
        begin = {**message, "dest": installing.resolve(message["dest"], env, self._fleet.cwd)}

        def answer(said: dict[str, Any]) -> None:
            client.send({**said, "ev": "files", "id": message["id"]})

        pipe = Pipe(answer)
        self._start(claim, message, lambda fd: files.receive(fd, begin, self._run), env, pipe)
        pipe.close_far()

    def _start(
        self,
        claim: Claim,
        message: Mapping[str, Any],
        run: Callable[[int], int],
        env: Mapping[str, str],
        pipe: Pipe | None = None,
    ) -> None:
        child = Child("step", "image", 0)
        digest, text = str(message["digest"]), str(message["text"])
        work = Work(claim, int(message["id"]), int(message["number"]), digest, text, child, pipe)
        outputs = (self._output(work, "out"), self._output(work, "err"))
        child.on_exit = lambda status: self._ended(work, outputs, status)
        self._fleet.log([f"milkweed: {text}"])
        cwd = self._fleet.cwd
        self._fleet.fork(child, run, outputs, env=env, cwd=cwd, keep_fd=pipe.far_fd if pipe else -1)
        self._work = work
        self._explain(f"its image's steps are being done: {text}")
        self._advance()

    def _output(self, work: Work, stream: str) -> Output:
        def take(lines: list[str]) -> None:
            self._fleet.log(lines)
            work.tail = [*work.tail, *lines][-children.TAIL_LINES :]
            if self._work is work:  # what a step leaves running goes on to write into the log
                message = {"ev": "step-out", "id": work.id, "stream": stream, "lines": lines}
                work.claim.client.send(message)

        return Output(Lines(take))

    def _ended(self, work: Work, outputs: tuple[Output, Output], status: int) -> None:
        for output in outputs:
            output.drain()
        if work.pipe:
            work.pipe.drain()
            work.pipe.close()
        code = children.decode_status(status)
        self.fresh = True
        if code == 0 and work.number >= 0:
            self._remember(Done(work.digest, {}))
        self._work = None
        how = children.describe_exit(code)
        self._explain(f"a step of its image failed, {how}: {work.text}" if code else HELD)
        exit_ = {"ev": "step-exit", "id": work.id, "code": code, "tail": work.tail}
        work.claim.client.send(exit_)
        self._advance()

    def _explain(self, why: str) -> None:
        """While hosts are held, their status tells how far it is."""
        if self._is_held():
            self._fleet.hold(why.partition("\n")[0])

    # What is done

    def _forget_from(self, number: int) -> None:
        if self._work is not None:
            raise ValueError("a step is being done already: wait for its end")
        if not 0 <= number <= len(self._done):
            raise ValueError(f"step {number} cannot be done: {len(self._done)} are done so far")
        if number < len(self._done):
            del self._done[number:]
            self._save()

    def _remember(self, done: Done) -> None:
        self._done.append(done)
        self._save()

    def _save(self) -> None:
        leaving.save(self._run / wire.STEPS_FILE, [done._asdict() for done in self._done])
        self._apply()

    def _apply(self) -> None:
        """Whatever starts from now on has the variables and the folder that the steps so far have set."""
        env: dict[str, str] = {}
        cwd = self._own_cwd
        for done in self._done:
            env |= done.env
            cwd = done.cwd or cwd
        self._fleet.image_env, self._fleet.cwd = env, cwd


def _load(path: Path) -> list[Done]:
    try:
        return [Done(**done) for done in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):
        return []

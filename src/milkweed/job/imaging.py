"""Bringing hosts to what their image says: steps from the first that changed, folders, and then the start."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from ..control import Connection, parse_door
from ..errors import BackendError, DeadlineError, StepFailedError, UnreachableError
from ..image import Image, Line, Step, first_changed, parse_copy
from ..units import render_duration
from ..worker.installing import PIP
from .progress import Progress
from .sending import Folder, Source, Talk, load_source, send_source

__all__ = ["Folder", "ensure_images"]

AT_ONCE = 32
TRIES = 3
"""How often a host is tried whose connection breaks meanwhile; it goes on where it was."""
RETRY_S = 1.0
PATIENCE_S = 60.0
"""How long a host may be silent: its keeper says every few seconds that it is there."""
_REFUSED_HINT = "call state() again; if it is refused again, `milkweed logs` has what the host says"
_LOOK_S = 0.2

Message = Mapping[str, Any]
Hear = Callable[[str, Sequence[str]], None]
"""Is given what steps print: the host and some lines; called from several threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What a host should become."""

    steps: tuple[Step, ...]
    sources: Mapping[str, Source]
    """What COPY steps copy, by their text."""
    folders: tuple[tuple[Folder, Source], ...]


def ensure_images(
    images: Mapping[str, Image | None],
    *,
    folders: Sequence[Folder] = (),
    job: str = "",
    deadline_s: float | None = None,
    hear: Hear | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Bring every host to its image, and start those that were held; nothing is done twice.

    `images` has the control address of every host. Hosts are started when all are as they should be: a step that
    fails raises StepFailedError, and what went well stays as it is. Hosts that serve already go on: see
    `worker.steps` for what does not change on them.
    """
    targets = _make_targets(images, folders)
    everyone = _Everyone(
        progress=Progress(
            f"preparing hosts of job {job!r}" if job else "preparing hosts", clock=clock
        ),
        deadline_s=deadline_s,
        clock=clock,
        hear=hear,
    )
    visits = [_Visit(address, target, everyone) for address, target in targets.items()]
    everyone.do([visit.bring for visit in visits], "are as they should be")
    everyone.do([visit.start for visit in visits if visit.wants_start], "were told to start")


def _make_targets(
    images: Mapping[str, Image | None], folders: Sequence[Folder]
) -> dict[str, _Target]:
    """What is read of this machine is read once, however many hosts there are."""
    mirrors = tuple((each, load_source(each.source, gitignore=True)) for each in folders)
    made: dict[Image | None, _Target] = {}
    for image in images.values():
        if image not in made:
            made[image] = _make_target(image, mirrors)
    return {address: made[image] for address, image in images.items()}


def _make_target(image: Image | None, mirrors: tuple[tuple[Folder, Source], ...]) -> _Target:
    lines = image.lines if image else ()
    sources = {line.text: _load_copy(line) for line in lines if line.kind == "copy"}
    # An image asks by name: two lines may copy one folder, with and without its own name.
    named = {parse_copy(line).source: sources[line.text] for line in lines if line.kind == "copy"}
    steps = image.steps_with(lambda source: named[source].summary) if image else ()
    return _Target(steps=steps, sources=sources, folders=mirrors)


def _load_copy(line: Line) -> Source:
    copy = parse_copy(line)
    return load_source(copy.source, contents=copy.contents)


def describe_step(step: Line) -> str:
    """A step as it was written, without a variable's value."""
    if step.kind == "copy":
        copy = parse_copy(step)
        return f"copy {copy.source} to {copy.dest}"
    if step.kind == "env":
        return f"set {step.text.partition('=')[0]}"
    if step.kind == "workdir":
        return f"go to {step.text}"
    default = f"{shlex.join(PIP)} "
    if step.kind == "pip" and step.text.startswith(default):
        return f"pip install {step.text.removeprefix(default)}"
    return step.text


def first_line(text: str) -> str:
    """The beginning of a text, for a line about many hosts."""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= 60 else f"{first[:59]}…"


def _own_name() -> str:
    """Who is at work, for those who wait."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"


@dataclass
class _Everyone:
    """All hosts at once, and how each of them stands."""

    progress: Progress
    deadline_s: float | None
    clock: Callable[[], float]
    hear: Hear | None
    standing: dict[str, str] = field(default_factory=dict[str, str])
    given_up: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connections: set[Connection] = field(default_factory=set[Connection])

    def do(self, works: Sequence[Callable[[], None]], then: str) -> None:
        """Do it for all, some at a time; the first that fails ends it for the others."""
        if not works:
            return
        pool = ThreadPoolExecutor(min(AT_ONCE, len(works)), thread_name_prefix="milkweed-image")
        try:
            futures = [pool.submit(work) for work in works]
            self._watch(futures, then)
        finally:
            self._give_up()
            pool.shutdown(cancel_futures=True)
        self.given_up.clear()
        _raise_first(futures)

    def _watch(self, futures: Sequence[Future[None]], then: str) -> None:
        left = set(futures)
        while left:
            done, left = wait(left, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                return
            now = next(iter(list(self.standing.values())), "")
            ready = f"{len(futures) - len(left)} of {len(futures)} {then}"
            self.progress.see(f"{ready}; {now}" if now else ready)
            self._check_deadline(ready)

    def _check_deadline(self, seen: str) -> None:
        if self.deadline_s is not None and self.clock() >= self.deadline_s:
            raise DeadlineError(
                f"the steps of an image were not done after {render_duration(self.progress.waited_s)}",
                seen="\n".join([seen, *list(self.standing.values())[:3]]),
                hint="the hosts are still there, and what was done is kept: start again to go on",
            )

    def _give_up(self) -> None:
        """Have those who wait for a host stop; the host ends what it had begun."""
        with self.lock:
            self.given_up.set()
            for connection in self.connections:
                connection.hang_up()


def _raise_first(futures: Sequence[Future[None]]) -> None:
    """Raise what went wrong first; hosts that were given up for it are no news."""
    failed = [future for future in futures if not future.cancelled() and future.exception()]
    errors = [
        error for future in failed if not isinstance(error := future.exception(), _GivenUpError)
    ]
    if not errors or errors[0] is None:
        return
    steps = [error for error in errors if isinstance(error, StepFailedError)]
    if len(steps) > 1:
        steps[0].what += f" ({len(steps) - 1} more failed)"
    raise next(iter(steps), errors[0])


class _GivenUpError(Exception):
    """Another host has failed."""


class _Visit:
    """One host: what it has, and bringing it the rest."""

    def __init__(self, address: str, target: _Target, everyone: _Everyone) -> None:
        self._address = address
        self._target = target
        self._everyone = everyone
        self._host = parse_door(address).host
        self._id = 0
        self.wants_start = True

    # One connection after another

    def bring(self) -> None:
        """Do what is lacking; a connection that breaks is tried again."""
        if not self._target.steps and not self._target.folders:
            return
        self._try(self._bring)

    def start(self) -> None:
        """Have a host start that was held; one that was not only takes notice of what is new."""
        self._try(
            lambda connection: connection.ask({"op": "start"}, "status", timeout_s=PATIENCE_S)
        )

    def _try(self, work: Callable[[Connection], object]) -> None:
        for left in reversed(range(TRIES)):
            try:
                with Connection(self._address) as connection:
                    self._use(connection, work)
            except (UnreachableError, DeadlineError) as error:
                if self._everyone.given_up.wait(RETRY_S if left else 0):
                    raise _GivenUpError from error
                if not left:
                    raise
            else:
                return
            finally:
                self._stands("")

    def _use(self, connection: Connection, work: Callable[[Connection], object]) -> None:
        everyone = self._everyone
        with everyone.lock:
            if everyone.given_up.is_set():
                raise _GivenUpError
            everyone.connections.add(connection)
        try:
            work(connection)
        finally:
            with everyone.lock:
                everyone.connections.discard(connection)

    def _stands(self, text: str) -> None:
        if text:
            self._everyone.standing[self._address] = f"{self._host or 'a host'}: {text}"
        else:
            self._everyone.standing.pop(self._address, None)

    # What is done on one connection

    def _bring(self, connection: Connection) -> None:
        claimed = self._claim(connection)
        steps = self._target.steps
        known = [Step(kind="run", text="", digest=digest) for digest in claimed["done"]]
        first = first_changed(known, steps)
        self.wants_start = claimed["held"] or first < len(steps) or bool(self._target.folders)
        for number in range(first, len(steps)):
            self._do(connection, number)
        for folder, source in self._target.folders:
            text = f"sync {folder.source} to {folder.dest}"
            order = {"dest": folder.dest, "mirror": True, "single": "", "number": -1, "digest": ""}
            self._send(connection, source, {**order, "text": text}, text)
        connection.send({"op": "release"})

    def _claim(self, connection: Connection) -> Message:
        """Wait for those who were first; what they did counts."""
        connection.send({"op": "claim", "client": _own_name()})
        while (message := self._receive(connection))["ev"] != "claimed":
            if message["ev"] == "busy":
                doing = f": {first_line(message['text'])}" if message["text"] else ""
                self._stands(f"waits for {message['who']}{doing}")
        self._host = self._host or ", ".join(message["hosts"])
        return message

    def _receive(self, connection: Connection) -> Message:
        message = connection.receive(PATIENCE_S)
        if message is None:
            raise UnreachableError(f"the keeper of host {self._host} closed the connection")
        if message["ev"] == "error":
            raise BackendError(
                f"host {self._host} refused an order", seen=str(message["what"]), hint=_REFUSED_HINT
            )
        return message

    def _do(self, connection: Connection, number: int) -> None:
        step = self._target.steps[number]
        what = f"step {number + 1} of {len(self._target.steps)}"
        words = describe_step(step)
        self._stands(f"{what}: {first_line(words)}")
        order = {"number": number, "digest": step.digest}
        if step.kind == "copy":
            copy, source = parse_copy(step), self._target.sources[step.text]
            order |= {"dest": copy.dest, "mirror": False, "single": source.single, "text": words}
            self._send(connection, source, order, what)
            return
        self._id += 1
        order |= {"op": "step", "id": self._id, "kind": step.kind, "text": step.text}
        connection.send(order)
        self._finish(connection, what, words)

    def _send(self, connection: Connection, source: Source, order: Message, what: str) -> None:
        """Send files; the host answers for each piece, so that nothing piles up."""
        self._id += 1
        head = {"op": "files", "id": self._id}
        self._stands(f"{what}: {first_line(order['text'])}")
        connection.send({**order, **head, "do": "begin"})
        talk = Talk(
            send=lambda message: connection.send({**message, **head}),
            wait=lambda: self._answer(connection, what, order["text"]),
        )
        try:
            send_source(source, talk)
        except OSError as error:
            raise self._failed(what, order["text"], 1, [str(error)]) from error
        self._finish(connection, what, order["text"])

    def _answer(self, connection: Connection, what: str, words: str) -> Message:
        """The next answer about files; an end before is a failure."""
        while True:
            message = self._receive(connection)
            if message["ev"] == "files":
                return message
            if message["ev"] == "step-exit":
                raise self._failed(what, words, message["code"] or 1, message["tail"])

    def _finish(self, connection: Connection, what: str, words: str) -> None:
        """Hear what a step prints, until it ends."""
        while (message := self._receive(connection))["ev"] != "step-exit":
            if message["ev"] == "step-out" and self._everyone.hear:
                self._everyone.hear(self._host, message["lines"])
        if message["code"]:
            raise self._failed(what, words, message["code"], message["tail"])

    def _failed(self, what: str, words: str, code: int, tail: Sequence[str]) -> StepFailedError:
        ended = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        which = "" if what == words else f": {words}"
        error = StepFailedError(
            f"{what} failed on host {self._host} {ended}{which}",
            seen="\n".join(tail) or "it wrote nothing",
            hint="correct the step and start again: the hosts are still there, and steps before it are not "
            "done twice",
        )
        error.host, error.step, error.exit_code = self._host, words, code
        return error

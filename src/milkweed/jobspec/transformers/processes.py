"""Processes of this machine for the steps of a run: started, watched without asking, ended with all they began."""

from __future__ import annotations

import heapq
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ... import identity
from ...options import Data
from ..driver import Wake
from ..progress import StepStatus, ended

GRACE_S = 2.0
TIMED_OUT = 124
NOT_FOUND = 127
NOT_RUNNABLE = 126
MARK_ENV = "MILKWEED_JOBSPEC_MARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process to start."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    output: str
    error: str | None = None
    """Where its errors go; None: where its output goes."""
    label: str = ""


@dataclass
class _Crew:
    """The processes of one step."""

    step_id: str
    members: dict[int, subprocess.Popen[bytes]] = field(
        default_factory=dict[int, "subprocess.Popen[bytes]"]
    )
    """Those that have not ended, by pidfd."""
    leaders: list[int] = field(default_factory=list[int])
    """The process groups of those that have not ended, and of those that have."""
    code: int = 0
    reason: str = ""


class Pool:
    """All processes of a run that this process has started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._crews: dict[str, _Crew] = {}
        self._by_fd: dict[int, _Crew] = {}
        self._deadlines: list[tuple[float, str, int]] = []
        """When which step gets which signal."""
        self._ended: dict[str, StepStatus] = {}

    def __len__(self) -> int:
        """How many processes run."""
        return len(self._by_fd)

    def knows(self, step_id: str) -> bool:
        """Whether the processes of a step are children of this one."""
        return step_id in self._crews or step_id in self._ended

    def start(self, step_id: str, commands: Sequence[Command], limit_s: float | None) -> list[Data]:
        """Start the processes of a step; who they are. What cannot be started ends the step with a code."""
        crew = self._crews[step_id] = _Crew(step_id)
        found: list[Data] = []
        for command in commands:
            try:
                process = _spawn(command)
            except OSError as error:
                self._fail(crew, command, error)
                break
            found.append(identity.process(process.pid) or {"pid": process.pid})
            self._watch(crew, process)
        if limit_s is not None:
            heapq.heappush(self._deadlines, (self._clock() + limit_s, step_id, signal.SIGTERM))
        self._settle(crew)
        return found

    def _watch(self, crew: _Crew, process: subprocess.Popen[bytes]) -> None:
        fd = os.pidfd_open(process.pid)
        crew.members[fd] = process
        crew.leaders.append(process.pid)
        self._by_fd[fd] = crew
        self._epoll.register(fd, select.EPOLLIN)

    def _fail(self, crew: _Crew, command: Command, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError) and error.filename != command.cwd
        crew.code = NOT_FOUND if missing else NOT_RUNNABLE
        crew.reason = f"{error.strerror}: {error.filename}"
        self._signal(crew, signal.SIGKILL)

    def wait(self, wake: Wake, timeout_s: float) -> dict[str, StepStatus]:
        """The steps that ended, as soon as one has."""
        if not self._ended:
            self._epoll.register(wake.fileno(), select.EPOLLIN)
            try:
                events = self._epoll.poll(self._patience(timeout_s), 256)
            finally:
                self._epoll.unregister(wake.fileno())
            for fd, _ in events:
                if fd in self._by_fd:
                    self._reap(fd)
            self._keep_limits()
        found, self._ended = self._ended, {}
        return found

    def _patience(self, timeout_s: float) -> float:
        if not self._deadlines:
            return timeout_s
        return max(0.0, min(timeout_s, self._deadlines[0][0] - self._clock()))

    def _reap(self, fd: int) -> None:
        crew = self._by_fd.pop(fd)
        self._epoll.unregister(fd)
        os.close(fd)
        code = crew.members.pop(fd).wait()
        code = 128 - code if code < 0 else code
        if not crew.reason:
            crew.code = max(crew.code, code)
        self._settle(crew)

    def _settle(self, crew: _Crew) -> None:
        if not crew.members and crew.step_id in self._crews:
            del self._crews[crew.step_id]
            self._ended[crew.step_id] = ended(crew.code, crew.reason)

    def _keep_limits(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, step_id, number = heapq.heappop(self._deadlines)
            crew = self._crews.get(step_id)
            if crew is None:
                continue
            if not crew.reason:
                crew.code, crew.reason = TIMED_OUT, "its time limit passed"
            self._signal(crew, signal.Signals(number))
            if number == signal.SIGTERM:
                again_s = self._clock() + GRACE_S
                heapq.heappush(self._deadlines, (again_s, step_id, signal.SIGKILL))

    def _signal(self, crew: _Crew, number: signal.Signals) -> None:
        """Signal the process groups of those that have not ended: their numbers cannot be anybody else's."""
        for process in crew.members.values():
            _signal_group(process.pid, number)

    def end(self, step_ids: Sequence[str]) -> None:
        """End the processes of steps: asked first, made to after a while."""
        crews = [self._crews[each] for each in step_ids if each in self._crews]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for crew in crews:
                self._signal(crew, number)
            self._wait_for(crews, self._clock() + GRACE_S)

    def _wait_for(self, crews: Sequence[_Crew], until_s: float) -> None:
        while any(crew.members for crew in crews) and (left_s := until_s - self._clock()) > 0:
            for fd, _ in self._epoll.poll(left_s, 256):
                if fd in self._by_fd:
                    self._reap(fd)

    def close(self) -> None:
        """Let the kernel's objects go."""
        self._epoll.close()


def _spawn(command: Command) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    out = os.open(command.output, flags, 0o600)
    try:
        err = out if command.error is None else os.open(command.error, flags, 0o600)
        try:
            return subprocess.Popen(  # noqa: S603  the person's own command, word for word
                command.argv,
                cwd=command.cwd,
                env=command.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        finally:
            if err != out:
                os.close(err)
    finally:
        os.close(out)


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def find_marked(mark: str) -> list[dict[str, Data]]:
    """The processes of this user whose variables carry a mark, or a mark that begins so."""
    wanted = f"{MARK_ENV}=".encode()
    found: list[dict[str, Data]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue
        marks = [each for each in environ.split(b"\0") if each.startswith(wanted)]
        words = b" ".join(marks).removeprefix(wanted).decode(errors="replace").split(" ")
        if any(word == mark or (mark.endswith(":") and word.startswith(mark)) for word in words):
            process = identity.process(int(folder.name))
            if process is not None and process["pid"] != os.getpid():
                found.append(process)
    return found


def end_marked(mark: str, *, sleep: Callable[[float], None] = time.sleep) -> int:
    """End every process that carries a mark, however it was started; how many there were."""
    count = 0
    for number, rounds in ((signal.SIGTERM, 40), (signal.SIGKILL, 40)):
        left = find_marked(mark)
        count = max(count, len(left))
        for process in left:
            identity.send_signal(process, number)
        for _ in range(rounds):
            if not any(identity.is_running(process) for process in left):
                break
            sleep(GRACE_S / rounds)
    return count

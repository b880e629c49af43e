"""Hosts that are processes of this machine, all kept by one warm parent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .. import identity
from ..control import Connection
from ..errors import (
    BackendError,
    DeadlineError,
    MilkweedError,
    UnreachableError,
)
from ..hosts import Host
from ..logs import read_tail
from ..option_tables import PROCESS_OPTIONS
from ..options import OptionField
from ..spec import JobSpec
from ..state import check_machine, save_private
from ..status import Liveness, Status
from ..worker import wire
from .base import Capabilities, Handle, LogLine, Request
from .keepers import Answer, follow_hosts, make_host, make_status, read_tails
from .process_start import ensure_credentials, make_start

STOP_TIMEOUT_S = 15.0


def runs_folder() -> Path:
    """Where this user's run folders are: short, because names of sockets may have 107 bytes only."""
    return Path("/tmp") / f"milkweed-{os.getuid()}"  # noqa: S108  the folder is checked to be ours and 0700


def run_folder(apply_id: str) -> Path:
    """Follows from the id alone, so that an allocation is found with its handle lost."""
    return runs_folder() / apply_id.replace("-", "")[:16]


class ProcessBackend:
    """Local processes standing in for hosts."""

    name: ClassVar[str] = "process"
    capabilities: ClassVar[Capabilities] = Capabilities(
        queued=False, batch=True, machine_bound=True
    )
    OPTIONS: ClassVar[Mapping[str, OptionField]] = PROCESS_OPTIONS

    def validate(self, spec: JobSpec) -> None:
        """A machine can start any number of processes; what else is asked was checked with the spec."""

    def submit(self, request: Request) -> Handle:
        """Start the keeper, which starts the hosts."""
        from ..private import ensure_private_folder

        ensure_private_folder(runs_folder())
        run = run_folder(request.apply_id)
        lock_fd = self._claim(run)
        try:
            start = make_start(request, run, hosts=self._has_hosts)
            ensure_credentials(start, run, request.apply_id)
            _save(run / wire.START_FILE, start)
            python = request.spec.options.get("python_exe") or sys.executable
            with _uninterrupted():
                keeper = _start_keeper(python, run, lock_fd)
                _save(run / wire.KEEPER_FILE, keeper)
        except MilkweedError:
            shutil.rmtree(run, ignore_errors=True)
            raise
        finally:
            os.close(lock_fd)
        return self._handle(run, keeper, start)

    _has_hosts: ClassVar[bool] = True

    def _claim(self, run: Path) -> int:
        """Make the folder anew; what a crash left there is dead, since nobody holds its lock."""
        if run.exists():
            if _is_locked(run):
                raise BackendError(
                    f"the run folder {run} is in use",
                    hint="another program is starting these hosts: try again in a moment",
                )
            shutil.rmtree(run)
        run.mkdir(mode=0o700)
        for name in (wire.SOCKET_FOLDER, wire.LOG_FOLDER):
            (run / name).mkdir(mode=0o700)
        fd = os.open(run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def _handle(self, run: Path, keeper: Mapping[str, Any], start: Mapping[str, Any]) -> Handle:
        return {
            "run": str(run),
            "keeper": dict(keeper),
            "machine": identity.machine(),
            "logs": start["logs"],
            "credentials": start["credentials"],
            "hosts": [
                {key: host[key] for key in ("mesh", "rank", "log")} for host in start["hosts"]
            ],
        }

    def find(self, apply_id: str) -> Handle | None:
        """Look into the folder that follows from the id; its lock is held as long as its keeper lives."""
        run = run_folder(apply_id)
        start_file = run / wire.START_FILE
        if not start_file.exists() or not (_is_locked(run) or (run / wire.ENDED_FILE).exists()):
            return None
        keeper_file = run / wire.KEEPER_FILE
        start = json.loads(start_file.read_text())
        if keeper_file.exists():
            return self._handle(run, json.loads(keeper_file.read_text()), start)
        try:
            with Connection(_control(run)) as connection:
                pid = connection.ask({"op": "status"}, "status")["pid"]
        except (UnreachableError, DeadlineError) as error:
            raise UnreachableError(
                "hosts are being started and do not answer yet", seen=error.seen
            ) from error
        keeper = identity.process(pid)
        if keeper is None:
            raise UnreachableError("the hosts' keeper ended while it was looked for")
        return self._handle(run, keeper, start)

    def poll(self, handle: Handle) -> Status:
        """Ask the keeper; when its process is gone, read what it left."""
        check_machine(handle["machine"])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(handle["keeper"]["pid"], os.WNOHANG)
        run = Path(handle["run"])
        if not identity.is_running(handle["keeper"]):
            return _ended(run, handle)
        try:
            with Connection(_control(run)) as connection:
                answer = connection.ask({"op": "status"}, "status")
        except DeadlineError as error:
            return Status(liveness=Liveness.UNKNOWN, reason=error.what)
        except UnreachableError as error:
            if (run / wire.CONTROL_SOCKET).exists() and identity.is_running(handle["keeper"]):
                return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what)
            if not identity.is_running(handle["keeper"]):
                return _ended(run, handle)
            return Status(liveness=Liveness.PENDING, reason="the hosts are being started")
        if answer["stopping"]:
            return Status(liveness=Liveness.RUNNING, reason="it is being stopped")
        return Status(
            liveness=Liveness.RUNNING, hosts=tuple(make_status(item) for item in answer["hosts"])
        )

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """The hosts, with the addresses their workers serve."""
        check_machine(handle["machine"])
        control = _control(Path(handle["run"]))
        with Connection(control) as connection:
            answer = connection.ask({"op": "status"}, "status")
        return [_host(item, control) for item in answer["hosts"]]

    def controls(self, handle: Handle) -> Sequence[str]:
        """Where the keeper takes orders."""
        return [_control(Path(handle["run"]))]

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """Read each host's file; the client's own in batch mode is `client`."""
        files = {f"{item['mesh']}/{item['rank']}": item["log"] for item in handle["hosts"]}
        files["client"] = f"{handle['logs']}/client.log"

        def alive() -> bool:
            return identity.is_running(handle["keeper"])

        yield from follow_hosts(files, host, follow=follow, alive=alive)

    def last_lines(self, handle: Handle, hosts: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The end of each host's log, which stays when its keeper has ended."""
        logs = {f"{item['mesh']}/{item['rank']}": item["log"] for item in handle["hosts"]}
        return read_tails({host: logs[host] for host in hosts if host in logs})

    def cancel(self, handle: Handle) -> None:
        """Stop the keeper, which stops everything; then remove what is left in files."""
        check_machine(handle["machine"])
        run = Path(handle["run"])
        if run.parent != runs_folder():
            raise BackendError(f"{run} is not a run folder of milkweed", hint="nothing was removed")
        if identity.is_running(handle["keeper"]):
            _stop(run, handle["keeper"])
        _remove(run)

    def forget(self, apply_id: str) -> None:
        """Remove the folder of hosts that were never started; with TLS there may be keys in it."""
        run = run_folder(apply_id)
        if run.exists() and not _is_locked(run):
            _remove(run)


def _save(path: Path, data: Mapping[str, Any]) -> None:
    save_private(path, json.dumps(data).encode(), what=f"the file {path.name} of the hosts' keeper")


@contextlib.contextmanager
def _uninterrupted() -> Generator[None]:
    """Ctrl-C waits for a moment: a keeper that runs must be on record."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


def _remove(run: Path) -> None:
    shutil.rmtree(run, ignore_errors=True)
    with contextlib.suppress(OSError):
        runs_folder().rmdir()


def _control(run: Path) -> str:
    return f"unix://{run / wire.CONTROL_SOCKET}"


_PYTHON_HINT = "say a python_exe that starts on this machine, or leave it out"
# `python -m milkweed.worker RUN_FOLDER`, but for the current folder, which others may write to.
_KEEPER = f"""
{wire.CLOSED_PATH}
import os
sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
from runpy import run_module
run_module("milkweed.worker", run_name="__main__", alter_sys=True)
""".strip()


def _start_keeper(python: str, run: Path, lock_fd: int) -> dict[str, Any]:
    """Start the keeper in a session of its own; it inherits the lock, and holds it as long as it lives."""
    log_path = run / wire.LOG_FOLDER / "keeper.log"
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        pid = os.posix_spawn(
            python,
            [python, "-c", _KEEPER, str(run)],
            _environment(),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, fd, number)
                for number, fd in enumerate((null, log, log, lock_fd))
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
            setsigmask=[],
        )
    except OSError as error:
        raise BackendError(
            f"the hosts' keeper cannot be started with {python}", seen=str(error), hint=_PYTHON_HINT
        ) from error
    finally:
        os.close(log)
        os.close(null)
    keeper = identity.process(pid)
    if keeper is None:
        raise BackendError(
            f"the hosts' keeper, started with {python}, ended at once",
            seen=read_tail(log_path) or "it wrote nothing",
            hint=_PYTHON_HINT,
        )
    return keeper


def _environment() -> dict[str, str]:
    """This process's environment, with this very milkweed importable."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _is_locked(run: Path) -> bool:
    """Whether somebody holds the folder's lock: its keeper, or a client that is about to start it."""
    try:
        fd = os.open(run / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def _ended(run: Path, handle: Handle) -> Status:
    if handle["keeper"]["boot_id"] != identity.boot_id():
        return Status(liveness=Liveness.ENDED, reason="this machine was restarted since")
    try:
        ended = json.loads((run / wire.ENDED_FILE).read_text())
    except (OSError, ValueError):
        tail = read_tail(run / wire.LOG_FOLDER / "keeper.log")
        reason = "its keeper ended without leaving a reason"
        return Status(liveness=Liveness.ENDED, reason=f"{reason}: {tail}" if tail else reason)
    return Status(liveness=Liveness.ENDED, reason=ended["reason"], exit_code=ended.get("exit_code"))


def _host(item: Answer, control: str) -> Host:
    return make_host(item["host"], item, name=item["host"], control=control)


def _wait_gone(keeper: Mapping[str, Any], deadline_s: float) -> bool:
    while identity.is_running(keeper):
        if time.monotonic() >= deadline_s:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(keeper["pid"], os.WNOHANG)
        time.sleep(0.005)
    return True


def _stop(run: Path, keeper: Mapping[str, Any]) -> None:
    """Ask first; a keeper that does not listen is ended, and the kernel ends its children."""
    deadline_s = time.monotonic()
    with (
        contextlib.suppress(UnreachableError, DeadlineError),
        Connection(_control(run)) as connection,
    ):
        connection.send({"op": "stop"})
        deadline_s += STOP_TIMEOUT_S
        while connection.receive(STOP_TIMEOUT_S) is not None:
            pass
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _wait_gone(keeper, deadline_s):
            return
        identity.send_signal(keeper, number)
        deadline_s = time.monotonic() + 3.0
    if _wait_gone(keeper, deadline_s):
        return
    raise BackendError(
        f"the hosts' keeper (process {keeper['pid']}) does not end",
        hint="look at it with `ps`; it may hang in the kernel",
    )

"""Runs on disk: each has a folder of its own, with its plan, its journal, its files, logs and secrets.

The plan is saved before anything is submitted. The journal is appended to, one line a fact, and what it
says is the state: a line that a crash cut short is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from .. import __version__, identity
from ..errors import StateBusyError, StateCorruptError, StateError
from ..private import ensure_private_folder
from ..registry import home
from ..state import ensure_folder, save_private
from .plan import Plan, check_run_id, parse_plan
from .progress import Progress

VERSION = 1
MAX_RUNS = 500
"""From so many runs on, those that were over for MAX_AGE_S are removed whenever one is added."""
MAX_AGE_S = 7 * 86400.0
CLEANED_AT_ONCE = 20
FOLDERS = ("files", "host", "logs", "secrets")
LOCK_TRIES, LOCK_PAUSE_S = 1000, 0.005


class Journal:
    """The facts of a run, one JSON line each."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._fd = -1

    def write(self, event: str, *, durable: bool = False, **facts: Any) -> dict[str, Any]:
        """Add a fact; `durable`: it survives a power loss before this returns."""
        line = {"at": round(self._clock(), 3), "event": event, **facts}
        if self._fd < 0:
            self._open()
        os.write(self._fd, json.dumps(line).encode() + b"\n")
        if durable:
            os.fsync(self._fd)
        return line

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # what a crash cut short must not spoil the next line

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """The whole lines from an offset on, and where the next ones will begin."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return [], offset
        whole = data[: data.rfind(b"\n") + 1]
        return [line for text in whole.splitlines() if (line := _parse_line(text))], offset + len(
            whole
        )


def _parse_line(text: bytes) -> dict[str, Any] | None:
    try:
        line: Any = json.loads(text)
    except ValueError:
        return None
    return line if _is_mapping(line) and "event" in line else None


def _is_mapping(data: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(data, dict)


class Run:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path, *, created: float, cwd: str) -> None:
        self.plan = plan
        self.folder = folder
        self.created = created
        self.cwd = cwd
        """Where it was asked for."""
        self.journal = Journal(folder / "journal.jsonl")

    @property
    def id(self) -> str:
        """Its id."""
        return self.plan.run_id

    @property
    def files(self) -> Path:
        """What write steps wrote."""
        return self.folder / "files"

    @property
    def host(self) -> Path:
        """The folder in which work of this machine runs."""
        return self.folder / "host"

    @property
    def logs(self) -> Path:
        """What work printed."""
        return self.folder / "logs"

    @property
    def secrets(self) -> Path:
        """What auth steps got; gone when the run is over."""
        return self.folder / "secrets"

    def progress(self) -> Progress:
        """What the journal says now."""
        progress = Progress.of(self.plan)
        for line in self.journal.read()[0]:
            progress.add(line)
        return progress

    def last_s(self) -> float:
        """When something was last written down, in seconds since 1970."""
        with contextlib.suppress(OSError):
            return max(self.created, self.journal.path.stat().st_mtime)
        return self.created

    @contextlib.contextmanager
    def hold(self) -> Generator[None]:
        """Be the one who carries the run on; the kernel lets it go with this process."""
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not take_lock(fd):
                raise StateBusyError(
                    f"run {self.id} is carried on by another process",
                    hint="wait for it, or cancel the run",
                )
            data = json.dumps(identity.process(os.getpid())).encode()
            save_private(self.folder / "driver.json", data, what="the record of the driver")
            yield
        finally:
            self.journal.close()
            os.close(fd)

    def driver(self) -> dict[str, Any] | None:
        """The process that carries the run on; None when nobody does."""
        if not self.is_driven():
            return None
        try:
            found: Any = json.loads((self.folder / "driver.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if _is_mapping(found) and identity.is_running(found) else None

    def is_driven(self) -> bool:
        """Whether somebody carries it on."""
        try:
            fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Forget the run; nobody may be carrying it on."""
        with self.hold():
            shutil.rmtree(self.folder, ignore_errors=True)

    def keep_for(self, path: Path) -> None:
        """Let nobody clean the run away while there is a file that tells of it."""
        save_private(self.folder / "kept-for", os.fsencode(path), what="whom a run is kept for")

    def is_kept(self) -> bool:
        """Whether somebody still needs the record."""
        try:
            kept_for = os.fsdecode((self.folder / "kept-for").read_bytes())
        except OSError:
            return False
        return os.path.lexists(kept_for)

    def drop_secrets(self) -> None:
        """No secret stays longer than the steps that need it."""
        shutil.rmtree(self.secrets, ignore_errors=True)


def take_lock(fd: int, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Take a lock alone; False when another has it.

    Those who only look share it for a moment, and are waited for.
    """
    for _ in range(LOCK_TRIES):
        if _try_lock(fd, fcntl.LOCK_EX):
            return True
        if not _try_lock(fd, fcntl.LOCK_SH):
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        sleep(LOCK_PAUSE_S)
    return False


def _try_lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def runs_folder() -> Path:
    """Where the runs of this user are."""
    return home() / "jobspec"


def create_run(plan: Plan, *, clock: Callable[[], float] = time.time) -> Run:
    """Save what is about to be done; a plan is run once."""
    ensure_folder(home())
    folder = ensure_private_folder(runs_folder()) / check_run_id(plan.run_id)
    clean_at_limit(clock=clock)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise StateError(
            f"run {plan.run_id} was started already", hint="render the jobspec anew for another run"
        ) from None
    for name in FOLDERS:
        (folder / name).mkdir(mode=0o700)
    run = Run(plan, folder, created=clock(), cwd=os.getcwd())
    save_private(folder / "run.json", _render_record(run), what=f"the record of run {run.id}")
    return run


def _render_record(run: Run) -> bytes:
    data = {
        "milkweed": "jobspec-run",
        "version": VERSION,
        "written_by": __version__,
        "created": run.created,
        "cwd": run.cwd,
        "machine": identity.machine(),
        "plan": run.plan.to_json(),
    }
    return json.dumps(data, indent=1).encode() + b"\n"


def load_run(folder: Path) -> Run:
    """Read a run back."""
    path = folder / "run.json"
    try:
        data: Any = json.loads(path.read_bytes())
        return _parse_record(data, folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, StateCorruptError) as error:
        raise StateCorruptError(
            f"{path} is not the record of a run",
            seen=f"{type(error).__name__}: {error}",
            hint=f"move {folder} away; what it submitted carries its name",
        ) from error


def _parse_record(data: Any, folder: Path) -> Run:
    if data["milkweed"] != "jobspec-run" or data["version"] != VERSION:
        raise ValueError(f"it has version {data['version']!r}")
    plan = parse_plan(data["plan"])
    if plan.run_id != folder.name:
        raise ValueError(f"it records run {plan.run_id}")
    return Run(plan, folder, created=float(data["created"]), cwd=str(data["cwd"]))


def load_runs() -> list[Run]:
    """All runs, the oldest first; folders that cannot be read are left out here, and named when asked for."""
    found: list[Run] = []
    for path in runs_folder().glob("*/run.json"):
        with contextlib.suppress(StateCorruptError):
            found.append(load_run(path.parent))
    return sorted(found, key=lambda run: run.created)


def clean_at_limit(
    limit: int = MAX_RUNS, age_s: float = MAX_AGE_S, *, clock: Callable[[], float] = time.time
) -> None:
    """Remove old runs that are over, when there are many; whatever cannot be judged at a glance stays."""
    with contextlib.suppress(OSError):
        folders = list(os.scandir(runs_folder()))
        if len(folders) < limit:
            return
        before_s = clock() - age_s
        old = sorted((each.stat().st_mtime, each.path) for each in folders)
        for _, path in [each for each in old if each[0] < before_s][:CLEANED_AT_ONCE]:
            with contextlib.suppress(StateError):
                remove_if_over(load_run(Path(path)), before_s)


def remove_if_over(run: Run, before_s: float) -> bool:
    """Forget a run that was over then, by what its journal says; whether it did."""
    if run.last_s() >= before_s or run.is_kept() or not run.progress().over:
        return False
    run.remove()
    return True


def find_run(name: str) -> Run:
    """The run whose id begins so."""
    folder = runs_folder()
    matches = sorted(path for path in folder.glob("*/") if name and path.name.startswith(name))
    if len(matches) == 1:
        return load_run(matches[0])
    raise StateError(
        f"{len(matches)} runs have an id that begins with {name!r}"
        if matches
        else f"there is no run {name!r}",
        seen=", ".join(path.name for path in matches[:5]),
        hint="give more of the id" if matches else "the runs that are recorded have other ids",
    )


def merge_environment(base: Mapping[str, str], *layers: Mapping[str, str | None]) -> dict[str, str]:
    """Variables, later layers over earlier ones; None takes one away."""
    found: dict[str, str] = dict(base)
    for layer in layers:
        for name, value in layer.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
    return found

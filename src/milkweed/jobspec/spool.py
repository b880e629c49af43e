"""A folder whose files are run, once each, however often whoever looks after it is killed.

A file is claimed by renaming it into `running/`, under a name that holds the id of its run. From then on the id
decides: no record of that run, and nothing was submitted; a record, and the run is carried on as it stands. When
it is over, a text is written into `done/` or `failed/`, and the file follows it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import stat
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import AccessError, MilkweedError, SpecError, StateError, StateForeignError
from ..logs import read_tail
from ..options import Data
from ..registry import home
from ..state import ensure_folder, save_private
from .discovery import load_transformer
from .driver import Wake
from .looking import note_ends
from .progress import Progress, State
from .runner import ensure_driven, start_runner
from .runs import Run, load_run, runs_folder
from .source import load_jobspec

SUFFIXES = (".yaml", ".yml", ".json")
MAX_STARTS = 5
"""How often one service carries on a run whose driver ends before the run does."""
SETTLE_S = 2.0
"""How long a file must have been left alone before it is taken."""
FOLDERS = ("running", "done", "failed")
MARKER = ".served-by"
"""Says with which records a folder is served."""
POINTS = ("seen", "claimed", "rendered", "recorded", "started", "over", "told", "moved")
"""Between any two of them the program may be killed."""
_CLAIMED = re.compile(r"(.+)\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_MAX_STEM = 150


@dataclass(frozen=True, slots=True)
class Claim:
    """A file that was taken."""

    path: Path
    run_id: str

    @property
    def run(self) -> Path:
        """The folder of its run, whether there is one or not."""
        return runs_folder() / self.run_id


def make_claim(path: Path, running: Path, run_id: str) -> Claim:
    """The name of a file that is taken; a file that comes back after a failure loses its old id."""
    stem = path.stem
    if match := _CLAIMED.fullmatch(stem):
        stem = match[1]
    stem = os.fsencode(stem)[:_MAX_STEM].decode(errors="ignore") or "jobspec"
    return Claim(running / f"{stem}.{run_id}{path.suffix}", run_id)


def parse_claim(path: Path) -> Claim | None:
    """The claim that a name tells; None when it tells none."""
    match = _CLAIMED.fullmatch(path.stem)
    return Claim(path, match[2]) if match and path.suffix in SUFFIXES else None


class Spool:
    """One folder, as one service sees it; several may look at once."""

    def __init__(
        self,
        folder: Path,
        *,
        transformer: str,
        settings: Mapping[str, Data] | None = None,
        dialect: str | None = None,
        say: Callable[[str], None] = lambda _text: None,
        passed: Callable[[str], None] = lambda _point: None,
        start: Callable[[Run], None] = start_runner,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder.absolute()
        self._transformer = transformer
        self._settings = dict(settings or {})
        self._dialect = dialect
        self._say = say
        self._passed = passed
        self._start = start
        self._clock = clock
        self._troubles = 0
        self._starts: dict[str, int] = {}
        self._told: dict[str, str] = {}
        """What was said of each file, so that it is not said at every look."""
        check_folder(self._folder)
        check_home(self._folder)
        for name in FOLDERS:
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)

    def serve(self, every_s: float) -> None:
        """Look again and again, until SIGTERM or SIGINT; runs go on."""
        wake = Wake()
        with contextlib.closing(wake), wake.signals(signal.SIGINT, signal.SIGTERM):
            self._say(f"serving {self._folder}")
            while not wake.stopped:
                self.look()
                wake.pause(every_s)
            self._say(f"{wake.stopped}; runs go on, and the next service sees to them")
        if "SIGINT" in wake.stopped:
            raise KeyboardInterrupt

    def look(self) -> int:
        """See to what was taken before, then take what is new; of how many files something could not be done."""
        self._troubles = 0
        for path in sorted((self._folder / "running").iterdir()):
            if claim := parse_claim(path):
                self._with_lock(claim.path, lambda claim=claim: self._attend(claim))
        for path in sorted(self._folder.iterdir()):
            if path.suffix in SUFFIXES and not path.name.startswith("."):
                self._with_lock(path, lambda path=path: self._take(path))
        return self._troubles

    def _with_lock(self, path: Path, act: Callable[[], None]) -> None:
        """Act on a file that nobody else acts on; one that another service has is left to it."""
        try:
            with locked(path) as is_ours:
                if is_ours:
                    act()
        except MilkweedError as error:
            self._troubles += 1
            self._tell(path.name, str(error))
        except OSError as error:
            self._troubles += 1
            self._tell(path.name, f"{error.strerror}: {error.filename or path}")

    def _tell(self, name: str, text: str) -> None:
        if self._told.get(name) != text:
            self._told[name] = text
            self._say(f"{name}: {text}")

    def _take(self, path: Path) -> None:
        if not is_settled(path, self._clock()):
            self._tell_of_the_future(path)
            return
        self._passed("seen")
        claim = make_claim(path, self._folder / "running", str(uuid.uuid4()))
        rename(path, claim.path)
        self._passed("claimed")
        self._say(f"{path.name}: taken, run {claim.run_id}")
        self._attend(claim)

    def _tell_of_the_future(self, path: Path) -> None:
        """A file that was changed at a time to come would be left alone until then without a word."""
        changed_s = path.stat().st_mtime
        if changed_s > self._clock() + SETTLE_S:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(changed_s))
            self._tell(
                path.name, f"was changed at {when}, which is to come: taken then, or after `touch`"
            )

    def _attend(self, claim: Claim) -> None:
        """Bring a taken file one step further."""
        try:
            if not (claim.run / "run.json").exists():
                self._begin(claim)
                return
            found = load_run(claim.run)
            self._look_after(claim, found)
        except (
            SpecError
        ) as error:  # nothing was submitted; other errors may be gone at the next look
            self._finish(claim, "failed", str(error))

    def _begin(self, claim: Claim) -> None:
        """Start the run of a file; whatever was there of it is less than a record, so nothing was submitted."""
        shutil.rmtree(claim.run, ignore_errors=True)
        place = load_transformer(self._transformer, **self._settings)
        place.launch = lambda run: self._launch(claim, run)
        plan = place.render(load_jobspec(claim.path, dialect=self._dialect), run_id=claim.run_id)
        self._passed("rendered")
        place.run(plan)

    def _launch(self, claim: Claim, run: Run) -> None:
        self._passed("recorded")
        run.keep_for(claim.path)
        self._start(run)
        self._passed("started")

    def _look_after(self, claim: Claim, run: Run) -> None:
        place = load_transformer(run.plan.transformer, **run.plan.settings)
        progress = note_ends(run)
        if progress.over:
            self._passed("over")
            word = "failed" if progress.exit_code() else "done"
            self._finish(claim, word, describe(run, progress))
        else:
            run.keep_for(claim.path)
            ensure_driven(place, run, lambda run: self._start_again(claim, run))

    def _start_again(self, claim: Claim, run: Run) -> None:
        """Carry on a run whose driver is gone, unless that has been of no use before."""
        times = self._starts[claim.run_id] = self._starts.get(claim.run_id, 0) + 1
        if times > MAX_STARTS:
            raise StateError(
                f"run {run.id} cannot be carried on: its driver ends at once",
                seen=read_tail(run.logs / ".runner.log", lines=3),
                hint=f"`milkweed jobspec cancel {run.id}` ends it",
            )
        self._start(run)

    def _finish(self, claim: Claim, folder: str, text: str) -> None:
        """First the text, then the file: one that is there has its text beside it."""
        target = self._folder / folder / claim.path.name
        beside = target.with_name(f"{target.name}.txt")
        save_private(beside, f"{text.rstrip()}\n".encode(), what=f"how {claim.path.name} went")
        self._passed("told")
        rename(claim.path, target)
        self._passed("moved")
        self._told.pop(claim.path.name, None)
        self._say(f"{claim.path.name}: {folder}")


def describe(run: Run, progress: Progress) -> str:
    """How a run went, as the text beside its file."""
    lines = [f"run {run.id} on {run.plan.transformer}: exit code {progress.exit_code()}"]
    for step_id, entry in progress.entries.items():
        if entry.status.state is not State.DONE:
            lines.append(f"{step_id}: {entry.status.describe()}")
    return "\n".join(lines)


def rename(source: Path, target: Path) -> None:
    """Move a file so that it stays moved when the power fails."""
    os.rename(source, target)
    for folder in (target.parent, source.parent):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def locked(path: Path) -> Generator[bool]:
    """Hold a file under its name; whether it is ours, and still has that name."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _is_plain(fd) and _lock(fd) and _has_name(fd, path)
    finally:
        os.close(fd)


def _is_plain(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_name(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def is_settled(path: Path, now_s: float) -> bool:
    """Whether nobody writes a file any more: it was left alone for a while, and nobody has it open to write."""
    age_s = now_s - path.stat().st_mtime
    return age_s >= SETTLE_S and not is_open_for_writing(path)


def is_open_for_writing(path: Path) -> bool:
    """Whether some process of this machine may still write; where the kernel cannot tell, no."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Whoever opens the file to write in this very moment must not end us: SIGIO would, this one is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def check_home(folder: Path) -> None:
    """Refuse a folder that is served with other records: its files would be run once with each."""
    ensure_folder(home())
    ours = _ensure_text(home() / "home-id", str(uuid.uuid4()))
    marker = folder / MARKER
    if _ensure_text(marker, ours) != ours:
        raise StateForeignError(
            f"{folder} is served with records in another folder than {home()}",
            seen=f"{marker} has another id than {home() / 'home-id'}",
            hint=f"set MILKWEED_HOME as it was; or, when no file is in running/ and nobody serves it: rm {marker}",
        )


def _ensure_text(path: Path, text: str) -> str:
    """What a file says; who comes first writes it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    save_private(beside, text.encode(), what=str(path))
    try:
        os.link(beside, path)
    except FileExistsError:
        return path.read_text("utf-8")
    finally:
        beside.unlink()
    return text


def check_folder(folder: Path) -> None:
    """Refuse a folder that others can put files into: what is in it is run with our rights."""
    try:
        seen = folder.stat()
    except OSError as error:
        raise StateError(
            f"{folder} cannot be served", seen=error.strerror or "", hint=f"mkdir -m 700 {folder}"
        ) from None
    if not stat.S_ISDIR(seen.st_mode):
        raise StateError(
            f"{folder} is not a folder", hint="name the folder that jobspecs are put into"
        )
    if seen.st_uid != os.geteuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AccessError(
            f"others can put files into {folder}, and each would run with your rights",
            seen=f"owner uid {seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):04o}",
            hint=f"chmod go-w {folder}, or serve a folder of your own",
        )

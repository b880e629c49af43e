"""The record of an allocation on disk: versioned JSON, one lock, atomic replace; never a pickle."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from . import __version__, identity
from .errors import (
    MilkweedError,
    PickleRefusedError,
    StateBusyError,
    StateCorruptError,
    StateError,
    StateForeignError,
    StateVersionError,
)
from .spec import JobSpec

DEFAULT_PATH = ".milkweed/job.json"
VERSION = 1
_OLDEST = 1
LOCK_TIMEOUT_S = 60.0
PHASES = ("declared", "intent", "submitted")
_APPLY_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From version N to N + 1; a new format adds its step here and raises VERSION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything needed to find a job's allocation again."""

    spec: JobSpec
    phase: str = "declared"
    """declared (nothing asked), intent (about to ask), submitted (the scheduler has answered)."""
    apply_id: str | None = None
    handle: Mapping[str, Any] | None = None
    job_class: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    machine: Mapping[str, str] = field(default_factory=identity.machine)
    batch: bool = False
    created: float = field(default_factory=time.time)

    def submitted(self, handle: Mapping[str, Any]) -> Record:
        """The same record, once the scheduler has answered."""
        return replace(self, phase="submitted", handle=dict(handle))

    def to_bytes(self) -> bytes:
        """The text that is written."""
        data = {
            "milkweed": "state",
            "version": VERSION,
            "written_by": __version__,
            "spec": self.spec.to_json(),
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
        }
        return json.dumps(data, indent=1).encode() + b"\n"


_PLAIN_FIELDS = (
    "phase",
    "apply_id",
    "handle",
    "job_class",
    "attributes",
    "machine",
    "batch",
    "created",
)


def check_machine(recorded: Mapping[str, str]) -> None:
    """Refuse what another machine's processes are recorded in; their numbers mean nothing here."""
    here = identity.machine()
    if dict(recorded) != here:
        there = recorded.get("hostname", "another machine")
        raise StateForeignError(
            f"this state file records processes of {there}, and this is {here['hostname']}",
            hint=f"use the job on {there}, or give another cached_path here",
        )


def parse_record(data: bytes, source: str) -> Record:
    """Read a record; every way it can be wrong has an error of its own."""
    way_out = f"move {source} away and start again; `milkweed ls` lists what still runs"
    _refuse_pickle(data, source)
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateCorruptError(
            f"{source} is not a milkweed state file: it is not JSON", seen=str(error), hint=way_out
        ) from error
    if not _is_mapping(content) or content.get("milkweed") != "state":
        raise StateCorruptError(
            f"{source} is not a milkweed state file", seen=_glimpse(data), hint=way_out
        )
    content = _migrate(content, source)
    try:
        plain = {name: content[name] for name in _PLAIN_FIELDS}
        _check_plain(plain)
        return Record(spec=JobSpec.from_json(content["spec"]), **plain)
    except (KeyError, TypeError, AttributeError, ValueError, StateCorruptError) as error:
        raise StateCorruptError(
            f"{source} is a milkweed state file with something missing or wrong",
            seen=error.what
            if isinstance(error, MilkweedError)
            else f"{type(error).__name__}: {error}",
            hint=way_out,
        ) from error


def _check_plain(plain: Mapping[str, Any]) -> None:
    """Whoever wrote the file, the id becomes the name of a folder that is deleted in the end."""
    if plain["apply_id"] is not None:
        check_apply_id(plain["apply_id"])
    if plain["phase"] not in PHASES:
        raise ValueError(f"the phase {plain['phase']!r} is not known")
    for name, kinds in _KINDS.items():
        if not isinstance(plain[name], kinds):
            raise TypeError(f"{name} is {type(plain[name]).__name__}")


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "handle": (dict, type(None)),
    "job_class": str,
    "attributes": dict,
    "machine": dict,
    "batch": bool,
    "created": (int, float),
}


def check_apply_id(apply_id: object) -> None:
    """Refuse an id that is not a plain name."""
    if not isinstance(apply_id, str) or not _APPLY_ID.fullmatch(apply_id):
        raise StateCorruptError(
            f"{apply_id!r} is not the id of an allocation",
            hint="nothing was done; look at who wrote the file it stands in",
        )


def _is_mapping(content: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(content, dict)


def _migrate(content: dict[str, Any], source: str) -> dict[str, Any]:
    version = content.get("version")
    if not isinstance(version, int) or version > VERSION or version < _OLDEST:
        raise StateVersionError(
            f"{source} has version {version!r}; milkweed {__version__} reads {_OLDEST} to {VERSION}",
            seen=f"written by milkweed {content.get('written_by', 'unknown')}",
            hint="use that milkweed, or upgrade this one",
        )
    while version < VERSION:
        content = MIGRATIONS[version](content)
        version += 1
    return content


def _refuse_pickle(data: bytes, source: str) -> None:
    looks_binary = data[:1] == b"\x80" or (data[:1] in b"(cd]" and data.rstrip()[-1:] == b".")
    if data and looks_binary:
        raise PickleRefusedError(
            f"{source} is a pickle, and milkweed never loads one: loading runs any code it holds",
            seen=_glimpse(data),
            hint="if another tool wrote it, name another path; if nobody did, somebody planted it",
        )


def _glimpse(data: bytes) -> str:
    shown = repr(data[:60])[2:-1]
    return f"it begins with {shown!r}" if data else "it is empty"


class StateFile:
    """One state file. A link stays a link: what it points to is what is read and replaced."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def target(self) -> Path:
        """The real file, behind any links."""
        return Path(os.path.realpath(self.path))

    def load(self) -> Record | None:
        """The record, or None when there is no file."""
        try:
            data = self.target.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(
                f"the state file {self.path} cannot be read",
                seen=f"{error.strerror}: {error.filename}",
                hint="check its owner and mode, or name another path",
            ) from error
        return parse_record(data, str(self.path))

    def save(self, record: Record) -> None:
        """Replace the file in one step, readable by its owner only."""
        save_private(self.target, record.to_bytes(), what=f"the state file {self.path}")

    def remove(self) -> None:
        """Delete the file, and the folder when it is ours and empty."""
        self.target.unlink(missing_ok=True)
        _tidy(self.target.parent)

    @contextlib.contextmanager
    def lock(
        self,
        *,
        timeout_s: float = LOCK_TIMEOUT_S,
        waiting: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Generator[None]:
        """Hold the file's lock; leave no lock file behind."""
        path = self.target.with_name(f"{self.target.name}.lock")
        fd = -1
        deadline_s = clock() + timeout_s
        try:  # from the first step on: Ctrl-C may come after any of them
            ensure_folder(path.parent)
            while (fd := _try_lock(path)) < 0:
                waiting()
                if clock() > deadline_s:
                    raise StateBusyError(
                        f"another client has held {path} for {timeout_s:.0f} s",
                        hint="wait for it to finish, or end it; a lock never outlives its process",
                    )
                sleep(0.02)
            yield
        finally:
            if fd >= 0:
                if _is_there(fd, path):
                    path.unlink()
                os.close(fd)
            _tidy(path.parent)


def save_copy(record: Record, file: StateFile) -> None:
    """Save a record to another file, unless another allocation is recorded there and would be lost."""
    other = file.load()
    if other is not None and other.apply_id not in {None, record.apply_id}:
        raise StateError(
            f"{file.path} records the allocation {other.apply_id}, which would be lost",
            hint="save to another file, or end that one: job_load(path).kill()",
        )
    file.save(record)


def _tidy(folder: Path) -> None:
    """Remove milkweed's own folder when nothing is left in it; never anybody else's."""
    if folder.name == Path(DEFAULT_PATH).parent.name:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _try_lock(path: Path) -> int:
    """Lock a file that may be deleted by whoever held it before: what is locked must be what is there."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        ensure_folder(path.parent)
        return -1
    except OSError as error:
        raise _write_error(f"the lock {path}", error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(fd, path):
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return -1


def _is_there(fd: int, path: Path) -> bool:
    """Whether an open file still has its name: its folder may have been deleted meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def ensure_folder(folder: Path) -> None:
    """Make a folder for records, closed to others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(f"the folder {folder}", error) from error


def save_private(path: Path, data: bytes, *, what: str) -> None:
    """Write a file that only its owner reads, in one step: all of it, or the old one stays."""
    ensure_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask says
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _write_error(what, error) from error


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a power loss, too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_error(what: str, error: OSError) -> StateError:
    hints = {
        errno.ENOSPC: "free some space on that disk; what was recorded before is still there",
        errno.EDQUOT: "free some of your quota; what was recorded before is still there",
        errno.EACCES: "check its owner and mode, or name another path",
        errno.EROFS: "that file system is read-only: name another path",
    }
    return StateError(
        f"{what} cannot be written",
        seen=f"{error.strerror}: {error.filename or ''}".rstrip(": "),
        hint=hints.get(error.errno or 0, "check the path, or name another one"),
    )

"""Folders that only their owner can enter, and files that nobody else could have read or changed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import AccessError

StrPath = str | os.PathLike[str]
_PRIVATE = 0o700


def ensure_private_folder(path: StrPath) -> Path:
    """Make a folder that only we can enter; refuse one that another user could have prepared."""
    folder = Path(path)
    with private_folder(folder, make=True):
        return folder


@contextmanager
def private_folder(folder: Path, *, make: bool) -> Generator[int]:
    """Open a folder and check what was opened, so that it cannot be swapped in between."""
    try:
        if make:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir(mode=_PRIVATE)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_folder(folder, folder_fd)
            yield folder_fd
        finally:
            os.close(folder_fd)
    except OSError as error:
        raise _explain(folder, error) from None


def _explain(folder: Path, error: OSError) -> AccessError:
    if folder.is_symlink():
        return AccessError(
            f"{folder} is a symbolic link, and secrets are kept in real folders only",
            seen=f"it points to {folder.readlink()}",
            hint="name the folder itself, or remove the link if you did not make it",
        )
    return AccessError(
        f"the secrets in {folder} cannot be read or written",
        seen=str(error),
        hint="look at the folder; secrets need one of your own, on a disk with room",
    )


def _check_folder(folder: Path, folder_fd: int) -> None:
    """Refuse what another user owns or could write to; close what others could only look into."""
    seen = os.fstat(folder_fd)
    mode = stat.S_IMODE(seen.st_mode)
    if seen.st_uid != os.geteuid():
        raise AccessError(
            f"{folder} belongs to another user",
            seen=f"owner uid {seen.st_uid}, we are uid {os.geteuid()}",
            hint="choose a folder of your own",
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AccessError(
            f"other users can write to {folder}",
            seen=f"mode {mode:04o}",
            hint=f"look at what is in it, then: chmod 700 {folder}",
        )
    if mode & 0o777 != _PRIVATE:
        os.fchmod(folder_fd, _PRIVATE)


def replace_file(folder_fd: int, name: str, content: bytes) -> None:
    """Write beside and rename over: readers see the old or the new, and no link is followed."""
    beside = f".{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(beside, flags, 0o600, dir_fd=folder_fd), "wb") as file:
        try:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:  # whatever it was, no half of a key may stay
            os.unlink(beside, dir_fd=folder_fd)
            raise
    os.fsync(folder_fd)


def read_private(folder_fd: int, path: Path) -> bytes:
    """Read a file of an open folder, unless somebody else could have read or changed it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path.name, flags, dir_fd=folder_fd), "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            raise AccessError(
                f"others could have read or changed {path}",
                seen=f"mode {stat.filemode(seen.st_mode)}, owner uid {seen.st_uid}",
                hint="treat the job's keys as known to others: end the job and apply it again",
            )
        return file.read()

"""What a declaration says of its hosts' images and folders, brought to the hosts before they are used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..control import parse_door
from ..errors import SpecError
from ..image import Image, is_prepared
from ..spec import JobSpec
from .imaging import Folder, ensure_images
from .watch import say

CODE_FOLDER = "/tmp/milkweed-code"  # noqa: S108  in a container of its own
MOST_FILES = 20_000
"""How many files a folder may have that nobody named."""
MOST_BYTES = 512 * 1024 * 1024
_PASSED_OVER = {".git", "__pycache__", ".venv", "node_modules"}


def prepare_hosts(
    spec: JobSpec,
    addresses: Sequence[str],
    *,
    deadline_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Bring the hosts behind these doors to what the declaration says, where it says anything."""
    wanted = [each for each in addresses if is_prepared(spec.client, _mesh_of(each))]
    if not wanted:
        return
    said: Mapping[str, Any] = spec.client.get("images") or {}
    folders = make_folders(spec.client.get("sync_dirs") or ())
    images = {mesh: make_image(said.get(mesh), folders) for mesh in spec.sizes}
    ensure_images(
        {address: images[_mesh_of(address)] for address in wanted},
        folders=folders,
        job=spec.name,
        deadline_s=deadline_s,
        clock=clock,
    )


def _mesh_of(address: str) -> str:
    return parse_door(address).host.rpartition("/")[0]


def make_folders(sync_dirs: Iterable[str]) -> list[Folder]:
    """Where each folder comes to be: by its own name, side by side."""
    folders: dict[str, Folder] = {}
    for source in (os.path.abspath(each) for each in sync_dirs):
        dest = f"{CODE_FOLDER}/{Path(source).name}"
        if dest in folders:
            raise SpecError(
                f"sync_dirs: {source!r} and {folders[dest].source!r} have one name",
                hint="rename one of them",
            )
        folders[dest] = Folder(source=source, dest=dest)
    return list(folders.values())


def make_image(said: Mapping[str, Any] | None, folders: Sequence[Folder]) -> Image | None:
    """The image of a mesh, whose programs import from the folders, too."""
    image = Image.from_json(said) if said else None
    if not folders:
        return image
    path = ":".join([*(folder.dest for folder in folders), "$PYTHONPATH"])
    return (image or Image()).set_env_vars({"PYTHONPATH": path})


def find_sent(sync_dirs: Iterable[str], folder: str) -> str:
    """Where a folder of this machine is on hosts, if it was sent with one of these; else nothing."""
    for each in make_folders(sync_dirs):
        if Path(folder).is_relative_to(each.source):
            return str(Path(each.dest) / Path(folder).relative_to(each.source))
    return ""


# Which folders


def choose_sync_dirs(sync_dirs: Sequence[str] | None) -> list[str]:
    """The folders that were named; else the repository that this program is started in, if it is in one."""
    if isinstance(sync_dirs, str):
        raise SpecError(f"sync_dirs: {sync_dirs!r} is not a list", hint=f"write [{sync_dirs!r}]")
    if sync_dirs is not None:
        return [str(_check_folder(each)) for each in sync_dirs]
    root = find_repository(Path.cwd())
    if root is None:
        return []
    if why := _too_large(root):
        say(f"{root} is not synced: {why}; name folders with sync_dirs=[…], or [] for none")
        return []
    return [str(root)]


def _check_folder(name: str) -> Path:
    path = Path(name).expanduser().absolute()
    if not path.is_dir():
        raise SpecError(f"sync_dirs: there is no folder {name!r}", hint="name one, or [] for none")
    return path


def find_repository(here: Path) -> Path | None:
    """The folder of the Git repository that a folder is in."""
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), None)


def _too_large(root: Path) -> str:
    """Why a folder is too large to be sent without being asked for; nothing when it is not."""
    files = size = 0
    for _folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _PASSED_OVER]
        files += len(names)
        size += sum(_size(os.path.join(_folder, name)) for name in names)
        if files > MOST_FILES:
            return f"it has more than {MOST_FILES} files"
        if size > MOST_BYTES:
            return f"it has more than {MOST_BYTES // 1024**2} MiB"
    return ""


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0

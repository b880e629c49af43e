"""What travels to hosts and clients elsewhere: archives that a bare Python imports from."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from milkweed.backends.packing import pack_files, pack_package, pack_worker


def names_in(packed: bytes) -> list[str]:
    """The files of an archive."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return archive.namelist()


def run_bare(archive: Path, program: str) -> list[str]:
    """What a Python prints that has nothing but an archive and itself, word by word."""
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); {program}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_packed_worker_needs_nothing_else(tmp_path: Path) -> None:
    """Every module of the worker is imported from the copy by a bare Python; nothing else of milkweed is."""
    archive = tmp_path / "worker.zip"
    archive.write_bytes(pack_worker())
    loaded = "print(*sorted(name for name in sys.modules if name.startswith('milkweed')))"
    names = run_bare(archive, f"import milkweed.worker.remote; {loaded}")
    modules = [name.removesuffix(".py").replace("/", ".") for name in names_in(pack_worker())]
    # The copy is removed once it was imported: what is not there by then never will be.
    later = {name for name in modules if not name.endswith(("__init__", "__main__"))}
    assert later <= set(names)
    others = {name for name in names if not name.startswith("milkweed.worker")}
    assert others == {"milkweed", "milkweed.identity"}


def test_the_packed_worker_has_only_source() -> None:
    """What travels with every job is the worker's own source, each file once."""
    names = names_in(pack_worker())
    wanted = {"milkweed/__init__.py", "milkweed/identity.py", "milkweed/worker/remote.py"}
    assert wanted <= set(names)
    assert all(name.endswith(".py") for name in names)
    assert len(names) == len(set(names))


def test_all_of_milkweed_is_in_the_package(tmp_path: Path) -> None:
    """A Python that has nothing else imports the job classes from it; and it fits into a Secret."""
    packed = pack_package()
    assert len(packed) < 900_000, "a Secret has room for a mebibyte"
    assert set(names_in(pack_worker())) < set(names_in(packed))
    path = tmp_path / "milkweed.zip"
    path.write_bytes(packed)
    [place] = run_bare(path, "import milkweed.job; print(milkweed.job.__file__)")
    assert place.startswith(f"{path}/")


@pytest.mark.parametrize("time", [0, 1_700_000_000], ids=["1970", "2023"])
def test_the_same_files_are_the_same_bytes(tmp_path: Path, time: int) -> None:
    """Whenever and wherever they were written: a Secret is not made anew for nothing."""
    file = tmp_path / "worker" / "a.py"
    file.parent.mkdir()
    file.write_text("A = 1\n")
    before = pack_files(tmp_path, [file])
    os.utime(file, (time, time))
    assert pack_files(tmp_path, [file]) == before
    assert names_in(before) == ["milkweed/worker/a.py"]


def test_other_files_are_other_bytes(tmp_path: Path) -> None:
    """One changed byte is seen."""
    file = tmp_path / "a.py"
    file.write_text("A = 1\n")
    before = pack_files(tmp_path, [file])
    file.write_text("A = 2\n")
    assert pack_files(tmp_path, [file]) != before

"""The record on a disk that is full, and between processes that want it at the same time."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed import state
from milkweed.errors import StateBusyError, StateError
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import Record, StateFile
from milkweed.testing import FakeClock

SPEC = JobSpec(name="demo", backend="fake", meshes=make_meshes({"a": 2}))
OLD = Record(spec=SPEC, phase="intent", apply_id="old")
NEW = Record(spec=SPEC, phase="intent", apply_id="new", attributes={"much": "x" * 20_000})

HOLDER = """
import sys
from milkweed.state import StateFile
with StateFile(sys.argv[1]).lock():
    print("locked", flush=True)
    sys.stdin.readline()
"""
COUNTER = """
import sys
from pathlib import Path
from milkweed.state import StateFile
number = Path(sys.argv[1])
for _ in range(50):
    with StateFile("folder/job.json").lock(sleep=lambda _seconds: None):
        number.write_text(str(int(number.read_text()) + 1))
"""


def start(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def holder(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    with start(HOLDER, path) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


# A full disk


@contextlib.contextmanager
def tiny_disk(path: Path) -> Iterator[None]:
    """A file system of 64 KiB."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_on_a_full_disk_the_old_record_stays(folder: Path) -> None:
    """With no space left the old record is whole, nothing temporary is left, and the error says what to do."""
    disk = folder / "disk"
    with tiny_disk(disk):
        file = StateFile(disk / "job.json")
        file.save(OLD)
        fill(disk / "filler")
        with pytest.raises(StateError, match="cannot be written") as caught:
            file.save(NEW)
        assert "free some space" in caught.value.hint
        assert "No space left" in caught.value.seen
        assert file.load() == OLD
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "job.json"]
        (disk / "filler").unlink()
        file.save(NEW)
        assert file.load() == NEW


def test_over_a_limit_the_old_record_stays(folder: Path) -> None:
    """A record that may not be written whole is not written at all."""
    file = StateFile("job.json")
    file.save(OLD)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StateError, match="cannot be written"):
            file.save(NEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.load() == OLD
    assert [path.name for path in folder.iterdir()] == ["job.json"]


# The lock


def test_an_interrupt_before_the_lock_is_held_leaves_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come as soon as the folder is made."""

    def press(_path: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(state, "_try_lock", press)
    with pytest.raises(KeyboardInterrupt), StateFile(".milkweed/job.json").lock():
        pytest.fail("nobody holds it")
    assert not (folder / ".milkweed").exists()


def test_the_lock_leaves_no_file(folder: Path) -> None:
    """Afterwards nothing is left, not even the folder that had to be made for it."""
    with StateFile(".milkweed/job.json").lock():
        assert [path.name for path in Path(".milkweed").iterdir()] == ["job.json.lock"]
    assert list(folder.iterdir()) == []


def test_the_lock_is_let_go_when_something_fails(folder: Path) -> None:
    """An error inside ends the lock."""
    file = StateFile("job.json")
    with pytest.raises(RuntimeError), file.lock():
        raise RuntimeError
    with file.lock(timeout_s=0):
        pass
    assert list(folder.iterdir()) == []


def test_two_in_one_program_exclude_each_other(folder: Path, clock: FakeClock) -> None:
    """Even within one program the lock is held once; the wait has an end, and says whom it waits for."""
    told: list[float] = []
    second = StateFile("job.json").lock(
        timeout_s=5, sleep=clock.sleep, clock=clock, waiting=lambda: told.append(clock())
    )
    with (
        StateFile("job.json").lock(),
        pytest.raises(StateBusyError, match="for 5 s") as caught,
        second,
    ):
        pass
    assert caught.value.transient
    assert sum(clock.slept) == pytest.approx(5, abs=0.1)
    assert told


def test_another_process_is_waited_for(folder: Path, clock: FakeClock) -> None:
    """A lock that another process holds is not taken; once it is let go, it is."""
    file = StateFile("job.json")
    with holder("job.json") as other:
        with pytest.raises(StateBusyError), file.lock(timeout_s=1, sleep=clock.sleep, clock=clock):
            pass
        other.communicate("\n")
        with file.lock(timeout_s=0):
            pass
    assert list(folder.iterdir()) == []


def test_a_killed_process_holds_nothing(folder: Path) -> None:
    """A lock never outlives its process, though its file does; the next one clears it away."""
    with holder("job.json") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert Path("job.json.lock").exists()
        with StateFile("job.json").lock(timeout_s=0):
            pass
    assert list(folder.iterdir()) == []


def test_a_link_and_its_target_share_one_lock(folder: Path, clock: FakeClock) -> None:
    """Two names of one record are one record."""
    Path("link.json").symlink_to("job.json")
    second = StateFile("job.json").lock(timeout_s=1, sleep=clock.sleep, clock=clock)
    with StateFile("link.json").lock(), pytest.raises(StateBusyError), second:
        pass


def test_a_lock_whose_folder_was_deleted_takes_no_other_with_it(folder: Path) -> None:
    """Who lost its folder meanwhile does not delete the lock of the one that came after."""
    file = StateFile("folder/job.json")
    with contextlib.ExitStack() as later:
        with file.lock():
            Path("folder/job.json.lock").unlink()
            later.enter_context(StateFile("folder/job.json").lock(timeout_s=0))
        assert Path("folder/job.json.lock").exists()


@pytest.mark.slow
def test_many_processes_do_one_thing_at_a_time(folder: Path) -> None:
    """Four processes that count up together lose no step, though each deletes the lock's file."""
    Path("number").write_text("0")
    processes = [start(COUNTER, "number") for _ in range(4)]
    for process in processes:
        with process:
            process.communicate(timeout=60)
        assert process.returncode == 0
    assert Path("number").read_text() == "200"
    assert not Path("folder/job.json.lock").exists()

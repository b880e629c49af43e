"""Files that go to real hosts: copies of an image, folders that are kept alike, and large ones."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.held_keepers import HeldKeeper
from e2e.test_imaging import ensure
from milkweed.errors import StepFailedError
from milkweed.image import Image
from milkweed.job.imaging import Folder, ensure_images

pytestmark = pytest.mark.e2e

LARGE_BYTES = 200 * 2**20
ROOM_KB = 64 * 1024
"""What an end may need for a file of any size: lines on their way, and what Python itself takes."""


@pytest.fixture
def keeper() -> Iterator[HeldKeeper]:
    """A host that waits for its steps."""
    with HeldKeeper() as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A local folder with a little in it."""
    folder = tmp_path / "code"
    (folder / "deep").mkdir(parents=True)
    (folder / "main.py").write_text("print('hello')\n")
    (folder / "deep" / "tool").write_text("#!/bin/sh\necho tool\n")
    (folder / "deep" / "tool").chmod(0o755)
    (folder / "link").symlink_to("main.py")
    return folder


def peak_kb(pid: int) -> int:
    """The most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def make_large(path: Path) -> None:
    """A file of which no two pieces are equal."""
    block = os.urandom(2**20)
    with open(path, "wb") as file:
        file.writelines(
            number.to_bytes(4, "big") + block[4:] for number in range(LARGE_BYTES // 2**20)
        )


# Copies


def test_copies_are_steps(keeper: HeldKeeper, source: Path) -> None:
    """Later steps find what was copied; a change of what is copied does it and what follows again, and no more."""
    image = Image().run_bash("echo before").copy(str(source), "app", contents=True)
    image = image.run_bash("cd app && python3 link && deep/tool")
    assert ensure(image, keeper) == ["before", "hello", "tool"]
    assert ensure(image, keeper) == []
    (source / "main.py").write_text("print('changed')\n")
    assert ensure(image, keeper) == ["changed", "tool"]
    assert os.readlink(keeper.home / "app" / "link") == "main.py"


def test_destinations_are_what_people_write(keeper: HeldKeeper, source: Path) -> None:
    """Below the working folder, in one's home, with a variable, or absolute."""
    file = str(source / "main.py")
    image = Image().set_env_vars({"WHERE": "by/name"})
    image = image.copy(file).copy(file, "a.py").copy(file, "~/b/").copy(file, "$WHERE/c.py")
    image = image.copy(file, f"{keeper.home}/d.py").copy(str(source), "whole/")
    ensure(image, keeper)
    for name in ("main.py", "a.py", "b/main.py", "by/name/c.py", "d.py", "whole/code/main.py"):
        assert (keeper.home / name).read_text() == "print('hello')\n"


def test_a_copy_that_fails_is_a_step_that_failed(keeper: HeldKeeper, source: Path) -> None:
    """With the host's own words; what came before stays done."""
    image = Image().run_bash("echo once").copy(str(source / "main.py"), "/proc/nowhere/x")
    with pytest.raises(StepFailedError) as caught:
        ensure(image, keeper)
    assert caught.value.step == f"copy {source}/main.py to /proc/nowhere/x"
    assert caught.value.what.startswith("step 2 of 2 failed on host w/0 with exit code 1")
    assert "/proc/nowhere: No such file" in caught.value.seen
    assert keeper.status()["held"]
    assert ensure(Image().run_bash("echo once").copy(str(source), "here"), keeper) == []


@pytest.mark.parametrize("path", ["../escaped", "/escaped", "a/../../escaped", "out/escaped"])
def test_a_hostile_client_does_not_get_out_of_the_folder(keeper: HeldKeeper, path: str) -> None:
    """Whatever names it sends; the keeper lives on."""
    outside = keeper.folder / "outside"
    outside.mkdir()
    (keeper.home / "dest").mkdir()
    (keeper.home / "dest" / "out").symlink_to(outside)
    begin: dict[str, Any] = {"number": -1, "digest": "", "text": "sync", "dest": "dest"}
    with keeper.connect() as connection:
        connection.ask({"op": "claim", "client": "me"}, "claimed")
        head = {"op": "files", "id": 1}
        connection.send({**head, **begin, "do": "begin", "mirror": True})
        entries = [[path, "file", 0o644, 0, "e3b0c44298fc1c149afbf4c8996fb924"]]
        connection.send({**head, "do": "entries", "entries": entries})
        connection.send({**head, "do": "piece", "path": path, "data": "", "end": True})
        ended = connection.ask({**head, "do": "end"}, "step-exit")
    assert ended["code"] == 1
    assert "refused" in ended["tail"][0]
    assert list(keeper.folder.rglob("escaped")) == []
    assert keeper.status()["held"]


# Folders that are kept alike


def test_a_folder_is_kept_alike(keeper: HeldKeeper, source: Path) -> None:
    """Also of hosts that serve: what is new comes, what is gone goes, what a program wrote stays."""
    folders = [Folder(source=str(source), dest="code")]
    (source / ".gitignore").write_text("*.tmp\n")
    (source / "x.tmp").touch()
    ensure_images({keeper.address: None}, folders=folders)
    there = keeper.home / "code"
    assert sorted(os.listdir(there)) == [".gitignore", "deep", "link", "main.py"]
    keeper.wait_until(lambda: keeper.host()["state"] == "ready")
    (there / "output").touch()
    (source / "main.py").unlink()
    (source / "link").unlink()
    (source / "new.py").touch()
    ensure_images({keeper.address: Image().run_bash("true")}, folders=folders)
    assert sorted(os.listdir(there)) == [".gitignore", "deep", "new.py", "output"]
    assert keeper.host()["state"] == "ready"


def test_a_folder_that_cannot_come_is_told(keeper: HeldKeeper, source: Path) -> None:
    """Like a step, by its own words."""
    with pytest.raises(StepFailedError) as caught:
        ensure_images(
            {keeper.address: None}, folders=[Folder(source=str(source), dest="/proc/nowhere")]
        )
    text = f"sync {source} to /proc/nowhere"
    assert caught.value.what == f"{text} failed on host w/0 with exit code 1"
    assert caught.value.step == text


# Large files


def test_a_large_file_is_never_held_in_memory(keeper: HeldKeeper, tmp_path: Path) -> None:
    """Not by the keeper, not by the client; and other clients are answered meanwhile."""
    make_large(tmp_path / "large")
    before_kb = (keeper.status() and peak_kb(keeper.process.pid), own_peak_kb())
    slowest_s, stop = [0.0], threading.Event()

    def ask() -> None:
        with keeper.connect() as connection:
            while not stop.wait(0.02):
                asked_s = time.monotonic()
                connection.ask({"op": "status"}, "status")
                slowest_s[0] = max(slowest_s[0], time.monotonic() - asked_s)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        ensure(Image().copy(str(tmp_path / "large"), "large"), keeper)
    finally:
        stop.set()
        asking.join()
    assert (keeper.home / "large").stat().st_size == LARGE_BYTES
    with open(tmp_path / "large", "rb") as a, open(keeper.home / "large", "rb") as b:
        while data := a.read(2**20):
            assert b.read(2**20) == data
    assert peak_kb(keeper.process.pid) - int(before_kb[0]) < ROOM_KB
    assert own_peak_kb() - before_kb[1] < ROOM_KB
    assert slowest_s[0] < 2.0


def own_peak_kb() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_client_killed_while_it_sends_leaves_no_part(keeper: HeldKeeper, tmp_path: Path) -> None:
    """The next one sends what is lacking, and goes on with the steps."""
    folder = tmp_path / "much"
    folder.mkdir()
    make_large(folder / "large")
    (folder / "first").write_text("1")
    code = f"""
        from milkweed.image import Image
        from milkweed.job import sending
        from milkweed.job.imaging import ensure_images
        real, count = sending._pieces, []
        def pieces(root, entry):
            for piece in real(root, entry):
                count.append(piece)
                if len(count) == 40:
                    print("half", flush=True)
                    __import__("time").sleep(600)
                yield piece
        sending._pieces = pieces
        image = Image().run_bash("echo one").copy({str(folder)!r}, "much", contents=True)
        ensure_images({{{keeper.address!r}: image}})
    """
    killed = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout
    assert killed.stdout.readline() == "half\n"
    assert [path.name for path in (keeper.home / "much").glob(".milkweed-*")] != []
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    keeper.wait_until(lambda: [path.name for path in (keeper.home / "much").iterdir()] == ["first"])
    image = Image().run_bash("echo one").copy(str(folder), "much", contents=True)
    assert ensure(image.run_bash("ls -A much"), keeper) == ["first", "large"]

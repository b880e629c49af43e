"""The record on disk: what is written, what is read, and everything that is refused."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed import identity, state
from milkweed.errors import (
    PickleRefusedError,
    StateCorruptError,
    StateError,
    StateVersionError,
)
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import Record, StateFile, parse_record

SPEC = JobSpec(name="demo", backend="fake", meshes=make_meshes({"a": 2}))
RECORD = Record(spec=SPEC, phase="intent", apply_id="id-1", job_class="m:C", attributes={"x": [1]})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def changed(**more: Any) -> bytes:
    """A record's bytes with other values in it."""
    return json.dumps({**json.loads(RECORD.to_bytes()), **more}).encode()


class Bomb:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        """What a pickle would run."""
        return os.mkdir, (str(self.path),)


# Writing and reading


@pytest.mark.parametrize(
    "record",
    [RECORD, RECORD.submitted({"job": 7, "nested": {"x": None}}), Record(spec=SPEC)],
    ids=["intent", "submitted", "declared"],
)
def test_what_is_saved_is_loaded(folder: Path, record: Record) -> None:
    """A record comes back as it was, every field of it."""
    file = StateFile("job.json")
    file.save(record)
    assert file.load() == record
    assert parse_record(record.to_bytes(), "bytes") == record


def test_a_record_says_who_wrote_it_and_where(folder: Path) -> None:
    """The file is JSON that says what it is, its version and the machine it is from."""
    StateFile("job.json").save(RECORD)
    found = json.loads(Path("job.json").read_text())
    assert (found["milkweed"], found["version"]) == ("state", state.VERSION)
    assert found["machine"] == identity.machine()


def test_no_file_is_no_record(folder: Path) -> None:
    """Without a file there is no record, and looking makes nothing."""
    assert StateFile("there/is/none.json").load() is None
    assert list(folder.iterdir()) == []


def test_parents_are_made(folder: Path) -> None:
    """The folders on the way are made, the last one closed to others."""
    StateFile("a/b/job.json").save(RECORD)
    assert mode(folder / "a" / "b") == 0o700
    assert [path.name for path in (folder / "a" / "b").iterdir()] == ["job.json"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_only_the_owner_reads_whatever_the_umask(folder: Path, umask: int) -> None:
    """The file has the mode 0600, on the first writing and on every other."""
    before = os.umask(umask)
    try:
        StateFile("job.json").save(RECORD)
        first = mode(Path("job.json"))
        StateFile("job.json").save(RECORD)
    finally:
        os.umask(before)
    assert (first, mode(Path("job.json"))) == (0o600, 0o600)


def test_an_open_file_is_closed_by_saving(folder: Path) -> None:
    """A file that others could read is replaced by one that they cannot."""
    Path("job.json").write_text("{}")
    Path("job.json").chmod(0o666)
    StateFile("job.json").save(RECORD)
    assert mode(Path("job.json")) == 0o600


def test_a_link_stays_a_link(folder: Path) -> None:
    """What a link points to is read and replaced; the link is kept, and works before its target is there."""
    Path("real").mkdir()
    Path("link.json").symlink_to("real/job.json")
    StateFile("link.json").save(RECORD)
    StateFile("link.json").save(replace(RECORD, phase="submitted"))
    assert Path("link.json").is_symlink()
    assert (StateFile("real/job.json").load() or RECORD).phase == "submitted"
    StateFile("link.json").remove()
    assert Path("link.json").is_symlink()
    assert not Path("real/job.json").exists()


def test_links_in_a_circle_are_an_error(folder: Path) -> None:
    """A link to itself is told as such."""
    Path("job.json").symlink_to("job.json")
    with pytest.raises(StateError, match="cannot be read"):
        StateFile("job.json").load()


def test_nothing_temporary_is_left(folder: Path) -> None:
    """After saving and removing, nothing but what was asked for is there."""
    file = StateFile(state.DEFAULT_PATH)
    file.save(RECORD)
    assert [path.name for path in Path(".milkweed").iterdir()] == ["job.json"]
    file.remove()
    file.remove()
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_kept(folder: Path) -> None:
    """Only milkweed's own folder goes when it is empty."""
    StateFile("mine/job.json").save(RECORD)
    StateFile("mine/job.json").remove()
    assert Path("mine").is_dir()


# What is refused


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_planted_pickle_is_never_loaded(folder: Path, protocol: int) -> None:
    """A pickle is refused by name, and nothing in it runs."""
    Path("job.json").write_bytes(pickle.dumps(Bomb(folder / "boom"), protocol))
    with pytest.raises(PickleRefusedError, match="never loads one"):
        StateFile("job.json").load()
    assert [path.name for path in folder.iterdir()] == ["job.json"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_inside_is_only_text(folder: Path, protocol: int) -> None:
    """A pickle in a field of a good record stays text."""
    text = pickle.dumps(Bomb(folder / "boom"), protocol).decode("latin-1")
    parse_record(changed(attributes={"x": text}, handle={"y": text}), "bytes")
    assert list(folder.iterdir()) == []


WHOLE = RECORD.to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\0" * 100,
        b"\xff\xfe",
        WHOLE[:1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:-3],
        WHOLE + b"x",
        b"[" * 100_000,
        b"null",
        b"[]",
        b'"state"',
        b"3",
        b"{}",
        b'{"version": 1}',
        b'{"milkweed": "registry", "version": 1}',
        b'{"milkweed": "state", "version": 1}',
        changed(spec=None),
        changed(spec=[]),
        changed(spec={**SPEC.to_json(), "name": "../x"}),
        changed(spec={**SPEC.to_json(), "meshes": []}),
        changed(spec={**SPEC.to_json(), "meshes": ["a"]}),
        changed(spec={**SPEC.to_json(), "env": ["a"]}),
        changed(spec={**SPEC.to_json(), "options": ["a"]}),
        changed(spec={**SPEC.to_json(), "surprise": 1, "services": {}}),
        changed(phase="finished"),
        changed(phase=None),
        changed(apply_id=3),
        changed(apply_id=""),
        changed(apply_id="../../x"),
        changed(apply_id="/etc"),
        changed(handle=[1]),
        changed(handle="x"),
        changed(machine=None),
        changed(attributes=[]),
        changed(job_class=None),
        changed(batch="no"),
        changed(created="now"),
    ],
    ids=lambda _data: "record",
)
def test_what_milkweed_did_not_write_is_refused(folder: Path, data: bytes) -> None:
    """Empty, truncated, foreign or damaged: an error that names the file and the way out, and no change."""
    Path("job.json").write_bytes(data)
    with pytest.raises(StateCorruptError, match=r"job\.json is ") as caught:
        StateFile("job.json").load()
    assert "move job.json away" in caught.value.hint
    assert caught.value.seen
    assert Path("job.json").read_bytes() == data


@pytest.mark.parametrize("version", [2, 99, 10**30, 0, -1, "1", None, 1.5])
def test_another_version_is_refused(version: Any) -> None:
    """A file of a newer milkweed is not guessed at; which one wrote it is told."""
    with pytest.raises(StateVersionError, match=r"reads 1 to 1") as caught:
        parse_record(changed(version=version, written_by="9.9"), "job.json")
    assert caught.value.seen == "written by milkweed 9.9"


def test_an_older_version_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that has changed brings the step from the one before."""
    monkeypatch.setattr(state, "VERSION", 3)
    steps = {
        1: lambda old: {**old, "attributes": {"step": 1}},
        2: lambda old: {**old, "attributes": {**old["attributes"], "step": 2}},
    }
    monkeypatch.setattr(state, "MIGRATIONS", steps)
    assert parse_record(changed(version=1), "x").attributes == {"step": 2}


def test_a_folder_in_its_place_is_an_error(folder: Path) -> None:
    """A folder where the file should be is told, for reading and for writing."""
    Path("job.json").mkdir()
    with pytest.raises(StateError, match="cannot be read") as caught:
        StateFile("job.json").load()
    assert "Is a directory" in caught.value.seen
    with pytest.raises(StateError, match="cannot be written"):
        StateFile("job.json").save(RECORD)
    assert [path.name for path in folder.iterdir()] == ["job.json"]


def test_a_file_in_the_place_of_a_folder_is_an_error(folder: Path) -> None:
    """A file where a folder should be is told."""
    Path("x").write_text("")
    for act in (lambda file: file.save(RECORD), lambda file: file.load()):
        with pytest.raises(StateError):
            act(StateFile("x/job.json"))
    with pytest.raises(StateError, match="cannot be written"), StateFile("x/job.json").lock():
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_an_error(folder: Path) -> None:
    """A file that its owner cannot read is told, with what to check."""
    StateFile("job.json").save(RECORD)
    Path("job.json").chmod(0)
    with pytest.raises(StateError, match="cannot be read") as caught:
        StateFile("job.json").load()
    assert "owner and mode" in caught.value.hint


def test_a_name_that_is_too_long_is_an_error(folder: Path) -> None:
    """No file system carries such a name; the error says so."""
    file = StateFile("x" * 300)
    with pytest.raises(StateError, match="cannot be written"):
        file.save(RECORD)
    with pytest.raises(StateError, match="cannot be read"):
        file.load()

"""The list of a user's allocations."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.errors import StateCorruptError
from milkweed.registry import Entry

ID = "5f0c1f6e-0000-4000-8000-000000000001"


def entry(apply_id: str = ID, created: float = 1.0) -> Entry:
    return Entry(
        apply_id=apply_id, name="demo", backend="fake", state_path="/x/job.json", created=created
    )


def test_what_is_saved_is_listed_the_newest_last(home: Path) -> None:
    """Every entry comes back as it was, in the order of creation."""
    saved = [entry(f"id-{n}", created) for n, created in enumerate((3.0, 1.0, 2.0))]
    for one in saved:
        registry.save_entry(one)
    assert list(registry.load_entries()) == sorted(saved, key=lambda one: one.created)
    assert saved[0].folder == home / "jobs" / "id-0"
    assert saved[0].state_file().path == Path("/x/job.json")


def test_a_home_without_jobs_is_empty(home: Path) -> None:
    """No home, no jobs, no error, and looking makes no folders."""
    assert list(registry.load_entries()) == []
    assert not home.exists()


def test_entries_may_be_forgotten_while_they_are_listed(home: Path) -> None:
    """Whoever looks at that moment sees them, or not: it is no error."""

    def come_and_go() -> None:
        for _ in range(100):
            registry.save_entry(entry())
            registry.remove_entry(ID)

    others = threading.Thread(target=come_and_go)
    others.start()
    try:
        while others.is_alive():
            assert {one.apply_id for one in registry.load_entries()} <= {ID}
    finally:
        others.join()


def test_only_the_owner_reads_entries(home: Path) -> None:
    """Entries are closed to others, whatever the umask."""
    before = os.umask(0)
    try:
        registry.save_entry(entry())
    finally:
        os.umask(before)
    for path in (home, home / "jobs", home / "jobs" / ID):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "jobs" / ID / "entry.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"apply_id": "x"}',
        '{"unknown": 1}',
        "[" * 100_000,
        "\udcff",
        json.dumps({**registry.asdict(entry("other"))}),
        json.dumps({**registry.asdict(entry("broken")), "created": "yesterday"}),
        json.dumps({**registry.asdict(entry("broken")), "name": ["x"]}),
    ],
)
def test_a_damaged_entry_is_shown_as_such(home: Path, text: str) -> None:
    """One bad entry hides no other, and is neither dropped nor repaired."""
    registry.save_entry(entry("good"))
    path = home / "jobs" / "broken" / "entry.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert [(one.apply_id, one.name) for one in registry.load_entries()] == [
        ("broken", "?"),
        ("good", "demo"),
    ]
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_forgetting_leaves_no_empty_folders(home: Path) -> None:
    """The last entry takes the folders with it; others stay."""
    registry.save_entry(entry("one"))
    registry.save_entry(entry("two"))
    registry.remove_entry("one")
    assert [one.apply_id for one in registry.load_entries()] == ["two"]
    registry.remove_entry("two")
    registry.remove_entry("two")
    assert not home.exists()


@pytest.mark.parametrize(
    "apply_id", ["", ".", "..", "../..", "a/b", "/", "/etc", "a\0b", "-a", "x" * 65]
)
def test_an_id_is_never_a_path(home: Path, apply_id: str) -> None:
    """An id becomes the name of a folder that is deleted in the end, so it can be nothing else."""
    registry.save_entry(entry())
    with pytest.raises(StateCorruptError, match="is not the id of an allocation"):
        registry.remove_entry(apply_id)
    with pytest.raises(StateCorruptError):
        registry.own_state_path(apply_id)
    assert list(registry.load_entries()) == [entry()]


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own variable first, then the desktop's, then the usual place."""
    assert registry.home() == Path(os.environ["MILKWEED_HOME"])
    monkeypatch.delenv("MILKWEED_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert registry.home() == Path("/state/milkweed")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert registry.home() == Path("/home/somebody/.local/state/milkweed")

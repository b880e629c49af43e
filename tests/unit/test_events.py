"""The story of an allocation, told line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed import registry
from milkweed.events import Event, Events
from milkweed.testing import FakeClock


@pytest.fixture
def events(clock: FakeClock) -> Events:
    """The events of a listed allocation."""
    registry.save_entry(
        registry.Entry(apply_id="id-1", name="x", backend="fake", state_path="", created=1.0)
    )
    return Events("id-1", clock)


def test_events_come_back_in_order(events: Events, clock: FakeClock) -> None:
    """What was added is read back, with its time, by anybody who knows the id."""
    events.add("asked", detail="for 2 hosts")
    clock.advance(1.5)
    events.add("host lost", host="a/0", detail="line\nbreak é \u2028")
    assert Events("id-1").load() == [
        Event(at=1000.0, what="asked", detail="for 2 hosts"),
        Event(at=1001.5, what="host lost", host="a/0", detail="line\nbreak é \u2028"),
    ]


def test_telling_the_story_never_stops_it() -> None:
    """An allocation without a folder has no events, and adding one is passed over."""
    nobody = Events("id-2")
    nobody.add("asked")
    assert nobody.load() == []
    assert not nobody.path.exists()


def test_a_folder_in_the_way_is_passed_over(events: Events) -> None:
    """What cannot be written or read is passed over."""
    events.path.mkdir()
    events.add("asked")
    assert events.load() == []


@pytest.mark.parametrize(
    "damage", [b'{"at": 1, "wh', b"\xff\xfe\n", b"[]\n", b"3\n", b"\n", b"{}\n"]
)
def test_a_damaged_line_is_passed_over(events: Events, damage: bytes) -> None:
    """A line cut short by a crash, or garbage, hides no other."""
    events.add("asked")
    with Path(events.path).open("ab") as file:
        file.write(damage + b"\n")
    events.add("submitted")
    assert [event.what for event in events.load()] == ["asked", "submitted"]


def test_only_the_owner_reads_events(events: Events) -> None:
    """Details may be private."""
    events.add("asked")
    assert events.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(at=0.0, what="asked"), "asked"),
        (Event(at=0.0, what="asked", detail="for 2"), "asked: for 2"),
        (Event(at=0.0, what="lost", host="a/0", detail="killed"), "a/0: lost: killed"),
    ],
)
def test_an_event_is_one_line(event: Event, text: str) -> None:
    """A person reads time, host, what happened and its detail."""
    moment, _, rest = str(event).partition(" ")
    assert len(moment.split(":")) == 3
    assert rest == text

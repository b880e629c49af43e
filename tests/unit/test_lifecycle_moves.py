"""Allocations that move: to another backend, another path, another id."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed import backends, registry
from milkweed.backends.base import Capabilities, Handle
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.errors import (
    BackendError,
    ChangedError,
    StateError,
    UnreachableError,
)
from milkweed.job.load import SpecJob
from milkweed.plan import Action
from milkweed.spec import JobSpec
from unit.jobs import OTHER, PATH, SPEC, listed, make_spec, recorded, start

pytestmark = pytest.mark.usefixtures("folder")


def test_without_a_path_a_lost_answer_is_found_too(world: FakeScheduler) -> None:
    """A job that was applied without a path remembers what it asked for."""
    world.lose_next_answer()
    job = SpecJob(SPEC)
    with pytest.raises(UnreachableError):
        job.apply()
    job.apply()
    assert world.alive == [job.apply_id]
    assert world.count("submit") == 1


def test_an_apply_without_a_path_can_be_repeated_and_leaves_nothing(
    world: FakeScheduler, home: Path
) -> None:
    """An allocation with no path of its own is replaced when it has ended, and its folders go with it."""
    job = SpecJob(SPEC)
    job.apply()
    world.end(str(job.apply_id))
    job.apply()
    assert world.alive == [job.apply_id] == listed()
    job.kill()
    assert not home.exists()


def test_new_that_is_refused_keeps_the_path(world: FakeScheduler) -> None:
    """When the new allocation is refused, the path still records the old one."""
    before = start().apply_id
    world.refuse_next()
    with pytest.raises(BackendError, match="refused"):
        SpecJob(OTHER, on_change="new").state(PATH)
    assert world.alive == [before] == [recorded()] == listed()
    assert start().apply_id == before


def test_another_backend_is_a_change_like_any_other(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word in the declaration changes: the old backend is asked about, and ends, the old allocation."""
    elsewhere = FakeScheduler(capabilities=Capabilities(queued=False))

    class Elsewhere(FakeBackend):
        name = "elsewhere"

        def __init__(self) -> None:
            super().__init__(elsewhere)

    monkeypatch.setattr(backends, "_plugins", lambda: {"elsewhere": "elsewhere:Elsewhere"})
    monkeypatch.setitem(sys.modules, "elsewhere", type("M", (), {"Elsewhere": Elsewhere}))
    before = start().apply_id
    moved = make_spec(backend="elsewhere")
    with pytest.raises(ChangedError, match="differs"):
        SpecJob(moved).state(PATH)
    assert world.alive == [before] == [recorded()]
    job = SpecJob(moved, on_change="replace")
    job.state(PATH)
    assert world.alive == []
    assert elsewhere.alive == [job.apply_id] == [recorded()] == listed()
    assert {call.apply_id for call in elsewhere.calls} == {job.apply_id}


def test_a_dead_record_is_overwritten(world: FakeScheduler) -> None:
    """A path whose allocation has ended is free."""
    world.end(str(start().apply_id))
    job = SpecJob(SPEC)
    job.apply()
    job.state(PATH)
    assert [recorded()] == world.alive == listed() == [job.apply_id]


@pytest.mark.parametrize(
    ("error", "unfinished"),
    [
        (None, False),
        (BackendError("it was refused"), False),
        (UnreachableError("nobody answered"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_a_change_of_sizes_is_on_record_until_it_is_done(
    world: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    unfinished: bool,
) -> None:
    """Whatever ended it in the middle, the next plan finishes it; what was refused is as it was."""
    world.capabilities = Capabilities(resize=True)
    apply_id = str(start().apply_id)
    resize = FakeBackend.resize

    def fail(backend: FakeBackend, handle: Handle, spec: JobSpec) -> Handle:
        if error:
            raise error
        return resize(backend, handle, spec)

    monkeypatch.setattr(FakeBackend, "resize", fail)
    bigger = SpecJob(make_spec({"a": 3}))
    with contextlib.suppress(BackendError, KeyboardInterrupt):
        bigger.state(PATH)
    assert registry.resizing_path(apply_id).exists() is unfinished
    again = SpecJob(make_spec({"a": 2 if error else 3})).plan(PATH)
    assert again.action is (Action.RESIZE if unfinished else Action.REUSE)
    monkeypatch.setattr(FakeBackend, "resize", resize)
    SpecJob(make_spec({"a": 2 if error else 3})).state(PATH)
    assert not registry.resizing_path(apply_id).exists()


def test_a_change_of_sizes_that_cannot_be_noted_is_not_begun(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk nobody could finish it later: the scheduler is not asked, and the error says what to do."""
    world.capabilities = Capabilities(resize=True)
    job = start()
    note, os_open = registry.resizing_path(str(job.apply_id)), os.open

    def fail(path: Any, *how: Any, **more: Any) -> int:
        if note.name in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return os_open(path, *how, **more)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(StateError, match=r"resizing cannot be written") as caught:
        job.resize("a", 3)
    assert "No space left" in caught.value.seen
    assert "free some space" in caught.value.hint
    assert (world.count("resize"), job.spec.sizes, note.exists()) == (0, {"a": 2}, False)


def test_a_change_of_sizes_makes_no_folder_anew(world: FakeScheduler) -> None:
    """Where the list of allocations was deleted, nobody would read the note."""
    world.capabilities = Capabilities(resize=True)
    job = start()
    folder = registry.folder_of(str(job.apply_id))
    shutil.rmtree(folder)
    job.resize("a", 3)
    assert (job.spec.sizes, folder.exists()) == ({"a": 3}, False)

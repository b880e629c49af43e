"""Going over to a follow-up: a client leaves the hosts before it when they are given up, and not earlier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeScheduler
from milkweed.errors import BackendError, UnreachableError
from milkweed.job.connection import Connection
from milkweed.job.load import SpecJob
from milkweed.plan import Renewal
from milkweed.state import StateFile
from milkweed.status import HostState, Liveness, Status
from unit.follow_ups import ENDED, NAME, Story, running, tell_story
from unit.jobs import PATH, make_spec

pytestmark = pytest.mark.usefixtures("folder")
LOST = running(HostState.READY, HostState.FAILED)


@pytest.fixture
def story(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Story:
    """An allocation with a follow-up; that a client leaves is noted among what is asked."""
    made = tell_story(monkeypatch)
    world.capabilities = Capabilities(resize=True)
    close = Connection.close

    def leave(connection: Connection, *, back_s: float = 0.0) -> None:
        made.asked.append(("leave", generation()))
        close(connection, back_s=back_s)

    monkeypatch.setattr(Connection, "close", leave)
    return made


def generation() -> int:
    """Which of them the record has."""
    record = StateFile(PATH).load()
    return (record.handle or {}).get("generation", 0) if record else 0


@pytest.fixture
def job(story: Story) -> Iterator[SpecJob]:
    """A program that is connected, and has follow-ups asked for until its end."""
    del story
    made = SpecJob(make_spec(backend=NAME, client={"stream_logs": False, "renew": "30m"}))
    made.state(PATH)
    yield made
    made._let_go()


@pytest.mark.parametrize("second", [running(), Status(liveness=Liveness.UNKNOWN)])
def test_hosts_that_only_seemed_lost_are_not_left(
    story: Story, job: SpecJob, second: Status
) -> None:
    """What runs on the others goes on: nothing was changed, and that is what is said."""
    before = job.state(PATH)
    story.says[0], story.renewal = [LOST, LOST, second, running()], Renewal.WAITING
    with pytest.raises(UnreachableError, match="two looks"):
        job.state(PATH)
    assert generation() == 0
    assert story.count("leave", 0) == 0
    assert job.state(PATH) is before


def test_hosts_are_left_between_record_and_end(story: Story, job: SpecJob) -> None:
    """The record has the follow-up by then; and what ends afterwards is no news to who has left."""
    story.says[0], story.renewal = [LOST], Renewal.WAITING
    story.says[1] = [running()]
    job.state(PATH)
    deeds = [deed for deed in story.asked if deed[0] in {"leave", "retire"}]
    assert deeds == [("leave", 1), ("retire", 1)]


@pytest.mark.parametrize("size", [1, 3])
def test_hosts_are_left_when_sizes_change_with_the_move(
    story: Story, job: SpecJob, size: int
) -> None:
    """Sessions with hosts that are given up would be taken for those of the follow-up when they break."""
    story.says, story.renewal = [[ENDED], [running()]], Renewal.READY
    job.resize("a", size)
    deeds = [deed for deed in story.asked if deed[0] in {"leave", "retire"}]
    assert deeds == [("leave", 1), ("retire", 1)]
    assert len(job.state(PATH).a) == size


def test_a_record_that_cannot_be_written_moves_nothing(
    story: Story, job: SpecJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes next finds what is recorded, and its client is still there."""
    story.says[0], story.renewal = [LOST], Renewal.WAITING

    def fail(*_args: object) -> None:
        raise BackendError("the disk is full")

    monkeypatch.setattr(StateFile, "save", fail)
    with pytest.raises(BackendError, match="full"):
        job.state(PATH)
    assert story.count("leave", 0) == story.count("retire", 1) == 0


@pytest.mark.parametrize("said", ["resize", "repair"])
def test_hosts_are_repaired_also_when_a_follow_up_is_due(
    story: Story, job: SpecJob, world: FakeScheduler, said: str
) -> None:
    """It is asked for, and then what a person has said is done: both, whichever word it was said by."""
    world.capabilities = Capabilities(queued=True, resize=True, repairs=True)
    story.says[0] = [LOST]
    story.renewal = Renewal.DUE
    if said == "resize":
        job.resize("a", 2)
    else:
        job.on_change = said
        job._apply(StateFile(PATH), keep=True)
    assert story.count("renew", 0) == 1
    assert world.count("resize") == 1


def test_a_plan_that_was_shown_is_all_that_is_done(
    story: Story, job: SpecJob, world: FakeScheduler
) -> None:
    """Nobody has seen what would come after it."""
    world.capabilities = Capabilities(queued=True, resize=True, repairs=True)
    job.on_change = "repair"
    story.says[0], story.renewal = [LOST], Renewal.DUE
    job._apply(StateFile(PATH), keep=True, shown=job.plan(PATH))
    assert story.count("renew", 0) == 1
    assert world.count("resize") == 0

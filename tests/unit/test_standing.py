"""Where a job is now: whoever looks, waits or reads logs asks the follow-up that has taken over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from milkweed.backends import load_backend
from milkweed.backends.base import Backend
from milkweed.backends.fake import FakeScheduler
from milkweed.backends.standing import find_current_handle, poll_standing
from milkweed.cli.app import app
from milkweed.errors import UnreachableError
from milkweed.job.load import SpecJob
from milkweed.job.waiting import Trail, look
from milkweed.plan import Renewal
from milkweed.status import HostState, Liveness, Status
from unit.follow_ups import ENDED, NAME, PENDING, Story, running, tell_story
from unit.jobs import PATH, make_spec

pytestmark = pytest.mark.usefixtures("folder")
ENDING = Status(liveness=Liveness.UNKNOWN, reason="COMPLETING", ending=True)
SILENT = Status(liveness=Liveness.UNKNOWN, reason="nobody answered")
STARTING = running(HostState.STARTING, HostState.STARTING)
READY = running()


@pytest.fixture
def story(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Story:
    """An allocation with a follow-up."""
    del world
    return tell_story(monkeypatch)


@pytest.fixture
def backend(story: Story) -> Backend:
    """Who is asked of both."""
    del story
    return load_backend(NAME)


HANDLE = {"apply_id": "x"}


@pytest.mark.parametrize(
    ("first", "renewal", "follow", "generation", "now"),
    [
        (READY, Renewal.READY, READY, 0, READY),
        (READY, Renewal.WAITING, PENDING, 0, READY),
        (PENDING, Renewal.NONE, PENDING, 0, PENDING),
        (SILENT, Renewal.READY, READY, 0, SILENT),
        (ENDED, Renewal.NONE, ENDED, 0, ENDED),
        (ENDED, Renewal.FAILED, ENDED, 0, ENDED),
        (ENDED, Renewal.WAITING, PENDING, 1, PENDING),
        (ENDED, Renewal.READY, READY, 1, READY),
        (ENDING, Renewal.WAITING, PENDING, 0, ENDING),
        (ENDING, Renewal.READY, READY, 1, READY),
    ],
)
def test_a_follow_up_takes_over_from_what_ends(
    story: Story,
    backend: Backend,
    *,
    first: Status,
    renewal: Renewal,
    follow: Status,
    generation: int,
    now: Status,
) -> None:
    """As long as hosts serve, or nothing is known, the job is where it was."""
    story.says, story.renewal = [[first], [follow]], renewal
    found = poll_standing(backend, HANDLE)
    assert found.handle.get("generation", 0) == generation
    assert (found.status, found.before) == (now, first)


def test_what_runs_is_asked_once_by_who_plans_nothing(story: Story, backend: Backend) -> None:
    """A follow-up that waits its turn matters to a plan only."""
    poll_standing(backend, HANDLE)
    assert story.asked == [("poll", 0)]
    assert poll_standing(backend, HANDLE, "30m", planned=True).renewal is story.renewal
    assert story.asked[1:] == [("poll", 0), ("renewal", 0), ("poll", 1)]


@pytest.mark.parametrize("renewal", [Renewal.READY, Renewal.FAILED])
def test_each_of_them_is_looked_at_once(story: Story, backend: Backend, renewal: Renewal) -> None:
    """A look asks every host: who judges a follow-up, and who tells of it, go by the same one."""
    story.says, story.renewal = [[ENDED], [READY]], renewal
    poll_standing(backend, HANDLE)
    assert (story.count("poll", 0), story.count("poll", 1)) == (1, 1)


def test_why_a_follow_up_has_failed_is_known_to_a_plan(story: Story, backend: Backend) -> None:
    """The plan says it."""
    story.says[1], story.renewal = [ENDED], Renewal.FAILED
    found = poll_standing(backend, HANDLE, planned=True)
    assert (found.status, found.follow) == (READY, ENDED)


def test_logs_of_what_is_silent_are_where_they_were(
    story: Story, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files can be read though their scheduler does not answer."""

    def fail(*_args: object) -> Renewal:
        raise UnreachableError("nobody answers")

    story.says[0] = [ENDED]
    monkeypatch.setattr(type(backend), "renewal", fail)
    assert find_current_handle(backend, HANDLE) == HANDLE


def test_logs_ask_no_hosts_how_they_are(
    story: Story, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the scheduler alone can tell, that is enough to know where the job is."""
    looks: list[bool] = []

    def glance(_backend: Backend, handle: object, *, fresh: bool = False) -> Status:
        del handle
        looks.append(fresh)
        return READY

    monkeypatch.setattr(type(backend), "glance", glance, raising=False)
    assert find_current_handle(backend, HANDLE) == HANDLE
    assert (looks, story.asked) == ([True], [])


# What goes by it


@pytest.fixture
def job(story: Story) -> SpecJob:
    """A job that was applied; then its time was over, and its follow-up took its place."""
    made = SpecJob(make_spec(backend=NAME))
    made.apply()
    made.state(PATH)
    story.says, story.renewal = [[ENDED], [READY]], Renewal.READY
    story.asked.clear()
    return made


def test_a_wait_lets_in_the_hosts_of_the_follow_up(story: Story, job: SpecJob) -> None:
    """Nobody else does it, so without a deadline it would be waited for ever."""
    story.says[1] = [STARTING, READY]
    assert job.wait(5.0, until="running") == READY
    assert story.count("admit", 1) == 1
    assert story.count("admit", 0) == 0


def test_a_wait_asks_once_about_what_has_ended(story: Story, job: SpecJob) -> None:
    """An end is final: from then on it is the follow-up that is asked."""
    story.says[1] = [PENDING, STARTING, READY]
    assert job.wait(5.0, until="running") == READY
    assert (story.count("poll", 0), story.count("poll", 1)) == (1, 3)


def test_a_wait_goes_by_what_is_recorded_now(story: Story, job: SpecJob) -> None:
    """Somebody else may have had the record go over meanwhile, or made another allocation."""
    trail, record = Trail(), job._record()
    look(load_backend(NAME), record, trail)
    look(load_backend(NAME), replace(record, handle={**(record.handle or {}), "new": 1}), trail)
    assert story.count("poll", 0) == 2


def test_a_wait_prepares_the_hosts_of_the_follow_up(
    story: Story, job: SpecJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may wait for what their image says."""
    backend = type(load_backend(NAME))
    monkeypatch.setattr(backend, "controls", _controls(story), raising=False)
    monkeypatch.setattr("milkweed.job.waiting.is_prepared", lambda *_args: True)
    monkeypatch.setattr("milkweed.job.waiting.prepare_hosts", lambda *_args: None)
    story.says[1] = [STARTING, READY]
    job.wait(5.0, until="running")
    assert story.count("controls", 1) == 1
    assert story.count("controls", 0) == 0


def _controls(story: Story) -> object:
    def controls(_backend: object, handle: dict[str, int]) -> list[str]:
        story.ask("controls", handle)
        return []

    return controls


def test_logs_are_the_follow_ups(story: Story, job: SpecJob) -> None:
    """Hosts of nodes that see no files are asked for them, and those before are gone."""
    assert [line.text for line in job.logs()] == ["generation 1"]
    story.says[0] = [READY]
    assert [line.text for line in job.logs()] == ["generation 0"]


def test_the_command_line_reads_them_there_too(story: Story, job: SpecJob) -> None:
    """`milkweed logs` of the record."""
    assert Path(PATH).exists()
    done = CliRunner().invoke(app, ["logs", str(job.apply_id)], prog_name="milkweed")
    assert done.stdout == "[a/0] generation 1\n"
    assert story.count("logs", 1) == 1

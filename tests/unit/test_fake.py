"""The fake backend: its scheduler does what it is told, and jobs live whole lives on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from milkweed.backends import load_backend
from milkweed.backends.base import Capabilities, LogLine, Request
from milkweed.backends.fake import (
    FakeBackend,
    FakeMesh,
    FakeScheduler,
    current_scheduler,
    use_scheduler,
)
from milkweed.errors import (
    BackendError,
    HostFailedError,
    SpecError,
    UnreachableError,
    UnsupportedError,
)
from milkweed.job.load import SpecJob
from milkweed.spec import JobSpec, make_meshes
from milkweed.status import Liveness
from milkweed.testing import POINTS, Crash, FakeClock, crash_at

SPEC = JobSpec(
    name="demo",
    backend="fake",
    meshes=make_meshes({"a": 2, "b": 1}),
    client={"stream_logs": False},
)
REQUEST = Request(spec=SPEC, apply_id="id-1")


@pytest.fixture
def backend(world: FakeScheduler) -> FakeBackend:
    """The backend that talks to this test's world."""
    return FakeBackend()


# Worlds


def test_jobs_talk_to_the_current_world() -> None:
    """A world is used for a while, worlds nest, and the one before comes back."""
    outer = current_scheduler()
    with use_scheduler() as one:
        with use_scheduler(FakeScheduler()) as two:
            FakeBackend().submit(REQUEST)
            assert current_scheduler() is two
        assert current_scheduler() is one
        assert load_backend("fake").find("id-1") is None
    assert current_scheduler() is outer
    assert two.alive == ["id-1"]


def test_a_world_comes_back_after_an_error() -> None:
    """An error inside ends the use, too."""
    outer = current_scheduler()
    with pytest.raises(RuntimeError), use_scheduler():
        raise RuntimeError
    assert current_scheduler() is outer


def test_capabilities_are_the_worlds(world: FakeScheduler) -> None:
    """What the backend can do is up to the scheduler behind it."""
    world.capabilities = Capabilities(queued=False, resize=True)
    assert FakeBackend().capabilities is world.capabilities
    assert FakeBackend.capabilities == Capabilities()


# What it is told


def test_an_allocation_waits_in_the_queue(world: FakeScheduler) -> None:
    """It runs after as many polls as the queue is long, and has no hosts before."""
    world.queue_polls = 2
    backend = FakeBackend()
    handle = backend.submit(REQUEST)
    with pytest.raises(BackendError, match="has no hosts"):
        backend.hosts(handle)
    assert [backend.poll(handle).liveness.value for _ in range(4)] == [
        *("pending", "pending", "running", "running")
    ]
    assert [host.label for host in backend.hosts(handle)] == ["a/0", "a/1", "b/0"]


def test_a_refused_submission_leaves_nothing(world: FakeScheduler, backend: FakeBackend) -> None:
    """A scheduler that says no has nothing, and says yes the next time."""
    world.refuse_next("no such partition")
    with pytest.raises(BackendError) as caught:
        backend.submit(REQUEST)
    assert caught.value.seen == "no such partition"
    assert world.allocations == {}
    assert backend.submit(REQUEST)


def test_a_lost_answer_leaves_an_allocation(world: FakeScheduler, backend: FakeBackend) -> None:
    """The one who asked hears an error, and the allocation is there all the same."""
    world.lose_next_answer()
    with pytest.raises(UnreachableError):
        backend.submit(REQUEST)
    assert world.alive == ["id-1"]
    assert backend.find("id-1") is not None


def test_an_id_is_used_once(backend: FakeBackend) -> None:
    """Two allocations of one id could not be told apart."""
    backend.submit(REQUEST)
    with pytest.raises(BackendError, match="is taken"):
        backend.submit(REQUEST)


def test_the_living_are_listed(world: FakeScheduler, backend: FakeBackend) -> None:
    """What holds hosts or waits for them is listed with its job's name; silence is no empty list."""
    world.queue_polls = 9
    backend.submit(REQUEST)
    backend.submit(Request(spec=SPEC, apply_id="id-2"))
    world.end("id-1")
    assert backend.allocations() == {"id-2": "demo"}
    world.go_silent()
    with pytest.raises(UnreachableError):
        backend.allocations()


def test_a_silent_scheduler_does_nothing(world: FakeScheduler, backend: FakeBackend) -> None:
    """Without an answer nothing happens: polls are unknown, everything else is an error."""
    handle = backend.submit(REQUEST)
    backend.poll(handle)
    world.go_silent(5)
    assert backend.poll(handle).liveness is Liveness.UNKNOWN
    for call in (backend.hosts, backend.cancel, lambda _: backend.find("id-1")):
        with pytest.raises(UnreachableError):
            call(handle)
    with pytest.raises(UnreachableError):
        list(backend.logs(handle, None, follow=False))
    assert backend.poll(handle).liveness is Liveness.RUNNING
    assert [call.answer for call in world.calls] == ["ok"] * 2 + ["silent"] * 5 + ["ok"]


def test_silence_can_be_at_chosen_calls(world: FakeScheduler, backend: FakeBackend) -> None:
    """The calls that get no answer can be chosen by number, and calmed down."""
    world.unreachable_at = frozenset({1, 3})
    handle = backend.submit(REQUEST)
    seen = [backend.poll(handle).liveness.value for _ in range(3)]
    assert seen == ["unknown", "running", "unknown"]
    world.unreachable_at = frozenset({4})
    world.refuse_next()
    world.lose_next_answer()
    world.calm_down()
    assert backend.poll(handle).liveness is Liveness.RUNNING
    backend.submit(Request(spec=SPEC, apply_id="id-2"))


def test_the_end_is_final(world: FakeScheduler, backend: FakeBackend) -> None:
    """What has ended stays so, with its reason, whatever comes later."""
    handle = backend.submit(REQUEST)
    world.end("id-1", "TIMEOUT", 1)
    world.requeue("id-1")
    world.end("id-1", "again", 2)
    backend.cancel(handle)
    status = backend.poll(handle)
    assert (status.liveness, status.reason, status.exit_code) == (Liveness.ENDED, "TIMEOUT", 1)
    assert not world.allocations["id-1"].cancelled


def test_a_requeued_allocation_waits_again(world: FakeScheduler, backend: FakeBackend) -> None:
    """Hosts can be taken away and given again."""
    handle = backend.submit(REQUEST)
    backend.poll(handle)
    world.fail_host("id-1", "a/0")
    world.requeue("id-1", 1)
    assert backend.poll(handle).reason == "requeued"
    assert backend.poll(handle).ready


def test_a_forgotten_allocation_has_ended(world: FakeScheduler, backend: FakeBackend) -> None:
    """Schedulers forget; a handle of what nobody knows is of something that has ended."""
    handle = backend.submit(REQUEST)
    world.forget("id-1")
    assert backend.poll(handle).liveness is Liveness.ENDED
    assert backend.find("id-1") is None
    assert backend.last_lines(handle, ["a/0"]) == {}
    backend.cancel(handle)
    with pytest.raises(BackendError, match="no trace"):
        backend.hosts(handle)


def test_a_failed_host_does_not_connect(world: FakeScheduler, backend: FakeBackend) -> None:
    """A host can fail, with a reason, and is seen by all."""
    handle = backend.submit(REQUEST)
    backend.poll(handle)
    world.fail_host("id-1", "a/1", "out of memory", 137)
    (failed,) = backend.poll(handle).failed_hosts
    assert (failed.host, failed.reason, failed.exit_code) == ("a/1", "out of memory", 137)
    with pytest.raises(HostFailedError, match="a/1"):
        backend.connect(SPEC, handle, "me")


def test_hosts_write_logs(world: FakeScheduler, backend: FakeBackend) -> None:
    """What hosts were told to write is read, all of it or one host's."""
    handle = backend.submit(REQUEST)
    world.write_log("id-1", "a/0", "one")
    world.write_log("id-1", "b/0", "two")
    assert [line.text for line in backend.logs(handle, None, follow=True)] == ["one", "two"]
    assert list(backend.logs(handle, "b/0", follow=False)) == [LogLine(host="b/0", text="two")]


def test_what_it_cannot_do_it_says() -> None:
    """Sizes and batch clients only where the world can."""
    with use_scheduler(FakeScheduler(max_hosts=2)):
        backend = FakeBackend()
        with pytest.raises(SpecError, match="3 hosts, and the scheduler has 2"):
            backend.validate(SPEC)
        with pytest.raises(UnsupportedError):
            backend.submit(Request(spec=SPEC, apply_id="id-2", client_script=("x",)))
        handle = backend.submit(REQUEST)
        with pytest.raises(UnsupportedError):
            backend.resize(handle, SPEC)


def test_handles_are_plain_data(backend: FakeBackend) -> None:
    """A handle is JSON, and says which allocation it is of."""
    handle = backend.submit(REQUEST)
    assert json.loads(json.dumps(handle)) == handle == {"apply_id": "id-1", "number": 1}


# Jobs on it


def test_a_job_lives_a_whole_life(world: FakeScheduler, folder: Path) -> None:
    """From declaration to end, with meshes that are the hosts themselves, and nothing left."""
    with SpecJob(SPEC) as job:
        state = job.state("job.json")
        assert isinstance(state.a, FakeMesh)
        assert (state.a.name, [host.rank for host in state.a]) == ("a", [0, 1])
        assert job.status().ready
        assert [event.what for event in job.events()] == ["asked", "submitted", "connected"]
    assert world.alive == []
    assert list(folder.iterdir()) == []


def test_no_engine_is_needed() -> None:
    """A job on the fake backend imports neither the engine nor pytest, nor does milkweed.testing."""
    code = (
        "import sys, milkweed.testing\n"
        "from milkweed.job import SpecJob\n"
        "from milkweed.spec import JobSpec, make_meshes\n"
        "spec = JobSpec(name='x', backend='fake', meshes=make_meshes({'a': 1}))\n"
        "job = SpecJob(spec)\n"
        "assert len(job.state(None).a) == 1\n"
        "job.kill()\n"
        "assert not {'monarch', 'torch', 'pytest', '_pytest', 'milkweed.engine'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Crashes and time


def test_a_crash_comes_at_the_chosen_passage(world: FakeScheduler, folder: Path) -> None:
    """At the n-th passage of the point the program ends; afterwards points are passed freely."""
    with crash_at("submit", 2) as seen:
        SpecJob(SPEC).state("one.json")
        with pytest.raises(Crash, match="submit"):
            SpecJob(SPEC).state("two.json")
        SpecJob(SPEC).state("three.json")
    assert seen.crashed
    assert seen.passed.count("submit") == 3
    assert len(world.alive) == 3


def test_a_crash_ends_with_its_block(world: FakeScheduler, folder: Path) -> None:
    """Outside the block, nothing crashes; blocks nest."""
    with crash_at("entry") as outer, crash_at("intent") as inner:
        for kind in (Crash, Crash):
            with pytest.raises(kind):
                SpecJob(SPEC).state("job.json")
    assert (outer.crashed, inner.crashed) == (True, True)
    SpecJob(SPEC).state("job.json")
    assert len(world.alive) == 1


def test_a_point_that_is_not_there_is_an_error() -> None:
    """A slip in a point's name would make a test that tests nothing."""
    with pytest.raises(ValueError, match="did you mean 'submit'"), crash_at("submitt"):
        pass


def test_a_crash_is_not_an_exception() -> None:
    """Nothing that handles errors handles a crash."""
    assert not issubclass(Crash, Exception)


def test_a_crash_can_be_a_real_one() -> None:
    """With kill, the very process ends, by a signal that nothing can handle."""
    code = (
        "from milkweed import _checkpoint\n"
        "from milkweed.testing import crash_at\n"
        "with crash_at('lock', kill=True):\n"
        "    _checkpoint.checkpoint('lock')\n"
        "print('still here')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (done.returncode, done.stdout) == (-9, b"")


def test_every_point_is_passed_by_a_job_that_is_made_and_ended(
    world: FakeScheduler, folder: Path
) -> None:
    """The named points are those that there are."""
    with crash_at("lock", 99) as seen:
        job = SpecJob(SPEC)
        job.state("job.json")
        job.kill()
    assert seen.passed == list(POINTS)


def test_time_passes_only_when_somebody_sleeps() -> None:
    """A clock for tests: no waiting, no surprise."""
    clock = FakeClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.sleep(2.0)
    clock.advance(1.0)
    assert (clock(), clock.slept) == (8.0, [2.0])

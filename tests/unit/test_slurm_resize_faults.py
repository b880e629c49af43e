"""Changes of sizes that Slurm refuses, does not answer, or forgets: nothing is lost, and no wait is for ever."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.places import make_places, place_nodes
from milkweed.backends.slurm.resize import check_release, release
from milkweed.backends.slurm.start import load_parts, save_note
from milkweed.errors import BackendError, HostFailedError, UnreachableError
from milkweed.job import SlurmJob, lifecycle
from milkweed.job.observing import observe
from milkweed.job.waiting import wait_until
from milkweed.plan import Action
from milkweed.spec import JobSpec, MeshSpec, Resources
from milkweed.state import StateFile
from milkweed.status import HostState, HostStatus, Liveness
from unit.slurm_fake import FakeSlurm, line, part, row, save_part_file
from unit.slurm_world import World
from unit.test_slurm_resize import NOBODY, SPEC, places

REFUSED = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n"


@pytest.fixture
def job(
    slurm: FakeSlurm, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[World]:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    made = World(slurm, home)
    made.backend._sleep = lambda _seconds: None
    yield made
    made.close()


def states(job: World, handle: dict[str, Any] | None = None) -> dict[str, HostState]:
    commands.queue.wake()
    return {each.host: each.state for each in job.backend.poll(handle or job.handle).hosts}


def refuse_growth(job: World) -> None:
    job.slurm.answer("sbatch", err=REFUSED, code=1)


def grow(job: World, hosts: int = 4) -> dict[str, Any]:
    """One more host, which Slurm has taken as job 9."""
    job.slurm.answer("sbatch", "9\n")
    return dict(job.backend.resize(job.handle, job.spec(hosts)))


def host(job: World, handle: dict[str, Any], label: str) -> HostStatus:
    commands.queue.wake()
    [found] = [each for each in job.backend.poll(handle).hosts if each.host == label]
    return found


# Growth that was cut off


def test_hosts_that_no_record_tells_of_are_given_back(job: World) -> None:
    """The program died before it could record them: the same one goes on with its own, and these go."""
    for rank in range(3):
        job.answer(rank)
    grow(job)
    both = [line(7, nodes="n[1-3]"), line(9, component=1, state="PENDING", reason="Resources")]
    job.slurm.jobs(*both)
    commands.queue.wake()
    assert [each.label for each in job.backend.hosts(job.handle)] == ["w/0", "w/1", "w/2"]
    assert len(job.backend.controls(job.handle)) == 3
    wish = lifecycle.Wish(spec=job.spec(3), backend=job.backend)
    file = StateFile("job.json")
    record, seen = observe(job.backend, file.load(), file, wish)
    assert lifecycle.plan_for(wish, seen).action is Action.REUSE
    registry.resizing_path(str(record and record.apply_id)).touch()
    record, seen = observe(job.backend, file.load(), file, wish)
    plan = lifecycle.plan_for(wish, seen)
    assert (plan.action, plan.approved) == (Action.RESIZE, True)
    assert plan.reasons == ("a change of sizes was not finished",)
    record, _file = lifecycle.execute(plan, wish, record, file)
    assert job.slurm.called("scancel") == [["9"]]
    job.slurm.jobs(both[0], line(9, component=1, state="CANCELLED"))
    commands.queue.wake()
    _record, seen = observe(job.backend, record, file, wish)
    assert lifecycle.plan_for(wish, seen).action is Action.REUSE


# Growth that was refused


def test_hosts_that_slurm_refused_are_not_waited_for(job: World) -> None:
    """The job is as it was: no file and no host tells of what was never submitted."""
    for rank in range(3):
        job.answer(rank)
    refuse_growth(job)
    with pytest.raises(BackendError, match="Slurm refused"):
        job.backend.resize(job.handle, job.spec(4))
    assert list(load_parts(job.folder, 0)) == [0]
    assert set(states(job).values()) == {HostState.READY}


def two_shapes(job: World, gpus: int) -> JobSpec:
    """The same job with meshes that are submitted as components of their own."""
    meshes = (
        MeshSpec(name="w", hosts=4),
        MeshSpec(name="g", hosts=1, resources=Resources(gpus=gpus)),
    )
    return JobSpec(name="demo", backend="slurm", meshes=meshes, options=job.spec(3).options)


def test_growth_is_all_or_nothing(job: World) -> None:
    """When a second component is refused, the first is not left in the queue."""
    job.slurm.answer("sbatch", err=REFUSED, code=1)
    job.slurm.then("sbatch", 'case "$*" in *gpus*) ;; *) exec echo 9 ;; esac')
    with pytest.raises(BackendError, match="Slurm refused"):
        job.backend.resize(job.handle, two_shapes(job, 1))
    assert job.slurm.called("scancel") == [["9"]]
    job.slurm.jobs(line(7, nodes="n[1-3]"), line(9, component=1, state="CANCELLED"))
    assert set(states(job)) == {"w/0", "w/1", "w/2"}


def test_what_would_be_given_back_stays_when_growth_is_refused(job: World) -> None:
    """One mesh gets smaller and another larger: what can be refused comes first."""
    keepers = [job.answer(rank) for rank in range(3)]
    refuse_growth(job)
    meshes = (MeshSpec(name="w", hosts=2), MeshSpec(name="v", hosts=1))
    wanted = JobSpec(name="demo", backend="slurm", meshes=meshes, options=job.spec(3).options)
    with pytest.raises(BackendError, match="Slurm refused"):
        job.backend.resize(job.handle, wanted)
    assert keepers[2].orders == []
    assert set(states(job)) == {"w/0", "w/1", "w/2"}


def test_a_job_whose_growth_was_refused_is_declared_as_it_was(
    cluster: FakeSlurm, folder: Path, home: Path
) -> None:
    """The next `state()` connects to the hosts there are, and asks for nothing."""
    declared = SlurmJob(meshes={"w": 2})
    declared.apply()
    cluster.jobs(line(7, nodes="n[1-2]", apply_id=str(declared.apply_id)))
    commands.queue.wake()
    cluster.answer("sbatch", err=REFUSED, code=1)
    with pytest.raises(BackendError, match="Slurm refused"):
        declared.resize("w", 3)
    assert declared.spec.sizes == {"w": 2}
    assert declared.plan().action.value == "nothing"


# Growth that was not answered, or came to an end


def test_hosts_that_nobody_answered_for_are_not_part_of_the_job(job: World) -> None:
    """Its record does not have them; when Slurm has taken them after all, they are shown."""
    for rank in range(3):
        job.answer(rank)
    job.slurm.answer("sbatch", err="sbatch: error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(UnreachableError):
        job.backend.resize(job.handle, job.spec(4))
    assert set(states(job)) == {"w/0", "w/1", "w/2"}
    job.slurm.jobs(line(7, nodes="n[1-3]"), line(9, component=1, state="PENDING"))
    assert states(job)["w/3"] is HostState.STARTING


def test_growth_that_came_after_all_is_not_asked_for_twice(job: World) -> None:
    """Slurm took it and nobody heard: who asks again waits a moment, and finds it."""
    job.slurm.answer("sbatch", err="sbatch: error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(UnreachableError):
        job.backend.resize(job.handle, job.spec(4))
    asked, slept = len(job.slurm.submitted), list[float]()

    def come(seconds: float) -> None:
        slept.append(seconds)
        job.slurm.jobs(line(7, nodes="n[1-3]"), line(9, component=1, state="PENDING"))

    job.backend._sleep = come
    job.backend.resize(job.handle, job.spec(4))
    assert (len(job.slurm.submitted), len(slept)) == (asked, 1)


def test_a_component_that_slurm_has_forgotten_has_failed(job: World) -> None:
    """It was taken, ended, and is not told of any more: a wait for its hosts would be for ever."""
    handle = grow(job)
    job.slurm.jobs(line(7, nodes="n[1-3]"), line(9, component=1, state="CANCELLED"))
    assert host(job, handle, "w/3").state is HostState.FAILED
    job.run()
    found = host(job, handle, "w/3")
    assert (found.state, found.reason) == (
        HostState.FAILED,
        "Slurm has no trace of job 9 any more",
    )
    with pytest.raises(HostFailedError, match="w/3"):
        wait_until("running", lambda: job.backend.poll(handle), name="demo", timeout_s=None)


def test_a_look_from_before_a_component_was_taken_says_nothing_of_it(job: World) -> None:
    """Another client may have asked since the queue was read: it is read again."""
    handle = grow(job)
    job.run()
    commands.queue.rows(0.0)
    job.slurm.jobs(line(7, nodes="n[1-3]"), line(9, component=1, state="PENDING"))
    rows = commands.queue.rows(60.0)
    assert [each.job_id for each in rows] == [7]
    [found] = [p for p in job.backend._make_places(handle, rows) if p.host == "w/3"]
    assert found.row is not None


def test_a_component_whose_mark_and_name_were_changed_is_not_known_to_be_gone(job: World) -> None:
    """A job that lives under its number may be it."""
    handle = grow(job)
    strange = line(9, component=1, state="RUNNING", comment="mine").replace("|demo|end", "|x|end")
    job.slurm.jobs(line(7, nodes="n[1-3]"), strange)
    assert host(job, handle, "w/3").state is HostState.STARTING


# Shrinking that Slurm would refuse


def test_the_first_component_of_a_heterogeneous_job_gives_nothing_back(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Slurm has no words for it: `12` means all of them, and `12+0` none. Nothing is touched."""
    leader = row(job_id=12, leader=12, offset=0, nodes=("n1", "n2"))
    [_, going] = [*places_with(leader, "w/0", "w/1")]
    with pytest.raises(BackendError, match="first component of a heterogeneous job"):
        check_release([going])
    assert slurm.calls == []


def places_with(found: Any, *hosts: str) -> Any:
    return make_places([found], {0: part(*hosts)})


def test_other_components_are_changed_by_their_own_number(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Only the one that is meant."""
    second = row(job_id=13, leader=12, offset=1, nodes=("n3", "n4"))
    chosen = places_with(second, "w/0", "w/1")[1:]
    check_release(chosen)
    release(SPEC, tmp_path / "job", chosen, lambda _place: NOBODY)
    assert slurm.called("scontrol")[-1] == ["update", "JobId=13", "NodeList=n3"]


def test_a_job_that_lost_its_first_node_gives_nothing_back(slurm: FakeSlurm) -> None:
    """Slurm wants the node that the script was started on among those that stay, and it is gone."""
    noted = {"nodes": {"0": "n1", "1": "n2", "2": "n3"}, "nodes_start": row().start}
    chosen = make_chosen(row(nodes=("n2", "n3"), batch_host="n1"), **noted)
    with pytest.raises(BackendError, match="takes no nodes from job 7 any more") as caught:
        check_release(chosen)
    assert "n1" in caught.value.seen
    assert slurm.calls == []


def make_chosen(found: Any, **more: Any) -> Any:
    return make_places([found], {0: part("w/0", "w/1", "w/2", **more)})[2:]


def test_a_site_that_takes_no_nodes_back_is_asked_before_hosts_are_stopped(
    job: World, slurm: FakeSlurm
) -> None:
    """Its settings say so; all hosts go on."""
    keepers = [job.answer(rank) for rank in range(3)]
    config = slurm.home / "config"
    config.write_text(f"{config.read_text()}SchedulerParameters = bf_x,disable_job_shrink\n")
    with pytest.raises(BackendError, match="takes no nodes from jobs that run") as caught:
        job.backend.resize(job.handle, job.spec(2))
    assert "disable_job_shrink" in caught.value.seen
    assert keepers[2].orders == []
    assert load_parts(job.folder, 0)[0]["released"] == []


def test_a_job_in_the_queue_that_slurm_refuses_to_change_is_as_it_was(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Nothing was stopped, so nothing was released."""
    slurm.answer("scontrol", err="Job update not available right now\n", code=1)
    [*_, going] = places_with(row(state="PENDING"), "w/0", "w/1")
    save_part_file(tmp_path / "job", going.part)
    with pytest.raises(BackendError, match="Slurm refused"):
        release(SPEC, tmp_path / "job", [going], lambda _place: NOBODY)
    assert load_parts(tmp_path / "job", 0)[0]["released"] == []


# Shrinking that was not answered


def test_a_change_that_was_cut_off_is_finished_by_the_next(job: World) -> None:
    """Hosts were stopped and Slurm did not hear of it: until then they are told as lost, and why."""
    for rank in range(3):
        job.answer(rank)
    job.slurm.answer(
        "scontrol", err="scontrol: error: Unable to contact slurm controller\n", code=1
    )
    with pytest.raises(UnreachableError):
        job.backend.resize(job.handle, job.spec(2))
    found = host(job, job.handle, "w/2")
    assert found.state is HostState.FAILED
    assert "was not finished: repeat it" in found.reason
    job.slurm.answer("scontrol")
    handle = dict(job.backend.resize(job.handle, job.spec(2)))
    assert job.slurm.called("scontrol")[-1] == ["update", "JobId=7", "NodeList=n[1-2]"]
    job.run("n[1-2]")
    assert set(states(job, handle)) == {"w/0", "w/1"}


def test_what_was_not_given_back_is_given_back_by_any_change(job: World) -> None:
    """A job that grows next gives the old nodes back, too; what Slurm refuses stops nothing."""
    data = load_parts(job.folder, 0)[0]
    save_part_file(job.folder, {**data, "released": [2]})
    save_note(
        job.folder, "0.0", {"nodes_start": row().start, "nodes": {"0": "n1", "1": "n2", "2": "n3"}}
    )
    job.slurm.answer("scontrol", err="Job update not available right now\n", code=1)
    job.slurm.answer("sbatch", "9\n")
    job.backend.resize(job.handle, job.spec(3))
    assert ["update", "JobId=7", "NodeList=n[1-2]"] in job.slurm.called("scontrol")
    assert [each["rank"] for each in load_parts(job.folder, 0)[1]["hosts"]] == [2]


def test_a_running_job_notes_who_is_where_before_it_gets_smaller(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Nobody was connected, and Slurm does not answer: the next look knows all the same."""
    slurm.be_away()
    chosen = places("a/0", "a/1", "b/0", nodes=("n1", "n2", "n3"))[1:2]
    with pytest.raises(UnreachableError):
        release(SPEC, tmp_path / "job", chosen, lambda _place: NOBODY)
    data = load_parts(tmp_path / "job", 0)[0]
    for nodes in (("n1", "n2", "n3"), ("n1", "n3")):
        found = place_nodes(data, row(nodes=nodes))
        assert (found[0], found[2]) == ("n1", "n3")


def test_a_job_that_starts_with_more_nodes_than_it_has_hosts_maps_them_as_keepers_do() -> None:
    """Slurm did not hear that one of three was released in the queue: the first nodes have those that are left."""
    data = part("a/0", "a/1", "b/0", released=[1])
    assert place_nodes(data, row(nodes=("n1", "n2", "n3"))) == {0: "n1", 2: "n2"}


def test_a_lost_host_whose_node_slurm_keeps_is_replaced_all_the_same(job: World) -> None:
    """Whether Slurm takes a dead node out of the job is its own affair: the job has the others."""
    job.answer(0)
    job.answer(1)
    job.show_nodes(n3="down")
    job.slurm.answer("scontrol", err="Invalid node name specified\n", code=1)
    handle = grow(job)
    job.slurm.jobs(line(7, nodes="n[1-3]"), line(9, component=1, state="PENDING"))
    assert states(job, handle) == {
        "w/0": HostState.READY,
        "w/1": HostState.READY,
        "w/2": HostState.STARTING,
        "w/3": HostState.STARTING,
    }
    assert job.backend.glance(handle).liveness is Liveness.RUNNING

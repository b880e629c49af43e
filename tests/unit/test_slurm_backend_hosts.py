"""The Slurm backend with hosts that answer: real TLS to keepers, and Slurm's word where nobody answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.base import (
    Admits,
    Controls,
    Explains,
    Glances,
    KeepsLogs,
    Lists,
    Renews,
    Resizes,
)
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.start import load_parts
from milkweed.backends.slurm.status import judge_host
from milkweed.control import parse_door
from milkweed.errors import AllocationError, BackendError, UnreachableError
from milkweed.status import HostState, Liveness
from milkweed.worker.wire import up_file
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, row, save_part_file, write_log
from unit.slurm_jobs import handle_of
from unit.slurm_world import MACHINES, NODES, World


@pytest.fixture
def job(
    slurm: FakeSlurm, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[World]:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    made = World(slurm, home)
    yield made
    made.close()


def test_the_backend_offers_what_the_job_needs() -> None:
    """It lists, resizes, glances, explains, controls, admits, renews, and has the logs of what is gone."""
    offers = (Admits, Controls, Explains, Glances, KeepsLogs, Lists, Renews, Resizes)
    assert [each for each in offers if not isinstance(SlurmBackend(), each)] == []


# What hosts say


def test_hosts_that_answer_are_what_they_say(job: World) -> None:
    """Ready, failed with its reason, and silent: each host by itself, and the job's details."""
    job.answer(0)
    job.answer(1, "failed", reason="it died", tail=["Traceback"], exit_code=1)
    status = job.backend.poll(job.handle)
    assert status.liveness is Liveness.RUNNING
    assert [each.state for each in status.hosts] == [
        HostState.READY,
        HostState.FAILED,
        HostState.STARTING,
    ]
    assert (status.hosts[1].reason, status.hosts[1].exit_code) == ("it died\nTraceback", 1)
    assert "127.0.0.3 (host w/2)" in status.hosts[2].reason
    assert status.details == {"slurm_jobs": "7", "time_left_s": "3600"}
    assert not status.ready


def test_a_job_is_ready_when_all_hosts_are(job: World) -> None:
    """Every host said so itself; Slurm is not asked about nodes then."""
    for rank in range(3):
        job.answer(rank)
    before = len(job.slurm.called("sinfo"))
    assert job.backend.poll(job.handle).ready
    assert len(job.slurm.called("sinfo")) == before


def test_a_glance_asks_no_host(job: World) -> None:
    """What Slurm says is enough to know whether to wait."""
    keeper = job.answer(0)
    status = job.backend.glance(job.handle, fresh=True)
    assert (status.liveness, status.hosts, keeper.orders) == (Liveness.RUNNING, (), [])


def test_a_silent_host_on_a_broken_node_has_failed(job: World) -> None:
    """Slurm's word on the node is the reason."""
    job.answer(0)
    job.show_nodes(n2="down*")
    status = job.backend.poll(job.handle)
    assert status.hosts[1].state is HostState.FAILED
    assert status.hosts[1].reason == "Slurm says that node n2 is down*: hw"
    assert status.hosts[2].state is HostState.STARTING


def test_hosts_have_their_addresses(job: World) -> None:
    """Where each host's engine serves, the node that it is on, and where it takes orders."""
    for rank in range(3):
        job.answer(rank, address=f"tls://{MACHINES[rank]}:5")
    found = job.backend.hosts(job.handle)
    assert [(each.label, each.name, each.address) for each in found] == [
        (f"w/{rank}", NODES[rank], f"tls://{MACHINES[rank]}:5") for rank in range(3)
    ]
    assert [parse_door(each.control).machine for each in found] == list(MACHINES)


def test_hosts_of_which_one_is_silent_are_not_all_there(job: World) -> None:
    """The error names the host."""
    job.answer(0)
    job.answer(1)
    with pytest.raises(UnreachableError, match="host w/2 does not answer"):
        job.backend.hosts(job.handle)


def test_a_job_in_the_queue_has_no_hosts(job: World) -> None:
    """Slurm's reason is in the error."""
    job.slurm.jobs(line(7, state="PENDING", reason="Priority"))
    with pytest.raises(AllocationError) as caught:
        job.backend.hosts(job.handle)
    assert "Priority" in caught.value.seen


def test_orders_are_taken_on_every_node(job: World) -> None:
    """One door for each host that has a node, with this client's own certificate."""
    doors = [parse_door(address) for address in job.backend.controls(job.handle)]
    assert [(door.host, door.machine) for door in doors] == [
        (f"w/{rank}", MACHINES[rank]) for rank in range(3)
    ]
    assert {door.port for door in doors} == {job.port}
    assert {Path(door.credentials).parent for door in doors} == {job.folder / "tls"}
    job.run(state="PENDING", nodes="")
    job.slurm.jobs(line(7, state="PENDING"))
    commands.queue.wake()
    assert job.backend.controls(job.handle) == []


def test_a_lost_host_is_explained(job: World) -> None:
    """What Slurm knows of one host, by its task or its node."""
    log = Path(load_parts(job.folder, 0)[0]["logs"]) / "part.0.0.log"
    write_log(log, "srun: error: n3: task 2: Out Of Memory\n")
    assert job.backend.explain(job.handle, "w/2").reason.startswith(
        "its task on node n3 ended: Out Of Memory"
    )
    assert job.backend.explain(job.handle, "w/0").state is HostState.STARTING


# What must not break


def test_a_node_that_failed_leaves_the_others_where_they_are(job: World) -> None:
    """Slurm strikes a failed node from a job that goes on: the hosts behind it must not move up."""
    job.answer(0)
    job.answer(2)
    before = {host.host: host.state for host in job.backend.poll(job.handle).hosts}
    assert before["w/2"] is HostState.READY
    assert len(job.backend.controls(job.handle)) == 3
    job.run("n[1,3]")
    doors = [parse_door(address) for address in job.backend.controls(job.handle)]
    assert {door.host: door.machine for door in doors if door.host != "w/1"} == {
        "w/0": "127.0.0.1",
        "w/2": "127.0.0.3",
    }
    after = {host.host: host.state for host in job.backend.poll(job.handle).hosts}
    assert after["w/2"] is HostState.READY


def test_a_node_that_was_taken_out_of_the_job_is_still_told_of(job: World) -> None:
    """Slurm strikes a node from the job in the moment in which it gives it up; why it did so stays in sight."""
    assert len(job.backend.controls(job.handle)) == 3
    job.show_nodes(n2="down*")
    job.run("n[1,3]")
    assert job.backend.poll(job.handle).hosts[1].reason == (
        "its node n2 is no longer part of Slurm job 7; Slurm says that node n2 is down*: hw"
    )


def test_a_node_that_cannot_be_found_is_no_crash(job: World) -> None:
    """A node whose name this machine cannot resolve is a host that does not answer."""
    data = load_parts(job.folder, 0)[0]
    data["addresses"] = {**data["addresses"], "n2": "no-such-host.invalid"}
    (job.folder / "part-0.0.json").write_text(json.dumps(data))
    job.answer(0)
    states = [each.state for each in job.backend.poll(job.handle).hosts]
    assert states == [HostState.READY, HostState.STARTING, HostState.STARTING]


def test_a_host_that_nobody_has_any_more_is_explained_as_such(job: World) -> None:
    """A host that another client has released meanwhile: an error of milkweed's own kind, or not known."""
    try:
        state = job.backend.explain(job.handle, "w/9").state
    except BackendError:
        state = HostState.UNKNOWN
    assert state is not HostState.READY


# Other sizes


def test_growing_is_a_component_of_its_own(job: World) -> None:
    """What is missing is submitted with the next number, and ends with those it joins."""
    job.run(left="30:00")
    job.slurm.answer("sbatch", "9\n")
    handle = job.backend.resize(job.handle, job.spec(5))
    assert handle["jobs"] == [7, 9]
    arguments = job.slurm.submitted[-1]
    assert {"--nodes=2", "--time=00:30:00"} <= set(arguments)
    assert f"--comment=milkweed:1:{APPLY_ID}:0:1:demo" in arguments
    added = load_parts(job.folder, 0)[1]
    assert [(each["mesh"], each["rank"]) for each in added["hosts"]] == [("w", 3), ("w", 4)]


def test_shrinking_stops_the_hosts_and_gives_their_nodes_back(job: World) -> None:
    """The host that goes hears it from us first, then Slurm takes its node; the others hear nothing."""
    keepers = [job.answer(rank) for rank in range(3)]
    handle = job.backend.resize(job.handle, job.spec(2))
    assert handle["jobs"] == [7]
    assert [order["op"] for order in keepers[2].orders if order["op"] != "status"] == ["stop"]
    assert keepers[0].orders == keepers[1].orders == []
    assert job.slurm.called("scontrol")[-1] == ["update", "JobId=7", "NodeList=n[1-2]"]
    job.run("n[1-2]")
    assert [each.host for each in job.backend.poll(handle).hosts] == ["w/0", "w/1"]


def test_the_same_size_asks_for_nothing(job: World) -> None:
    """Resizing is a write that may be repeated."""
    before = job.slurm.submitted
    assert job.backend.resize(job.handle, job.spec(3)) == job.handle
    assert job.slurm.submitted == before
    assert job.slurm.called("scancel") == []


def test_hosts_that_are_over_are_replaced_by_growing(job: World) -> None:
    """A component that ended frees its ranks: they are asked for again."""
    job.slurm.jobs(line(7, state="NODE_FAIL"))
    job.slurm.answer("sbatch", "9\n")
    job.backend.resize(job.handle, job.spec(2))
    hosts = load_parts(job.folder, 0)[1]["hosts"]
    assert [(each["mesh"], each["rank"]) for each in hosts] == [("w", 0), ("w", 1)]


@pytest.mark.parametrize(("state", "added"), [("allocated*", [3]), ("down", [2, 3])])
def test_growing_replaces_no_host_that_is_only_not_heard(
    job: World, state: str, added: list[int]
) -> None:
    """It may be back, and was paid for with a place in the queue; one whose node is down is replaced."""
    job.answer(0)
    job.answer(1)
    job.run()
    job.show_nodes(n3=state)
    job.slurm.answer("sbatch", "9\n")
    job.backend.resize(job.handle, job.spec(4))
    assert [each["rank"] for each in load_parts(job.folder, 0)[1]["hosts"]] == added


def test_resizing_while_nobody_answers_changes_nothing(job: World) -> None:
    """No file is written and nothing is submitted."""
    before = {path: path.read_bytes() for path in job.folder.glob("part-*")}
    job.slurm.be_away()
    with pytest.raises(UnreachableError):
        job.backend.resize(job.handle, job.spec(1))
    assert {path: path.read_bytes() for path in job.folder.glob("part-*")} == before


# Logs


def write_logs(job: World, **lines: str) -> None:
    logs = Path(load_parts(job.folder, 0)[0]["logs"])
    for name, text in lines.items():
        (logs / f"{name.replace('_', '.')}.log").write_text(text)


def test_logs_are_read_from_the_shared_folder(job: World) -> None:
    """All hosts, or one; and the batch client's own."""
    write_logs(job, w_0="a\nb\n", w_1="c\n", w_2="", client="d\n")
    found = [(each.host, each.text) for each in job.backend.logs(job.handle, None, follow=False)]
    assert sorted(found) == [("client", "d"), ("w/0", "a"), ("w/0", "b"), ("w/1", "c")]
    assert [each.text for each in job.backend.logs(job.handle, "w/1", follow=False)] == ["c"]


def test_logs_are_read_though_slurm_is_away(job: World) -> None:
    """Files need no controller."""
    write_logs(job, w_0="a\n", w_1="", w_2="")
    job.slurm.be_away()
    commands.queue.wake()
    assert [each.text for each in job.backend.logs(job.handle, "w/0", follow=False)] == ["a"]


def test_the_last_lines_of_a_host_need_neither_it_nor_slurm(job: World) -> None:
    """What a lost host, or one of a job that has ended, wrote last: a few lines, its own, from its file alone."""
    write_logs(job, w_0="of w/0\n", w_1="".join(f"{number}\n" for number in range(9)))
    job.slurm.be_away()
    before = len(job.slurm.calls)
    found = job.backend.last_lines(job.handle, ["w/0", "w/1", "w/2", "x/0"])
    assert found == {"w/0": ["of w/0"], "w/1": list("345678")}
    assert len(job.slurm.calls) == before


def test_logs_that_are_not_seen_here_are_asked_for(job: World) -> None:
    """A host that keeps its log on its own machine sends it."""
    keeper = job.answer(0)
    pieces = iter(["aGVsbG8K", ""])  # hello and the end
    keeper.answers["log"] = {"ev": "log", "data": next(pieces)}
    take = keeper._take

    def serve(order: dict[str, Any], writer: Any) -> None:
        take(order, writer)
        if order["op"] == "log":
            keeper.answers["log"] = {"ev": "log", "data": ""}

    keeper._take = serve  # type: ignore[method-assign]
    assert [each.text for each in job.backend.logs(job.handle, "w/0", follow=False)] == ["hello"]


def test_the_log_of_nobody_is_refused(job: World) -> None:
    """The error lists the hosts there are."""
    with pytest.raises(BackendError, match="there is no host 'x/0'") as caught:
        list(job.backend.logs(job.handle, "x/0", follow=False))
    assert "w/0, w/1, w/2" in caught.value.hint


# Hosts that see no files


def test_who_has_joined_a_host_knows_later_that_its_keeper_is_gone(
    cluster: FakeSlurm, home: Path
) -> None:
    """Keepers that do not see the folder note nothing there; their client does, for this run of the job."""
    folder = registry.folder_of(APPLY_ID)
    save_part_file(folder, part("w/0", "w/1", record_folder=str(folder)))
    backend = SlurmBackend()
    backend.joined(handle_of(), ["w/1"])
    long_ago = time.time() - 60
    os.utime(folder / up_file("0.0.1"), (long_ago, long_ago))

    def judge(label: str, start: float) -> HostState:
        rows = [row(nodes=("n1", "n2"), start=start)]
        [place] = [p for p in backend._make_places(handle_of(), rows) if p.host == label]
        return judge_host(place, "[Errno 111] Connection refused", {}).state

    assert judge("w/1", long_ago - 60) is HostState.FAILED
    assert judge("w/0", long_ago - 60) is HostState.STARTING
    assert judge("w/1", time.time()) is HostState.STARTING, "it was put back into the queue since"


@pytest.mark.parametrize(("where", "state"), [("n2", "failed"), ("n9", "starting")])
def test_a_keeper_that_was_elsewhere_was_there_before_the_queue(
    cluster: FakeSlurm, home: Path, where: str, state: str
) -> None:
    """A job that is put back into the queue may start anew within what clocks differ: its keepers come later."""
    folder = registry.folder_of(APPLY_ID)
    save_part_file(folder, part("w/0", "w/1", record_folder=str(folder)))
    up = folder / up_file("0.0.1")
    up.write_text(where)
    began = time.time() - 60
    os.utime(up, (began, began))
    rows = [row(nodes=("n1", "n2"), start=began + 2)]
    [_, place] = SlurmBackend()._make_places(handle_of(), rows)
    assert judge_host(place, "[Errno 111] Connection refused", {}).state.value == state

"""Which host is on which node: by what the job's files and Slurm say together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.places import (
    PartData,
    component_of,
    is_certain,
    make_note,
    make_places,
    place_nodes,
    rows_of,
)
from milkweed.backends.slurm.status import judge_host
from milkweed.backends.slurm.text import JobRow, Mark, render_mark
from milkweed.status import HostState
from milkweed.worker.remote import make_share
from milkweed.worker.wire import up_file
from unit.slurm_fake import APPLY_ID, START_S, part, row

HOSTS = ("w/0", "w/1", "w/2")
OTHER = render_mark(Mark("99999999-2222-4333-8444-555555555555", 0, 0, "other"))
NODES = ("n1", "n2", "n3")
AGAIN_S = START_S + 600


# Whose jobs


def test_jobs_are_ours_by_their_mark() -> None:
    """Jobs of other allocations and of other programs are not ours, whatever their names are."""
    ours = [row(job_id=1), row(job_id=2, component=1), row(job_id=3, generation=1)]
    others = [row(job_id=4, comment=OTHER), row(job_id=5, comment=""), row(job_id=6, comment="x")]
    assert rows_of([*ours, *others], APPLY_ID) == ours


@pytest.mark.parametrize(("generation", "expected"), [(None, [1, 3]), (0, [1]), (1, [3]), (2, [])])
def test_a_generation_is_looked_at_by_itself(generation: int | None, expected: list[int]) -> None:
    """Components of one generation, or of all of them."""
    rows = [row(job_id=1), row(job_id=3, generation=1)]
    assert [each.job_id for each in rows_of(rows, APPLY_ID, generation)] == expected


def test_a_component_is_named_by_its_mark() -> None:
    """A job without a mark is no component of anything."""
    assert component_of(row(component=4)) == 4
    assert component_of(row(comment="x")) == -1


# Which node


def test_hosts_follow_the_list_of_nodes() -> None:
    """Slurm counts tasks along its list of nodes, and hosts are tasks."""
    assert place_nodes(part(*HOSTS), row(nodes=NODES)) == {0: "n1", 1: "n2", 2: "n3"}


@pytest.mark.parametrize("state", ["PENDING", "CONFIGURING", "COMPLETING", "CANCELLED"])
def test_a_job_that_does_not_run_has_no_nodes(state: str) -> None:
    """What Slurm lists for such a job was, or will be, and is not there now."""
    assert place_nodes(part(*HOSTS), row(nodes=NODES, state=state)) == {}


def test_a_job_that_is_not_listed_has_no_nodes() -> None:
    """Slurm may not have it any more, or not yet."""
    assert place_nodes(part(*HOSTS), None) == {}


def noted(*hosts: str, released: tuple[int, ...] = (), nodes: tuple[str, ...] = NODES) -> PartData:
    """A part whose hosts were noted when all of them were there, and some released since."""
    data = dict(part(*hosts or HOSTS))
    note = make_note(data, row(nodes=nodes))
    assert note is not None
    return {**data, **note, "released": list(released)}


def test_a_note_is_made_while_all_nodes_are_there() -> None:
    """Once for each start of the job: before a node is missing nobody can be mistaken."""
    note = make_note(part(*HOSTS), row(nodes=NODES))
    assert note is not None
    assert note["nodes"] == {"0": "n1", "1": "n2", "2": "n3"}
    assert make_note(noted(), row(nodes=NODES)) is None
    assert make_note(noted(), row(nodes=NODES, start=AGAIN_S)) is not None


@pytest.mark.parametrize(
    "job",
    [
        None,
        row(nodes=NODES, state="PENDING"),
        row(nodes=("n1", "n3")),
        row(nodes=(*NODES, "n4")),
        row(nodes=()),
    ],
)
def test_what_is_not_certain_is_not_noted(job: JobRow | None) -> None:
    """A node is missing, or the job does not run: whose nodes these are cannot be told any more."""
    assert make_note(part(*HOSTS), job) is None


def test_released_hosts_leave_the_others_where_they_are() -> None:
    """The list has a gap; the hosts behind it do not move up."""
    assert place_nodes(noted(released=(1,)), row(nodes=("n1", "n3"))) == {0: "n1", 2: "n3"}


def test_a_failed_node_leaves_the_others_where_they_are() -> None:
    """Slurm strikes a failed node from a job that goes on: its host has none, and no other has its place."""
    places = make_places([row(nodes=("n1", "n3"))], {0: noted()})
    assert {place.host: place.node for place in places} == {"w/0": "n1", "w/1": "", "w/2": "n3"}


def test_until_slurm_has_taken_the_node_its_host_is_there() -> None:
    """Between what was written down and what Slurm did, hosts are where they were."""
    found = place_nodes(noted(released=(1,)), row(nodes=NODES))
    assert (found[0], found[2]) == ("n1", "n3")


@pytest.mark.parametrize(
    "nodes",
    [("n7", "n8"), ("n3", "n8"), ("n2", "n3"), ("n1", "n2"), ("n1", "n3")],
    ids=["others", "one of them", "first released", "last released", "the same"],
)
def test_after_a_requeue_the_hosts_that_are_left_are_counted_anew(nodes: tuple[str, str]) -> None:
    """A job that starts again has as many nodes as hosts, maybe the very one it gave back, under another host."""
    again = row(nodes=nodes, start=AGAIN_S)
    assert place_nodes(noted(released=(1,)), again) == {0: nodes[0], 2: nodes[1]}


def test_a_requeue_without_any_release() -> None:
    """Nothing was noted: the list of the new nodes is what counts."""
    assert place_nodes(part(*HOSTS), row(nodes=("n4", "n5", "n6")))[2] == "n6"


@given(count=st.integers(1, 8), data=st.data())
def test_releasing_and_failing_move_nobody(count: int, data: st.DataObject) -> None:
    """Whichever hosts are released, and whichever nodes fail, the others stay on their nodes."""
    hosts = [f"w/{rank}" for rank in range(count)]
    nodes = tuple(f"n{number}" for number in range(1, count + 1))
    whose = dict(enumerate(nodes))
    released = data.draw(st.sets(st.integers(0, count - 1)))
    failed = data.draw(st.sets(st.integers(0, count - 1)))
    there = noted(*hosts, released=tuple(sorted(released)), nodes=nodes)
    left = {index: name for index, name in whose.items() if index not in released | failed}
    assert place_nodes(there, row(nodes=tuple(left.values()))) == left


@given(count=st.integers(1, 8), data=st.data())
def test_a_new_start_forgets_the_old_one(count: int, data: st.DataObject) -> None:
    """Whatever nodes the job gets then, the hosts that are left are counted along them."""
    hosts = [f"w/{rank}" for rank in range(count)]
    nodes = tuple(f"n{number}" for number in range(1, count + 1))
    released = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    left = [index for index in range(count) if index not in released]
    pool = [*nodes, *(f"m{number}" for number in range(count))]
    chosen = data.draw(st.permutations(pool))[: len(left)]
    there = noted(*hosts, released=tuple(sorted(released)), nodes=nodes)
    found = place_nodes(there, row(nodes=tuple(chosen), start=AGAIN_S))
    assert found == dict(zip(left, chosen, strict=True))


# Where nothing was noted


def come_up(folder: Path, *, since: float = START_S + 1, **nodes: str) -> PartData:
    """A part of three hosts whose keepers have said where they are; `_0` is the first host."""
    for index, node in nodes.items():
        path = folder / f"up-0.0.{index[1:]}"
        path.write_text(node)
        os.utime(path, (since, since))
    return part(*HOSTS, record_folder=str(folder))


def test_keepers_say_which_host_is_lost(tmp_path: Path) -> None:
    """A node fails before anybody has connected: the host behind it does not move up."""
    told = come_up(tmp_path, _0="n1", _1="n2", _2="n3")
    gap = row(nodes=("n1", "n3"))
    assert (place_nodes(told, gap), is_certain(told, gap)) == ({0: "n1", 2: "n3"}, True)
    lost = make_places([gap], {0: told})[1]
    assert (lost.node, lost.noted_node, lost.certain) == ("", "n2", True)


def test_a_note_of_an_earlier_run_names_no_node_of_this_one(tmp_path: Path) -> None:
    """The host that is lost now was elsewhere before: a node that has nothing to do with it is not blamed."""
    told = come_up(tmp_path, since=AGAIN_S + 1, _0="n1", _1="n4", _2="n3")
    told = {**told, "nodes_start": START_S, "nodes": {"0": "n1", "1": "n2", "2": "n3"}}
    lost = make_places([row(nodes=("n1", "n3"), start=AGAIN_S)], {0: told})[1]
    assert (lost.node, lost.noted_node, lost.certain) == ("", "n4", True)


def test_a_surplus_of_nodes_hides_no_loss(tmp_path: Path) -> None:
    """A job that got more nodes than it has hosts has lost one: the host behind it does not move up."""
    told = {**come_up(tmp_path, _0="n1", _1="n2"), "released": [2]}
    whole = row(nodes=("n1", "n2", "n3"))
    assert (place_nodes(told, whole), is_certain(told, whole)) == ({0: "n1", 1: "n2"}, True)
    for nodes in (("n2", "n3"), ("n2", "n3", "n4")):
        gap = row(nodes=nodes)
        assert (place_nodes(told, gap), is_certain(told, gap)) == ({1: "n2"}, True)


def test_a_keeper_that_said_nothing_yet_is_counted_with_the_others(tmp_path: Path) -> None:
    """They start one after the other; until then hosts are where they are counted, also with nodes to spare."""
    told = {**come_up(tmp_path, _1="n2"), "released": [2]}
    assert place_nodes(told, row(nodes=("n1", "n2", "n3"))) == {0: "n1", 1: "n2"}


def test_keepers_say_it_also_after_hosts_were_given_back(tmp_path: Path) -> None:
    """A host in the middle was given back before the start: tasks have other numbers than their hosts."""
    folders = {"record_folder": str(tmp_path), "logs": str(tmp_path), "cwd": "/"}
    told = {**part("t/0", "t/1", "l/0", "l/1", released=[1], **folders)}
    invited = {"part": "0.0", "folder": str(tmp_path), "node_env": "", "restart_env": ""}
    (tmp_path / "tls").mkdir()
    for task, node in enumerate(NODES):
        share = make_share(told, invited, task, tmp_path)["share"]
        (tmp_path / up_file(share)).write_text(node)
        os.utime(tmp_path / up_file(share), (START_S + 1, START_S + 1))
    gap = row(nodes=("n1", "n3"))
    assert (place_nodes(told, gap), is_certain(told, gap)) == ({0: "n1", 3: "n3"}, True)


def test_those_that_are_left_are_told_by_elimination(tmp_path: Path) -> None:
    """One that has said nothing has the node that nobody else has."""
    told = come_up(tmp_path, _0="n1", _1="n2")
    assert place_nodes(told, row(nodes=("n1", "n3"))) == {0: "n1", 2: "n3"}
    silent = come_up(tmp_path, _1="", _2="n3")
    assert place_nodes(silent, row(nodes=("n1", "n3"))) == {0: "n1", 2: "n3"}


def test_whose_a_node_is_may_not_be_known(tmp_path: Path) -> None:
    """Nothing is guessed: a host that is called by another's name would be ended for it."""
    told = come_up(tmp_path, _0="n1")
    gap = row(nodes=("n1", "n3"))
    assert (place_nodes(told, gap), is_certain(told, gap)) == ({0: "n1"}, False)
    places = make_places([gap], {0: told})
    assert [(place.node, place.certain) for place in places] == [
        ("n1", False),
        ("", False),
        ("", False),
    ]


def test_nobody_is_called_lost_when_it_may_be_another() -> None:
    """Where nothing was noted and no keeper has said where it is, the node that is left may be anybody's."""
    unnoted = make_places([row(nodes=("n1",))], {0: part("w/0", "w/1")})
    reason = "nodes of Slurm job 7 were lost, and it is not known whose they were"
    for place in unnoted:
        found = judge_host(place, "x", {})
        assert (found.state, found.reason) == (HostState.UNKNOWN, reason)


def test_what_keepers_of_an_earlier_run_have_said_does_not_count(tmp_path: Path) -> None:
    """A job that starts again may have its hosts elsewhere."""
    told = come_up(tmp_path, _0="n1", _1="n2", _2="n3")
    gap = row(nodes=("n1", "n3"), start=AGAIN_S)
    assert (place_nodes(told, gap), is_certain(told, gap)) == ({}, False)


# Places


def test_places_have_all_that_is_needed_to_find_a_host() -> None:
    """The host's name, its task, its node, the name to dial, and its two logs."""
    addresses = {"n2": "10.0.0.2"}
    job = row(nodes=("n1", "n2"))
    first, second = make_places(
        [job], {0: part("w/0", "v/0", addresses=addresses, logs="/logs/demo")}
    )
    assert (first.host, first.index, first.node, first.machine) == ("w/0", 0, "n1", "n1")
    assert (second.host, second.index, second.node, second.machine) == ("v/0", 1, "n2", "10.0.0.2")
    assert second.log == "/logs/demo/v.0.log"
    assert first.task_log == second.task_log == "/logs/demo/part.0.0.log"
    assert first.row is job


def test_components_have_jobs_of_their_own() -> None:
    """Each component's hosts are on the nodes of its own job, whatever order Slurm lists them in."""
    rows = [
        row(job_id=8, leader=7, offset=1, component=1, nodes=("g1",)),
        row(job_id=7, offset=0, nodes=("n1", "n2")),
    ]
    parts = {1: part("g/0", number="0.1"), 0: part("w/0", "w/1")}
    found = [(place.host, place.node, place.component) for place in make_places(rows, parts)]
    assert found == [("w/0", "n1", 0), ("w/1", "n2", 0), ("g/0", "g1", 1)]


def test_a_component_that_waits_has_places_without_nodes() -> None:
    """One component may run while another still waits: its hosts are known, and have no node."""
    rows = [row(nodes=("n1",)), row(job_id=9, component=2, state="PENDING")]
    parts = {0: part("w/0"), 2: part("w/1", number="0.2"), 3: part("w/2", number="0.3")}
    found = {
        place.host: (place.node, place.row and place.row.state)
        for place in make_places(rows, parts)
    }
    assert found == {"w/0": ("n1", "RUNNING"), "w/1": ("", "PENDING"), "w/2": ("", None)}


def test_released_hosts_have_no_place() -> None:
    """They are nobody's any more."""
    places = make_places([row(nodes=NODES)], {0: noted(released=(0, 2))})
    assert [place.host for place in places] == ["w/1"]


def test_a_component_that_was_released_altogether_has_no_places() -> None:
    """Its file is still there, so that its number is not used twice."""
    assert make_places([], {0: part("w/0", released=[0])}) == []


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_jobs_with_one_mark_the_one_that_lives_counts(order: int) -> None:
    """Whatever the order in which Slurm tells of them; of two that ended, the later one."""
    rows = [row(job_id=9, state="CANCELLED"), row(job_id=7, nodes=("n1",))][::order]
    [place] = make_places(rows, {0: part("w/0")})
    assert (place.node, place.row and place.row.job_id) == ("n1", 7)
    rows = [row(job_id=9, state="CANCELLED"), row(job_id=7, state="FAILED")][::order]
    [place] = make_places(rows, {0: part("w/0")})
    assert place.row is not None
    assert place.row.job_id == 9

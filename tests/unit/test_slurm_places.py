"""Which host is on which node: by what the job's files and Slurm say together."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.places import (
    component_of,
    make_places,
    place_nodes,
    rows_of,
)
from milkweed.backends.slurm.text import Mark, render_mark
from unit.slurm_fake import APPLY_ID, part, row

HOSTS = ("w/0", "w/1", "w/2")
OTHER = render_mark(Mark("99999999-2222-4333-8444-555555555555", 0, 0, "other"))
NODES = ("n1", "n2", "n3")


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


NOTED = {"0": "n1", "1": "n2", "2": "n3"}


def test_released_hosts_leave_the_others_where_they_are() -> None:
    """The list has a gap; the hosts behind it do not move up."""
    shrunk = part(*HOSTS, released=[1], nodes=NOTED)
    assert place_nodes(shrunk, row(nodes=("n1", "n3"))) == {0: "n1", 2: "n3"}


def test_until_slurm_has_taken_the_node_its_host_is_there() -> None:
    """Between what was written down and what Slurm did, hosts are where they were."""
    shrunk = part(*HOSTS, released=[1], nodes=NOTED)
    found = place_nodes(shrunk, row(nodes=NODES))
    assert (found[0], found[2]) == ("n1", "n3")


def test_after_a_requeue_the_hosts_that_are_left_are_counted_anew() -> None:
    """A job that starts again has other nodes, and as many as it has hosts left."""
    shrunk = part(*HOSTS, released=[1], nodes=NOTED)
    assert place_nodes(shrunk, row(nodes=("n7", "n8"))) == {0: "n7", 2: "n8"}
    assert place_nodes(shrunk, row(nodes=("n3", "n8"))) == {0: "n3", 2: "n8"}


@pytest.mark.parametrize(
    "nodes", [("n2", "n3"), ("n1", "n2")], ids=["first released", "last released"]
)
def test_after_a_requeue_a_released_node_may_come_back(nodes: tuple[str, str]) -> None:
    """A job that starts again may get the very node it gave back, under another of its hosts."""
    shrunk = part(*HOSTS, released=[1], nodes=NOTED)
    assert place_nodes(shrunk, row(nodes=nodes)) == {0: nodes[0], 2: nodes[1]}


def test_a_requeue_without_any_release() -> None:
    """Nothing was noted: the list of the new nodes is what counts."""
    assert place_nodes(part(*HOSTS), row(nodes=("n4", "n5", "n6")))[2] == "n6"


@given(
    count=st.integers(1, 8),
    data=st.data(),
)
def test_releasing_moves_nobody(count: int, data: st.DataObject) -> None:
    """Whichever hosts are released, in whatever steps, the others stay on their nodes."""
    hosts = [f"w/{rank}" for rank in range(count)]
    nodes = [f"n{number}" for number in range(1, count + 1)]
    before = place_nodes(part(*hosts), row(nodes=tuple(nodes)))
    released: set[int] = set()
    now = dict(before)
    for _ in range(data.draw(st.integers(0, 3))):
        noted = {str(index): name for index, name in now.items()}
        released |= data.draw(st.sets(st.integers(0, count - 1)))
        left = tuple(name for index, name in sorted(now.items()) if index not in released)
        if not left:
            return
        data_now = part(*hosts, released=sorted(released), nodes=noted)
        now = place_nodes(data_now, row(nodes=left))
        assert now == {index: name for index, name in before.items() if index not in released}


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
    assert first.task_log == second.task_log == "/logs/demo/part-0.0.log"
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
    found = {place.host: (place.node, place.row and place.row.state) for place in make_places(rows, parts)}
    assert found == {"w/0": ("n1", "RUNNING"), "w/1": ("", "PENDING"), "w/2": ("", None)}


def test_released_hosts_have_no_place() -> None:
    """They are nobody's any more."""
    places = make_places([row(nodes=NODES)], {0: part(*HOSTS, released=[0, 2], nodes=NOTED)})
    assert [place.host for place in places] == ["w/1"]


def test_a_component_that_was_released_altogether_has_no_places() -> None:
    """Its file is still there, so that its number is not used twice."""
    assert make_places([], {0: part("w/0", released=[0])}) == []

"""Other sizes: what is added, what is given back, and that nobody else is touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm.places import PartData, Place, make_note, make_places
from milkweed.backends.slurm.resize import (
    check_release,
    drop_gone,
    group,
    limit_growth,
    make_growth,
    next_component,
    places_of,
    release,
    surplus,
)
from milkweed.backends.slurm.shape import make_parts
from milkweed.backends.slurm.start import load_parts
from milkweed.backends.slurm.text import JobRow
from milkweed.errors import BackendError
from milkweed.spec import JobSpec, MeshSpec, Resources
from unit.slurm_fake import FakeSlurm, part, row, save_part_file

NOBODY = "unix:///nowhere/ctl"


def spec(**sizes: int) -> JobSpec:
    meshes = tuple(MeshSpec(name=name, hosts=hosts) for name, hosts in sizes.items())
    return JobSpec(name="demo", backend="slurm", meshes=meshes)


def places(*hosts: str, nodes: tuple[str, ...] = (), **more: Any) -> list[Place]:
    return make_places([row(nodes=nodes)], {0: part(*hosts, **more)})


SPEC = spec(w=4, a=4, b=4)


# What is added


def test_nothing_is_added_when_all_are_there() -> None:
    """The same sizes are no growth."""
    assert make_growth(spec(w=2), places("w/0", "w/1")) == []


def test_what_is_missing_is_added_with_its_ranks() -> None:
    """New hosts have the ranks that are free, also in the middle."""
    [part_made] = make_growth(spec(w=4), places("w/0", "w/2"))
    assert part_made.hosts == (("w", 1), ("w", 3))


def test_what_is_added_is_cut_by_shape() -> None:
    """Hosts of different shapes are added as components of their own."""
    wants = MeshSpec(name="g", hosts=2, resources=Resources(gpus=1))
    declared = JobSpec(name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=2), wants))
    parts = make_growth(declared, places("w/0", "g/1"))
    assert [each.hosts for each in parts] == [(("w", 1),), (("g", 0),)]
    assert [each.shape.gpus for each in parts] == [None, 1]


def test_a_first_size_is_growth_from_nothing() -> None:
    """Growing from nothing is what is submitted at first."""
    assert make_growth(spec(w=2, v=1), []) == make_parts(spec(w=2, v=1))


def test_added_hosts_end_with_those_they_join() -> None:
    """Their time limit is what the hosts that run have left, the least of it."""
    rows = [
        row(time_left_s=900.0),
        row(component=1, time_left_s=600.0),
        row(component=2, state="PENDING", time_left_s=60.0),
    ]
    [limited] = limit_growth(make_parts(spec(w=1)), rows)
    assert limited.shape.time_limit_s == 600.0


@pytest.mark.parametrize(
    "rows", [[], [row(time_left_s=None)], [row(state="PENDING", time_left_s=60.0)]]
)
def test_without_a_limit_to_keep_the_declared_one_holds(rows: list[JobRow]) -> None:
    """Where nothing runs, or runs without a limit, nothing is cut."""
    parts = make_parts(spec(w=1))
    assert limit_growth(parts, rows) == parts


def test_numbers_of_components_are_never_used_twice() -> None:
    """Not even when all hosts of the last one were released."""
    assert next_component({}) == 0
    assert next_component({0: part("w/0"), 3: part("w/1", released=[0])}) == 4


# What is given back


def test_surplus_is_what_has_too_high_a_rank() -> None:
    """The last hosts of a mesh go, each by its component; a mesh that is gone goes altogether."""
    rows = [row(nodes=("n1", "n2")), row(component=1, nodes=("n3", "n4"))]
    parts = {0: part("w/0", "w/1"), 1: part("w/2", "v/0", number="0.1")}
    found = surplus(spec(w=1), make_places(rows, parts))
    assert {number: [place.host for place in gone] for number, gone in found.items()} == {
        0: ["w/1"],
        1: ["w/2", "v/0"],
    }


def test_there_is_no_surplus_in_what_is_wanted() -> None:
    """More may be wanted than there is."""
    assert surplus(spec(w=9), places("w/0", "w/1")) == {}


def test_hosts_that_live_or_will_live_are_there() -> None:
    """A component that waits counts, one that has ended does not, and one Slurm does not know does not."""
    rows = [
        row(nodes=("n1",)),
        row(component=1, state="PENDING"),
        row(component=2, state="FAILED", nodes=("n3",)),
    ]
    parts = {number: part(f"w/{number}", number=f"0.{number}") for number in range(4)}
    assert [place.host for place in places_of(rows, parts)] == ["w/0", "w/1"]


def test_components_that_are_over_free_their_ranks(tmp_path: Path) -> None:
    """Their hosts are written down as released; those of living components stay as they were."""
    parts: dict[int, PartData] = {
        number: part(f"w/{number}", number=f"0.{number}") for number in range(3)
    }
    for data in parts.values():
        save_part_file(tmp_path, data)
    drop_gone(tmp_path, parts, [row(), row(component=1, state="TIMEOUT")])
    assert {number: data["released"] for number, data in load_parts(tmp_path, 0).items()} == {
        0: [],
        1: [0],
        2: [0],
    }


def test_a_component_that_was_dropped_is_not_written_again(tmp_path: Path) -> None:
    """What is known to be over is left alone."""
    drop_gone(tmp_path, {0: part("w/0", released=[0])}, [])
    assert list(tmp_path.iterdir()) == []


def lost_one(tmp_path: Path, *nodes: str, state: str = "RUNNING") -> list[Place]:
    """Three hosts on n1 to n3, which was noted; then Slurm's list of the job's nodes has changed."""
    whole, before = part("w/0", "w/1", "w/2"), row(nodes=("n1", "n2", "n3"))
    noted = {**whole, **(make_note(whole, before) or {})}
    save_part_file(tmp_path / "job", noted)
    return make_places([row(nodes=nodes, state=state)], {0: noted})


def test_a_host_whose_node_left_the_job_frees_its_rank(tmp_path: Path) -> None:
    """Slurm took the dead node out of the job, so a growing job gives its host another."""
    after = lost_one(tmp_path, "n1", "n3")
    drop_gone(tmp_path / "job", {0: after[0].part}, [row(nodes=("n1", "n3"))])
    parts = load_parts(tmp_path / "job", 0)
    assert parts[0]["released"] == [1]
    there = places_of([row(nodes=("n1", "n3"))], parts)
    [added] = make_growth(spec(w=4), there)
    assert added.hosts == (("w", 1), ("w", 3))


@pytest.mark.parametrize("nodes", [(), ("n1", "n7"), ("n1", "n2", "n3")])
def test_ranks_are_freed_only_when_it_is_certain_whose(
    tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    """No nodes, other nodes, or all of them: nobody is known to have gone."""
    after = lost_one(tmp_path, *nodes)
    drop_gone(tmp_path / "job", {0: after[0].part}, [row(nodes=nodes)])
    assert load_parts(tmp_path / "job", 0)[0]["released"] == []


def test_hosts_are_grouped_by_their_component() -> None:
    """Each component is a job of Slurm's own, and is changed by itself."""
    rows = [row(nodes=("n1", "n2")), row(component=1, nodes=("n3",))]
    made = make_places(rows, {0: part("w/0", "w/1"), 1: part("w/2", number="0.1")})
    found = group(made)
    assert {key: [place.host for place in value] for key, value in found.items()} == {
        0: ["w/0", "w/1"],
        1: ["w/2"],
    }


# Giving back, with Slurm


def give_back(folder: Path, chosen: list[Place]) -> dict[str, Any]:
    release(SPEC, folder, chosen, lambda _place: NOBODY)
    [path] = folder.glob("part-*.json")
    return json.loads(path.read_text())


def test_a_running_job_keeps_the_named_nodes(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Slurm is told which nodes stay, and what goes is written down."""
    all_of_them = places("w/0", "w/1", "w/2", "w/3", nodes=("n1", "n2", "n3", "n5"))
    data = give_back(tmp_path / "job", all_of_them[1:2])
    assert slurm.calls == [["scontrol", "update", "JobId=7", "NodeList=n[1,3,5]"]]
    assert data["released"] == [1]


def test_slurms_own_scripts_are_not_left_in_the_users_folder(
    slurm: FakeSlurm, tmp_path: Path, folder: Path
) -> None:
    """Slurm writes files for the job's shell where it is called: not where the user works."""
    give_back(tmp_path / "job", places("w/0", "w/1", nodes=("n1", "n2"))[1:])
    assert slurm.folder("scontrol") == "/"


def test_releasing_twice_keeps_what_is_known(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The second time, the nodes of those that are left are still the right ones."""
    job = tmp_path / "job"
    whole, running = part("w/0", "w/1", "w/2"), row(nodes=("n1", "n2", "n3"))
    noted = {**whole, **(make_note(whole, running) or {})}
    data = give_back(job, make_places([running], {0: noted})[1:2])
    again = make_places([row(nodes=("n1", "n3"))], {0: data})
    data = give_back(job, [place for place in again if place.host == "w/0"])
    assert slurm.called("scontrol")[-1] == ["update", "JobId=7", "NodeList=n3"]
    assert data["released"] == [0, 1]


def test_a_job_in_the_queue_asks_for_fewer(slurm: FakeSlurm, tmp_path: Path) -> None:
    """It has no nodes yet, so only their number changes."""
    waiting = make_places([row(state="PENDING")], {0: part("w/0", "w/1", "w/2")})
    data = give_back(tmp_path / "job", waiting[1:])
    assert slurm.calls == [
        ["scontrol", "update", "JobId=7", "NumNodes=1-1", "NumTasks=1", "NumCPUs=1"]
    ]
    assert data["released"] == [1, 2]


def test_a_job_in_the_queue_asks_for_less_of_everything(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Slurm counts nodes, tasks and CPUs of a job apart: too many of one are waited for in vain."""
    said = {"ntasks_per_node": 2, "cpus_per_task": 3}
    waiting = make_places([row(state="PENDING")], {0: part("w/0", "w/1", "w/2")})
    asked = replace(SPEC, options=said)
    release(asked, tmp_path / "job", waiting[2:], lambda _place: NOBODY)
    assert slurm.called("scontrol")[-1][2:] == ["NumNodes=2-2", "NumTasks=4", "NumCPUs=12"]


def test_a_component_of_which_nothing_is_left_is_cancelled(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Slurm ends it; only that component, by its own number."""
    rows = [row(job_id=12, leader=11, offset=1, nodes=("n1", "n2"))]
    give_back(tmp_path / "job", make_places(rows, {0: part("w/0", "w/1")}))
    assert slurm.calls == [["scancel", "12"]]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "NODE_FAIL"])
def test_what_has_ended_is_only_written_down(slurm: FakeSlurm, tmp_path: Path, state: str) -> None:
    """There is nothing to give back."""
    ended = make_places([row(state=state)], {0: part("w/0", "w/1")})
    data = give_back(tmp_path / "job", ended[:1])
    assert slurm.calls == []
    assert data["released"] == [0]


def test_what_is_released_is_written_down_before_slurm_hears(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    """When Slurm refuses, or the program ends in between, the next call finds what was meant."""
    slurm.answer("scontrol", err="Job update not available right now\n", code=1)
    chosen = places("w/0", "w/1", nodes=("n1", "n2"))[1:]
    with pytest.raises(BackendError, match="Slurm refused"):
        release(SPEC, tmp_path / "job", chosen, lambda _place: NOBODY)
    assert load_parts(tmp_path / "job", 0)[0]["released"] == [1]


def test_hosts_without_a_node_are_not_dialled(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Where there is no machine yet, nobody is asked to stop."""
    dialled: list[str] = []

    def door(place: Place) -> str:
        dialled.append(place.host)
        return NOBODY

    rows = [row(nodes=("n1",)), row(component=1, state="PENDING")]
    parts = {0: part("w/0"), 1: part("w/1", number="0.1")}
    first, second = make_places(rows, parts)
    release(SPEC, tmp_path / "job", [second], door)
    release(SPEC, tmp_path / "job", [first], door)
    assert dialled == ["w/0"]


def test_a_lost_host_is_given_back_without_its_node(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Slurm has taken its node already, and the others keep theirs."""
    data = give_back(tmp_path / "job", lost_one(tmp_path, "n1", "n2")[2:])
    assert slurm.calls == []
    assert data["released"] == [2]


def test_the_last_nodes_of_a_job_are_not_given_back(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The hosts that would be left have none, and Slurm would end the job."""
    with pytest.raises(BackendError, match="have lost their nodes, so none was released"):
        check_release(lost_one(tmp_path, "n2", "n3")[1:])
    assert slurm.calls == []

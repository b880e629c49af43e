"""What a cluster could never give is refused before anything is submitted, all of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.check import Component
from milkweed.backends.slurm.text import NodeRow, parse_sinfo
from milkweed.errors import SpecError
from unit.slurm_fake import check_components

CORPUS = Path(__file__).parents[1] / "corpus" / "slurm"


def node(name: str, partition: str = "debug", **more: Any) -> NodeRow:
    said: dict[str, Any] = {
        "name": name,
        "hostname": name,
        "address": name,
        "partition": partition,
        "partition_up": True,
        "default": partition == "debug",
        "max_time_s": None,
        "min_nodes": 1,
        "max_nodes": None,
        "state": "idle",
        "cpus": 4,
        "memory_mb": 2000,
        "gpus": 0,
        "gres": "",
        "features": (),
        "reason": "",
    }
    return NodeRow(**{**said, **more})


def want(hosts: int = 1, **more: Any) -> Component:
    said: dict[str, Any] = {
        "hosts": hosts,
        "partition": None,
        "ntasks_per_node": 1,
        "cpus_per_task": None,
        "gpus_per_node": None,
        "memory_mb": None,
        "time_limit_s": None,
        "constraint": None,
        "field": "meshes.trainers",
    }
    return Component(**{**said, **more})


def refuse(*components: Component, rows: list[NodeRow]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        check_components(components, rows)
    return caught.value


FOUR = [node(f"n{number}") for number in range(1, 5)]
MIXED = [
    *FOUR,
    node(
        "g1", "gpu", gpus=8, cpus=64, memory_mb=512_000, features=("a100", "ib"), max_time_s=7200.0
    ),
    node("g2", "gpu", gpus=4, cpus=32, memory_mb=256_000, features=("v100",), max_time_s=7200.0),
    node("g3", "gpu", gpus=4, cpus=64, memory_mb=256_000, features=("v100",), max_time_s=7200.0),
]


@pytest.mark.parametrize(
    "item",
    [
        want(),
        want(4),
        want(4, partition="debug"),
        want(4, ntasks_per_node=4),
        want(4, ntasks_per_node=2, cpus_per_task=2),
        want(4, memory_mb=2000, gpus_per_node=0),
        want(1, partition="gpu", gpus_per_node=8, cpus_per_task=64, memory_mb=512_000),
        want(3, partition="gpu", gpus_per_node=4),
        want(2, partition="gpu", constraint="v100"),
        want(3, partition="gpu", time_limit_s=7200.0),
        want(3, partition="gpu", time_limit_s=None),
        want(3, partition="debug,gpu", gpus_per_node=4),
        want(3, partition="gpu,debug", time_limit_s=9e9),
        want(4, time_limit_s=9e9),
    ],
)
def test_what_can_be_given_is_not_refused(item: Component) -> None:
    """A component that fits into one of its partitions is fine."""
    check_components([item], MIXED)


def test_nothing_is_refused_when_nothing_is_known() -> None:
    """A cluster that told nothing about its nodes is asked, not judged."""
    check_components([want(10_000, partition="nosuch", gpus_per_node=99)], [])


def test_nothing_is_refused_without_a_default_partition() -> None:
    """A site may choose the partition itself, so one that nobody named is not judged."""
    check_components([want(99)], [node("g1", "gpu")])


def test_no_components_are_fine() -> None:
    """A job of nothing has nothing wrong here."""
    check_components([], FOUR)


def test_an_unknown_partition_is_refused_with_the_nearest() -> None:
    """The error has the name that was probably meant, and all there are."""
    error = refuse(want(partition="gpus"), rows=MIXED)
    assert error.what == "meshes.trainers: there is no partition 'gpus'"
    assert error.hint == "did you mean 'gpu'? the partitions are: debug, gpu"


def test_an_unknown_partition_is_refused_with_all_of_them() -> None:
    """Without a near name, the list alone is shown."""
    error = refuse(want(partition="xyz"), rows=MIXED)
    assert error.hint == "the partitions are: debug, gpu"


def test_a_long_list_of_partitions_is_cut() -> None:
    """A site with many partitions does not fill the screen."""
    rows = [node("n1", f"part{number:02d}") for number in range(30)]
    error = refuse(want(partition="xyz"), rows=rows)
    assert error.hint.endswith("part19, and 10 more")


def test_each_unknown_partition_of_a_list_is_refused() -> None:
    """Slurm takes several partitions with commas, and so does the check."""
    error = refuse(want(partition="debug,nope,gup"), rows=MIXED)
    assert error.what.splitlines() == [
        "meshes.trainers: there is no partition 'nope'",
        "meshes.trainers: there is no partition 'gup'",
    ]


def test_more_hosts_than_there_are_is_refused() -> None:
    """The error says how many there are."""
    error = refuse(want(6), rows=FOUR)
    assert error.what == "meshes.trainers: 6 hosts, but partition 'debug' has 4"
    assert error.hint == "ask for at most 4, or choose another partition"


def test_hosts_that_are_down_count_and_are_named() -> None:
    """A node that is down may come back, so it counts; an error says how many are left without it."""
    rows = [
        node("n1"),
        node("n2", state="mixed"),
        node("n3", state="down*"),
        node("n4", state="drained"),
    ]
    check_components([want(4)], rows)
    error = refuse(want(5), rows=rows)
    assert error.what == (
        "meshes.trainers: 5 hosts, but partition 'debug' has 4, "
        "of which 2 can be used now (n3 down*, n4 drained)"
    )


def test_many_broken_hosts_are_not_all_named() -> None:
    """Three names are enough to find the others."""
    rows = [node(f"n{number}", state="down") for number in range(9)]
    assert (
        "of which 0 can be used now (n0 down, n1 down, n2 down, …)"
        in refuse(want(10), rows=rows).what
    )


def test_components_of_one_partition_are_counted_together() -> None:
    """Each fits alone, but they need different hosts."""
    pair = want(3), want(2, partition="debug", field="meshes.loaders")
    error = refuse(*pair, rows=FOUR)
    assert error.what == (
        "meshes.trainers, meshes.loaders: 5 hosts in all, but partition 'debug' has 4"
    )
    check_components([want(3), want(1, field="meshes.loaders")], FOUR)


def test_components_of_different_partitions_are_not_counted_together() -> None:
    """Partitions have hosts of their own."""
    check_components([want(4), want(3, partition="gpu")], MIXED)


def test_a_component_with_a_choice_is_not_counted_with_others() -> None:
    """Where it will run is not known yet."""
    check_components([want(4), want(3, partition="debug,gpu")], MIXED)


@pytest.mark.parametrize(
    ("more", "what", "hint"),
    [
        (
            {"ntasks_per_node": 2, "cpus_per_task": 40},
            "80 CPUs on each host, but no node of partition 'gpu' has more than 64",
            "ask for at most 64 CPUs, or choose another partition",
        ),
        (
            {"gpus_per_node": 16},
            "16 GPUs on each host, but no node of partition 'gpu' has more than 8",
            "ask for at most 8 GPUs, or choose another partition",
        ),
        (
            {"memory_mb": 600_000},
            "600000 MB of memory on each host, but no node of partition 'gpu' has more than 512000",
            "ask for at most 512000 MB of memory, or choose another partition",
        ),
        (
            {"constraint": "h100"},
            "no node of partition 'gpu' has the feature 'h100'",
            "its features are: a100, ib, v100",
        ),
        (
            {"time_limit_s": 7201.0},
            "a time limit of 02:00:01 is more than the 02:00:00 that partition 'gpu' allows",
            "ask for at most 02:00:00, or choose another partition",
        ),
        (
            {"hosts": 2, "gpus_per_node": 8},
            "2 hosts with 8 GPUs, but only 1 of the 3 nodes of partition 'gpu' has that",
            "ask for fewer hosts, or for less on each",
        ),
        (
            {
                "hosts": 2,
                "cpus_per_task": 64,
                "gpus_per_node": 4,
                "memory_mb": 200,
                "constraint": "v100",
            },
            (
                "2 hosts with 64 CPUs, 4 GPUs, 200 MB of memory and the feature 'v100', "
                "but only 1 of the 3 nodes of partition 'gpu' has that"
            ),
            "ask for fewer hosts, or for less on each",
        ),
        (
            {"gpus_per_node": 8, "constraint": "v100"},
            (
                "1 host with 8 GPUs and the feature 'v100', "
                "but none of the 3 nodes of partition 'gpu' have that"
            ),
            "ask for fewer hosts, or for less on each",
        ),
    ],
)
def test_what_no_host_has_is_refused(more: dict[str, Any], what: str, hint: str) -> None:
    """The error says what the best host has."""
    error = refuse(want(**{"partition": "gpu", **more}), rows=MIXED)
    assert error.what == f"meshes.trainers: {what}"
    assert error.hint == hint


def test_a_feature_where_there_are_none() -> None:
    """Nodes without features are said to have none."""
    assert refuse(want(constraint="ib"), rows=FOUR).hint == "its nodes have no features"


@pytest.mark.parametrize("text", ["a&b", "a|b", "[a*2&b*1]", "(a|b)&c", "a*2", "", None])
def test_expressions_of_features_are_left_to_slurm(text: str | None) -> None:
    """Only a plain word can be judged here."""
    check_components([want(constraint=text)], FOUR)


@pytest.mark.parametrize(
    ("hosts", "what"),
    [
        (1, "1 host, but a job in partition 'wide' has at least 2"),
        (4, "4 hosts, but a job in partition 'wide' has at most 3"),
    ],
)
def test_limits_on_the_number_of_hosts(hosts: int, what: str) -> None:
    """A partition may refuse small jobs and large ones."""
    rows = [node(f"n{number}", "wide", min_nodes=2, max_nodes=3) for number in range(5)]
    check_components([want(2, partition="wide"), want(3, partition="wide")], rows)
    error = refuse(want(hosts, partition="wide"), rows=rows)
    assert error.what == f"meshes.trainers: {what}"
    assert error.hint.endswith("or choose another partition")


def test_a_partition_that_is_down_is_fine() -> None:
    """It may come up while the job waits."""
    check_components([want(1, partition="dead")], [node("n1", "dead", partition_up=False)])


def test_all_problems_are_told_at_once() -> None:
    """Nobody has to submit five times to learn five things; equal hints are told once."""
    error = refuse(
        want(9, field="meshes.a", partition="gpu", time_limit_s=9e9),
        want(9, field="meshes.b", partition="gpu"),
        want(1, field="meshes.c", partition="none"),
        want(1, field="meshes.d", gpus_per_node=1, memory_mb=9999),
        rows=MIXED,
    )
    assert [line.partition(": ")[0] for line in error.what.splitlines()] == [
        "meshes.a",
        "meshes.a",
        "meshes.b",
        "meshes.c",
        "meshes.d",
        "meshes.d",
    ]
    assert error.hint.count("ask for at most 3,") == 1
    assert len(error.hint.splitlines()) == 5


def test_the_first_partition_of_a_list_is_explained() -> None:
    """When none suits, the errors are about the first."""
    error = refuse(want(9, partition="gpu,debug"), rows=MIXED)
    assert "partition 'gpu' has 3" in error.what
    assert "debug" not in error.what


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_real_cluster(version: str) -> None:
    """What `sinfo` of a real cluster says is enough to judge by."""
    rows = parse_sinfo((CORPUS / version / "sinfo-drained.txt").read_text("utf-8"))
    check_components([want(4, gpus_per_node=8, memory_mb=2000, cpus_per_task=4)], rows)
    check_components([want(1, constraint="fast", partition="hidden")], rows)
    check_components([want(4, partition="down"), want(1, partition="inactive")], rows)
    error = refuse(
        want(5),
        want(3, partition="short", field="meshes.wide"),
        want(1, partition="short", field="meshes.long", time_limit_s=3600.0),
        want(2, constraint="fast", field="meshes.fast"),
        rows=rows,
    )
    assert error.what.splitlines() == [
        "meshes.trainers: 5 hosts, but partition 'debug' has 4, of which 3 can be used now (n4 drained)",
        "meshes.wide: 3 hosts, but a job in partition 'short' has at most 2",
        "meshes.long: a time limit of 01:00:00 is more than the 00:30:00 that partition 'short' allows",
        (
            "meshes.fast: 2 hosts with the feature 'fast', "
            "but only 1 of the 4 nodes of partition 'debug' has that"
        ),
    ]


optional = st.none() | st.integers(0, 9)


@given(
    hosts=st.integers(1, 6),
    tasks=st.integers(1, 4),
    wants=st.tuples(optional, optional, optional),
    shapes=st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=5),
)
def test_a_component_is_refused_only_when_too_few_hosts_have_what_it_asks_for(
    hosts: int,
    tasks: int,
    wants: tuple[int | None, int | None, int | None],
    shapes: list[tuple[int, int, int]],
) -> None:
    """The verdict is that of counting the hosts which suit."""
    cpus, gpus, memory = wants
    rows = [
        node(f"n{at}", cpus=shape[0], gpus=shape[1], memory_mb=shape[2])
        for at, shape in enumerate(shapes)
    ]
    item = want(
        hosts, ntasks_per_node=tasks, cpus_per_task=cpus, gpus_per_node=gpus, memory_mb=memory
    )
    suiting = sum(
        have[0] >= tasks * (cpus or 1) and have[1] >= (gpus or 0) and have[2] >= (memory or 0)
        for have in shapes
    )
    if suiting >= hosts:
        check_components([item], rows)
    else:
        assert str(refuse(item, rows=rows)).startswith("meshes.trainers: ")

"""Cutting hosts into meshes, in an order that never depends on the scheduler's mood."""

from __future__ import annotations

import json

import pytest

from milkweed.errors import AllocationError
from milkweed.hosts import Host, cut_hosts, natural_key


def names(cut: dict[str, tuple[Host, ...]]) -> dict[str, list[str]]:
    return {mesh: [host.name for host in hosts] for mesh, hosts in cut.items()}


def loose(*found: str) -> list[Host]:
    return [Host(name=name) for name in found]


def test_numbers_in_names_count_as_numbers() -> None:
    """`n2` comes before `n10`."""
    found = ["n10", "n2", "n1", "m3", "n1-10", "n1-9", "n", "2", "10"]
    assert sorted(found, key=natural_key) == [
        "2",
        "10",
        "m3",
        "n",
        "n1",
        "n1-9",
        "n1-10",
        "n2",
        "n10",
    ]


@pytest.mark.parametrize("name", ["²", "n²", "٣", "", "n1²"])
def test_any_name_has_a_place_in_the_order(name: str) -> None:
    """Characters that only look like digits break nothing."""
    assert natural_key(name) == natural_key(name)


def test_loose_hosts_fill_meshes_in_name_order() -> None:
    """Hosts without a mesh fill the meshes as declared, in the order of their names."""
    cut = cut_hosts({"b": 2, "a": 1}, loose("n10", "n9", "n1"))
    assert names(cut) == {"b": ["n1", "n9"], "a": ["n10"]}
    assert [(host.mesh, host.rank, host.label) for hosts in cut.values() for host in hosts] == [
        ("b", 0, "b/0"),
        ("b", 1, "b/1"),
        ("a", 0, "a/0"),
    ]


def test_names_that_count_alike_have_an_order() -> None:
    """`n01` and `n1` are two hosts, and always in the same order."""
    one, other = cut_hosts({"a": 2}, loose("n01", "n1")), cut_hosts({"a": 2}, loose("n1", "n01"))
    assert names(one) == names(other)


def test_hosts_that_know_their_place_keep_it() -> None:
    """Mesh and rank that a backend gives are kept, whatever the order."""
    hosts = [Host(name="x", mesh="a", rank=1), Host(name="y", mesh="a", rank=0)]
    assert names(cut_hosts({"a": 2}, hosts)) == {"a": ["y", "x"]}


def test_hosts_that_know_only_their_mesh_are_ranked_by_name() -> None:
    """With a mesh and no rank, the name decides."""
    hosts = [Host(name=name, mesh="a") for name in ("n10", "n9", "n1")]
    assert names(cut_hosts({"a": 3}, hosts)) == {"a": ["n1", "n9", "n10"]}


def test_loose_hosts_take_the_free_ranks() -> None:
    """Those who know their place keep it, the others take what is left."""
    hosts = [*loose("n2", "n1"), Host(name="x", mesh="a", rank=1)]
    assert names(cut_hosts({"a": 3}, hosts)) == {"a": ["n1", "x", "n2"]}


def test_more_hosts_than_needed_are_left_over() -> None:
    """A scheduler may give more than was asked for."""
    assert names(cut_hosts({"a": 1}, loose("n2", "n1"))) == {"a": ["n1"]}


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], "mesh 'a' needs 2 hosts and 0 are there"),
        (loose("n1"), "mesh 'a' needs 2 hosts and 1 are there"),
        ([Host(name="x", mesh="a", rank=rank) for rank in (0, 1, 2)], "needs 2 hosts and 3"),
        (
            [Host(name="x", mesh="b", rank=0), *loose("n1")],
            "mesh 'b', which this job does not have",
        ),
        ([Host(name=str(rank), mesh="a", rank=rank) for rank in (0, 2)], "the ranks 0 to 1"),
        ([Host(name=name, mesh="a", rank=0) for name in "xy"], "the ranks 0 to 1"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(hosts: list[Host], text: str) -> None:
    """Too few, too many, or contradicting hosts are an error that names them."""
    with pytest.raises(AllocationError, match=text):
        cut_hosts({"a": 2}, hosts)


def test_a_host_is_plain_data() -> None:
    """A host can be written as JSON and read back."""
    host = Host(name="n1", mesh="a", rank=0, address="ipc:///x", control="unix:///y")
    assert Host(**json.loads(json.dumps(host.to_json()))) == host

"""What is asked of Flux for a declaration, and what is refused before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.flux.check import check_parts
from milkweed.backends.flux.nodes import Node, parse_idset, parse_resources
from milkweed.backends.flux.shape import Part, Shape, make_parts, parse_time_limit
from milkweed.errors import SpecError
from milkweed.spec import JobSpec, Lifetime, MeshSpec, Resources
from unit.flux_fake import CORPUS, render_resources


def spec(*meshes: MeshSpec, time_limit_s: float | None = None, **options: Any) -> JobSpec:
    return JobSpec(
        name="demo",
        backend="flux",
        meshes=meshes or (MeshSpec(name="w", hosts=2),),
        options=options,
        lifetime=Lifetime(time_limit_s=time_limit_s),
    )


def test_hosts_that_are_alike_are_one_component() -> None:
    """Two meshes of one shape are one job, in the order of the declaration."""
    [part] = make_parts(spec(MeshSpec(name="a", hosts=2), MeshSpec(name="b", hosts=1)))
    assert part.hosts == (("a", 0), ("a", 1), ("b", 0))
    assert part.shape == Shape()
    assert part.field == "meshes.a+b"


def test_a_mesh_wins_over_the_job() -> None:
    """What a mesh says for itself, in either place, is what its hosts get."""
    a = MeshSpec(name="a", hosts=1, resources=Resources(cpus=8, gpus=2))
    b = MeshSpec(name="b", hosts=1)
    parts = make_parts(
        spec(a, b, cpus_per_host=4, queue="debug", meshes={"b": {"queue": "cpu", "bank": "lab"}})
    )
    shapes = [part.shape for part in parts]
    assert shapes == [
        Shape(queue="debug", cores=8, gpus=2),
        Shape(queue="cpu", bank="lab", cores=4),
    ]


def test_the_time_limit_of_the_lifetime_counts() -> None:
    """A job file's own key is used, unless the block says another one."""
    [part] = make_parts(spec(time_limit_s=60.0))
    assert part.shape.time_limit_s == 60.0
    [part] = make_parts(spec(time_limit_s=60.0, time_limit="2h"))
    assert part.shape.time_limit_s == 7200.0


@pytest.mark.parametrize(
    ("resources", "field"),
    [
        (Resources(memory_bytes=2**30), "meshes.w.memory"),
        (Resources(disk_bytes=2**30), "meshes.w.disk"),
        (Resources(gpus=1, gpu_type="a100"), "meshes.w.gpu_type"),
    ],
)
def test_what_flux_cannot_be_asked_for(resources: Resources, field: str) -> None:
    """Nothing that was declared is dropped silently."""
    with pytest.raises(SpecError, match=f"{field}: Flux gives cores and GPUs"):
        make_parts(spec(MeshSpec(name="w", hosts=1, resources=resources)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "a b"}, "flux.queue: 'a b' is not a name"),
        ({"queue": "x;rm"}, "flux.queue: 'x;rm' is not a name"),
        ({"bank": "a\nb"}, "flux.bank: "),
        ({"properties": ["a|b"]}, "flux.properties: 'a|b' is not the name"),
        ({"properties": [""]}, "flux.properties: ''"),
        ({"meshes": []}, ""),
        ({"meshes": ["w"]}, "flux.meshes: ['w'] is not a mapping"),
        ({"meshes": {"w": 3}}, "flux.meshes.w: 3 is not a mapping"),
        ({"meshes": {"v": {}}}, "flux.meshes: 'v' is not a mesh"),
        ({"meshes": {"w": {"uri": "x"}}}, "flux.meshes.w.uri: unknown key"),
    ],
)
def test_malformed_words(options: dict[str, Any], words: str) -> None:
    """The field is named, whatever it holds."""
    if not words:
        assert make_parts(spec(**options))
        return
    with pytest.raises(SpecError) as caught:
        make_parts(spec(**options))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400.0), ("1.5", 90.0), ("90s", 90.0), ("2d", 172800.0), ("1:30:00", 5400.0),
     ("unlimited", None), ("inf", None)],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    """A number alone is minutes, as for `flux submit`."""
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "0", "1e9", "5 m x", "9" * 400, "nan", "٣"])
def test_malformed_time_limits(text: str) -> None:
    """They are refused with a short text."""
    with pytest.raises(SpecError, match=r"^flux\.time_limit: ") as caught:
        parse_time_limit(text)
    assert len(caught.value.what) < 120


@given(st.text())
def test_any_time_limit_is_read_or_refused(text: str) -> None:
    """Nothing but SpecError comes of it, and no limit is negative."""
    try:
        assert (parse_time_limit(text) or 1.0) > 0
    except SpecError:
        return


# What the instance has


def test_the_nodes_of_a_real_instance() -> None:
    """Four brokers on one machine are four nodes of one name."""
    nodes = parse_resources((CORPUS / "resource-R.json").read_text())
    assert [(node.rank, node.name, node.cores, node.gpus) for node in nodes] == [
        (rank, "vm", 2, 0) for rank in range(4)
    ]


def test_nodes_with_gpus_and_properties() -> None:
    """What each has, and by what name it is dialled."""
    text = render_resources("n1", "n2", gpus="0-3", properties={"fast": "1", "old": "0"})
    first, second = parse_resources(text)
    assert (first.gpus, first.properties, second.properties) == (4, {"old"}, {"fast"})
    assert second.has(["fast", "^old"])
    assert not first.has(["fast"])
    assert second.address == second.hostname == "n2"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"execution": {"R_lite": [{"rank": "0"}]}}'])
def test_what_is_no_list_of_nodes(text: str) -> None:
    """It is refused, and never read as no nodes."""
    with pytest.raises(ValueError, match="no list of nodes"):
        parse_resources(text)


@pytest.mark.parametrize(
    ("text", "numbers"), [("", []), ("3", [3]), ("[0-2,7]", [0, 1, 2, 7]), ("0-1", [0, 1])]
)
def test_sets_of_numbers(text: str, numbers: list[int]) -> None:
    """Flux writes many numbers in short."""
    assert parse_idset(text) == numbers


NODES = [Node(rank=rank, name=f"n{rank}", cores=8, gpus=rank % 2) for rank in range(4)]


def part(hosts: int, mesh: str = "w", **shape: Any) -> Part:
    return Part(shape=Shape(**shape), hosts=tuple((mesh, rank) for rank in range(hosts)))


@pytest.mark.parametrize(
    "parts",
    [
        [part(4)],
        [part(2, gpus=1)],
        [part(2), part(2, mesh="v", cores=8)],
        [part(4, exclusive=False), part(4, mesh="v", cores=4, exclusive=False)],
        [part(1, queue="debug")],
        [part(4, properties=("^fast",))],
    ],
)
def test_what_can_be_given(parts: list[Part]) -> None:
    """It is not refused."""
    check_parts(parts, NODES, ["batch", "debug"])


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part(5)], "meshes.w: 5 hosts, but the instance has 4 nodes"),
        ([part(3, gpus=1)], "meshes.w: 3 hosts, but the instance has 2 nodes with 1 GPUs"),
        ([part(1, cores=9)], "meshes.w: 1 hosts, but the instance has 0 nodes with 9 cores"),
        ([part(1, queue="debg")], "flux.queue: there is no queue 'debg'"),
        ([part(1, queue="debg")], "did you mean 'debug'?"),
        ([part(1, properties=("fast",))], "flux.properties: no node is fast"),
        ([part(3), part(2, "v", cores=2)], "meshes.w, meshes.v: together 5 hosts, but"),
        ([part(9), part(8, "v", cores=2)], "meshes.v: 8 hosts"),
    ],
)
def test_what_can_never_be_given(parts: list[Part], words: str) -> None:
    """All that is wrong is named at once, with what there is."""
    with pytest.raises(SpecError) as caught:
        check_parts(parts, NODES, ["batch", "debug"])
    assert words in str(caught.value)


def test_an_instance_without_named_queues() -> None:
    """A queue cannot be named where none has a name; without nodes nothing else is known to be wrong."""
    with pytest.raises(SpecError, match="there is no queue 'debug'") as caught:
        check_parts([part(99, queue="debug")], [], [])
    assert "one queue" in caught.value.hint

"""What is asked of Slurm holds for whom it was said, and all that was said is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.check import check_components, fill_in
from milkweed.backends.slurm.order import find_carried, put_in_order
from milkweed.backends.slurm.script import render_shape
from milkweed.backends.slurm.shape import make_components, make_parts
from milkweed.errors import SpecError
from milkweed.spec import JobSpec
from unit.slurm_fake import node
from unit.test_slurm_shape import GIB, mesh, refusal, shape_of, spec


def own(**words: dict[str, Any]) -> JobSpec:
    """A job of the meshes a, b and c, some of which say something of their own."""
    return spec(mesh("a"), mesh("b"), mesh("c"), meshes=words)


def order_of(declared: JobSpec) -> list[str]:
    return [",".join(part.meshes) for part in make_parts(declared)]


# Components


@pytest.mark.parametrize(
    "words",
    [
        {"mem": "1G"},
        {"account": "lab"},
        {"qos": "high"},
        {"slurm_args": ["--exclude=n1"]},
        {"slurm_args": ["-x", "n1"]},
        {"slurm_args": ["--reservation", "mine"]},
        {"slurm_args": ["--some-option-of-tomorrow=1"]},
    ],
)
def test_a_component_that_says_what_sbatch_carries_over_comes_last(words: dict[str, Any]) -> None:
    """Else those after it, which say nothing of the kind, would have it too."""
    assert order_of(own(a=words)) == ["b,c", "a"]


@pytest.mark.parametrize(
    "words",
    [
        {"partition": "gpu"},
        {"constraint": "ib"},
        {"gpus_per_node": 2},
        {"exclusive": False},
        {"slurm_args": ["--gres=gpu:1", "-w", "n1"]},
    ],
)
def test_what_holds_for_one_component_changes_no_order(words: dict[str, Any]) -> None:
    """They are submitted in the order in which they were declared."""
    assert order_of(own(a=words)) == ["a", "b,c"]


def test_memory_of_a_meshs_own_is_carried_over_as_well() -> None:
    """However it was said."""
    parts = make_parts(spec(mesh("a", memory_bytes=GIB), mesh("b")))
    assert [part.meshes for part in parts] == [["b"], ["a"]]


def test_who_says_most_comes_last() -> None:
    """Each says all that those before it say."""
    words = {"a": {"mem": "1G", "qos": "high"}, "b": {"mem": "2G"}}
    assert order_of(own(**words)) == ["c", "b", "a"]


def test_what_no_order_keeps_apart_is_refused() -> None:
    """Each says what the other does not; the error has the words that are missing."""
    with pytest.raises(SpecError, match=r"meshes\.a: mem is said, and not for b") as caught:
        make_parts(own(a={"mem": "1G"}, b={"qos": "high"}))
    assert caught.value.hint == "say mem for b, too"
    assert order_of(own(a={"mem": "1G"}, b={"qos": "high", "mem": "2G"})) == ["c", "a", "b"]


def test_short_and_long_names_are_one_option() -> None:
    """Two components that both say it are kept apart by what they say."""
    assert find_carried(["-x", "n1", "-dafterok:1", "-w", "n2"]) == {"--exclude", "--dependency"}
    assert find_carried(["--exclude=n1"]) == {"--exclude"}


@given(st.lists(st.sets(st.sampled_from("xyz")), max_size=5))
def test_an_order_is_found_where_there_is_one(said: list[set[str]]) -> None:
    """None says what a later one does not say; else two are named of which each says more than the other."""
    found, clashes = put_in_order(list(enumerate(said)))
    for at, one in enumerate(found):
        assert all(said[one] <= said[other] for other in found[at:])
    assert sorted(found) == list(range(len(said))) or clashes
    assert all(word in said[one] - said[other] for one, other, word in clashes)


# Words that were dropped, or meant something else


def test_no_time_limit_at_all_can_be_asked_for() -> None:
    """It is said to Slurm: without a word, the partition's own default would hold."""
    assert "--time=UNLIMITED" in render_shape(shape_of(time_limit="UNLIMITED"))
    assert not [word for word in render_shape(shape_of()) if word.startswith("--time")]


def test_no_time_limit_is_more_than_a_partition_allows() -> None:
    """What would wait for ever is refused."""
    components = make_components(make_parts(spec(time_limit="UNLIMITED")))
    check_components(components, [node("n1"), node("n2")])
    limited = [node("n1", max_time_s=3600.0), node("n2", max_time_s=3600.0)]
    with pytest.raises(SpecError, match="a time limit of UNLIMITED is more than the 01:00:00"):
        check_components(components, limited)


@pytest.mark.parametrize("word", ["-Q", "--quiet", "--qui", "-HQ", "-vW", "-sp"])
def test_what_milkweed_sets_itself_is_refused_behind_other_letters_too(word: str) -> None:
    """A quiet sbatch would not tell the number of the job."""
    assert "cannot be given here" in refusal(slurm_args=[word, "x"][: 1 + (word == "-sp")]).what


@pytest.mark.parametrize("words", [["-Hv"], ["-xQ1"], ["-I30"]])
def test_letters_that_are_a_word_are_no_options(words: list[str]) -> None:
    """What follows an option that takes a word is its word."""
    assert shape_of(slurm_args=words).arguments == tuple(words)


@pytest.mark.parametrize("gpus", [None, 0])
def test_a_kind_of_gpu_without_gpus_is_refused(gpus: int | None) -> None:
    """It would be dropped; a number that the job says for all is one."""
    with pytest.raises(SpecError, match=r"meshes\.w\.gpu_type: 'h100', but no GPUs are asked for"):
        shape_of(mesh("w", gpus=gpus, gpu_type="h100"))
    assert shape_of(mesh("w", gpu_type="h100"), gpus_per_node=4).gpu_type == "h100"


# Variables of sbatch


def checked(environ: dict[str, str], **options: Any) -> None:
    """Compare a job of two hosts with a cluster whose default partition has one node, and `big` has two."""
    rows = [node("n0"), *(node(name, partition="big", default=False) for name in ("n1", "n2"))]
    rows = [*rows, node("n1", partition="brief", default=False, max_time_s=60.0)]
    components = make_components(make_parts(spec(**options)))
    check_components([fill_in(each, environ) for each in components], rows)


def test_the_partition_of_a_variable_is_the_one_that_is_compared() -> None:
    """It holds where nothing is said; what is said wins."""
    checked({"SBATCH_PARTITION": "big"})
    with pytest.raises(SpecError, match="partition 'debug' has 1"):
        checked({})
    with pytest.raises(SpecError, match="there is no partition 'bg'"):
        checked({"SBATCH_PARTITION": "bg"})
    checked({"SBATCH_PARTITION": "bg"}, partition="big")


def test_other_variables_are_compared_as_well() -> None:
    """A time limit, a feature; one that cannot be read is left to sbatch."""
    with pytest.raises(SpecError, match="a time limit of 01:00:00 is more than the 00:01:00"):
        checked({"SBATCH_TIMELIMIT": "60"}, partition="brief")
    with pytest.raises(SpecError, match="has the feature 'ib'"):
        checked({"SBATCH_CONSTRAINT": "ib", "SBATCH_PARTITION": "big"})
    checked({"SBATCH_TIMELIMIT": "soon", "SBATCH_PARTITION": "big"})

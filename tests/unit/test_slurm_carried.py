"""What is asked of Slurm holds for whom it was said, and all that was said is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.carried import find_carried, find_unsaid
from milkweed.backends.slurm.check import fill_in
from milkweed.backends.slurm.script import Submission, render_arguments, render_shape
from milkweed.backends.slurm.shape import make_components, make_parts
from milkweed.errors import SpecError
from milkweed.spec import JobSpec
from unit.slurm_fake import APPLY_ID, check_components, node
from unit.test_slurm_shape import GIB, mesh, refusal, shape_of, spec


def own(**words: dict[str, Any]) -> JobSpec:
    """A job of the meshes a and b, some of which say something of their own."""
    return spec(mesh("a"), mesh("b"), meshes=words)


def memory_of(declared: JobSpec) -> list[list[str]]:
    """The words about memory of each component."""
    submission = Submission(
        apply_id=APPLY_ID,
        name="demo",
        generation=0,
        first=0,
        parts=tuple(make_parts(declared)),
        folder="/x",
        logs="/x",
    )
    text = " ".join(render_arguments(submission))
    return [[w for w in each.split() if w.startswith("--mem")] for each in text.split(" : ")]


# Components


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ({"account": "lab"}, "account"),
        ({"qos": "high"}, "qos"),
        ({"slurm_args": ["--exclude=n1"]}, "--exclude"),
        ({"slurm_args": ["-x", "n1"]}, "--exclude"),
        ({"slurm_args": ["--reservation", "mine"]}, "--reservation"),
        ({"slurm_args": ["--some-option-of-tomorrow=1"]}, "--some-option-of-tomorrow"),
    ],
)
def test_what_sbatch_takes_for_all_components_must_be_said_for_all(
    words: dict[str, Any], option: str
) -> None:
    """Else those that say nothing of the kind would have it too; the error has the words that are missing."""
    with pytest.raises(
        SpecError, match=rf"meshes\.b: {option} is said, and for a it is not"
    ) as caught:
        make_parts(own(b=words))
    assert caught.value.hint == f"say {option} for a, too"
    assert len(make_parts(own(a={**words, "partition": "x"}, b=words))) == 2


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
def test_what_holds_for_one_component_needs_no_word_of_others(words: dict[str, Any]) -> None:
    """Each may say it by itself."""
    assert len(make_parts(own(a=words))) == 2


def test_whole_nodes_ask_for_all_their_memory_where_others_say_how_much() -> None:
    """Without a word they would have as much as those; a job of which nobody says anything says nothing."""
    assert memory_of(own(a={"mem": "1G"})) == [["--mem=1024M"], ["--mem=0M"]]
    assert memory_of(own(b={"mem": "1G"})) == [["--mem=0M"], ["--mem=1024M"]]
    assert memory_of(own(b={"partition": "x"})) == [[], []]
    assert memory_of(spec(mesh("a", memory_bytes=GIB), mesh("b"))) == [
        ["--mem=1024M"],
        ["--mem=0M"],
    ]


@pytest.mark.parametrize("words", [{"exclusive": False}, {"slurm_args": ["--mem-per-cpu=100"]}])
def test_a_share_of_a_node_must_say_its_memory(words: dict[str, Any]) -> None:
    """What it has by default is not known here, and two ways to say it do not go together."""
    with pytest.raises(SpecError, match="mem is said, and for b it is not"):
        make_parts(own(a={"mem": "1G"}, b=words))


def test_short_and_long_names_are_one_option() -> None:
    """Two components that both say it are kept apart by what they say."""
    assert find_carried(["-x", "n1", "-dafterok:1", "-w", "n2"]) == {"--exclude", "--dependency"}
    assert find_carried(["--exclude=n1"]) == {"--exclude"}


@given(st.lists(st.sets(st.sampled_from("xyz")), max_size=5))
def test_one_that_says_what_another_does_not_is_found(said: list[set[str]]) -> None:
    """None is named where all say the same, and whoever is named says it."""
    found = find_unsaid(said)
    assert (found is None) == (len(set(map(frozenset, said))) < 2)
    if found:
        assert found[2] in said[found[0]] - said[found[1]]


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

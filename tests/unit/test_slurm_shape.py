"""From a declaration to what is asked of Slurm: which hosts are alike, and what each of them needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.shape import (
    MANAGED,
    Part,
    Shape,
    make_components,
    make_parts,
    make_shape,
    mesh_options,
)
from milkweed.errors import SpecError
from milkweed.option_tables import SLURM_OPTIONS
from milkweed.spec import JobSpec, Lifetime, MeshSpec, Resources

MIB = 2**20
GIB = 2**30


def spec(*meshes: MeshSpec, lifetime: Lifetime | None = None, **options: Any) -> JobSpec:
    return JobSpec(
        name="demo",
        backend="slurm",
        meshes=meshes or (MeshSpec(name="w", hosts=2),),
        options=options,
        lifetime=lifetime or Lifetime(),
    )


def mesh(name: str, hosts: int = 1, **wants: Any) -> MeshSpec:
    return MeshSpec(name=name, hosts=hosts, resources=Resources(**wants))


def shape_of(*meshes: MeshSpec, **options: Any) -> Shape:
    made = spec(*meshes, **options)
    return make_shape(made, made.meshes[0])


def refusal(**options: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        make_parts(spec(**options))
    return caught.value


# Which hosts are alike


def test_meshes_of_one_shape_share_a_component() -> None:
    """Hosts that ask for the same are one component, mesh by mesh in the order of their ranks."""
    [part] = make_parts(spec(mesh("a", 2), mesh("b", 1)))
    assert part.hosts == (("a", 0), ("a", 1), ("b", 0))
    assert part.meshes == ["a", "b"]


def test_meshes_of_other_shapes_have_components_of_their_own() -> None:
    """One component for each shape, in the order in which the shapes were declared."""
    parts = make_parts(spec(mesh("a", 1, gpus=8), mesh("b", 2), mesh("c", 1, gpus=8)))
    assert [part.hosts for part in parts] == [(("a", 0), ("c", 0)), (("b", 0), ("b", 1))]
    assert [part.shape.gpus for part in parts] == [8, None]


def test_own_words_of_a_mesh_make_a_component() -> None:
    """What the block says for one mesh sets it apart, and an equal word does not."""
    own = {"b": {"partition": "gpu"}}
    parts = make_parts(spec(mesh("a"), mesh("b"), partition="cpu", meshes=own))
    assert [(part.meshes, part.shape.partition) for part in parts] == [
        (["a"], "cpu"),
        (["b"], "gpu"),
    ]
    same = {"b": {"partition": "cpu"}}
    assert len(make_parts(spec(mesh("a"), mesh("b"), partition="cpu", meshes=same))) == 1


def test_variables_do_not_make_components() -> None:
    """Environments are given to hosts by their keepers; Slurm need not know."""
    pair = (MeshSpec(name="a", hosts=1, env={"A": "1"}), MeshSpec(name="b", hosts=1))
    assert len(make_parts(spec(*pair))) == 1


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([None, 1, 2]), st.sampled_from([None, 4])),
        min_size=1,
        max_size=6,
    )
)
def test_every_host_is_in_one_component(wanted: list[tuple[int, int | None, int | None]]) -> None:
    """However a job is cut, each of its hosts is in exactly one component, and no component is empty."""
    meshes = [
        mesh(f"m{at}", hosts, gpus=gpus, cpus=cpus) for at, (hosts, gpus, cpus) in enumerate(wanted)
    ]
    made = spec(*meshes)
    parts = make_parts(made)
    labels = [f"{name}/{rank}" for part in parts for name, rank in part.hosts]
    assert sorted(labels) == sorted(made.labels)
    assert len({part.shape for part in parts}) == len(parts)
    assert all(part.hosts for part in parts)


# What a host needs


def test_a_plain_job_asks_for_whole_nodes_and_no_more() -> None:
    """Without a word the host is a node of its own, of whatever kind."""
    assert shape_of() == Shape(ntasks_per_node=1, exclusive=True)


def test_the_resources_of_a_mesh_win_over_the_block() -> None:
    """A job file that moves to Slurm keeps what its meshes need; the block fills in what they do not say."""
    block = {"cpus_per_task": 2, "gpus_per_node": 1, "mem": "1G"}
    said = shape_of(mesh("w", cpus=16, gpus=0, memory_bytes=4 * GIB), **block)
    assert (said.cpus_per_task, said.gpus, said.memory_mb) == (16, 0, 4096)
    filled = shape_of(mesh("w"), **block)
    assert (filled.cpus_per_task, filled.gpus, filled.memory_mb) == (2, 1, 1024)


def test_the_kind_of_gpu_and_the_disk_come_from_the_mesh() -> None:
    """Sizes are rounded up to what Slurm can count: never less than was asked for."""
    said = shape_of(mesh("w", gpus=2, gpu_type="a100", disk_bytes=MIB + 1, memory_bytes=1))
    assert (said.gpus, said.gpu_type, said.disk_mb, said.memory_mb) == (2, "a100", 2, 1)


def test_a_meshs_own_words_win_over_the_jobs() -> None:
    """Each key that a mesh may say is heard, and the job's other words stay."""
    own = {
        "partition": "gpu",
        "account": "lab",
        "qos": "high",
        "constraint": "ib",
        "ntasks_per_node": 4,
        "cpus_per_task": 3,
        "gpus_per_node": 2,
        "mem": "2G",
        "exclusive": False,
        "slurm_args": ["--hold"],
    }
    job = {"partition": "cpu", "account": "other", "time_limit": "10"}
    assert shape_of(mesh("w"), meshes={"w": own}, **job) == Shape(
        partition="gpu",
        account="lab",
        qos="high",
        constraint="ib",
        time_limit_s=600.0,
        ntasks_per_node=4,
        cpus_per_task=3,
        gpus=2,
        memory_mb=2048,
        exclusive=False,
        arguments=("--hold",),
    )


def test_a_mesh_may_say_a_default_that_the_job_does_not_keep() -> None:
    """What is a default for the job may differ from what the job says: a mesh's own word still wins."""
    own = {"w": {"exclusive": True, "ntasks_per_node": 1}}
    said = shape_of(mesh("w"), meshes=own, exclusive=False, ntasks_per_node=4)
    assert (said.exclusive, said.ntasks_per_node) == (True, 1)


def test_own_words_of_a_mesh_nobody_declared_are_refused() -> None:
    """A misspelled name is an error with the nearest one, not a word that nobody hears."""
    error = refusal(meshes={"v": {"mem": "1G"}})
    assert error.what == "slurm.meshes: 'v' is not a mesh of this job"
    assert refusal(meshes={"ww": {}}).hint == "did you mean 'w'?"


def test_own_words_of_a_mesh_are_checked() -> None:
    """Keys and values are checked as the job's own are, with the path to the mistake."""
    error = refusal(meshes={"w": {"gpus": 1, "cpus_per_task": "two", "time_limit": "5"}})
    assert error.what.splitlines() == [
        "slurm.meshes.w.gpus: unknown key",
        "slurm.meshes.w.cpus_per_task: 'two' is not a whole number",
        "slurm.meshes.w.time_limit: unknown key",
    ]


@pytest.mark.parametrize("words", [3, "gpu", ["partition"]])
def test_own_words_of_a_mesh_are_a_mapping(words: Any) -> None:
    """Something else in place of a mapping is an error that names the place."""
    assert "slurm.meshes.w" in refusal(meshes={"w": words}).what


@pytest.mark.parametrize("words", [3, "w", ["w"]])
def test_the_block_for_meshes_is_a_mapping(words: Any) -> None:
    """The same for the whole block."""
    assert "slurm.meshes" in refusal(meshes=words).what


def test_no_own_words_are_fine() -> None:
    """An empty block, or an empty entry, says nothing."""
    for given_words in (None, {}, {"w": {}}):
        assert all(words == {} for words in mesh_options(spec(meshes=given_words)).values())


# Memory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", 512),
        (512, 512),
        ("1G", 1024),
        ("1g", 1024),
        ("1GB", 1024),
        ("1Gi", 1024),
        ("1GiB", 1024),
        ("1.5G", 1536),
        ("64000M", 64000),
        ("2T", 2 * MIB),
        ("1024K", 1),
        ("1025K", 2),
        ("1K", 1),
        (" 2G ", 2048),
        ("0", 0),
    ],
)
def test_memory_is_read_as_slurm_reads_it(text: str | int, expected: int) -> None:
    """A bare number is megabytes, units are powers of 1024, and nothing is rounded down."""
    assert shape_of(mem=text).memory_mb == expected


@pytest.mark.parametrize("text", ["lots", "G", "1X", "-1G", "1G G", "0x10", "", "1e3"])
def test_memory_that_is_none_is_refused(text: str) -> None:
    """The error names the parameter."""
    assert refusal(mem=text).what.startswith("mem: ")


def test_no_memory_said_is_none_asked() -> None:
    """The cluster's own default holds."""
    assert shape_of().memory_mb is None


# Time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400.0),
        ("1:30:00", 5400.0),
        ("90m", 5400.0),
        ("2-12", 216000.0),
        ("UNLIMITED", float("inf")),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text: str, expected: float | None) -> None:
    """A bare number is minutes, as everywhere in Slurm."""
    assert shape_of(time_limit=text).time_limit_s == expected


def test_the_blocks_time_limit_wins_over_the_jobs_lifetime() -> None:
    """A lifetime declared for any scheduler is Slurm's time limit, unless the block has its own."""
    made = spec(lifetime=Lifetime(time_limit_s=60.0))
    assert make_shape(made, made.meshes[0]).time_limit_s == 60.0
    both = spec(lifetime=Lifetime(time_limit_s=60.0), time_limit="2")
    assert make_shape(both, both.meshes[0]).time_limit_s == 120.0
    assert shape_of().time_limit_s is None


def test_a_wrong_time_limit_names_its_field() -> None:
    """The error names the parameter and the spellings that work."""
    error = refusal(time_limit="soon")
    assert error.what == "time_limit: 'soon' is not a time limit"
    assert "1:30:00" in error.hint


# More arguments


@pytest.mark.parametrize("word", sorted(MANAGED))
def test_arguments_that_milkweed_sets_are_refused(word: str) -> None:
    """Each would be lost or change what milkweed relies on; the error has the parameter to use instead."""
    error = refusal(slurm_args=[word])
    assert error.what == f"slurm_args: {word!r} cannot be given here"
    expected = f"use the parameter {MANAGED[word]}" if MANAGED[word] else "milkweed sets it itself"
    assert error.hint == expected


@pytest.mark.parametrize(
    "word",
    [
        *("--job-name=x", "-Jx", "--nodes=4", "-N4", "--time=5", "-t5", "--comment=mine"),
        *("--array=1-3", "-a1-3", "--wrap=ls", "--output=x", "-ox", "--mem=4G", "-c4", "-pgpu"),
        *("--export=NONE", "--chdir=/", "-D/", "--exclusive=user", "--no-kill=off"),
    ],
)
def test_arguments_with_values_are_refused_too(word: str) -> None:
    """With an equals sign, or short and joined: it is the same argument."""
    assert "cannot be given here" in refusal(slurm_args=["--hold", word]).what


@pytest.mark.parametrize("word", ["--commen=mine", "--arra=1-3", "--job-nam=x", "--wra=ls"])
def test_arguments_that_are_cut_short_are_refused_too(word: str) -> None:
    """Slurm takes the beginning of an option for the option: with another comment nobody would find the job."""
    assert "cannot be given here" in refusal(slurm_args=[word]).what


def test_what_milkweed_gives_sbatch_cannot_be_given_twice() -> None:
    """Every argument that milkweed itself may write is among those that are refused."""
    written = {
        *("--job-name", "--comment", "--nodes", "--partition", "--account", "--qos", "--time"),
        *("--constraint", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--mem"),
        *("--exclusive", "--no-kill", "--output", "--input", "--parsable", ":"),
    }
    assert written <= set(MANAGED)


def test_the_parameters_that_errors_name_are_there() -> None:
    """Whoever is told to use a parameter finds it."""
    named = {parameter for parameter in MANAGED.values() if parameter}
    assert named <= {*SLURM_OPTIONS, "meshes", "job_name"}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--reservation=mine"],
        ["--reservation", "mine"],
        ["--mem-per-cpu=4G"],
        ["--nodelist=n[1-2]", "--mail-type=END,FAIL"],
        ["-w", "n1"],
        ["--gres=gpu:a100:4(S:0-1)"],
        ["--exclude=n3"],
        ["--gpus=4"],
        ["--wait-all-nodes=1"],
    ],
)
def test_other_arguments_are_passed_on_as_they_are(words: list[str]) -> None:
    """What milkweed does not set itself belongs to Slurm and its users."""
    assert shape_of(slurm_args=words).arguments == tuple(words)


@pytest.mark.parametrize("word", ["--a=\0", "--a=x\ny"])
def test_arguments_that_could_not_be_passed_are_refused(word: str) -> None:
    """Nobody can give a program such an argument."""
    error = refusal(slurm_args=[word])
    assert "no argument may have" in error.what
    assert "in one line" in error.hint


@pytest.mark.parametrize(
    "before",
    [
        *([], ["--mail-type=END"], ["--hold"], ["--hol"], ["-H"], ["-dsingleton"]),
        *(["--reservation", "mine"], ["--nice"], ["--dependency=singleton", "-v"]),
    ],
)
def test_a_script_among_the_arguments_is_refused(before: list[str]) -> None:
    """A word that is neither an option nor an option's own would be taken for the script, and ours dropped."""
    error = refusal(slurm_args=[*before, "train.sh"])
    assert error.what.startswith("slurm_args: 'train.sh' is not an option of sbatch, nor")
    assert "--reservation=mine" in error.hint


@pytest.mark.parametrize("word", ["--clusters=other", "-Mother", "--cluster=other"])
def test_another_cluster_is_refused(word: str) -> None:
    """A job that is sent to a cluster whose queue nobody reads would be lost: neither found nor ended."""
    assert "cannot be given here" in refusal(slurm_args=[word]).what


@pytest.mark.parametrize("words", [["--"], ["--", "train.sh"]])
def test_an_end_of_options_is_refused(words: list[str]) -> None:
    """Behind it everything is a script to sbatch, and milkweed's own would be left unread."""
    assert refusal(slurm_args=words).what.startswith("slurm_args: ")


# Comparing with the cluster


def test_components_say_what_is_compared() -> None:
    """What a cluster is compared with has all the numbers of the shape, and names the meshes."""
    made = Part(
        shape=Shape(
            partition="gpu",
            ntasks_per_node=2,
            cpus_per_task=4,
            gpus=8,
            memory_mb=5,
            time_limit_s=60.0,
            constraint="ib",
        ),
        hosts=(("a", 0), ("a", 1), ("b", 0)),
    )
    [found] = make_components([made])
    assert (found.hosts, found.field, found.cpus_per_node) == (3, "meshes.a, b", 8)
    assert (found.partition, found.gpus_per_node, found.memory_mb) == ("gpu", 8, 5)
    assert (found.time_limit_s, found.constraint) == (60.0, "ib")

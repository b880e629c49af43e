"""SlurmJob: what people who know the reference give, and what they are told when it is wrong."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm.shape import make_parts
from milkweed.backends.slurm.sharing import make_share
from milkweed.errors import SpecError
from milkweed.job import SlurmJob, job_loads
from milkweed.spec import Lifetime, Resources
from unit.slurm_fake import FakeSlurm, node

GIB = 2**30

# The reference's own, in its order: name, default, something else.
REFERENCE: list[tuple[str, Any, Any]] = [
    ("python_exe", "python", "/opt/py/bin/python"),
    ("slurm_args", (), ["--reservation=mine"]),
    ("monarch_port", 22222, 30000),
    ("job_name", "monarch_job", "mine"),
    ("ntasks_per_node", 1, 4),
    ("time_limit", None, "01:30:00"),
    ("partition", None, "gpu"),
    ("log_dir", None, "/logs"),
    ("exclusive", True, False),
    ("gpus_per_node", None, 8),
    ("cpus_per_task", None, 12),
    ("mem", None, "64G"),
    ("job_start_timeout", None, 90),
    ("account", None, "lab"),
    ("qos", None, "high"),
]
NOT_HERE = {"out_of_cluster", "attach_to", "bind_to"}
"""What only the reference has: clients outside of a cluster are reached in another way."""
MESHES = {"trainers": 2, "loaders": 1}


def refusal(**more: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        SlurmJob(**{"meshes": MESHES, **more})
    return caught.value


# As the reference has it


def test_everything_can_be_given_by_position() -> None:
    """A call that was written for the reference means the same here."""
    job = SlurmJob(MESHES, *[value for _, _, value in REFERENCE])
    spec = job.spec
    assert (spec.name, spec.sizes, spec.backend) == ("mine", MESHES, "slurm")
    assert spec.client == {"start_timeout": 90.0}
    assert spec.options == {
        name: value for name, _, value in REFERENCE if name not in {"job_name", "job_start_timeout"}
    }


def test_everything_can_be_given_by_name() -> None:
    """The same by keywords."""
    by_name = SlurmJob(MESHES, **{name: value for name, _, value in REFERENCE})
    assert by_name.spec.options["mem"] == "64G"
    assert by_name.spec.fingerprint() == by_name.spec.fingerprint()


def test_the_defaults_are_the_references() -> None:
    """And saying a default is the same as saying nothing."""
    found = inspect.signature(SlurmJob.__init__).parameters
    assert {name: found[name].default for name, _, _ in REFERENCE} == {
        name: default for name, default, _ in REFERENCE
    }
    said = SlurmJob(MESHES, **{name: default for name, default, _ in REFERENCE})
    assert said.spec == SlurmJob(MESHES).spec
    assert SlurmJob(MESHES).spec.options == {}


def installed_reference() -> list[tuple[str, Any]]:
    """The parameters of the SlurmJob that comes with the engine, read without importing it."""
    package = importlib.util.find_spec("monarch")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the engine is not installed")
    [folder, *_] = package.submodule_search_locations
    tree = ast.parse((Path(folder) / "_src" / "job" / "slurm.py").read_text())
    [job] = [
        item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == "SlurmJob"
    ]
    [init] = [
        item for item in job.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    ]
    names = [argument.arg for argument in init.args.args][2:]
    return list(zip(names, map(ast.literal_eval, init.args.defaults), strict=True))


def test_the_reference_is_the_one_that_is_installed() -> None:
    """What is written down above is what the engine's own class takes, name by name and in order."""
    theirs = [(name, value) for name, value in installed_reference() if name not in NOT_HERE]
    assert theirs == [(name, default) for name, default, _ in REFERENCE]


# Spec


def test_what_only_the_client_cares_about_defines_nothing() -> None:
    """Time-outs, output, what Ctrl-C does and when to renew: no reason to replace an allocation."""
    plain = SlurmJob(MESHES).spec
    own = SlurmJob(
        MESHES,
        job_start_timeout=5,
        stream_logs=False,
        on_interrupt="keep",
        renew="30m",
        idle_timeout_s=9.0,
        on_change="replace",
        job_name="other",
    ).spec
    assert own.fingerprint() == plain.fingerprint()
    assert own.client == {
        "start_timeout": 5.0,
        "stream_logs": False,
        "on_interrupt": "keep",
        "renew": "30m",
    }
    assert own.lifetime == Lifetime(idle_timeout_s=9.0)


@pytest.mark.parametrize(
    "more",
    [
        {"partition": "gpu"},
        {"account": "lab"},
        {"qos": "high"},
        {"constraint": "ib"},
        {"time_limit": "10"},
        {"mem": "1G"},
        {"exclusive": False},
        {"gpus_per_node": 1},
        {"cpus_per_task": 2},
        {"ntasks_per_node": 2},
        {"slurm_args": ["--hold"]},
        {"monarch_port": 1234},
        {"python_exe": "py"},
        {"log_dir": "logs"},
        {"survive_node_failure": False},
        {"env": {"A": "1"}},
        {"env": {"trainers": {"A": "1"}}},
        {"resources": {"trainers": Resources(gpus=1)}},
        {"mesh_options": {"trainers": {"partition": "gpu"}}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_defines_an_allocation(more: dict[str, Any]) -> None:
    """Everything that hosts would notice is in the fingerprint."""
    assert SlurmJob(MESHES, **more).spec.fingerprint() != SlurmJob(MESHES).spec.fingerprint()


def test_a_job_reads_back_from_its_bytes() -> None:
    """What is saved declares the same job."""
    job = SlurmJob(
        MESHES,
        mesh_options={"trainers": {"mem": "1G"}},
        resources={"loaders": Resources(cpus=2, memory_bytes=GIB)},
        slurm_args=("--hold",),
    )
    again = job_loads(job.dumps())
    assert isinstance(again, SlurmJob)
    assert again.spec.fingerprint() == job.spec.fingerprint()
    assert make_parts(again.spec) == make_parts(job.spec)


def test_a_folder_for_logs_is_where_the_job_was_declared(folder: Path) -> None:
    """A relative one is relative to where the program runs, wherever hosts run."""
    assert SlurmJob(MESHES, log_dir="logs").spec.options["log_dir"] == str(folder / "logs")
    assert os.path.isabs(SlurmJob(MESHES, log_dir="~").spec.options["log_dir"])


@pytest.mark.parametrize(("given", "expected"), [(4096, "4096"), ("4G", "4G")])
def test_memory_may_be_a_number(given: Any, expected: str) -> None:
    """As megabytes, which is how Slurm reads it."""
    assert SlurmJob(MESHES, mem=given).spec.options["mem"] == expected


def test_a_time_limit_may_be_a_number() -> None:
    """As minutes, which is how Slurm reads it."""
    job = SlurmJob(MESHES, time_limit=90)  # type: ignore[arg-type]
    assert make_parts(job.spec)[0].shape.time_limit_s == 5400.0


def test_nothing_is_asked_of_slurm_by_declaring(slurm: FakeSlurm) -> None:
    """A job can be declared anywhere."""
    SlurmJob(MESHES, partition="nosuch")
    assert slurm.calls == []


# Mistakes


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"meshes": {}}, "meshes: "),
        ({"meshes": 3}, "meshes: "),
        ({"meshes": {"a": 0}}, "meshes.a: "),
        ({"meshes": {"a": "2"}}, "meshes.a: "),
        ({"meshes": {"a b": 1}}, "meshes: the name 'a b'"),
        ({"python_exe": ""}, "slurm.python_exe: "),
        ({"python_exe": 3}, "slurm.python_exe: "),
        ({"slurm_args": [3]}, "slurm.slurm_args[0]: "),
        ({"monarch_port": "22222"}, "slurm.monarch_port: "),
        ({"monarch_port": 0}, "slurm.monarch_port: "),
        ({"job_name": "a/b"}, "name: "),
        ({"ntasks_per_node": 0}, "slurm.ntasks_per_node: "),
        ({"partition": ""}, "slurm.partition: "),
        ({"exclusive": "no"}, "slurm.exclusive: "),
        ({"gpus_per_node": -1}, "slurm.gpus_per_node: "),
        ({"cpus_per_task": 0.5}, "slurm.cpus_per_task: "),
        ({"job_start_timeout": -1}, "start_timeout: "),
        ({"account": 3}, "slurm.account: "),
        ({"survive_node_failure": 1}, "slurm.survive_node_failure: "),
        ({"stream_logs": "yes"}, "slurm.stream_logs: "),
        ({"on_interrupt": "maybe"}, "slurm.on_interrupt: "),
        ({"on_change": "maybe"}, "on_change: "),
        ({"env": {"A B": "1"}}, "env: "),
        ({"resources": {"nobody": Resources()}}, "resources: 'nobody'"),
    ],
)
def test_a_mistake_names_its_field(more: dict[str, Any], what: str) -> None:
    """When the job is declared, not when it is submitted."""
    assert what in refusal(**more).what


def test_all_mistakes_are_told_at_once() -> None:
    """Nobody has to try four times."""
    error = refusal(exclusive=1, gpus_per_node="8", partition=2, on_interrupt="x")
    assert len(error.what.splitlines()) == 4


@pytest.mark.parametrize("words", ["--hold", "--reservation=mine"])
def test_one_text_is_not_a_list_of_arguments(words: str) -> None:
    """A text in place of a list would be taken letter by letter."""
    assert "slurm_args" in refusal(slurm_args=words).what


@pytest.mark.parametrize("port", [65536, 70000, 65500])
def test_a_port_must_leave_room_for_all_of_them(port: int) -> None:
    """Hosts may use 64 ports from the first one on: there must be as many."""
    assert "monarch_port" in refusal(monarch_port=port).what


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"mem": "lots"}, "mem: 'lots' is not a size"),
        ({"time_limit": "soon"}, "time_limit: 'soon' is not a time limit"),
        ({"slurm_args": ["--nodes=3"]}, "slurm_args: '--nodes=3' cannot be given here"),
        ({"mesh_options": {"nobody": {}}}, "slurm.meshes: 'nobody' is not a mesh"),
    ],
)
def test_what_slurm_would_refuse_is_told_before_it_is_asked(
    slurm: FakeSlurm, more: dict[str, Any], what: str
) -> None:
    """At the first plan at the latest, and without a question to the cluster."""
    with pytest.raises(SpecError) as caught:
        SlurmJob(MESHES, **more).plan(None)
    assert what in caught.value.what
    assert slurm.calls == []


# More meshes, and shares of nodes


def test_a_mesh_can_be_added() -> None:
    """As the reference has it; a name that is there already is refused."""
    job = SlurmJob({"a": 1}, partition="gpu")
    job.add_mesh("b", 2)
    assert job.spec.sizes == {"a": 1, "b": 2}
    assert job.spec.options == {"partition": "gpu"}
    with pytest.raises(SpecError, match="'b' is declared twice"):
        job.add_mesh("b", 1)


def test_a_mesh_that_is_added_has_the_jobs_variables() -> None:
    """One environment for all is for whatever comes; one per mesh is for those that it names."""
    job = SlurmJob({"a": 1}, env={"HF_HOME": "/data"})
    job.add_mesh("b", 1)
    said = SlurmJob({"a": 1, "b": 1}, env={"HF_HOME": "/data"})
    assert [job.spec.mesh_env(mesh) for mesh in job.spec.meshes] == [{"HF_HOME": "/data"}] * 2
    assert job.spec.fingerprint() == said.spec.fingerprint()
    each = SlurmJob({"a": 1}, env={"a": {"HF_HOME": "/data"}})
    each.add_mesh("b", 1)
    assert [each.spec.mesh_env(mesh) for mesh in each.spec.meshes] == [{"HF_HOME": "/data"}, {}]


def test_nodes_can_be_shared(slurm: FakeSlurm) -> None:
    """Half of a node's GPUs come with half of its CPUs and memory; the other words stay."""
    slurm.nodes("g1", partition="gpu", gres="gpu:8", cpus="64", memory="512000")
    job = SlurmJob({"a": 1}, account="lab", stream_logs=False)
    job.share_node(tasks_per_node=2, gpus_per_task=2, partition="gpu")
    assert job.spec.options == {
        "account": "lab",
        "partition": "gpu",
        "exclusive": False,
        "ntasks_per_node": 2,
        "gpus_per_node": 4,
        "cpus_per_task": 16,
        "mem": "256000M",
    }
    assert job.spec.client == {"stream_logs": False}


GPU = [node("g1", partition="gpu", gpus=8, cpus=64, memory_mb=800), node("n1")]


def share(**more: Any) -> dict[str, Any]:
    return make_share(GPU, **{"partition": "gpu", "tasks": 1, "gpus_per_task": 1, **more})


def test_a_share_follows_the_gpus() -> None:
    """An eighth of the GPUs is an eighth of all the rest, and at least something."""
    assert share() == {
        "partition": "gpu",
        "exclusive": False,
        "ntasks_per_node": 1,
        "gpus_per_node": 1,
        "cpus_per_task": 8,
        "mem": "100M",
    }


def test_a_share_fits_the_smallest_node_that_could_be_given() -> None:
    """Nodes that lack the GPUs do not count, and of the others the poorest decides."""
    rows = [*GPU, node("g2", partition="gpu", gpus=8, cpus=32, memory_mb=1600)]
    rows += [node("g3", partition="gpu", gpus=1, cpus=1, memory_mb=1)]
    found = make_share(rows, partition="gpu", tasks=2, gpus_per_task=1)
    assert (found["cpus_per_task"], found["mem"]) == (4, "200M")


def test_a_share_without_gpus_is_one_cpu_a_task() -> None:
    """As much as Slurm gives by itself."""
    assert share(gpus_per_task=0, tasks=3) == {
        "partition": "gpu",
        "exclusive": False,
        "ntasks_per_node": 3,
    }


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"tasks": 0}, "tasks_per_node: 0 is too small"),
        ({"gpus_per_task": -1}, "gpus_per_task: -1 is too small"),
        ({"partition": "gup"}, "partition: there is no 'gup'"),
        ({"tasks": 3, "gpus_per_task": 3}, "3 tasks of 3 need 9 GPUs of one node"),
    ],
)
def test_a_share_that_no_node_has_is_refused(more: dict[str, Any], what: str) -> None:
    """The error has what there is."""
    with pytest.raises(SpecError) as caught:
        share(**more)
    assert what in caught.value.what
    assert caught.value.hint


def test_a_share_where_nodes_are_not_shown() -> None:
    """Without GPUs nothing has to be known of them; with GPUs the person says the share."""
    assert make_share([], partition="gpu", tasks=2, gpus_per_task=0)["partition"] == "gpu"
    with pytest.raises(SpecError, match="Slurm shows no nodes here") as caught:
        make_share([], partition="gpu", tasks=2, gpus_per_task=1)
    assert "cpus_per_task" in caught.value.hint

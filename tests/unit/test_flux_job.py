"""FluxJob: what people give, what becomes of it, and what they are told when it is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends import load_backend
from milkweed.backends.flux.shape import make_parts
from milkweed.errors import SpecError, UnsupportedError
from milkweed.job import FluxJob, job_loads
from milkweed.jobfile import load_jobfile
from milkweed.option_tables import FLUX_MESH_OPTIONS, FLUX_OPTIONS
from milkweed.spec import Resources
from unit.flux_fake import FakeFlux

MESHES = {"trainers": 2, "loaders": 1}
GIVEN: dict[str, Any] = {
    "uri": "ssh://far/tmp/x",
    "queue": "gpu",
    "bank": "lab",
    "time_limit": "90m",
    "properties": ["a100"],
    "cpus_per_host": 4,
    "gpus_per_host": 2,
    "exclusive": False,
    "python_exe": "/opt/py/bin/python",
    "monarch_port": 30000,
    "log_dir": "/logs",
    "survive_node_failure": False,
}


def test_what_is_given_defines_the_allocation() -> None:
    """Every parameter that the hosts depend on is in the declaration, by the name it has in a job file."""
    job = FluxJob(MESHES, job_name="mine", **GIVEN)
    assert (job.spec.name, job.spec.backend, job.spec.sizes) == ("mine", "flux", MESHES)
    assert job.spec.options == GIVEN


def test_defaults_are_left_out() -> None:
    """Saying a default is the same as saying nothing."""
    job = FluxJob(MESHES, exclusive=True, python_exe="python", monarch_port=22222)
    assert job.spec.options == job.spec.client == {}
    assert job.spec.name == "monarch_job"


def test_what_only_the_client_cares_about() -> None:
    """Time-outs, output and what Ctrl-C does change no allocation."""
    job = FluxJob(MESHES, job_start_timeout=90, stream_logs=False, on_interrupt="keep")
    assert job.spec.client == {"start_timeout": 90.0, "stream_logs": False, "on_interrupt": "keep"}
    assert job.spec.options == {}


def test_a_folder_for_logs_is_an_absolute_one(folder: Path) -> None:
    """A program that runs elsewhere later means the same."""
    assert FluxJob(MESHES, log_dir="logs").spec.options["log_dir"] == os.path.abspath("logs")


@pytest.mark.parametrize("limit", [90, "90"])
def test_minutes_may_be_a_number(limit: Any) -> None:
    """As for `flux submit`."""
    [part] = make_parts(FluxJob(MESHES, time_limit=limit).spec)
    assert part.shape.time_limit_s == 5400.0


def test_meshes_may_differ() -> None:
    """In what they need, in what they say for themselves, and in their variables."""
    job = FluxJob(
        MESHES,
        resources={"loaders": Resources(cpus=4)},
        mesh_options={"trainers": {"queue": "gpu"}},
        env={"trainers": {"A": "1"}},
    )
    trainers, loaders = make_parts(job.spec)
    assert (trainers.shape.queue, loaders.shape.cores) == ("gpu", 4)
    assert job.spec.meshes[0].env == {"A": "1"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"queue": 3}, "flux.queue: 3 is not text"),
        ({"properties": "a100"}, "flux.properties: 'a100' is not a list"),
        ({"cpus_per_host": 0}, "flux.cpus_per_host: 0 is too small"),
        ({"exclusive": "yes"}, "flux.exclusive: 'yes' is not true or false"),
        ({"monarch_port": 0}, "flux.monarch_port: 0 is not the first of 64 ports"),
        ({"on_interrupt": "stop"}, "flux.on_interrupt: 'stop' is not one of"),
        ({"uri": ""}, "flux.uri: is empty"),
        ({"job_name": "a:b"}, "a:b"),
        ({"job_name": "a b\n"}, "a b"),
        ({"meshes": {}}, "mesh"),
        ({"meshes": {"w": 0}}, "w"),
        ({"on_change": "stop"}, "on_change"),
    ],
)
def test_what_is_wrong_is_told_at_once(more: dict[str, Any], words: str) -> None:
    """The field is named before anything is asked."""
    with pytest.raises(SpecError) as caught:
        FluxJob(**{"meshes": MESHES, **more})
    assert words in str(caught.value)


def test_a_declaration_comes_back() -> None:
    """What is saved as text is the same job."""
    job = FluxJob(MESHES, **GIVEN)
    assert job_loads(job.dumps()).spec == job.spec


def test_a_job_file(folder: Path) -> None:
    """`on: flux` takes the same keys."""
    Path("job.yaml").write_text(
        "name: demo\non: flux\nmeshes:\n  w: {hosts: 2, gpus: 1}\n"
        "flux: {queue: gpu, properties: [a100], time_limit: 12h}\n"
    )
    spec = load_jobfile(Path("job.yaml")).spec
    assert spec.backend == "flux"
    [part] = make_parts(spec)
    assert (part.shape.queue, part.shape.gpus, part.shape.time_limit_s) == ("gpu", 1, 43200.0)
    assert load_backend("flux").name == "flux"


def test_what_a_mesh_may_say_is_what_the_job_may_say() -> None:
    """The keys for single meshes are keys of the whole job too, and mean the same; none is the client's own."""
    assert set(FLUX_MESH_OPTIONS) < set(FLUX_OPTIONS)
    assert all(FLUX_OPTIONS[key] == field for key, field in FLUX_MESH_OPTIONS.items())
    assert not [key for key, field in FLUX_MESH_OPTIONS.items() if field.client]


def test_other_sizes_are_refused(flux: FakeFlux, folder: Path) -> None:
    """A job of Flux cannot be made larger or smaller, and that is said."""
    flux.answer("job submit", "7\n")
    job = FluxJob({"w": 2})
    job.apply()
    with pytest.raises(UnsupportedError, match="flux"):
        job.resize("w", 3)

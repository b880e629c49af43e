"""KubernetesJob: parameters that would have no effect, ports, meshes added to a job that was loaded, comparing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.settings import make_plans
from milkweed.compute import Compute
from milkweed.errors import SpecError
from milkweed.job.kubernetes import ImageSpec, KubernetesJob
from milkweed.job.load import job_loads
from milkweed.spec import Lifetime
from unit.kubernetes_jobs import FOUND, Space

OWN_WORKER = {"containers": [{"name": "worker", "image": "a", "command": ["python", "own.py"]}]}


def ports(job: KubernetesJob) -> dict[str, int]:
    """The ports that the hosts of each mesh will have."""
    return {plan.mesh.name: plan.place.port for plan in make_plans(job.spec, "lab")}


# What only keepers do


@pytest.mark.parametrize(
    "said", [{"sync_dirs": ["."]}, {"time_limit": "1h"}, {"renew": "30m", "time_limit": "1h"}]
)
@pytest.mark.parametrize(
    "mesh", [{"label_selector": "a=b"}, {"pod_spec": OWN_WORKER}], ids=["found", "own"]
)
def test_what_workers_of_others_cannot_have_is_refused(
    folder: Path, said: dict[str, Any], mesh: dict[str, Any]
) -> None:
    """Nobody is in their pods who would do it: it would be taken and do nothing."""
    job = KubernetesJob(**said)
    with pytest.raises(SpecError, match="is for hosts of milkweed") as caught:
        job.add_mesh("w", 1, **mesh)
    assert caught.value.what.partition(":")[0] in said
    made = KubernetesJob(**said)
    made.add_mesh("w", 1, image_spec=ImageSpec("a"))
    assert made.spec.sizes == {"w": 1}


def test_with_a_selector_it_is_refused_at_once(space: Space) -> None:
    """Before the cluster is asked for pods."""
    with pytest.raises(SpecError, match="time_limit: is for hosts of milkweed"):
        KubernetesJob(selector={"a": "b"}, time_limit="1h")
    assert space.asked == []


def test_a_job_file_that_says_it_is_refused(space: Space) -> None:
    """Likewise; steps of an image, too."""
    from dataclasses import replace

    backend = KubernetesBackend()
    backend.validate(FOUND)
    with pytest.raises(SpecError, match="time_limit"):
        backend.validate(replace(FOUND, lifetime=Lifetime(time_limit_s=60)))
    with pytest.raises(SpecError, match="images"):
        backend.validate(replace(FOUND, client={"images": {"w": {"lines": []}}}))


# Ports


def test_the_port_of_the_job_is_that_of_meshes_that_name_none(folder: Path) -> None:
    """With a compute or without."""
    job = KubernetesJob("lab", compute=Compute(), monarch_port=30000)
    job.add_mesh("a", 1, image_spec=ImageSpec("x"))
    job.add_mesh("b", 1, image_spec=ImageSpec("x"), port=31000)
    assert ports(job) == {"workers": 30000, "a": 30000, "b": 31000}
    usual = KubernetesJob("lab")
    usual.add_mesh("a", 1, image_spec=ImageSpec("x"))
    assert ports(usual) == {"a": 26600}
    with pytest.raises(SpecError, match="port"):
        KubernetesJob(monarch_port=0).add_mesh("a", 1, image_spec=ImageSpec("x"))


# A job that was loaded


def test_a_mesh_is_added_to_a_job_that_was_loaded(folder: Path) -> None:
    """All else is what it was: name, settings, limits, and the port."""
    job = KubernetesJob("lab", name="mine", timeout=7, time_limit="1h", monarch_port=30000)
    job.add_mesh("a", 1, image_spec=ImageSpec("x"))
    loaded = job_loads(job.dumps())
    assert isinstance(loaded, KubernetesJob)
    loaded.add_mesh("b", 2, image_spec=ImageSpec("x"))
    job.add_mesh("b", 2, image_spec=ImageSpec("x"))
    assert loaded.spec == job.spec
    assert loaded.spec.sizes == {"a": 1, "b": 2}
    assert ports(loaded) == {"a": 30000, "b": 30000}


# Comparing


def test_a_job_whose_pods_nobody_finds_cannot_be_run(
    space: Space, folder: Path, home: Path
) -> None:
    """How many hosts a selector means is for the cluster to say: no answer is no yes, and no error."""
    job = KubernetesJob("lab")
    job.add_mesh("w", 1, image_spec=ImageSpec("x"))
    other = KubernetesJob("lab", selector={"app": "none"})
    assert not job.can_run(other)
    job.apply()
    assert not job.can_run(other)
    space.go_away()
    assert not job.can_run(other)

"""What may be declared to run beside the hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import ServiceMissingError, SpecError
from milkweed.job import MeshAdminConfig, TelemetryConfig
from milkweed.job.load import SpecJob, job_loads
from milkweed.spec import JobSpec, make_meshes
from milkweed.testing import FakeScheduler

SPEC = JobSpec(name="demo", backend="fake", meshes=make_meshes({"a": 1}))


@pytest.fixture
def job(folder: Path) -> SpecJob:
    """A job on the fake backend, in an empty folder."""
    return SpecJob(SPEC)


def test_configuration_can_be_chained(job: SpecJob) -> None:
    """Each method returns the job, and the spec has it all."""
    made = job.enable_telemetry(retention_secs=60).enable_admin(admin_addr="[::1]:0")
    assert made is job
    services = job.spec.services
    assert services.telemetry == TelemetryConfig(retention_secs=60)
    assert services.admin == MeshAdminConfig(admin_addr="[::1]:0")


def test_without_arguments_the_defaults_are_meant(job: SpecJob) -> None:
    """Enabling says as little as possible."""
    job.enable_telemetry().enable_admin()
    assert job.spec.services.telemetry == TelemetryConfig()
    assert job.spec.services.admin == MeshAdminConfig()


def test_jobs_do_not_share_services(job: SpecJob) -> None:
    """What one job declares, another does not."""
    job.enable_admin()
    assert SpecJob(SPEC).spec.services.admin is None


def test_services_define_no_allocation(job: SpecJob) -> None:
    """Enabling a service is no reason to touch the hosts."""
    before = job.spec.fingerprint()
    assert job.enable_telemetry().spec.fingerprint() == before


def test_services_are_kept_with_the_job(job: SpecJob, world: FakeScheduler) -> None:
    """A job read back from its record has the services it was declared with."""
    job.enable_telemetry(dashboard_port=1)
    assert job_loads(job.dumps()).spec.services == job.spec.services


@pytest.mark.parametrize(
    ("method", "kwargs", "text"),
    [
        ("enable_telemetry", {"retention_sec": 1}, "'retention_sec' is not known"),
        ("enable_telemetry", {"retention_secs": 0}, "retention_secs: 0 is not a number over zero"),
        ("enable_telemetry", {"snapshot_interval_secs": -1.0}, "is not a number over zero"),
        ("enable_telemetry", {"dashboard_port": 65536}, "65536 is not a port"),
        ("enable_telemetry", {"retention_secs": "60"}, "'60' is not a number over zero"),
        ("enable_telemetry", {"dashboard_port": -1}, "-1 is not a port"),
        ("enable_telemetry", {"dashboard_port": "80"}, "'80' is not a port"),
        ("enable_telemetry", {"dashboard_port": True}, "True is not a port"),
        ("enable_admin", {"admin_addr": 3}, "is not HOST:PORT"),
        ("enable_admin", {"admin_addr": "host:\u00b2"}, "is not HOST:PORT"),
        ("enable_telemetry", {"config": TelemetryConfig(), "retention_secs": 1}, "not both"),
        ("enable_admin", {"admin_addr": "localhost"}, "is not HOST:PORT"),
        ("enable_admin", {"admin_addr": ":80"}, "is not HOST:PORT"),
        ("enable_admin", {"admin_addr": "host:http"}, "is not HOST:PORT"),
        ("enable_admin", {"admin_addr": "host:99999"}, "99999 is not a port"),
        ("enable_admin", {"config": MeshAdminConfig(), "admin_addr": "x:1"}, "not both"),
    ],
)
def test_what_makes_no_sense_is_refused(
    job: SpecJob, method: str, kwargs: dict[str, Any], text: str
) -> None:
    """A wrong field, port, time or address is an error when it is declared."""
    with pytest.raises(SpecError, match=text):
        getattr(job, method)(**kwargs)
    assert job.spec.services == SPEC.services


# Mounts


def test_a_mount_is_declared_with_whole_paths(job: SpecJob) -> None:
    """Where the program runs later does not matter."""
    Path("src").mkdir()
    job.remote_mount("src", python_exe=None, meshes=["a"]).gather_mount("/logs", "here")
    remote, gather = job.spec.services.remote_mounts[0], job.spec.services.gather_mounts[0]
    assert remote.source == remote.mntpoint == str(Path.cwd() / "src")
    assert remote.meshes == ("a",)
    assert gather.local_mount_point == str(Path.cwd() / "here")


def test_mounts_add_up(job: SpecJob) -> None:
    """Each call declares one more."""
    for number in range(3):
        job.gather_mount(f"/logs/{number}", "here")
    assert len(job.spec.services.gather_mounts) == 3


def test_a_mount_must_have_its_python(job: SpecJob) -> None:
    """A folder that should bring a Python brings one, or says that it does not."""
    Path("src").mkdir()
    with pytest.raises(SpecError, match=r"has no '\.venv/bin/python'"):
        job.remote_mount("src")
    with pytest.raises(SpecError, match="is not a folder"):
        job.remote_mount("nowhere")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_mount_point_is_a_path(job: SpecJob, path: str) -> None:
    """What no file system could carry is refused."""
    with pytest.raises(SpecError, match="is not a path"):
        job.gather_mount(path, "here")
    with pytest.raises(SpecError, match="is not a path"):
        job.gather_mount("/logs", path)


def test_meshes_are_a_list(job: SpecJob) -> None:
    """One name is not a list of its letters."""
    Path("src").mkdir()
    with pytest.raises(SpecError, match="must be a list of names") as caught:
        job.remote_mount("src", python_exe=None, meshes="trainers")
    assert caught.value.hint == "write ['trainers']"


def test_mounts_that_cannot_be_made_stop_the_job(job: SpecJob, world: FakeScheduler) -> None:
    """A program that would not find its files is stopped before it queues."""
    job.gather_mount("/logs", "here")
    with pytest.raises(ServiceMissingError, match="nothing was started"):
        job.state()
    with pytest.raises(ServiceMissingError):
        job.apply()
    assert world.calls == []

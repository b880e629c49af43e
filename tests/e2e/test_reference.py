"""The examples people know, with only their import lines changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from programs import Client

pytestmark = pytest.mark.e2e

BOOTSTRAP = """\
from milkweed.job import LocalJob
from milkweed.actor import Actor, endpoint

class HelloActor(Actor):
    @endpoint
    def hello(self):
        print("Hello from Monarch")

# Define a local job with two worker processes
job = LocalJob(meshes={"workers": 2})

# Apply the job and retrieve allocated resources
state = job.state()

# Access the allocated host mesh
workers = state.workers

# Spawn actors on the workers and invoke the endpoint
actors = workers.spawn("hello", HelloActor)
actors.hello.call()
"""


def run(client: Client, code: str) -> str:
    """Run a script as it stands."""
    path: Path = client.folder / "example.py"
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=client.folder,
        env=client.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_simple_bootstrap_example(client: Client) -> None:
    """It prints from both workers, though it never waits for the call."""
    out = run(client, BOOTSTRAP)
    assert "[workers/0 r0] Hello from Monarch" in out
    assert "[workers/1 r1] Hello from Monarch" in out
    assert not client.home.exists()


def test_the_process_job_example(client: Client) -> None:
    """The meshes have the declared numbers of hosts."""
    out = run(
        client,
        "from milkweed.job import ProcessJob\n"
        'job = ProcessJob({"trainers": 2, "dataloaders": 1})\n'
        "state = job.state(cached_path=None)\n"
        "print(state.trainers.size(), state.dataloaders.size())\n",
    )
    assert "2 1" in out


def test_local_job_hosts(client: Client) -> None:
    """LocalJob(hosts=…) gives this process's own host under every name."""
    out = client.run(
        """
        job = LocalJob(hosts=("a", "b"))
        state = job.state()
        one = values(state.a.spawn_procs({"gpus": 2}).spawn("x", Probe).pid.call().get())
        two = values(state.b.spawn("x", Probe).pid.call().get())
        print("procs", len(set(one + two)), job.can_run(LocalJob(hosts=("a", "b"))))
        assert len(LocalJob().state()) == 1 and "hosts" in LocalJob().state()
        """
    )
    assert "procs 3 True" in out


def test_serialization(client: Client) -> None:
    """dump, dumps, job_load and job_loads keep class, declaration and apply_id, and a link stays a link."""
    client.run(
        """
        job = ProcessJob({"trainers": 1}).enable_telemetry(retention_secs=60).enable_admin()
        job.state(cached_path=None)
        again = job_loads(job.dumps())
        assert type(again) is ProcessJob and again.apply_id == job.apply_id and again.active
        assert again.spec == job.spec and job.can_run(again)
        os.symlink("real/job.json", "link.json")
        job.dump("link.json")
        assert os.path.islink("link.json") and os.path.exists("real/job.json")
        assert job_load("link.json").apply_id == job.apply_id
        assert job_loads(ProcessJob({"a": 2}).dumps()).spec.sizes == {"a": 2}
        """
    )


def test_services_say_that_they_are_missing(client: Client) -> None:
    """Telemetry and mounts are declared and kept, and using them says what is missing, before anything starts."""
    out = client.run(
        """
        from milkweed.errors import ServiceMissingError
        with ProcessJob({"a": 1}).enable_telemetry() as job:
            state = job.state(cached_path=None)
            for name in ("query_engine", "telemetry_url", "admin_url"):
                try:
                    getattr(state, name)
                except ServiceMissingError as error:
                    print("missing:", error.what)
        os.mkdir("data")
        try:
            ProcessJob({"a": 1}).remote_mount("data", python_exe=None).state()
        except ServiceMissingError as error:
            print("missing:", error.what)
        """
    )
    assert out.count("missing:") == 4

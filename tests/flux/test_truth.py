"""Faults on a real instance: each gives the right word, with Flux's reason and the right log."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from flux.instance import Instance
from milkweed.errors import SpecError
from milkweed.job import FluxJob
from milkweed.status import Liveness
from programs import Client, wait_until

STATUS = "print('status', job_load().status().describe(), flush=True)\n"
START = "job = FluxJob({'w': 2}%s); job.state(); print('id', job.apply_id)\n"


def keepers(instance: Instance) -> list[int]:
    """The processes of keepers in an instance, in the order of their hosts."""
    found: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            argv = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            above = b"" if parent == 1 else Path(f"/proc/{parent}/cmdline").read_bytes()
        except OSError:
            continue
        env = dict(word.partition("=")[::2] for word in words)
        ours = env.get("FLUX_URI", "").startswith(os.path.dirname(instance.uri))
        if ours and b"invitation" in argv and b"invitation" not in above:
            found[env["FLUX_TASK_RANK"]] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


def test_cancelled_by_somebody(client: Client, instance: Instance) -> None:
    """It has ended, and the reason has Flux's word and what the one who did it said."""
    client.run(START % "")
    [job] = instance.jobs()
    instance.run("cancel", "--message=make room", str(job["id"]))
    wait_until(lambda: not instance.jobs())
    out = client.run(STATUS + "job_load().kill()\n")
    assert "is CANCELED: it was cancelled (cancel: make room)" in out


def test_the_time_limit(client: Client, instance: Instance) -> None:
    """A job whose time is over has ended, with that reason."""
    client.run(START % ", time_limit='25s'")
    wait_until(lambda: not instance.jobs(), 90)
    out = client.run(STATUS + "job_load().kill()\n")
    assert "is TIMEOUT: its time limit was reached" in out


def test_a_keeper_that_is_killed(client: Client, instance: Instance) -> None:
    """The other host goes on; the lost one is named with what its task ended with."""
    client.run(START % "")
    os.kill(keepers(instance)[1], signal.SIGKILL)
    out = client.run("""
        job = job_load()
        until = time.monotonic() + 30
        while not job.status().failed_hosts and time.monotonic() < until:
            time.sleep(0.2)
        print(job.status().describe(), [(h.host, h.reason) for h in job.status().failed_hosts])
    """)
    assert "1/2 hosts ready" in out
    assert "('w/1', " in out
    assert len(instance.jobs()) == 1
    client.run("job_load().kill()")


@pytest.mark.parametrize("survives", [True, False])
def test_a_node_that_fails(folder: Path, home: Path, survives: bool) -> None:
    """The other hosts go on, and the lost one has Flux's word; or Flux ends the job, with the same word."""
    robust = Instance(3, robust=True)
    try:
        client = Client(folder, home)
        client.env["FLUX_URI"] = robust.uri
        client.run(f"job = FluxJob({{'w': 3}}, survive_node_failure={survives}); job.state()")
        robust.fail_node(2)
        out = client.run("""
            job = job_load()
            until = time.monotonic() + 90
            def told():
                found = job.status()
                return f"{found.describe()} {[(h.host, h.reason) for h in found.failed_hosts]}"
            while "node failure on" not in told() and time.monotonic() < until:
                time.sleep(0.2)
            print(told())
            job.kill()
        """)
    finally:
        robust.stop()
    assert "node failure on" in out
    assert ("2/3 hosts ready" in out) is survives
    assert ("is FAILED" in out) is not survives


def test_hosts_that_cannot_start(client: Client, instance: Instance) -> None:
    """A Python that is not there is told with the job's own output, and nothing goes on waiting."""
    out = client.run(START % ", python_exe='/no/such/python'", code_expected=1)
    assert "/no/such/python" in out
    assert "not found" in out
    client.run("job_load().kill()")


def test_a_job_that_waits(client: Client, instance: Instance) -> None:
    """It is pending, in Flux's words; the deadline leaves it in the queue."""
    busy = instance.run("submit", "-N4", "--exclusive", "sleep", "300").stdout.strip()
    out = client.run(START % ", job_start_timeout=2", code_expected=1)
    assert "is SCHED: it waits for nodes" in out
    assert len(instance.jobs()) == 2
    assert "pending" in client.run(STATUS)
    client.run("job_load().kill()")
    instance.run("cancel", busy)
    wait_until(lambda: not instance.jobs())


def test_an_instance_that_is_silent(client: Client, instance: Instance) -> None:
    """Nothing is known, nothing is done; when it answers again, all is as before."""
    client.run(START % "")
    instance.freeze()
    out = client.run(STATUS)
    assert "status unknown" in out
    assert "nothing within" in out
    instance.thaw()
    assert "2/2 hosts ready" in client.run(STATUS)
    client.run("job_load().kill()")


def test_an_instance_that_is_killed(client: Client, own_instance: Instance) -> None:
    """An instance that is gone says nothing about its jobs: unknown, never ended; the record stays."""
    client.run(START % "")
    assert len(keepers(own_instance)) == 2
    own_instance.kill()
    out = client.run(STATUS)
    assert "status unknown" in out
    assert "ended" not in out
    assert (client.folder / ".milkweed" / "job.json").exists()
    refused = client.run("job_load().kill()", code_expected=1)
    assert "did not answer" in refused
    wait_until(lambda: not keepers(own_instance))


def test_another_instance_says_nothing_about_it(
    client: Client, instance: Instance, own_instance: Instance
) -> None:
    """A job is asked for where it is, whatever instance a program runs in."""
    client.env["FLUX_URI"] = own_instance.uri
    client.run(START % "")
    client.env["FLUX_URI"] = instance.uri
    assert "2/2 hosts ready" in client.run(STATUS + "job_load().kill()\n")
    assert not own_instance.jobs()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"meshes": {"w": 9}}, "meshes.w: 9 hosts, but the instance has 4 nodes"),
        ({"cpus_per_host": 999}, "meshes.w: 2 hosts, but the instance has 0 nodes with 999 cores"),
        ({"gpus_per_host": 1}, "meshes.w: 2 hosts, but the instance has 0 nodes with 1 GPUs"),
        ({"queue": "nowhere"}, "flux.queue: there is no queue 'nowhere'"),
        ({"queue": "a b; c"}, "flux.queue: 'a b; c' is not a name"),
        ({"properties": ["fast"]}, "flux.properties: no node is fast"),
        ({"time_limit": "soon"}, "flux.time_limit: 'soon' is not a time limit"),
        ({"time_limit": "-5"}, "flux.time_limit: '-5' is not a time limit"),
        ({"job_name": "a:b"}, "a:b"),
        ({"job_name": "$(id)"}, "$(id)"),
        ({"monarch_port": 70000}, "flux.monarch_port: 70000"),
        ({"mesh_options": {"v": {}}}, "flux.meshes: 'v' is not a mesh"),
    ],
)
def test_what_can_never_be_is_refused(
    folder: Path, instance: Instance, more: dict[str, Any], words: str
) -> None:
    """The field is named, and nothing is submitted."""
    with pytest.raises(SpecError) as caught:
        FluxJob(**{"meshes": {"w": 2}, **more}).apply()
    assert words in str(caught.value)
    assert not instance.jobs()


def test_a_refusal_of_flux_is_told(folder: Path, instance: Instance) -> None:
    """What only Flux knows comes back in its own words, and nothing is left."""
    instance.run("queue", "disable", "--all", "--message=maintenance")
    try:
        with pytest.raises(Exception, match="maintenance"):
            FluxJob({"w": 1}).apply()
    finally:
        instance.run("queue", "enable", "--all")
    assert not (folder / ".milkweed" / "job.json").exists()


def test_liveness_follows_a_job(folder: Path, instance: Instance) -> None:
    """Pending, running and ended, as Flux itself goes through its states."""
    job = FluxJob({"w": 1})
    job.apply()
    seen = [job.status().liveness]
    job.state()
    seen.append(job.status().liveness)
    [there] = instance.jobs()
    subprocess.run(["flux", "cancel", str(there["id"])], check=True)
    wait_until(lambda: not instance.jobs())
    time.sleep(0.3)
    seen.append(job.status().liveness)
    job.kill()
    assert seen[0] in {Liveness.PENDING, Liveness.RUNNING}
    assert seen[1:] == [Liveness.RUNNING, Liveness.ENDED]

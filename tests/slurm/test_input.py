"""Bad input is refused by name before sbatch; hostile but possible input works."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import BackendError, SpecError, StateCorruptError
from milkweed.job import SlurmJob
from programs import Client, wait_until
from slurm.hosts import READY_S, command, make_hosts
from slurm.lab import Lab

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"partition": "debuk"}, "did you mean 'debug'?"),
    ({"meshes": {"w": 99}}, "99"),
    ({"gpus_per_node": 99}, "meshes.w: 99 GPUs"),
    ({"cpus_per_task": 999}, "meshes.w: 999 CPUs"),
    ({"mem": "9999G"}, "mem"),
    ({"mem": "much"}, "mem"),
    ({"time_limit": "tomorrow"}, "time_limit: 'tomorrow'"),
    ({"job_name": "a b"}, "name: 'a b'"),
    ({"job_name": "a\n#SBATCH --evil"}, "name:"),
    ({"job_name": "$(touch evil)"}, "name:"),
    ({"meshes": {"admin_url": 1}}, "reserved"),
    ({"meshes": {"w": -1}}, "-1 hosts"),
    ({"slurm_args": ["--array=1-3"]}, "slurm_args: '--array=1-3'"),
    ({"slurm_args": ["plain"]}, "slurm_args: 'plain'"),
    ({"log_dir": "/proc/logs"}, "log_dir: '/proc/logs'"),
    ({"on_interrupt": "maybe"}, "on_interrupt"),
    ({"monarch_port": 0}, "monarch_port"),
    ({"constraint": "nonsuch"}, "has the feature 'nonsuch'"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refused_before_anything_is_submitted(
    client: Client, lab: Lab, options: dict[str, Any], words: str
) -> None:
    """Weakness 13: the error names the field, Slurm never hears of it, and no file is left."""
    known = lab.run("squeue", "-h", "-t", "all").stdout
    with pytest.raises(SpecError) as refused:
        SlurmJob(**{"meshes": {"w": 1}, **options}).state()
    assert words in str(refused.value)
    assert refused.value.hint
    assert lab.run("squeue", "-h", "-t", "all").stdout == known
    assert not (client.folder / ".milkweed").exists()
    assert not client.home.exists()
    assert not list(client.folder.rglob("evil"))


def test_hostile_folders_work(client: Client, lab: Lab) -> None:
    """Weakness 13: a working folder and a log folder with spaces, quotes, dollars and new lines are only names."""
    hostile = client.folder / "a b'c\"$(touch evil)`touch evil`\ntouch evil\n"
    hostile.mkdir()
    nested = Client(hostile, hostile / "home")
    out = nested.run("""
        import subprocess
        job = SlurmJob(meshes={"w": 1}, log_dir="l o'g$(touch evil)\\ntouch evil")
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        actors.say.call("written").get()
        subprocess.run(["scancel", job.status().details["slurm_jobs"]], check=True)
        print(job.wait(60, until="ended").describe())
        job.kill()
    """)
    assert "is CANCELLED: it was cancelled" in out
    logs = list(hostile.glob("l o'g*/monarch_job-*/w.0.log"))
    assert len(logs) == 1
    assert "written" in logs[0].read_text()
    assert not list(client.folder.rglob("evil"))


def test_no_slurm_here(folder: Path, lab: Lab) -> None:
    """Without Slurm's commands the error says where to look for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(BackendError, match="Slurm's commands are not on PATH") as refused:
            SlurmJob(meshes={"w": 1}).state()
    assert "login node" in str(refused.value)


def test_a_slurm_that_is_too_old(folder: Path, lab: Lab) -> None:
    """The version is checked before anything else."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\necho slurm 19.05.1\n")
    (tools / "sbatch").chmod(0o755)
    needs = r"this is Slurm 19\.05, and milkweed needs 20\.11 or newer"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        with pytest.raises(BackendError, match=needs) as refused:
            SlurmJob(meshes={"w": 1}).state()
    assert "another cluster" in refused.value.hint


def test_two_jobs_on_one_node(folder: Path, lab: Lab) -> None:
    """Weakness 14: jobs that share a node find ports of their own, whoever has the first one."""
    share = {"exclusive": False, "cpus_per_task": 1, "slurm_args": ["--nodelist=n2"]}
    jobs = [SlurmJob(meshes={"w": 1}, job_name=f"j{i}", **share) for i in range(2)]
    for job in jobs:
        job.apply()
    assert [job.wait(READY_S).ready for job in jobs] == [True, True]
    hosts = [host for job in jobs for host in job._backend().hosts(job._held.record.handle)]
    assert len({host.address for host in hosts}) == 2
    for job in jobs:
        job.kill()


def is_open(machine: str, port: int) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError):
        socket.create_connection((machine, port), timeout=5).close()
        return True
    return False


def test_a_port_that_is_taken(client: Client, lab: Lab) -> None:
    """Weakness 4: somebody else listens on the first ports: the host takes others, and is found there."""
    code = "import socket, time; s = [socket.create_server(('', p)) for p in (22222, 22223)]; time.sleep(60)"
    blocker = lab.start_on_node(1, sys.executable, "-c", code)
    wait_until(lambda: is_open("n1", 22223), 60)
    try:
        out = client.run("""
            job = SlurmJob(meshes={"w": 1}, slurm_args=["--nodelist=n1"])
            print("ok", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
            job.kill()
        """)
    finally:
        lab.on_node(1, "pkill", "-f", "create_server", check=False)
        blocker.wait(30)
    assert "ok 1" in out


def test_sharing_nodes(folder: Path, lab: Lab) -> None:
    """share_node asks for a fair share; two such jobs fit on one node."""
    jobs: list[SlurmJob] = []
    for i in range(2):
        job = SlurmJob(meshes={"w": 1}, job_name=f"s{i}", slurm_args=["--nodelist=n3"])
        job.share_node(tasks_per_node=2, gpus_per_task=2, partition="debug")
        job.apply()
        jobs.append(job)
    assert [job.wait(READY_S).ready for job in jobs] == [True, True]
    options = jobs[0].spec.options
    assert (options["cpus_per_task"], options["gpus_per_node"]) == (1, 4)
    for job in jobs:
        job.kill()


def test_a_damaged_state_file(client: Client, lab: Lab) -> None:
    """Weakness 11: a corrupt record is an error with a way out, the job is found, and kill leaves no file."""
    make_hosts(meshes={"w": 1})
    record = client.folder / ".milkweed" / "job.json"
    record.write_bytes(record.read_bytes()[:100])
    with pytest.raises(StateCorruptError, match="is not a milkweed state file"):
        SlurmJob(meshes={"w": 1}).state()
    assert "record lost" in command("ls", "--on", "slurm")
    assert "killed monarch_job" in command("kill", "monarch_job", "--on", "slurm")
    assert not lab.jobs()
    record.unlink()
    job = make_hosts(meshes={"w": 1})
    assert record.exists()
    job.kill()
    assert not record.exists()
    assert not client.home.exists()


def test_everything_local_is_gone(client: Client, lab: Lab) -> None:
    """With record and registry deleted, the scheduler itself is asked, and the job is ended."""
    make_hosts(meshes={"w": 1}, job_name="lonely")
    shutil.rmtree(client.home)
    shutil.rmtree(client.folder / ".milkweed")
    assert "no job is recorded" in command("ls")
    assert "lonely" in command("ls", "--on", "slurm")
    command("kill", "lonely", "--on", "slurm")
    assert not lab.jobs()


def test_two_batch_jobs_of_one_folder(client: Client, lab: Lab) -> None:
    """Weakness 12: two submissions from one folder have records of their own; each client finds its own job."""
    client.write(
        """
        from milkweed.job import load_current_job
        job = load_current_job()
        print("size", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
        """,
        "train.py",
    )
    jobs = [SlurmJob(meshes={"w": size}, job_name=f"b{size}") for size in (1, 2)]
    for job in jobs:
        job.apply(client_script="train.py")
    for size, job in enumerate(jobs, 1):
        assert job.wait(READY_S).exit_code == 0
        assert f"size {size}" in [line.text for line in job.logs("client")]
        job.kill()


def test_logs_are_kept_by_host(client: Client, lab: Lab) -> None:
    """Weakness 15: one file per host with what its procs printed; the command shows one, or all with labels."""
    client.run("""
        state = SlurmJob(meshes={"a": 2, "b": 1}, stream_logs=False).state()
        for name in ("a", "b"):
            getattr(state, name).spawn_procs().spawn("p", Probe).say.call(f"from {name}").get()
    """)
    one, everything = command("logs", "--host", "b/0"), command("logs")
    assert "from b" in one
    assert "from a" not in one
    assert everything.count("from a") == 2
    assert "a/1" in everything
    kept = [path.name for path in client.home.glob("jobs/*/logs/*.log")]
    assert sorted(kept) == ["a.0.log", "a.1.log", "b.0.log", "part.0.0.log"]
    client.kill()


def test_the_jobs_name_is_what_was_said(folder: Path, lab: Lab) -> None:
    """Weakness 16: people find their job by name in Slurm's own tools, and in ours."""
    SlurmJob(meshes={"w": 1}, job_name="my-training.v2").apply()
    assert [job.name for job in lab.jobs()] == ["my-training.v2"]
    command("kill", "my-training.v2")
    assert not lab.jobs()


def test_a_job_file(client: Client, lab: Lab) -> None:
    """`on: slurm` in a job file: plan, apply, status, exec and kill on the command line."""
    (client.folder / "job.yaml").write_text("""
name: filed
on: slurm
meshes:
  trainers: {hosts: 2, gpus: 1}
  loaders: {hosts: 1, cpus: 1}
env: {GREETING: hello}
slurm:
  partition: debug
  time_limit: 1h
  meshes: {loaders: {partition: debug}}
""")
    assert "create: job 'filed' on slurm (trainers=2, loaders=1)" in command("plan", "job.yaml")
    command("apply", "job.yaml")
    assert "3/3 hosts ready" in command("status", "filed")
    assert command("exec", "filed", "--", "sh", "-c", "echo $GREETING").count("hello") == 3
    command("kill", "filed")
    assert not lab.jobs()

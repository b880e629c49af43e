"""Bad input is refused by name before sbatch; hostile but possible input works."""

from __future__ import annotations

import shutil
import sys

import pytest

from programs import Client
from slurm.lab import Lab

REFUSED = {
    "partition='debgu'": "did you mean 'debug'?",
    "meshes={'w': 99}": "99",
    "gpus_per_node=99": "meshes.w: 99 GPUs",
    "cpus_per_task=999": "meshes.w: 999 CPUs",
    "mem='9999G'": "mem",
    "mem='much'": "mem",
    "time_limit='tomorrow'": "time_limit: 'tomorrow'",
    "job_name='a b'": "name: 'a b'",
    "job_name='a\\n#SBATCH --evil'": "name:",
    "job_name='$(touch evil)'": "name:",
    "meshes={'admin_url': 1}": "reserved",
    "meshes={'w': -1}": "-1 hosts",
    "slurm_args=['--array=1-3']": "slurm_args: '--array=1-3'",
    "slurm_args=['plain']": "slurm_args: 'plain'",
    "log_dir='/proc/logs'": "log_dir: '/proc/logs'",
    "on_interrupt='maybe'": "on_interrupt",
    "monarch_port=0": "monarch_port",
    "constraint='nonsuch'": "has the feature 'nonsuch'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_before_anything_is_submitted(client: Client, lab: Lab, words: str) -> None:
    """The error names the field, Slurm never hears of it, and no file is left."""
    out = client.run(f"""
        from milkweed.errors import SpecError
        try:
            SlurmJob(**{{"meshes": {{"w": 1}}, **dict({words})}}).state()
        except SpecError as error:
            print("refused:", error)
    """)
    assert "refused:" in out
    assert REFUSED[words] in out
    assert lab.run("squeue", "-h", "-t", "all", "-n", "evil").stdout == ""
    assert not (client.folder / ".milkweed").exists()
    assert not client.home.exists()


def test_hostile_folders_work(client: Client, lab: Lab) -> None:
    """A working folder and a log folder with spaces, quotes and dollars are only names."""
    hostile = client.folder / "a b'c\"$(touch evil)`touch evil`"
    hostile.mkdir()
    nested = Client(hostile, hostile / "home")
    nested.run("""
        job = SlurmJob(meshes={"w": 1}, log_dir="l o'g$(touch evil)")
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        actors.say.call("written").get()
        job.kill()
    """)
    logs = list(hostile.glob("l o'g*/monarch_job-*/w.0.log"))
    assert len(logs) == 1
    assert "written" in logs[0].read_text()
    assert not list(client.folder.rglob("evil"))


def test_no_slurm_here(client: Client, lab: Lab) -> None:
    """Without Slurm's commands the error says where to look for them."""
    out = client.run(
        """
        from milkweed.errors import BackendError
        os.environ["PATH"] = "/nowhere"
        try:
            SlurmJob(meshes={"w": 1}).state()
        except BackendError as error:
            print(error)
    """
    )
    assert "Slurm's commands are not on PATH" in out
    assert "login node" in out


def test_a_slurm_that_is_too_old(client: Client, lab: Lab) -> None:
    """The version is checked before anything else."""
    tools = client.folder / "bin"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\necho slurm 19.05.1\n")
    (tools / "sbatch").chmod(0o755)
    out = client.run(f"""
        os.environ["PATH"] = {str(tools)!r} + ":" + os.environ["PATH"]
        from milkweed.errors import BackendError
        try:
            SlurmJob(meshes={{"w": 1}}).state()
        except BackendError as error:
            print(error)
    """)
    assert "this is Slurm 19.05, and milkweed needs 20.11 or newer" in out


def test_two_jobs_on_one_node(client: Client, lab: Lab) -> None:
    """Jobs that share a node find ports of their own, whoever has the first one."""
    out = client.run("""
        jobs = [SlurmJob(meshes={"w": 1}, exclusive=False, cpus_per_task=1, job_name=f"j{i}",
                         slurm_args=["--nodelist=n2"]) for i in range(2)]
        for i, job in enumerate(jobs):
            job.apply()
        for job in jobs:
            print(job.wait(60).describe())
        ports = {host.address for job in jobs for host in job._backend().hosts(job._held.record.handle)}
        print("addresses", len(ports))
        for job in jobs: job.kill()
    """)
    assert out.count("1/1 hosts ready") == 2
    assert "addresses 2" in out


def test_a_port_that_is_taken(client: Client, lab: Lab) -> None:
    """Somebody else listens on the first ports: the host takes others, and is found there."""
    code = "import socket, time; s = [socket.create_server(('', p)) for p in (22222, 22223)]; time.sleep(60)"
    blocker = lab.start_on_node(1, sys.executable, "-c", code)
    try:
        out = client.run("""
            job = SlurmJob(meshes={"w": 1}, slurm_args=["--nodelist=n1"])
            print("ok", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
            job.kill()
        """)
    finally:
        blocker.kill()
        blocker.wait()
    assert "ok 1" in out


def test_sharing_nodes(client: Client, lab: Lab) -> None:
    """share_node asks for a fair share; two such jobs fit on one node."""
    out = client.run("""
        jobs = []
        for i in range(2):
            job = SlurmJob(meshes={"w": 1}, job_name=f"s{i}", slurm_args=["--nodelist=n3"])
            job.share_node(tasks_per_node=2, gpus_per_task=2, partition="debug")
            job.apply()
            jobs.append(job)
        print([job.wait(60).ready for job in jobs])
        print(sorted(jobs[0].spec.options.items()))
        for job in jobs: job.kill()
    """)
    assert "[True, True]" in out
    assert "('cpus_per_task', 1)" in out
    assert "('gpus_per_node', 4)" in out


def test_a_damaged_state_file(client: Client, lab: Lab) -> None:
    """A corrupt record is an error with a way out, and the job is found all the same."""
    client.run("SlurmJob(meshes={'w': 1}).state()")
    record = client.folder / ".milkweed" / "job.json"
    record.write_bytes(record.read_bytes()[:100])
    out = client.run("""
        from milkweed.errors import StateCorruptError
        try:
            SlurmJob(meshes={"w": 1}).state()
        except StateCorruptError as error:
            print(error)
        import subprocess
        def cli(*words):
            done = subprocess.run([sys.executable, "-m", "milkweed", *words], capture_output=True, text=True)
            print(done.stdout, done.stderr)
        cli("ls", "--on", "slurm")
        cli("kill", "monarch_job", "--on", "slurm")
    """)
    assert "is not a milkweed state file" in out
    assert "record lost" in out
    assert "killed monarch_job" in out
    assert not lab.jobs()


def test_everything_local_is_gone(client: Client, lab: Lab) -> None:
    """With record and registry deleted, the scheduler itself is asked, and the job is ended."""
    client.run("SlurmJob(meshes={'w': 1}, job_name='lonely').state()")
    shutil.rmtree(client.home)
    shutil.rmtree(client.folder / ".milkweed")
    out = client.run("""
        import subprocess
        for words in (["ls"], ["ls", "--on", "slurm"], ["kill", "lonely", "--on", "slurm"]):
            done = subprocess.run([sys.executable, "-m", "milkweed", *words], capture_output=True, text=True)
            print(done.stdout, done.stderr)
    """)
    assert "no job is recorded" in out
    assert "lonely" in out
    assert not lab.jobs()


def test_two_batch_jobs_of_one_folder(client: Client, lab: Lab) -> None:
    """Two submissions from one folder have records of their own, and each client finds its own job."""
    client.write(
        """
        from milkweed.job import load_current_job
        job = load_current_job()
        print("size", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
        """,
        "train.py",
    )
    out = client.run("""
        jobs = [SlurmJob(meshes={"w": size}, job_name=f"b{size}") for size in (1, 2)]
        for job in jobs: job.apply(client_script="train.py")
        for job in jobs:
            print(job.wait(90).exit_code, [line.text for line in job.logs("client") if "size" in line.text])
        for job in jobs: job.kill()
    """)
    assert "0 ['size 1']" in out
    assert "0 ['size 2']" in out


def test_logs_are_kept_by_host(client: Client, lab: Lab) -> None:
    """One file per host with what its procs printed; the command line shows one, or all with labels."""
    out = client.run("""
        job = SlurmJob(meshes={"a": 2, "b": 1}, stream_logs=False)
        state = job.state()
        for name in ("a", "b"):
            getattr(state, name).spawn_procs().spawn("p", Probe).say.call(f"from {name}").get()
        import subprocess
        for words in (["logs", "--host", "b/0"], ["logs"]):
            done = subprocess.run([sys.executable, "-m", "milkweed", *words], capture_output=True, text=True)
            print("<<", done.stdout, done.stderr, ">>")
        job.kill()
    """)
    one, everything = out.split("<<")[1:3]
    assert "from b" in one
    assert "from a" not in one
    assert everything.count("from a") == 2
    assert "a/1" in everything


def test_the_jobs_name_is_what_was_said(client: Client, lab: Lab) -> None:
    """People find their job by name in Slurm's own tools."""
    client.run("SlurmJob(meshes={'w': 1}, job_name='my-training.v2').apply()")
    assert [job.name for job in lab.jobs()] == ["my-training.v2"]
    client.run("""
        import subprocess
        subprocess.run([sys.executable, "-m", "milkweed", "kill", "my-training.v2"], check=True)
    """)
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
    out = client.run("""
        import subprocess
        def cli(*words):
            done = subprocess.run([sys.executable, "-m", "milkweed", *words], capture_output=True, text=True)
            print("$", *words, done.stdout, done.stderr, "->", done.returncode, flush=True)
        cli("plan", "job.yaml")
        cli("apply", "job.yaml")
        cli("status", "filed")
        cli("exec", "filed", "--", "sh", "-c", "echo $GREETING")
        cli("kill", "filed")
    """)
    assert "create: job 'filed' on slurm (trainers=2, loaders=1)" in out
    assert "3/3 hosts ready" in out
    assert out.count("hello") >= 3
    assert not lab.jobs()

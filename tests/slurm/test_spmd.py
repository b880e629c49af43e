"""torchrun programs over the nodes of a Slurm cluster."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from programs import LABS, Client, finish, wait_until
from slurm.lab import Lab
from spmd.oracle import find_venv, lack, why_missing

EXAMPLES = Path(__file__).parents[2] / "examples"
WHERE = """
import os, socket
keys = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR")
print(socket.gethostname(), *(os.environ[key] for key in keys), flush=True)
"""
LOOP = """
import os, time
print("world", os.environ["WORLD_SIZE"], "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
open(f"up{os.environ['RANK']}.{os.environ['WORLD_SIZE']}", "w").close()
while not os.path.exists("stop"):
    time.sleep(0.05)
print("done", os.environ["RANK"], flush=True)
open(f"over{os.environ['RANK']}", "w").close()
"""


def write(client: Client, code: str, name: str = "train.py") -> Path:
    """Write a program for ranks where every node sees it."""
    path = client.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


def test_ranks_on_every_node(client: Client, lab: Lab) -> None:
    """Three nodes of two ranks: each knows its place, and all know the first node's address."""
    write(client, WHERE)
    out = client.run("""
        job = SlurmJob(meshes={"w": 3})
        job.torchrun(["--nnodes", "3", "--nproc-per-node", "2", "train.py"])
        job.torchrun(["--nnodes", "2", "train.py"])
        job.kill()
    """)
    lines = sorted(line for line in out.splitlines() if line.startswith("[default"))
    first, second = lines[:-2], lines[-2:]
    found = [
        re.fullmatch(r"\[default(\d)\]:(n\d) (\d) (\d) (\d) (\d) (\S+)", line) for line in lines
    ]
    assert all(found)
    assert len(first + second) == 8
    whole = [match for match in found if match and match[6] == "6"]
    assert [match[1] for match in whole] == ["0", "1", "2", "3", "4", "5"]
    assert [match[5] for match in whole] == ["0", "0", "1", "1", "2", "2"]
    assert len({match[2] for match in whole}) == 3
    assert len({match[7] for match in whole}) == 1
    assert "localhost" not in {match[7] for match in whole}
    assert not lab.jobs()


@pytest.mark.slow
@pytest.mark.torch
def test_training_is_the_same_as_under_torchrun(client: Client) -> None:
    """Two nodes of two ranks print the same losses as four ranks that torchrun starts on one machine."""
    if missing := why_missing():
        lack(missing)
    torch = find_venv() / "bin"
    script = str(EXAMPLES / "ddp.py")
    oracle = subprocess.run(
        [str(torch / "torchrun"), "--standalone", "--nproc-per-node=4", script, "--epochs=3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert oracle.returncode == 0, oracle.stderr
    out = client.run(
        f"""
        with SlurmJob(meshes={{"w": 2}}) as job:
            job.torchrun(["--nnodes=2", "--nproc-per-node=2", {script!r}, "--epochs=3"])
        """,
        PYTHON_EXEC=str(torch / "python"),
    )
    expected = re.findall(r"epoch \d: loss [\d.]+", oracle.stdout)
    assert len(expected) == 3
    assert re.findall(r"epoch \d: loss [\d.]+", out) == expected


APPDEF = """
from milkweed.job.spmd import serve
from torchx import specs

app = specs.AppDef(
    name="my-training",
    roles=[
        specs.Role(
            name="trainer",
            image="my_workspace:latest",
            entrypoint="workspace/entrypoint.sh",
            args=["torchrun", "--nnodes=2", "--nproc-per-node=2",
                  "-m", "train"],
            num_replicas=2,
            resource=specs.resource(cpu=1, gpu=0, memMB=64),
        ),
    ],
)
job = serve(
    app,
    scheduler="slurm",
    scheduler_cfg={
        "partition": "debug",
        "time": "10",
    },
)
job.run_spmd()
print("HANDLE", job.handle)
"""
ENTRYPOINT = """\
#!/bin/sh
# What the documentation asks of an entrypoint: set up an environment, then run the arguments.
export WORKSPACE_DIR="$PWD/workspace"
exec "$@"
"""


@pytest.mark.once
@pytest.mark.parametrize("version", ["0.7.0", "nightly"])
def test_the_documented_appdef(client: Client, lab: Lab, version: str) -> None:
    """The AppDef form of serve(), with torchx's own classes: it runs, again by its handle, and kill() ends it."""
    torchx = LABS / f"torchx-{version}"
    if not torchx.is_dir():
        pytest.skip(f"torchx {version} is not here")
    write(client, 'import os\nprint("at", os.environ["RANK"], os.environ["WORKSPACE_DIR"])\n')
    write(client, ENTRYPOINT, "workspace/entrypoint.sh").chmod(0o755)
    (client.folder / "example.py").write_text(APPDEF)
    env = {**client.env, "PYTHONPATH": str(torchx)}
    command = [sys.executable, "example.py"]
    done = subprocess.run(
        command, cwd=client.folder, env=env, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = [f"[default{rank}]:at {rank} {client.folder}/workspace" for rank in range(4)]
    assert sorted(done.stdout.splitlines()[:4]) == expected
    handle = re.search(r"HANDLE (\S+)", done.stdout)
    assert handle
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    out = client.run(f"""
        from milkweed.job.spmd import SPMDJob
        job = SPMDJob({handle[1]!r}, "slurm")
        job.run_spmd()
        job.kill()
    """)
    assert sorted(out.splitlines()) == expected
    assert not lab.jobs()


@pytest.mark.once
def test_kill_without_a_run(client: Client, lab: Lab) -> None:
    """What serve() asked for goes with kill(), though nothing ever ran there."""
    write(client, "")
    client.run("""
        from milkweed.job.spmd import serve
        serve(["torchrun", "train.py"], scheduler="slurm", scheduler_cfg={"partition": "debug"}).kill()
    """)
    assert not lab.jobs()


@pytest.mark.once
def test_a_failure_names_the_node_s_rank(client: Client) -> None:
    """The first failure of all nodes is reported, with its lines, and the others end."""
    write(
        client,
        """
        import os, sys, time
        if os.environ["RANK"] == "3":
            print("out of luck", file=sys.stderr)
            sys.exit(9)
        time.sleep(60)
        """,
    )
    out = client.run("""
        from milkweed.errors import RanksFailedError
        with SlurmJob(meshes={"w": 2}) as job:
            try:
                job.torchrun(["--nnodes=2", "--nproc-per-node=2", "train.py"])
            except RanksFailedError as error:
                print(error)
    """)
    assert "rank 3 (local rank 1 on host w/1) exited with code 9" in out
    assert "| out of luck" in out
    assert "3 other ranks were ended for it" in out


@pytest.mark.once
def test_a_dead_node_is_done_without_and_another_taken_in(client: Client, lab: Lab) -> None:
    """Elastic: two of three nodes go on when one dies; a job that grows gives the third back."""
    write(client, LOOP)
    program = client.start("""
        job = SlurmJob(meshes={"w": 3})
        job.torchrun(["--nnodes=1:3", "--rdzv-conf=last_call_timeout=1", "train.py"])
    """)
    folder = client.folder
    wait_until((folder / "up2.3").exists, 60)
    [job] = lab.jobs()
    lab.kill_node(int(job.nodes[2].removeprefix("n")))
    wait_until((folder / "up1.2").exists, 60)
    client.run("""
        job = job_load()
        job.resize("w", 4)
    """)
    wait_until(lambda: (folder / "up2.3").stat().st_mtime > (folder / "up1.2").stat().st_mtime, 60)
    (folder / "stop").touch()
    out, err = finish(program, 60)
    assert program.returncode == 0, err
    assert "host w/2 is lost" in err
    assert "going on with 2 hosts" in err
    assert "restarts 1" not in out
    client.run("job_load().kill()")


def test_a_cable_that_is_mended_in_time_costs_nothing(client: Client, lab: Lab) -> None:
    """Ranks go on while their client cannot reach them, and what they print meanwhile is shown when it can."""
    write(client, LOOP)
    program = client.start("""
        sys.stderr = open("said", "w", buffering=1)
        job = SlurmJob(meshes={"w": 2})
        job.torchrun(["--nnodes=2", "train.py"])
        job.kill()
    """)
    folder = client.folder
    wait_until((folder / "up1.2").exists, 60)
    [job] = lab.jobs()
    number = int(job.nodes[-1].removeprefix("n"))
    lab.cut_node(number)
    wait_until(lambda: "the connection to w/1 is broken" in (folder / "said").read_text(), 60)
    (folder / "stop").touch()
    wait_until((folder / "over1").exists, 20)
    lab.mend_node(number)
    out, err = finish(program, 90)
    assert program.returncode == 0, err + (folder / "said").read_text()
    assert re.findall(r"done (\d)", out) == ["0", "1"]
    assert "restarts 1" not in out


def test_a_cancelled_job_ends_the_run(client: Client, lab: Lab) -> None:
    """When Slurm ends the job, the command ends with Slurm's reason."""
    write(client, LOOP)
    program = client.start('SlurmJob(meshes={"w": 2}).torchrun(["--nnodes=2", "train.py"])')
    wait_until((client.folder / "up1.2").exists, 60)
    [job] = lab.jobs()
    lab.run("scancel", str(job.id))
    _out, err = finish(program, 60)
    assert program.returncode == 1
    assert "CANCELLED" in err
    client.run("job_load().kill()")


@pytest.mark.once
def test_ctrl_c_ends_ranks_on_all_nodes(client: Client, lab: Lab) -> None:
    """The hosts stay, the ranks are gone."""
    write(client, LOOP)
    program = client.start('SlurmJob(meshes={"w": 2}).torchrun(["--nnodes=2", "train.py"])')
    wait_until((client.folder / "up1.2").exists, 60)
    program.send_signal(signal.SIGINT)
    _out, err = finish(program, 60)
    assert program.returncode != 0, err
    [job] = lab.jobs()
    assert job.state == "RUNNING"
    for node in job.nodes:
        done = lab.on_node(int(node.removeprefix("n")), "pgrep", "-f", "train.py", check=False)
        assert not done.stdout.strip()
    client.run("job_load().kill()")

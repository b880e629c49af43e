"""serve() and SPMDJob with real hosts of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from programs import LABS, Client, wait_until
from ranks import WORKSPACE, ranks_of, write_workspace

pytestmark = pytest.mark.e2e

EXAMPLE = """
from milkweed.job.spmd import serve

job = serve(
    ["torchrun", "--nproc-per-node=4", "--standalone", "train.py"],
    scheduler="local_cwd",
)
job.run_spmd()
"""


def run(client: Client, code: str, *words: str) -> tuple[str, str]:
    """Run a program as it stands."""
    path = client.folder / "example.py"
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, path.name, *words],
        cwd=client.folder,
        env=client.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_documented_command(client: Client) -> None:
    """The list form, as it is documented: four ranks, and nothing is left when the program ends."""
    (client.folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    out, err = run(client, EXAMPLE)
    assert sorted(out.splitlines()) == [f"[default{rank}]:rank {rank}" for rank in range(4)]
    assert "its handle is process://milkweed/" in err
    wait_until(lambda: not client.home.exists() or not any(client.home.glob("jobs/*")))
    assert not ranks_of(client)


def test_a_script_with_options_of_the_same_name(client: Client) -> None:
    """What stands after the script is the script's, also where it looks like a number of hosts."""
    (client.folder / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    out, _err = run(
        client,
        """
from milkweed.job.spmd import serve
job = serve(["torchrun", "train.py", "--nnodes", "2", "--nproc-per-node=4"], scheduler="local_cwd")
job.run_spmd()
""",
    )
    assert out == "[default0]:['--nnodes', '2', '--nproc-per-node=4']\n"


@pytest.mark.parametrize("said", ["", "folder", "below"])
def test_ranks_start_in_the_workspace(client: Client, said: str) -> None:
    """An AppDef of torchx itself: in the folder that its workspace names, or where serve() was called."""
    torchx = LABS / "torchx-nightly"
    if not torchx.is_dir():
        pytest.skip("torchx nightly is not here")
    expected = write_workspace(client, said)
    client.env["PYTHONPATH"] = str(torchx)
    out, _err = run(client, WORKSPACE, "local_cwd", "2", said)
    assert sorted(out.splitlines()) == [f"[default{rank}]:{expected}" for rank in range(2)]


def test_runs_follow_each_other(client: Client) -> None:
    """The hosts stay until kill(), and what a run leaves behind is ended, so that the next finds nothing of it."""
    left = ["sleep", f"977.{os.getpid()}"]
    (client.folder / "train.py").write_text(
        "import os, subprocess\n"
        f"seen = subprocess.run(['pgrep', '-fx', {' '.join(left)!r}], capture_output=True).stdout\n"
        "print('seen', len(seen.split()))\n"
        f"subprocess.Popen({left}, start_new_session=True)\n"
    )
    out, _err = run(
        client,
        f"""
import subprocess, time
from milkweed.job.spmd import serve
job = serve(["torchrun", "train.py"], scheduler="process")
for _ in range(3):
    job.run_spmd()
    until_s = time.monotonic() + 30
    while subprocess.run(["pgrep", "-fx", {" ".join(left)!r}], capture_output=True).stdout:
        assert time.monotonic() < until_s, "what a run has left goes on"
        time.sleep(0.1)
print("active", job.active)
job.kill()
print("active", job.active)
""",
    )
    assert out.splitlines() == ["[default0]:seen 0"] * 3 + ["active True", "active False"]
    assert not ranks_of(client)


def test_a_failure_leaves_the_hosts(client: Client) -> None:
    """A program that fails can be run again; sys.exit(0) and sys.exit(3) are what they are."""
    (client.folder / "train.py").write_text(
        "import os, sys\n"
        "done = os.path.exists('done')\n"
        "open('done', 'w').close()\n"
        "sys.exit(0 if done else 3)\n"
    )
    out, _err = run(
        client,
        """
from milkweed.errors import RanksFailedError
from milkweed.job.spmd import serve
with serve(["torchrun", "train.py"], scheduler="local_cwd") as job:
    try:
        job.run_spmd()
    except RanksFailedError as error:
        print("exit code", error.exit_code)
    job.run_spmd()
print("well")
""",
    )
    assert out.splitlines() == ["exit code 3", "well"]


def test_roles_are_meshes(client: Client) -> None:
    """An application of two roles has two meshes, and each runs its own program; actors run there, too."""
    (client.folder / "train.py").write_text(
        "import os, sys\nprint(sys.argv[1], os.environ['MODE'])\n"
    )
    (client.folder / "enter.sh").write_text('#!/bin/sh\nMODE="$MODE!" exec "$@"\n')
    (client.folder / "enter.sh").chmod(0o755)
    out, _err = run(
        client,
        """
from types import SimpleNamespace as Thing
from milkweed.job import job_loads
from milkweed.job.spmd import SPMDJob, serve

def role(name, hosts):
    return Thing(name=name, image="", entrypoint="./enter.sh", num_replicas=hosts, env={"MODE": "x"},
                 args=["torchrun", f"--nnodes={hosts}", "train.py", name])

app = Thing(name="two", roles=[role("actor", 2), role("learner", 1)], metadata={})
with serve(app, scheduler="local_cwd") as job:
    job.run_spmd("actor")
    job.run_spmd(role="learner")
    roles = [{"name": "learner", "args": ["torchrun", "train.py", "other"], "entrypoint": "env"}]
    same = SPMDJob(job.handle, "local_cwd", original_roles=roles)
    assert same.apply_id == job.apply_id and same.can_run(job)
    assert isinstance(job_loads(job.dumps()), SPMDJob)
    print(sorted(job.state().keys()))
""",
    )
    assert sorted(out.splitlines()) == [
        "['actor', 'learner']",
        "[default0]:actor x!",
        "[default0]:learner x!",
        "[default1]:actor x!",
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('serve([], scheduler="local_cwd")', "the command is empty"),
        (
            'serve(["torchrun", "--nnodes=2", "t.py"], scheduler="local_cwd")',
            "a command has one host",
        ),
        ('serve(["python", "t.py"], scheduler="local_cwd")', "no torchrun command"),
        ('serve(["torchrun", "t.py"])', "there is none called 'mast_conda'"),
        ('serve(["torchrun", "t.py"], scheduler="slrum")', "slurm"),
        ('serve(["torchrun", "--no-such", "t.py"], scheduler="local_cwd")', "--no-such"),
        ('SPMDJob("slurm://milkweed/1234", "slurm")', "no allocation '1234' on slurm is recorded"),
    ],
)
def test_mistakes_are_said_before_anything_starts(client: Client, call: str, words: str) -> None:
    """Each is a ValueError or an error of milkweed with the words; nothing was asked for."""
    out, _err = run(
        client,
        f"""
from milkweed.errors import MilkweedError
from milkweed.job.spmd import SPMDJob, serve
try:
    {call}
except MilkweedError as error:
    print(error)
""",
    )
    assert words in out
    assert not client.home.exists()

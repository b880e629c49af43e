"""`milkweed torchrun` and its hosts: fewer and more of them, several runs, what cannot be done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from programs import Client, finish, wait_until
from ranks import PEERS, Runner, ranks_of, server_of

pytestmark = pytest.mark.e2e


def test_fewer_hosts_and_more_again(runner: Runner) -> None:
    """With --nnodes 1:2 a lost host is done without, and taken in again when it is back."""
    runner.script("""
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("world", os.environ["WORLD_SIZE"], "restarts", restarts, flush=True)
        with open("worlds", "a") as told:
            told.write(os.environ["WORLD_SIZE"])
        while not os.path.exists("stop"):
            time.sleep(0.05)
    """)
    worlds_told = runner.folder / "worlds"
    worlds_told.touch()
    program = runner.start(
        "--nnodes 1:2 --nproc-per-node 1 --rdzv-conf last_call_timeout=1 train.py"
    )
    wait_until(lambda: worlds_told.read_text().endswith("22"), 60)
    os.kill(server_of(runner.client, "trainers/1"), signal.SIGKILL)
    wait_until(lambda: re.search("221+22$", worlds_told.read_text()) is not None, 60)
    (runner.folder / "stop").touch()
    out, err = finish(program)
    assert program.returncode == 0, err
    assert re.search("221+22$", "".join(re.findall(r"world (\d)", out)))
    assert "restarts 0" in out
    assert "restarts 1" not in out
    assert "host trainers/1 is lost" in err
    assert "going on with 1 hosts" in err
    assert "more hosts are there" in err


def test_ranks_that_miss_a_lost_host_are_no_failure(runner: Runner) -> None:
    """Peers of a lost host's ranks fail before its loss is known: it is done without, and no restart is needed."""
    runner.script(PEERS)
    program = runner.start(
        "--nnodes 1:2 --nproc-per-node 2 --rdzv-conf last_call_timeout=1 train.py slowly"
    )
    folder = runner.folder
    wait_until(lambda: all((folder / f"up{rank}.4").exists() for rank in range(4)), 60)
    victim, server = int((folder / "up2.4").read_text()), server_of(runner.client, "trainers/1")
    os.kill(victim, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    wait_until((folder / "up1.2").exists, 60)
    (folder / "stop").touch()
    out, err = finish(program)
    assert program.returncode == 0, err
    assert "host trainers/1 is lost" in err
    assert "going on with 1 hosts" in err
    assert "restarts 1" not in out


def test_a_lost_host_of_a_fixed_number_is_an_error(runner: Runner) -> None:
    """Without a range and without restarts the run ends, and names the host."""
    runner.script("time.sleep(60)")
    program = runner.start("--nnodes 2 train.py")
    wait_until(lambda: len(ranks_of(runner.client)) == 2)
    os.kill(server_of(runner.client, "trainers/0"), signal.SIGKILL)
    _out, err = finish(program)
    assert program.returncode == 1
    assert "host trainers/0 was lost while ranks ran there" in err
    assert "ended by SIGKILL" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--nnodes 3 train.py", "--nnodes asks for 3 hosts, and mesh 'trainers' has 2"),
        ("--rdzv-backend etcd train.py", "rdzv"),
        ("--nproc-per-node gpu train.py", "GPU"),
        ("--nproc-per-node zwei train.py", "zwei"),
        ("--mesh nobody train.py", "has no mesh 'nobody'"),
        ("--numa-binding node train.py", "GPU"),
    ],
)
def test_what_cannot_be_done_is_said(runner: Runner, line: str, words: str) -> None:
    """Nothing is dropped silently, and nothing takes the script for something else."""
    runner.script("print('ran')")
    out, err = runner.run(line, code=1)
    assert words in err
    assert "ran" not in out


def test_a_command_line_that_cannot_be_read(runner: Runner) -> None:
    """It is refused as torchrun does, before anything is asked for."""
    _out, err = runner.run("--nnodes 2", code=2)
    assert "required" in err
    assert not runner.client.home.exists()


def test_a_second_run_on_live_hosts(runner: Runner) -> None:
    """Runs follow each other on the same hosts; output of all of them is in the hosts' logs."""
    runner.script("print('run', sys.argv[1])")
    for number in range(3):
        runner.run(f"--nnodes 2 train.py {number}")
    command = [sys.executable, "-m", "milkweed", "logs", "--host", "trainers/1"]
    done = subprocess.run(
        command,
        cwd=runner.folder,
        env=runner.client.env,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line for line in done.stdout.splitlines() if "run" in line]
    assert [line.rpartition(" ")[2] for line in found] == ["0", "1", "2"]


def test_as_a_method_of_a_job(client: Client) -> None:
    """Any job can run a torchrun program; a failure is an error with its facts, and hosts end with the program."""
    (client.folder / "train.py").write_text(
        "import os, sys\nsys.exit(int(os.environ['RANK']) * 3)\n"
    )
    out = client.run("""
        from milkweed.errors import RanksFailedError
        job = ProcessJob({"a": 1, "b": 2})
        try:
            job.torchrun(["--nnodes", "2", "train.py"], mesh="b", cached_path=None)
        except RanksFailedError as error:
            print("failed", error.rank, error.host, error.exit_code)
    """)
    assert "failed 1 b/1 3" in out
    wait_until(lambda: not client.home.exists(), 60)


def test_variables_for_ranks(runner: Runner) -> None:
    """--set-env gives variables; those of torchrun itself are handed on from the person's shell."""
    runner.script("print(os.environ['MODE'], os.environ['OMP_NUM_THREADS'])")
    out, _err = runner.run("--nproc-per-node 2 --set-env MODE=x train.py", OMP_NUM_THREADS="5")
    assert set(out.splitlines()) == {"[default0]:x 5", "[default1]:x 5"}


def test_the_engine_is_not_needed(runner: Runner) -> None:
    """Neither the client nor a rank imports the engine."""
    runner.script(
        "print(sorted(name for name in sys.modules if 'monarch' in name or 'milkweed' in name))"
    )
    out, _err = runner.run("train.py")
    assert out == "[default0]:[]\n"

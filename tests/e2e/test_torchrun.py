"""`milkweed torchrun` with real hosts: ranks, restarts, signals, files, fewer and more hosts, nothing left."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import Client, finish, wait_until

pytestmark = pytest.mark.e2e

JOB = "name: spmd\non: process\nmeshes: {trainers: 2}\n"


class Runner:
    """Runs `milkweed torchrun …` in a folder with a job of two hosts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.folder = client.folder
        (self.folder / "milkweed.yaml").write_text(JOB)

    def script(self, code: str, name: str = "train.py") -> Path:
        """Write a program for ranks."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
        path.write_text(head + textwrap.dedent(code))
        return path

    def start(self, line: str, **env: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "milkweed", "torchrun", *shlex.split(line)],
            cwd=self.folder,
            env={**self.client.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str, code: int = 0, **env: str) -> tuple[str, str]:
        """Run a command to its end; what it printed on stdout and stderr."""
        program = self.start(line, **env)
        out, err = finish(program)
        assert program.returncode == code, f"exit {program.returncode}\n{out}\n{err}"
        assert "Traceback" not in err or "Error" in err
        return out, err


@pytest.fixture
def runner(client: Client) -> Iterator[Runner]:
    """A runner whose ranks are all gone at the end."""
    yield Runner(client)
    wait_until(lambda: not ranks_of(client), 15)


def ranks_of(client: Client) -> list[int]:
    """Processes that a gang of this client's jobs has started, whoever their parent is."""
    mark = f"MILKWEED_HOME={client.home}".encode()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in env and any(word.startswith(b"MILKWEED_GANG=") for word in env):
            found.append(int(name))
    return found


def test_every_rank_runs_once(runner: Runner) -> None:
    """Two hosts of two ranks: four lines, each with its rank before it, and the right places."""
    runner.script("""
        print(*(os.environ[key] for key in ("WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")), sys.argv[1:])
    """)
    out, _err = runner.run("--nnodes 2 --nproc-per-node 2 train.py --nnodes 7")
    assert sorted(out.splitlines()) == [
        "[default0]:4 0 0 ['--nnodes', '7']",
        "[default1]:4 1 0 ['--nnodes', '7']",
        "[default2]:4 0 1 ['--nnodes', '7']",
        "[default3]:4 1 1 ['--nnodes', '7']",
    ]


def test_one_host_is_the_default_and_that_is_said(runner: Runner) -> None:
    """As torchrun does: without --nnodes one node takes part."""
    runner.script("print('world', os.environ['WORLD_SIZE'])")
    out, err = runner.run("train.py")
    assert out == "[default0]:world 1\n"
    assert "1 of the 2 hosts of trainers take part (--nnodes)" in err


def test_the_first_failure_is_reported(runner: Runner) -> None:
    """Rank, host, exit code and the last lines; the others are ended for it, and the exit code is 1."""
    runner.script("""
        if rank == 2:
            time.sleep(0.5)
            print("about to fail", file=sys.stderr)
            sys.exit(3)
        time.sleep(60)
    """)
    started_s = time.monotonic()
    _out, err = runner.run("--nnodes 2 --nproc-per-node 2 train.py", code=1)
    assert time.monotonic() - started_s < 30
    assert "rank 2 (local rank 0 on host trainers/1) exited with code 3" in err
    assert "| about to fail" in err
    assert "3 other ranks were ended for it" in err


def test_a_signal_is_named(runner: Runner) -> None:
    """A rank that a signal ended is reported by the signal's name."""
    runner.script("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)")
    _out, err = runner.run("--nproc-per-node 2 train.py", code=1)
    assert "rank 1 (local rank 1 on host trainers/0) was ended by SIGKILL" in err


def test_exits_that_are_no_failures(runner: Runner) -> None:
    """`sys.exit(0)` and `sys.exit()` are success, though another rank goes on for longer."""
    runner.script("""
        if rank:
            sys.exit(0)
        time.sleep(1)
        print("the last one")
        sys.exit()
    """)
    out, _err = runner.run("--nproc-per-node 2 train.py")
    assert out == "[default0]:the last one\n"


def test_restarts_are_of_all_ranks(runner: Runner) -> None:
    """With --max-restarts all ranks start again, know how often, and succeed in the end."""
    runner.script("""
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("attempt", attempt, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], flush=True)
        if attempt < 2:
            time.sleep(0.3)
            sys.exit(rank == 1)
    """)
    out, err = runner.run("--nnodes 2 --nproc-per-node 1 --max-restarts 3 train.py")
    assert sorted(out.splitlines()) == sorted(
        f"[default{rank}]:attempt {attempt} of 3" for rank in range(2) for attempt in range(3)
    )
    assert "restart 2 of 3" in err


def test_restarts_come_to_an_end(runner: Runner) -> None:
    """When all restarts are used up, the report says so."""
    runner.script("sys.exit(7)")
    _out, err = runner.run("--nproc-per-node 1 --max-restarts 2 train.py", code=1)
    assert "exited with code 7, after 2 restarts" in err


def test_ranks_of_an_interrupted_run_are_gone(runner: Runner) -> None:
    """Ctrl-C reaches the ranks as SIGINT, they may tidy up, and the command ends as interrupted ones do."""
    runner.script("""
        try:
            print("up", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("tidied up", flush=True)
            sys.exit(1)
    """)
    program = runner.start("--nnodes 2 --nproc-per-node 2 train.py")
    wait_until(lambda: len(ranks_of(runner.client)) == 4)
    time.sleep(0.5)
    program.send_signal(signal.SIGINT)
    out, err = finish(program)
    assert program.returncode == 130, err
    assert out.count("tidied up") == 4
    assert not ranks_of(runner.client)


def test_ranks_that_ignore_signals_are_made_to_end(runner: Runner) -> None:
    """After --shutdown-timeout nobody is asked any more."""
    runner.script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(0.5)
        sys.exit(4) if rank == 0 else time.sleep(60)
    """)
    started_s = time.monotonic()
    _out, err = runner.run("--nproc-per-node 2 --shutdown-timeout 1 train.py", code=1)
    assert "rank 0 (local rank 0 on host trainers/0) exited with code 4" in err
    assert time.monotonic() - started_s < 20


def test_a_killed_client_leaves_no_ranks(runner: Runner) -> None:
    """Ranks belong to the command that started them."""
    runner.script("time.sleep(60)")
    program = runner.start("--nnodes 2 --nproc-per-node 2 train.py")
    wait_until(lambda: len(ranks_of(runner.client)) == 4)
    program.kill()
    program.communicate()
    wait_until(lambda: not ranks_of(runner.client))


def test_what_ranks_leave_behind_goes_with_them(runner: Runner) -> None:
    """A process that a rank started and forgot, in a session of its own, does not stay for the next run."""
    runner.script("""
        import subprocess
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    """)
    runner.run("--nproc-per-node 2 train.py")
    wait_until(lambda: not ranks_of(runner.client))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-m pkg.mod a", "pkg.mod a"),
        ("--no-python ./tool.sh a", "tool a"),
        ("sub/train.py a", "sibling a"),
    ],
)
def test_all_kinds_of_programs(runner: Runner, line: str, expected: str) -> None:
    """A module, a command that is no Python, and a script whose folder is importable."""
    runner.script("print(__spec__.name, sys.argv[1])", "pkg/mod.py")
    runner.script("WORD = 'sibling'", "sub/sibling.py")
    runner.script("import sibling\nprint(sibling.WORD, sys.argv[1])", "sub/train.py")
    tool = runner.folder / "tool.sh"
    tool.write_text('#!/bin/sh\necho tool "$1"\n')
    tool.chmod(0o755)
    out, _err = runner.run(line)
    assert out == f"[default0]:{expected}\n"


def test_an_absolute_path_runs_in_its_interpreter(runner: Runner) -> None:
    """`--run-path` runs the file as `__main__`."""
    path = runner.script("print(__name__, sys.argv[1:])")
    out, _err = runner.run(f"--run-path {path} a")
    assert out == "[default0]:__main__ ['a']\n"


def test_files_as_torchrun_lays_them_out(runner: Runner) -> None:
    """-r sends streams to files only, -t to both; filters have a file of their own."""
    runner.script("""
        print("out", rank, flush=True)
        print("apple", rank, file=sys.stderr, flush=True)
        print("pear", rank, file=sys.stderr, flush=True)
    """)
    logs = runner.folder / "logs"
    line = (
        f"--nproc-per-node 2 --log-dir {logs} -r 1 -t 0:2 --duplicate-stderr-filters apple train.py"
    )
    out, err = runner.run(line)
    assert not out
    assert sorted(line for line in err.splitlines() if line.startswith("[default")) == [
        "[default0]:apple 0",
        "[default0]:pear 0",
        "[default1]:apple 1",
        "[default1]:pear 1",
    ]
    [attempt] = logs.glob("*/attempt_0")
    assert (attempt / "0/stdout.log").read_text() == "out 0\n"
    assert (attempt / "1/stdout.log").read_text() == "out 1\n"
    assert (attempt / "0/stderr.log").read_text() == "apple 0\npear 0\n"
    assert not (attempt / "1/stderr.log").exists()
    assert (attempt / "filtered_stderr.log").read_text() == "[default0]:apple 0\n"


def test_only_some_local_ranks_are_shown(runner: Runner) -> None:
    """--local-ranks-filter counts on every host."""
    runner.script("print('rank', rank)")
    out, _err = runner.run("--nnodes 2 --nproc-per-node 2 --local-ranks-filter 1 train.py")
    assert sorted(out.splitlines()) == ["[default1]:rank 1", "[default3]:rank 3"]


def test_a_prefix_of_ones_own(runner: Runner) -> None:
    """The variable that changes torchrun's prefix changes ours."""
    runner.script("print('hello')")
    template = "<${role_name} ${rank}/${local_rank}> "
    out, _err = runner.run(
        "--nnodes 2 --role x train.py", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template
    )
    assert sorted(out.splitlines()) == ["<x 0/0> hello", "<x 1/0> hello"]


def test_recorded_exceptions_are_in_the_report(runner: Runner) -> None:
    """What a program writes to the error file is shown instead of its last lines."""
    runner.script("""
                message = {"message": {"message": "ValueError: wrong shape", "extraInfo": {"py_callstack": "trace"}}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump(message, file)
        sys.exit(1)
    """)
    _out, err = runner.run("train.py", code=1)
    assert "| ValueError: wrong shape" in err


def test_fewer_hosts_and_more_again(runner: Runner) -> None:
    """With --nnodes 1:2 a lost host is done without, and taken in again when it is back."""
    runner.script("""
        print("world", os.environ["WORLD_SIZE"], "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        while not os.path.exists("stop"):
            time.sleep(0.05)
    """)
    program = runner.start(
        "--nnodes 1:2 --nproc-per-node 1 --rdzv-conf last_call_timeout=1 train.py"
    )
    wait_until(lambda: len(ranks_of(runner.client)) == 2)
    os.kill(server_of(runner.client, "trainers/1"), signal.SIGKILL)
    time.sleep(8)
    (runner.folder / "stop").touch()
    out, err = finish(program)
    assert program.returncode == 0, err
    worlds = re.findall(r"world (\d)", out)
    assert worlds[0] == "2"
    assert "1" in worlds
    assert worlds[-2:] == ["2", "2"]
    assert "restarts 0" in out
    assert "restarts 1" not in out
    assert "host trainers/1 is lost" in err
    assert "going on with 1 hosts" in err
    assert "more hosts are there" in err


def server_of(client: Client, host: str) -> int:
    """The process that serves a host."""
    home = f"MILKWEED_HOME={client.home}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/comm").read_text().strip()
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words == host and home in env:
            return int(name)
    raise AssertionError(f"no process serves {host}")


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
        ("--nnodes 2", "required"),
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
    """Any job can run a torchrun program; a failure is an error with its facts."""
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

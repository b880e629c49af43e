"""`milkweed torchrun` with real hosts: ranks, restarts, signals, files, nothing left."""

from __future__ import annotations

import signal
import time

import pytest

from programs import finish, wait_until
from ranks import Runner, ranks_of

pytestmark = pytest.mark.e2e


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
    assert "1 of the 2 hosts of trainers takes part (--nnodes)" in err


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
        open(f"up{rank}.{attempt}", "w").close()
        while not all(os.path.exists(f"up{each}.{attempt}") for each in range(2)):
            time.sleep(0.01)
        if attempt < 2:
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
            open(f"up{rank}", "w").close()
            time.sleep(60)
        except KeyboardInterrupt:
            print("tidied up", flush=True)
            sys.exit(1)
    """)
    program = runner.start("--nnodes 2 --nproc-per-node 2 train.py")
    wait_until(lambda: len(list(runner.folder.glob("up?"))) == 4)
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
        import json
        told = {"message": "ValueError: wrong shape", "extraInfo": {"py_callstack": "trace"}}
        message = {"message": told}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump(message, file)
        sys.exit(1)
    """)
    _out, err = runner.run("train.py", code=1)
    assert "| ValueError: wrong shape" in err

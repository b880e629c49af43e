"""The command line with real hosts: every command as a process, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from programs import Client, session_members, wait_until

pytestmark = pytest.mark.e2e

JOB = "name: demo\non: process\nmeshes: {workers: 2}\n"
TRAIN = """
    job = load_current_job()
    state = job.state()
    print("pids", len(set(values(state.workers.spawn("probe", Probe).pid.call().get()))), sys.argv[1:])
    sys.exit(5)
"""


class Shell:
    """Runs `milkweed …` in the client's folder."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.folder = client.folder
        (self.folder / "milkweed.yaml").write_text(JOB)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "milkweed", *words],
            cwd=self.folder,
            env=self.client.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str, code: int = 0) -> tuple[str, str]:
        """Run a command to its end; what it printed on stdout and stderr."""
        program = self.start(*shlex.split(line))
        out, err = program.communicate(timeout=90)
        assert program.returncode == code, f"exit {program.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out, err

    @property
    def handle(self) -> dict[str, object]:
        """The recorded handle."""
        return json.loads((self.folder / ".milkweed" / "demo.json").read_text())["handle"]

    @property
    def keeper(self) -> int:
        """The process that keeps the hosts."""
        keeper = self.handle["keeper"]
        assert isinstance(keeper, dict)
        return int(keeper["pid"])


@pytest.fixture
def shell(client: Client) -> Shell:
    """A folder with a job of two hosts."""
    return Shell(client)


def test_a_whole_life(shell: Shell) -> None:
    """Plan, apply, look, log, kill: each says what it should, and in the end everything is gone."""
    assert shell.run("plan")[0].startswith("create: job 'demo' on process (workers=2)\n")
    out, err = shell.run("apply")
    assert out.endswith("job 'demo' is running, 2/2 hosts ready\n")
    assert err == ""
    assert shell.run("apply")[0].startswith("reuse: ")
    assert re.search(r"^workers/1 +ready +workers/1 +ipc:///", shell.run("hosts")[0], re.MULTILINE)
    assert re.search(r"^demo +process +running +2/2 ", shell.run("ls")[0], re.MULTILINE)
    assert "submitted" in shell.run("status --why")[0]
    shell.run("logs --tail 1")
    keeper, run = shell.keeper, Path(str(shell.handle["run"]))
    assert len(session_members(keeper)) >= 3
    assert shell.run("kill")[0].startswith("killed demo (")
    assert session_members(keeper) == []
    assert not run.exists()
    assert not shell.client.home.exists()
    assert sorted(path.name for path in shell.folder.iterdir()) == ["milkweed.yaml"]


def test_exit_codes_are_true(shell: Shell) -> None:
    """A command's exit code, a signal, and a program that is not there come out as from a shell."""
    shell.run("apply")
    out, err = shell.run("exec --host workers/1 -- sh -c 'echo out; echo err >&2; exit 7'", 7)
    assert (out, err) == ("out\n", "err\n")
    out, err = shell.run("exec -- sh -c 'echo $MILKWEED_HOST; exit ${MILKWEED_HOST#*/}'", 1)
    assert sorted(out.splitlines()) == ["[workers/0] workers/0", "[workers/1] workers/1"]
    assert err == "milkweed: exit codes: workers/1=1; the others 0\n"
    shell.run("exec demo -- sh -c 'kill -9 $$'", 128 + signal.SIGKILL)
    assert "no-such-program" in shell.run("exec --host workers/0 -- no-such-program", 127)[1]
    assert "workers/0" in shell.run("exec --host worker/0 -- true", 1)[1]
    shell.run("exec", 2)


def test_much_output_arrives_whole(shell: Shell) -> None:
    """Megabytes from both hosts arrive complete, line by line."""
    shell.run("apply")
    count = 100_000
    out, _ = shell.run(f"exec -- seq 1 {count}")
    for host in ("workers/0", "workers/1"):
        lines = [line for line in out.splitlines() if line.startswith(f"[{host}] ")]
        assert [int(line.split()[1]) for line in lines] == list(range(1, count + 1))


def test_an_interrupt_ends_the_command_on_hosts(shell: Shell) -> None:
    """Ctrl-C ends `exec` with 130 and one line, and what it started on hosts ends with it."""
    shell.run("apply")
    program = shell.start("exec", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert program.stdout is not None
    pids = [int(program.stdout.readline().split()[1]) for _ in range(2)]
    program.send_signal(signal.SIGINT)
    _out, err = program.communicate(timeout=20)
    assert (program.returncode, err) == (130, "milkweed: interrupted\n")
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert "2/2 hosts ready" in shell.run("status")[0]


def test_a_reader_that_leaves_ends_the_command(shell: Shell) -> None:
    """When nobody reads the output any more, `exec` ends quietly."""
    shell.run("apply")
    with shell.start("exec", "--", "yes") as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline().endswith("y\n")
        program.stdout.close()
        assert program.wait(20) == 128 + signal.SIGPIPE
        assert program.stderr.read() == ""


def test_a_silent_log_does_not_keep_its_reader(shell: Shell) -> None:
    """`logs -f` ends with its reader though nothing more is written."""
    shell.run("apply")
    with shell.start("logs", "-f", "--tail", "0") as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.poll() is None
        program.stdout.close()
        assert program.wait(20) == 128 + signal.SIGPIPE
        assert program.stderr.read() == ""


def test_a_program_runs_as_the_client(shell: Shell) -> None:
    """`run` applies, runs the program with its job at hand, and ends with its exit code."""
    shell.client.write(TRAIN, "train.py")
    out, err = shell.run("run train.py --lr 1", 5)
    assert "pids 2 ['--lr', '1']" in out
    assert "create: job 'demo'" in err
    keeper = shell.keeper
    assert "create" not in shell.run("run train.py", 5)[1]
    assert shell.keeper == keeper
    shell.run("run gone.py", 1)
    shell.run("kill")


def test_a_program_runs_detached(shell: Shell) -> None:
    """With --detach the program runs inside, its output is followed, and its exit code is kept."""
    shell.client.write(TRAIN, "train.py")
    shell.run("run --detach train.py x")
    out, _ = shell.run("logs --follow --host client")
    assert "pids 2 ['x']" in out
    wait_until(lambda: "exit code 5" in shell.run("status")[0])
    assert re.search(r"^\[client\] pids 2", shell.run("logs")[0], re.MULTILINE)
    assert "has ended" in shell.run("doctor")[0]
    shell.run("kill")
    assert not shell.client.home.exists()


def test_kill_without_a_state_file(shell: Shell) -> None:
    """With the state file gone the hosts are still found, used and ended."""
    shell.run("apply")
    keeper = shell.keeper
    (shell.folder / ".milkweed" / "demo.json").unlink()
    assert "running (record lost)" in shell.run("ls")[0]
    assert shell.run("exec --host workers/0 -- echo here")[0] == "here\n"
    shell.run("kill demo")
    assert session_members(keeper) == []
    assert not shell.client.home.exists()


def test_a_lost_host_is_explained_and_replaced(shell: Shell) -> None:
    """A host that dies is shown with its reason, and the next `apply` makes new ones."""
    shell.run("apply")
    out, _ = shell.run("exec --host workers/1 -- sh -c 'echo $PPID'")
    assert int(out) == shell.keeper
    victim = max(session_members(shell.keeper))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: "failed" in shell.run("status")[0])
    assert "it was ended by SIGKILL" in shell.run("status --why")[0]
    out, _ = shell.run("apply")
    assert out.startswith("replace: job 'demo'")
    assert out.endswith("2/2 hosts ready\n")


def test_a_change_of_disposable_hosts_is_carried_out(shell: Shell) -> None:
    """Local hosts are disposable: a changed declaration replaces them, and says so first."""
    shell.run("apply")
    keeper = shell.keeper
    (shell.folder / "milkweed.yaml").write_text(JOB.replace("2", "1"))
    assert "~ meshes.workers.hosts: 2 → 1" in shell.run("plan")[0]
    assert shell.run("apply --json")[0].startswith("{")
    assert session_members(keeper) == []
    assert "1/1 hosts ready" in shell.run("status")[0]


def test_hosts_that_cannot_start_are_an_error(shell: Shell) -> None:
    """An interpreter that does not work is an error with the reason, never an endless wait."""
    job = JOB + "process: {python_exe: /bin/false}\n"
    (shell.folder / "milkweed.yaml").write_text(job)
    out, err = shell.run("apply --timeout 60s", 1)
    assert out.startswith("create: ")
    assert err.startswith("milkweed: ")
    shell.run("kill")


def test_apply_imports_no_engine(shell: Shell) -> None:
    """`apply` from the command line works where the engine is not even installed for the client."""
    (shell.folder / "block").mkdir()
    (shell.folder / "block" / "monarch.py").write_text(
        "raise SystemExit('the engine was imported')"
    )
    code = """
        import sys
        from milkweed.cli import main
        try:
            main(["apply", "--no-wait"])
        finally:
            assert "monarch" not in sys.modules and "milkweed.engine" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=shell.folder,
        env=shell.client.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shell.run("kill")

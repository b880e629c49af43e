"""`milkweed jobspec` and `jobspec` with real processes: output, exit codes, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.local_jobspecs import hold, states, until
from milkweed.jobspec import load_runs, load_transformer
from milkweed.jobspec.transformers.processes import find_marked

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobspec"
JOBSPEC = [sys.executable, "-c", "from milkweed.cli import jobspec; jobspec()"]
TEXT = """\
version: 1
resources: {r: {type: slot, with: [{type: core}]}}
tasks:
- {name: a, resources: r, command: [bash, -c, "echo one; touch up; sleep 60"]}
- {name: b, resources: r, command: [echo, never], depends_on: [a]}
"""


def jobspec(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*JOBSPEC, *words], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("name", ["steps", "tasks", "flux"])
@pytest.mark.parametrize("words", [["--wait"], []])
def test_the_examples_run(folder: Path, name: str, words: list[str]) -> None:
    """Files of all dialects, waited for and not."""
    done = jobspec("run", "-t", "local", *words, str(EXAMPLES / f"{name}.yaml"))
    assert done.returncode == 0, done.stderr
    (run,) = load_runs()
    assert load_transformer("local").wait(run, 30) == 0
    logs = jobspec("logs", "-f", run.id).stdout
    assert {"steps": "hello from", "tasks": "all done", "flux": "hello from"}[name] in logs
    if words:
        assert sorted(done.stdout.splitlines()) == sorted(logs.splitlines())


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_work_s(folder: Path, code: int) -> None:
    """Whatever it is."""
    text = TEXT.replace("echo one; touch up; sleep 60", f"exit {code}")
    done = jobspec("run", "-t", "local", "--wait", "-", stdin=text)
    assert done.returncode == code
    (run,) = load_runs()
    assert jobspec("wait", run.id).returncode == code


def start(*words: str) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [*JOBSPEC, "run", "-t", "local", "--wait", *words, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdin is not None
    program.stdin.write(TEXT)
    program.stdin.close()
    program.stdin = None
    return program


def test_ctrl_c_keeps_a_run(folder: Path) -> None:
    """It is told, the code is 130, the work goes on, and can be waited for, followed and cancelled."""
    program = start("--on-interrupt", "keep")
    assert program.stdout is not None
    assert program.stdout.readline() == "[a] one\n"
    os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=20)
    assert program.returncode == 130
    (run,) = load_runs()
    assert f"interrupted; run {run.id[:8]} goes on" in err
    assert run.driver() is not None
    assert states(run) == {"a": "running", "b": "waiting"}
    assert jobspec("cancel", run.id[:8]).stdout == f"{run.id[:8]}: cancelled\n"
    assert find_marked(run.plan.mark("")) == []
    assert jobspec("wait", run.id).returncode == 143


def test_ctrl_c_cancels_a_run(folder: Path) -> None:
    """If that was said: nothing is left, and the code is 130."""
    program = start("--on-interrupt", "cancel")
    until((folder / "up").exists)
    os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=20)
    assert program.returncode == 130
    (run,) = load_runs()
    assert f"run {run.id[:8]} is being cancelled" in err
    assert states(run) == {"a": "cancelled", "b": "cancelled"}
    assert find_marked(run.plan.mark("")) == []
    assert not run.is_driven()


def test_at_a_terminal_a_person_is_asked(folder: Path) -> None:
    """The answer decides."""
    (folder / "a.yaml").write_text(TEXT)
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execv(JOBSPEC[0], [*JOBSPEC, "run", "-t", "local", "--wait", "a.yaml"])  # noqa: S606
    until((folder / "up").exists)
    os.write(terminal, b"\x03")
    shown = b""
    while b"go on? [Y/n]" not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, b"n\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    (run,) = load_runs()
    assert states(run) == {"a": "cancelled", "b": "cancelled"}


def test_a_run_that_lost_its_driver_is_waited_for(folder: Path) -> None:
    """Somebody carries it on first; what nobody saw end is lost, and what needs it is skipped."""
    jobspec("run", "-t", "local", "-", stdin=TEXT.replace("sleep 60", hold(folder / "go")))
    until((folder / "up").exists)
    (run,) = load_runs()
    driver = run.driver()
    assert driver is not None
    os.kill(driver["pid"], signal.SIGKILL)
    until(lambda: not run.is_driven())
    (folder / "go").touch()
    done = jobspec("wait", run.id)
    assert done.returncode == 1
    assert "a: lost: nobody saw how it ended" in done.stderr
    assert states(run) == {"a": "lost", "b": "skipped"}


def test_logs_are_followed_through_steps_that_begin_later(folder: Path) -> None:
    """One after the other, until the run is over."""
    text = TEXT.replace("touch up; sleep 60", "true").replace(
        "[echo, never]", f'[bash, -c, "{hold(folder / "go")}; echo two"]'
    )
    jobspec("run", "-t", "local", "-", stdin=text)
    (run,) = load_runs()
    command = [*JOBSPEC, "logs", "-f", run.id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "[a] one\n"
        (folder / "go").touch()
        assert following.stdout.read() == "[b] two\n"
    assert following.returncode == 0
    assert jobspec("logs", "-f", run.id).stdout == "[a] one\n[b] two\n"
    assert jobspec("logs", run.id, "--step", "b").stdout == "[b] two\n"

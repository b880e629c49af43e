"""Jobspecs on this machine that nobody waits for, that are cancelled, or whose driver is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.local_jobspecs import hold, run, sh, states, until
from milkweed import identity
from milkweed.jobspec import load_runs, load_transformer
from milkweed.jobspec.graph import Need, Submit, Work
from milkweed.jobspec.transformers.processes import find_marked

pytestmark = pytest.mark.e2e


def test_a_run_goes_on_without_whoever_asked(folder: Path) -> None:
    """Not waiting returns at once; the graph is carried on to its end, and its code is asked for later."""
    gate = folder / "go"
    found = run(sh("a", f"{hold(gate)}; exit 6"), sh("b", "echo never", "a"), wait=False)
    assert states(found) == {"a": "running", "b": "waiting"}
    assert found.driver() is not None
    gate.touch()
    local = load_transformer("local")
    assert local.wait(found, 30) == 6
    assert states(found) == {"a": "failed", "b": "skipped"}


def test_a_step_that_says_wait_is_waited_for(folder: Path) -> None:
    """The rest is left to the run's own process, and what is waited for is shown."""
    lines: list[tuple[str, str]] = []
    first = Submit(id="a", work=Work(argv=("/bin/bash", "-c", "sleep 0.2; echo a")), wait=True)
    last = Submit(id="b", work=Work(argv=("sleep", "60")), needs=(Need("a"),))
    found = run(first, last, wait=False, lines=lines)
    assert states(found) == {"a": "done", "b": "running"}
    assert lines == [("a", "a")]
    load_transformer("local").cancel(found)


def test_logs_are_read_later(folder: Path) -> None:
    """Whoever comes later sees all that was printed, and can follow what still is."""
    found = run(sh("a", "echo one; sleep 0.3; echo two"), wait=False)
    local = load_transformer("local")
    assert list(local.logs(found, follow=True)) == [("a", "one"), ("a", "two")]
    assert list(local.logs(found)) == [("a", "one"), ("a", "two")]


def test_cancelling_ends_every_process(folder: Path) -> None:
    """Those that work started too, also in sessions of their own; what waited never begins."""
    found = run(
        sh("a", "sleep 60 & setsid sleep 60 & touch up; wait"),
        sh("b", "echo never", "a"),
        wait=False,
    )
    until((folder / "up").exists)
    assert len(find_marked(found.plan.mark(""))) >= 3
    progress = load_transformer("local").cancel(found)
    assert states(found) == {"a": "cancelled", "b": "cancelled"}
    assert progress.exit_code() == 143
    assert find_marked(found.plan.mark("")) == []
    assert not found.is_driven()


def test_work_left_in_the_background_ends_with_the_run(folder: Path) -> None:
    """A service that a step started serves the steps after it, and nobody once they are over."""
    serve = "setsid bash -c 'echo $$ > new; mv new pid; sleep 60' & until [ -e pid ]; do sleep 0.01; done"
    found = run(sh("a", serve), sh("b", "kill -0 $(cat pid)", "a"))
    assert found.progress().exit_code() == 0
    assert find_marked(found.plan.mark("")) == []


def test_a_driver_that_was_killed_loses_nothing(folder: Path) -> None:
    """What it started is still found: status tells, carrying on goes on, cancelling ends it."""
    found = run(
        sh("a", "touch up; sleep 60"), sh("b", "true"), sh("c", "echo never", "a"), wait=False
    )
    until((folder / "up").exists)
    until(lambda: states(found)["b"] == "done")
    driver = found.driver()
    assert driver is not None
    identity.send_signal(driver, signal.SIGKILL)
    until(lambda: not found.is_driven())
    assert states(found) == {"a": "running", "b": "done", "c": "waiting"}
    local = load_transformer("local")
    assert local.wait(found) == 1
    local.cancel(found)
    assert states(found) == {"a": "cancelled", "b": "done", "c": "cancelled"}
    assert find_marked(found.plan.mark("")) == []


def test_another_driver_carries_on(folder: Path) -> None:
    """Work whose end nobody saw is lost, neither done nor failed; the rest of the graph is judged by that."""
    found = run(
        sh("a", f"touch up; {hold(folder / 'go')}"),
        sh("b", "echo never", "a"),
        sh("c", "echo c", "a"),
        wait=False,
    )
    until((folder / "up").exists)
    driver = found.driver()
    assert driver is not None
    identity.send_signal(driver, signal.SIGKILL)
    until(lambda: not found.is_driven())
    (folder / "go").touch()
    local = load_transformer("local")
    local.carry_on(found, wait=True)
    assert states(found) == {"a": "lost", "b": "skipped", "c": "skipped"}
    assert found.progress().entries["a"].status.reason == "nobody saw how it ended"


PROGRAM = """
import sys
from milkweed.jobspec import load_transformer, parse_jobspec
local = load_transformer("local")
found = local.run(local.render(parse_jobspec(sys.stdin.read())), wait=True)
sys.exit(found.progress().exit_code())
"""

SLEEPER = """\
version: 1
resources: {r: {type: slot, with: [{type: core}]}}
tasks:
- {name: a, resources: r, command: [bash, -c, "touch up; sleep 60"]}
- {name: b, resources: r, command: [echo, never], depends_on: [a]}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_stopped_stops_its_work(number: signal.Signals, folder: Path) -> None:
    """Ctrl-C and SIGTERM end what runs, and the record says so."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, text=True)
    assert program.stdin is not None
    program.stdin.write(SLEEPER)
    program.stdin.close()
    until((folder / "up").exists)
    program.send_signal(number)
    assert program.wait(20) == 143
    (found,) = load_runs()
    assert states(found) == {"a": "cancelled", "b": "cancelled"}
    assert find_marked(found.plan.mark("")) == []


def test_a_program_that_was_killed_leaves_work_that_is_found(folder: Path) -> None:
    """Nobody could stop it then; it is found by its mark, and ended."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, text=True)
    assert program.stdin is not None
    program.stdin.write(SLEEPER)
    program.stdin.close()
    until((folder / "up").exists)
    program.kill()
    program.wait()
    (found,) = load_runs()
    assert states(found) == {"a": "running", "b": "waiting"}
    load_transformer("local").cancel(found)
    assert find_marked(found.plan.mark("")) == []


def test_a_lost_intent_is_found_by_its_mark(folder: Path) -> None:
    """A crash between starting a process and writing it down hides nothing."""
    found = run(sh("a", "touch up; sleep 60"), wait=False)
    until((folder / "up").exists)
    driver = found.driver()
    assert driver is not None
    identity.send_signal(driver, signal.SIGKILL)
    until(lambda: not found.is_driven())
    path = found.folder / "journal.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert found.progress().entries["a"].handle is None
    assert states(found) == {"a": "running"}
    load_transformer("local").cancel(found)
    assert find_marked(found.plan.mark("")) == []

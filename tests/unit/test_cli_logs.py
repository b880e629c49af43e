"""`logs`: what hosts wrote, all of it or the end of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed.backends.fake import FakeScheduler
from milkweed.cli.app import app

pytestmark = pytest.mark.usefixtures("folder")


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def apply(world: FakeScheduler) -> str:
    """Declare and apply a job; its id."""
    Path("demo.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 2}\n")
    assert milkweed("apply", "demo.yaml").exit_code == 0
    return list(world.allocations)[-1]


def test_a_job_that_is_gone_has_no_logs(world: FakeScheduler) -> None:
    """An allocation of which the scheduler has no trace is told as gone."""
    apply_id = apply(world)
    Path(".milkweed/demo.json").unlink()
    world.forget(apply_id)
    done = milkweed("logs", "demo")
    assert done.exit_code == 1
    assert "is gone" in done.stderr


def write_logs(world: FakeScheduler) -> None:
    apply_id = apply(world)
    for number in range(3):
        for host in ("workers/0", "workers/1"):
            world.write_log(apply_id, host, f"line {number} of {host}")


def test_logs_have_their_host_before_them(world: FakeScheduler) -> None:
    """`logs` prints every line with its host."""
    write_logs(world)
    lines = milkweed("logs", "demo").stdout.splitlines()
    assert len(lines) == 6
    assert lines[1] == "[workers/1] line 0 of workers/1"


def test_logs_of_one_host_are_as_written(world: FakeScheduler) -> None:
    """With --host only that host's lines are printed, as they are."""
    write_logs(world)
    done = milkweed("logs", "demo", "--host", "workers/1", "-f")
    assert done.stdout.splitlines() == [f"line {number} of workers/1" for number in range(3)]


@pytest.mark.parametrize(("tail", "count"), [(0, 0), (1, 2), (2, 4), (9, 6)])
def test_the_tail_is_of_each_host(world: FakeScheduler, tail: int, count: int) -> None:
    """--tail N leaves the last N lines of every host."""
    write_logs(world)
    lines = milkweed("logs", "demo", "--tail", str(tail)).stdout.splitlines()
    assert len(lines) == count
    assert all("line 0" not in line for line in lines) or tail > 2


def test_logs_of_an_unknown_host_fail(world: FakeScheduler) -> None:
    """A host that is not there is named, with those that are."""
    write_logs(world)
    done = milkweed("logs", "demo", "--host", "workers/7")
    assert done.exit_code == 1
    assert "workers/0" in done.stderr


def test_a_negative_tail_is_a_usage_error(world: FakeScheduler) -> None:
    """--tail takes no number below zero."""
    assert milkweed("logs", "--tail", "-1").exit_code == 2

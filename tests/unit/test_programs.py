"""Running a scheduler's commands: who ends them, and what of a terminal reaches them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.programs import run_program
from milkweed.backends.slurm.commands import run
from programs import wait_until
from unit.slurm_fake import FakeSlurm

SESSION = "print(__import__('os').getsid(0))"


def test_a_command_apart_has_no_terminal() -> None:
    """It is in a session of its own; one that may have to ask a person something is not."""
    mine = str(os.getsid(0))
    argv = [sys.executable, "-c", SESSION]
    together = run_program(argv, env=os.environ, timeout_s=30)
    apart = run_program(argv, env=os.environ, timeout_s=30, apart=True)
    assert together.said.strip() == mine
    assert apart.said.strip() != mine


def test_ctrl_c_does_not_reach_commands_of_slurm(slurm: FakeSlurm) -> None:
    """What a thread asks of Slurm while a person interrupts the program is answered all the same."""
    slurm.then("scontrol", "cut -d' ' -f6 /proc/$$/stat")
    assert str(os.getsid(0)) not in run(["scontrol", "show", "config"]).split()


@pytest.mark.parametrize("apart", [True, False])
def test_a_command_that_nobody_waits_for_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    """By Ctrl-C, for example; one that is apart takes with it what it has started, as a terminal would."""
    numbers = tmp_path / "numbers"

    def interrupt(*_args: Any, **_more: Any) -> None:
        wait_until(numbers.exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    script = f"sleep 600 & echo $$ $! >{numbers}.part; mv {numbers}.part {numbers}; wait"
    with pytest.raises(KeyboardInterrupt):
        run_program(["sh", "-c", script], env=os.environ, timeout_s=30, apart=apart)
    own, child = numbers.read_text().split()
    assert not is_alive(own)
    if not apart:
        os.kill(int(child), signal.SIGTERM)
    wait_until(lambda: not is_alive(child))


def is_alive(pid: str) -> bool:
    """Whether a process runs; one that nobody waits for may stay listed."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

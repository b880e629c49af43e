"""How a batch client ended, as Slurm, its exit code and its log tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from milkweed.backends.slurm.script import EXIT_NOT_SHARED
from milkweed.backends.slurm.status import explain_end
from milkweed.status import Liveness, Status
from unit.slurm_fake import FakeSlurm, part, row, shown, write_log


def end(folder: Path, *rows: Any) -> Status:
    parts = {0: part("w/0", logs=str(folder)), 1: part("v/0", number="0.1", logs=str(folder))}
    status = explain_end(rows, (7,), folder, parts)
    assert status.liveness is Liveness.ENDED
    return status


def test_the_batch_clients_own_exit_code_wins(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The script writes it down, and Slurm may have cut or changed it."""
    slurm.answer("scontrol", shown(state="CANCELLED", code="0:15"))
    (tmp_path / "exit").write_text("42\n")
    assert end(tmp_path, row(state="CANCELLED")).exit_code == 42


def test_a_client_whose_node_saw_no_files(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The reason names the folder, and what it takes."""
    slurm.answer("scontrol", shown(state="FAILED", code=f"{EXIT_NOT_SHARED}:0"))
    reason = end(tmp_path, row(state="FAILED")).reason
    assert f"its first node does not see {tmp_path}" in reason
    assert "MILKWEED_HOME" in reason


def test_a_client_may_end_with_any_code(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A code of its own that means something else to us is not explained: its folder was seen."""
    slurm.answer("scontrol", shown(state="FAILED", code=f"{EXIT_NOT_SHARED}:0"))
    (tmp_path / "exit").write_text(f"{EXIT_NOT_SHARED}\n")
    write_log(tmp_path / "part.0.0.log", "srun: Job step aborted: Waiting up to 4 seconds\n")
    status = end(tmp_path, row(state="FAILED"))
    assert "srun" not in status.reason
    assert status.exit_code == EXIT_NOT_SHARED
    assert "MILKWEED_HOME" not in status.reason


def test_a_client_that_failed_is_told_by_its_own_log(slurm: FakeSlurm, tmp_path: Path) -> None:
    """What Slurm says when the script's end takes the tasks with it is no reason."""
    slurm.answer("scontrol", shown(state="FAILED", code="1:0"))
    (tmp_path / "exit").write_text("1\n")
    write_log(tmp_path / "part.0.0.log", "srun: Job step aborted: Waiting up to 4 seconds\n")
    (tmp_path / "client.log").write_text("epoch 1\nRuntimeError: boom\n")
    lines = end(tmp_path, row(state="FAILED")).reason
    assert lines.splitlines()[1:] == [
        "the end of the client's log:",
        "  epoch 1",
        "  RuntimeError: boom",
    ]


def test_a_client_that_was_ended_is_told_by_both_logs(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Without an exit code of its own, what it said and what Slurm said may both be the reason."""
    slurm.answer("scontrol", shown(state="FAILED", code="1:0"))
    write_log(tmp_path / "part.0.0.log", "slurmstepd: error: oom_kill\n")
    (tmp_path / "client.log").write_text("epoch 1\n")
    assert end(tmp_path, row(state="FAILED")).reason.splitlines()[1:] == [
        "the end of the client's log:",
        "  epoch 1",
        "the end of the job's own log:",
        "  slurmstepd: error: oom_kill",
    ]

"""What the engine's own job layer gets wrong on Slurm, each seen on a real one: ours has a test for each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[1] / "slurm"
WEAKNESSES = {
    1: "A job that waits is said to have started; no reason is shown, and a time-out cancels it.",
    2: "An interrupt or a signal while it waits leaks the job, and every run queues another.",
    3: "A controller that is away for some seconds costs the job.",
    4: "A cancelled job, a missing Python and a taken port all read «not found in queue».",
    5: "Workers that die are not seen for a minute, and then a backtrace is.",
    6: "A cancelled job or a dead node during a call: an error after 70 s that does not mention Slurm.",
    7: "A job that Slurm put back into the queue is called running, and the next call hangs.",
    8: "After a requeue onto other nodes the cached state is poisoned.",
    9: "A changed time limit, or one failed squeue, cancels the running job without a word.",
    10: "Two clients that start together make two jobs, and one is orphaned.",
    11: "A corrupt state file is a raw error, and kill() leaves the file.",
    12: "Two batch submissions from one folder share a state file and break each other.",
    13: "Hostile names break the script or inject lines; impossible sizes leak a running job.",
    14: "The second job on a shared node dies of «Address already in use».",
    15: "One output file for all hosts, with lines of nobody.",
    16: "The job's name carries the client's pid, so it cannot be found by name.",
    17: "NODE_FAIL, OUT_OF_MEMORY, BOOT_FAIL, DEADLINE and REVOKED are not ends: an endless wait.",
}


def load_tests() -> list[ast.FunctionDef]:
    """Every test on a real Slurm."""
    trees = [ast.parse(path.read_text()) for path in sorted(SLURM.glob("test_*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]


def named_in(test: ast.FunctionDef) -> set[int]:
    """The weaknesses that a test names."""
    return {int(number) for number in re.findall(r"Weakness (\d+)", ast.get_docstring(test) or "")}


@pytest.mark.parametrize("number", WEAKNESSES)
def test_a_real_slurm_of_each_version_shows_it(number: int) -> None:
    """A test on a real Slurm names the weakness, and runs on each version: it is neither `slow` nor `once`."""
    shown = [
        test.name
        for test in load_tests()
        if number in named_in(test)
        and not {"slow", "once"}
        & set(re.findall(r"mark\.(\w+)", ast.unparse(test).split("def ")[0]))
    ]
    assert shown, f"no test of tests/slurm names weakness {number}: {WEAKNESSES[number]}"


def test_no_other_weakness_is_named() -> None:
    """Tests name only what is on the list."""
    assert {number for test in load_tests() for number in named_in(test)} <= set(WEAKNESSES)

"""The real torchrun and milkweed run the same command lines: what ranks see and what people see is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spmd.cases import STARTED
from spmd.compared import Compared
from spmd.differences import DIFFERENCES
from spmd.ended import ENDED
from spmd.facts import Facts, compare
from spmd.generated import GENERATED
from spmd.printed import OUTPUT
from spmd.sides import Case

# The first test waits for both launchers, which import torch and start hosts.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "examples/ddp.py"
ALL = [*STARTED, *OUTPUT, *ENDED, *GENERATED]
NAMED = {case.name: case for case in ALL}
ROWS = {
    "all variables are there": ["nproc 2", "role", "OMP set", "NCCL set"],
    "a script imports its sibling": ["sub folder"],
    "sys.exit(0) is success": ["exit 0"],
    "sys.exit(3) is a failure with its code": ["exit 3"],
    "an exception is a failure": ["exception"],
    "nproc-per-node counts devices": ["nproc cpu", "nproc auto", "nproc gpu"],
    "no option's value is the script": [
        *(name for name in NAMED if name.startswith("flag --")),
        "flag logs specs",
        "events",
    ],
    "no-python runs a program": ["tool"],
    "no script is an error at once": ["no script"],
    "a script has options of the same name": ["own nnodes"],
    "PET variables are defaults": ["PET nproc", "PET and flag", "PET of several", "PET module"],
    "restarts": ["restarts 1 of which 1 are needed", "restarts 2 of which 9 are needed"],
    "rendezvous and master": ["c10d endpoint", "static endpoint", "master port", "master addr"],
    "node rank and role": ["node rank 0", "role", "start method"],
    "files and streams": ["streams -r 3", "streams -t 3", "shown --local-ranks-filter 0"],
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ALL])
def test_a_command_line_runs_alike(compared: Compared, case: Case) -> None:
    """Exit code, variables, arguments, streams, files and the first failure are those of torchrun."""
    found = compared.differing(case)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "cases",
    [pytest.param([NAMED[name] for name in names], id=title) for title, names in ROWS.items()],
)
def test_where_run_spmd_differs_milkweed_does_not(compared: Compared, cases: list[Case]) -> None:
    """What the engine's own `run_spmd` does unlike torchrun is done like torchrun."""
    found = [words for case in cases for words in compared.differing(case)]
    assert not found, "\n".join(found)


def test_processes_for_the_cpus_that_may_be_used(confined: Compared) -> None:
    """Where a scheduler gave one CPU of several, both start one process; nothing else differs either."""
    for case in (NAMED["nproc cpu"], NAMED["nproc auto"]):
        assert confined.differing(case) == []
        assert confined.facts("milkweed", case)["ranks"] == ["0.0"]


@pytest.mark.parametrize("side", ["torchrun", "milkweed"])
def test_a_warm_launcher_is_the_program(compared: Compared, side: str) -> None:
    """A process that forks for every run does what the program does that people start."""
    case = NAMED["one of three fails"]
    warm, program = compared.facts(side, case), compared.program_facts(side, case)
    assert plain(warm) == plain(program)


def plain(facts: Facts) -> Facts:
    """Without what is unlike for every start."""
    return {
        key: value
        for key, value in facts.items()
        if not key.endswith((" stdin", " env MILKWEED_GANG")) and key != "err"
    }


def test_training_has_the_same_losses(compared: Compared) -> None:
    """One node of four ranks under torchrun and two hosts of two under milkweed: the same losses."""
    files = {"ddp.py": EXAMPLE.read_text()}
    one = Case(
        name="ddp on one", line="--nproc-per-node 4 ddp.py --epochs 2", files=files, torch=True
    )
    two = Case(
        name="ddp on two",
        line="--nnodes 2 --nproc-per-node 2 ddp.py --epochs 2",
        files=files,
        torch=True,
    )
    started = compared.start("torchrun", one), compared.start("milkweed", two)
    theirs, ours = (run.result() for run in started)
    assert theirs["code"] == ours["code"] == 0, (theirs, ours)
    said = said_in_training(theirs)
    assert len([words for words in said if words.startswith("epoch")]) == 2
    assert said == said_in_training(ours)
    assert ours["out"] == said


def said_in_training(facts: Facts) -> list[str]:
    """What the example printed; under torchrun, lines of several ranks may stand in one another's place.

    Its ranks are unbuffered and share a pipe, so that a line and its end are written apart.
    """
    told = r"\d ranks, torch \S+|epoch \d: loss \d\.\d{6}|rank \d is done"
    return sorted(re.findall(told, "\n".join(facts["out"])))


def test_other_differences_are_noticed(compared: Compared) -> None:
    """A value that is not torchrun's, and one that is missing or added, are told with both sides."""
    case = NAMED["plain"]
    theirs, ours = compared.facts("torchrun", case), compared.facts("milkweed", case)
    changed = {**ours, "rank 0.0 env RANK": "7", "out": [], "rank 0.0 env MORE": "x"}
    del changed["rank 0.0 argv"]
    found = [text.partition(":")[0] for text in compare(case, theirs, changed)[1]]
    assert found == ["out", "rank 0.0 argv", "rank 0.0 env MORE", "rank 0.0 env RANK"]


def test_every_documented_difference_is_one(compared: Compared) -> None:
    """A difference that no longer occurs is taken off the list."""
    if compared.seen != set(NAMED):
        pytest.skip("only some of the command lines were run")
    expected = {each.what for each in DIFFERENCES if not each.sometimes}
    assert sorted(expected - compared.differences) == []

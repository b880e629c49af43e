"""docs/spmd.md says where milkweed is not torchrun, and the suite that compares them knows no other place."""

from __future__ import annotations

from pathlib import Path

from spmd.differences import DIFFERENCES

DOCS = Path(__file__).parents[2] / "docs" / "spmd.md"
HEADING = "## Where it differs from torchrun"
UNCOMPARED = {
    "who starts nodes": "a run of the suite is one command of milkweed, and one for each node of torchrun",
    "variables of your shell, on other machines": "the suite runs on one machine",
    "before a line": "lines are compared without what stands before them",
    "teed lines that nobody reads": "the suite reads all there is",
}
"""Rows that no comparison of two runs can show, and why."""


def rows() -> list[str]:
    """The first cells of the table, without marks."""
    section = DOCS.read_text("utf-8").partition(HEADING)[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip().replace("`", "") for line in table[1:]]


def test_every_difference_is_documented() -> None:
    """A person reads of it before meeting it."""
    assert [each.what for each in DIFFERENCES if each.row not in rows()] == []


def test_every_documented_difference_is_compared() -> None:
    """What the table says is seen by the suite, or cannot be."""
    compared = {each.row for each in DIFFERENCES}
    assert sorted(set(rows()) - compared - set(UNCOMPARED)) == []
    assert sorted(set(UNCOMPARED) - set(rows())) == []

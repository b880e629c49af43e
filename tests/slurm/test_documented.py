"""Programs of docs/slurm.md: they are run as they stand there, and print what is shown below them."""

from __future__ import annotations

import re
import sys

import pytest

from clusters import run
from gates.test_docs import BLOCK
from gates.tree import ROOT
from programs import Client
from slurm.hosts import READY_S, command
from slurm.lab import Lab

pytestmark = pytest.mark.once

SOONER = {'renew="90s"': 'renew="115s"', "time.sleep(5)": "time.sleep(0.5)"}
"""The same program in less time: a follow-up is due after five seconds, and an epoch takes half of one."""
CHECKS = "from milkweed.job import renewing\nrenewing.CHECK_S = 1.0\n"


def load_blocks(title: str) -> list[str]:
    """The blocks of code below a title of the page."""
    text = (ROOT / "docs" / "slurm.md").read_text("utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [found["text"] for found in BLOCK.finditer(section)]


def read_console(block: str) -> list[tuple[str, list[str]]]:
    """The commands in a block, each with the lines that it is shown to print."""
    said = [text.splitlines() for text in block.removeprefix("$ ").split("\n$ ")]
    return [(lines[0], lines[1:]) for lines in said]


def shape_of(lines: list[str]) -> list[str]:
    """Lines without what differs from day to day: nodes, ids, widths, and the order of what hosts print."""
    text = re.sub(r"\bn\d+\b", "n#", re.sub(r"\b[0-9a-f]{8}\b", "id", "\n".join(lines)))
    return sorted(re.sub(r"  +", "  ", line) for line in text.splitlines())


def is_as_shown(said: str, shown: list[str]) -> bool:
    """Whether a command printed what is shown, or where that is cut short at least as much."""
    seen, expected = shape_of(said.splitlines()), shape_of(shown)
    return seen == expected or ("…" in shown and set(expected) - {"…"} <= set(seen))


def say(words: str) -> str:
    """What a command line prints, as a person would type it."""
    program, *rest = words.split()
    if program == "milkweed":
        return command(*rest)
    assert program == "python"
    return run([sys.executable, *rest], check=True, timeout_s=READY_S).stdout


def test_the_first_job(client: Client, lab: Lab) -> None:
    """Two runs of the program on the same hosts, then the hosts, then their end."""
    program, console = load_blocks("The first job")
    (client.folder / "first.py").write_text(program)
    ran: list[list[str]] = []
    for words, shown in read_console(console):
        if words == "squeue":  # its columns are narrowed there
            assert [(job.name, job.state) for job in lab.jobs()] == [("demo", "RUNNING")]
            continue
        said = say(words)
        assert is_as_shown(said, shown), said
        ran.append([line for line in said.splitlines() if line.startswith("rank ")])
    assert ran[0] == ran[1] != []
    assert not lab.jobs()


def test_the_loop_that_is_renewed(client: Client, lab: Lab) -> None:
    """A follow-up is asked for in time, and from some epoch on the same loop trains on its hosts."""
    program, shown = load_blocks("Longer than the time limit")
    for word, sooner in SOONER.items():
        assert program.count(word) == 1
        program = program.replace(word, sooner)
    (client.folder / "long.py").write_text(CHECKS + program)
    done = run([sys.executable, "long.py"], check=True, timeout_s=READY_S)
    begins, follows, *_more = shown.splitlines()
    assert done.stdout.splitlines()[0] == begins
    assert re.search(r"^epoch [1-9]\d* begins on new hosts$", done.stdout, re.MULTILINE)
    assert re.search(re.sub(r"\d+ s", r"\\d+ s", follows), done.stderr)
    assert "killed long" in command("kill")
    assert not lab.jobs()

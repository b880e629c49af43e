"""The reference of job files says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from milkweed.errors import JobFileError
from milkweed.jobfile import JobFile, parse_jobfile
from milkweed.jobfile.keys import BLOCKS, CODE, LIFETIME, MESH, TOP
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.options import OptionTable

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "jobfile.md"
OTHERS = (ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "slurm.md")
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(info: str, *pages: Path) -> list[str]:
    """The fenced blocks of the reference, or of other pages, that have this info string."""
    texts = [page.read_text("utf-8") for page in pages or (DOC,)]
    return [found[2] for text in texts for found in BLOCK.finditer(text) if found[1] == info]


def parse(text: str) -> JobFile:
    return parse_jobfile(
        text,
        "milkweed.yaml",
        options_of=BUILTIN_OPTIONS.get,
        backends=sorted(BUILTIN_OPTIONS),
    )


@pytest.mark.parametrize("text", blocks("yaml", DOC, *OTHERS))
def test_every_example_parses(text: str) -> None:
    """Every example in the reference and on other pages is a job file without mistakes."""
    assert parse(text).spec.name == "demo"


def test_the_full_example_uses_every_key() -> None:
    """The example that claims to have everything in it has every key of a job file."""
    full = blocks("yaml")[1]
    for key in (*TOP, *BLOCKS, *MESH, *CODE, *LIFETIME):
        assert re.search(rf"^\s*{key}:", full, re.MULTILINE), key


def test_the_mistakes_look_as_shown() -> None:
    """The error text in the reference is the exact text people will see."""
    (wrong,), (shown,) = blocks("yaml wrong"), blocks("text")
    with pytest.raises(JobFileError) as caught:
        parse(wrong)
    assert str(caught.value) == shown.rstrip("\n")


@pytest.mark.parametrize(
    "table",
    [TOP, MESH, CODE, LIFETIME, BLOCKS, *BUILTIN_OPTIONS.values()],
    ids=lambda t: "-".join(t),
)
def test_every_key_has_a_row(table: OptionTable) -> None:
    """Every key that may be written is explained in a table of the reference."""
    rows = set(re.findall(r"^\| `(\w+)`", DOC.read_text("utf-8"), re.MULTILINE))
    assert set(table) <= rows

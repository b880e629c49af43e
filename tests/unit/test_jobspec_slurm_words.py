"""Whatever a jobspec says, programs get those very words: scripts run by real shells."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from milkweed.jobspec.graph import (
    Batch,
    Group,
    Step,
    Submit,
)
from milkweed.jobspec.runs import runs_folder
from unit.jobspec_slurm_scripts import RUN_ID, WRITTEN, run_job, work, write
from unit.slurm_script_runs import Node

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
HOSTILE = st.sampled_from(
    [
        "",
        "a b",
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        "\n",
        "\r\n",
        "*",
        "~",
        "-x",
        "#",
        ";",
        "&",
        "|",
        "$HOME",
        "!!",
        "EOF",
    ]
)
WORD = TEXT | HOSTILE
SHOW = "import os, sys; print(ascii([sys.argv[1:], dict(os.environ), os.getcwd()]))"


PROPERTY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def _record(home: Path) -> None:
    """Every run of these tests has the same id, so it has the same folder."""
    (runs_folder() / RUN_ID).mkdir(parents=True, mode=0o700)
    for name in ("logs", "secrets", "parcels"):
        (runs_folder() / RUN_ID / name).mkdir(mode=0o700)


@PROPERTY
@given(
    words=st.lists(WORD, max_size=5),
    environment=st.dictionaries(st.sampled_from(["A", "B_1", "PATH2", "IFS"]), st.none() | WORD),
    shell=st.sampled_from(["sh", "bash"]),
    batch=st.booleans(),
)
def test_no_word_is_read_by_a_shell(
    *,
    words: list[str],
    environment: dict[str, str | None],
    shell: str,
    batch: bool,
    tmp_path: Path,
    home: Path,
) -> None:
    """Whatever a jobspec says, the program gets those very words and variables."""
    shutil.rmtree(tmp_path / "node", ignore_errors=True)
    node = Node(tmp_path / "node")
    own = work(sys.executable, "-c", SHOW, *words, environment=environment, cwd="/usr")
    step: Step = (
        Batch(id="job", filename="run.sh", work=own, needs=WRITTEN)
        if batch
        else Submit(id="job", work=own)
    )
    found = (write(), step) if batch else (step,)
    log = home / "jobspec" / RUN_ID / "logs" / "job.log"
    log.unlink(missing_ok=True)
    assert run_job(node, *found, shell=shell, A="before", GONE="x") == 0, log.read_text()
    argv, variables, cwd = ast.literal_eval(log.read_text())
    assert argv == words
    assert cwd == "/usr"
    for name, value in {"A": "before", **environment}.items():
        assert variables.get(name) == value
    assert node.left == []


@PROPERTY
@given(words=st.lists(WORD, max_size=4))
def test_no_word_inside_a_group_is_read_by_a_shell(
    words: list[str], tmp_path: Path, home: Path
) -> None:
    """The same for what a group's controller starts."""
    shutil.rmtree(tmp_path / "node", ignore_errors=True)
    node = Node(tmp_path / "node")
    inner = Submit(id="g/job", work=work(sys.executable, "-c", SHOW, *words, cwd="/usr"))
    log = home / "jobspec" / RUN_ID / "logs" / "g+job.log"
    log.unlink(missing_ok=True)
    assert run_job(node, Group(id="g", work=work(), steps=(inner,))) == 0
    assert ast.literal_eval(log.read_text())[0] == words

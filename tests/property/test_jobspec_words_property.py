"""Random jobspecs on this machine: no word is lost or split on the way from a file to a process."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from milkweed.errors import JobspecError
from milkweed.jobspec import DIALECTS, parse_jobspec, render_jobspec
from milkweed.jobspec.graph import Graph, Group, Need, Step, Submit, Work
from milkweed.jobspec.transformers import flux
from milkweed.jobspec.transformers.local import Transformer
from property.test_jobspec_property import HOSTILE, TEXT, chains, levels

WORDS = st.lists(TEXT | HOSTILE, max_size=5)
# Writes the words that it got to the file whose name it got first.
SHOW = "import json, sys; open(sys.argv[1], 'w').write(json.dumps(sys.argv[2:]))"


def argvs(steps: tuple[Step, ...]) -> dict[str, tuple[Any, ...]]:
    """The words of each job."""
    found = Graph(steps=steps).walk()
    return {step.id: step.work.argv for step in found if isinstance(step, Submit)}


@given(levels() | chains())
def test_the_plan_has_every_word(steps: tuple[Step, ...]) -> None:
    """Each word of a command is one word of the plan, in groups, in replicas and alone."""
    try:
        plan = Transformer().render(Graph(steps=steps))
    except JobspecError:
        return
    wanted = argvs(steps)
    seen: set[str] = set()
    for action in plan.actions:
        step_id = action.id if action.id in wanted else action.id.rpartition("/")[0]
        if "argv" in action.details and step_id in wanted:
            words: Any = action.details["argv"]
            plain = [word if isinstance(word, str) else word["file"] for word in words]
            assert plain == [getattr(word, "name", word) for word in wanted[step_id]]
            seen.add(step_id)
    assert seen == set(wanted)


def tasks_of(jobspec: dict[str, Any]) -> Iterator[str]:
    """The files that become commands, of a job and of those inside it."""
    for name, entry in jobspec["attributes"]["system"]["files"].items():
        if name.startswith(".mw/task"):
            yield entry["data"]
        elif name.startswith(".mw/job"):
            yield from tasks_of(json.loads(entry["data"]))


@given(levels() | chains())
def test_flux_gets_every_word(steps: tuple[Step, ...]) -> None:
    """No word of a command is one that Flux or a shell could read as anything else, alone and in groups."""
    try:
        plan = flux.Transformer().render(Graph(steps=steps))
    except JobspecError:
        return
    files: list[str] = []
    for action in plan.actions:
        jobspec: Any = action.details.get("jobspec")
        if jobspec is not None:
            assert "{{" not in "".join(jobspec["tasks"][0]["command"]).replace(
                "{{tmpdir}}", ""
            ).replace("{{node.id}}", "").replace("{{nnodes}}", "")
            files += tasks_of(jobspec)
    lines = {text.rpartition("\nexec ")[2].rstrip("\n") for text in files}
    for words in argvs(steps).values():
        if all(isinstance(word, str) for word in words):
            assert " ".join(map(shlex.quote, words)).rstrip("\n") in lines


@given(WORDS, st.sampled_from(sorted(DIALECTS)))
def test_every_dialect_keeps_every_word(words: list[str], dialect: str) -> None:
    """What is written is read as the same words, or refused."""
    graph = Graph(steps=(Submit(id="job", work=Work(argv=("echo", *words))),))
    text = written(graph, dialect)
    if text is None:
        assert any("{{" in word for word in words)
        return
    (step,) = parse_jobspec(text).steps
    assert isinstance(step, Submit)
    assert step.work.argv == ("echo", *words)


def written(graph: Graph, dialect: str) -> str | None:
    """A graph in a dialect; None where that cannot say it."""
    with contextlib.suppress(JobspecError):
        return render_jobspec(graph, dialect)
    return None


@given(levels() | chains())
def test_writing_twice_changes_nothing(steps: tuple[Step, ...]) -> None:
    """Read, written, read, written: the texts are the same in every dialect that can say it."""
    for dialect in DIALECTS:
        text = written(Graph(steps=steps), dialect)
        if text is not None:
            again = parse_jobspec(text)
            assert render_jobspec(again, dialect) == text
            assert parse_jobspec(render_jobspec(again, dialect)) == again


@pytest.mark.e2e
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_processes_get_every_word(many: list[list[str]]) -> None:
    """Written in a dialect, read, planned, run: programs find the very words, alone and in groups."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [
            Submit(
                id=f"g/t{at}" if at % 2 else f"t{at}",
                work=Work(argv=(sys.executable, "-ISc", SHOW, str(folder / str(at)), *words)),
            )
            for at, words in enumerate(many)
        ]
        inside = tuple(each for each in jobs if each.parent)
        group = (Group(id="g", steps=inside, work=Work(argv=()), needs=(Need("t0"),)),)
        top = tuple(each for each in jobs if not each.parent)
        text = render_jobspec(Graph(steps=(*top, *(group if inside else ()))), "compspec-0.1")
        (folder / "a.yaml").write_text(text, "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "milkweed", "jobspec", "run", "-t", "local", "--wait", "a.yaml"],
            env={**os.environ, "MILKWEED_HOME": str(folder / "home"), "PYTHONUTF8": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for at, words in enumerate(many):
            assert json.loads((folder / str(at)).read_text()) == words

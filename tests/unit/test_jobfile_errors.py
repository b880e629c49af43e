"""Job files that are wrong: every mistake, its exact words, and its place."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import pytest

from milkweed.errors import BackendError, JobFileError, SpecError
from milkweed.jobfile import parse_jobfile, read
from milkweed.jobfile.keys import OptionsOf
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.options import OptionField
from milkweed.spec import JobSpec

SLURM = {"partition": OptionField("text", "The partition.", required=True)}
TABLES: Mapping[str, Mapping[str, OptionField]] = {**BUILTIN_OPTIONS, "slurm": SLURM}
SMALL = "name: demo\non: process\nmeshes: {workers: 2}\n"


def error_of(text: str, options_of: OptionsOf = TABLES.get) -> str:
    """The text of the error that a job file gives."""
    with pytest.raises(JobFileError) as caught:
        parse_jobfile(text, "job.yaml", options_of=options_of, backends=sorted(TABLES))
    return str(caught.value)


def places_of(text: str) -> list[str]:
    """Only the `line:column: path: message` of each error."""
    found = error_of(text).splitlines()
    return [line.removeprefix("job.yaml:") for line in found if line.startswith("job.yaml:")]


def lines(text: str) -> str:
    """A text without the indentation it has in this file."""
    return dedent(text).strip("\n")


def test_all_mistakes_are_told_at_once() -> None:
    """One error lists every mistake, in the order of the file, with line, caret and way out."""
    text = """\
        nme: demo
        on: procss
        meshes:
          trainers:
            hosts: two
            cpu: 4
            gpus: -1
            memory: 64Q
            env: {A: 1, 2B: x, C: , D: true}
            hosts: 2
          class: 1
          a b: 0
          x: yes
          y:
        """
    assert error_of(dedent(text)) == lines(
        """
        job.yaml:1:1: name: is missing
          | nme: demo
          | ^
          do:   add `name: …`: The job's name.
        job.yaml:1:1: nme: unknown key
          | nme: demo
          | ^^^
          do:   did you mean 'name'?
        job.yaml:2:5: on: no backend is named 'procss'
          | on: procss
          |     ^^^^^^
          do:   did you mean 'process'?
        job.yaml:5:12: meshes.trainers.hosts: 'two' is not a whole number
          |     hosts: two
          |            ^^^
          do:   write one, such as 2
        job.yaml:6:5: meshes.trainers.cpu: unknown key
          |     cpu: 4
          |     ^^^
          do:   did you mean 'cpus'?
        job.yaml:7:11: meshes.trainers.gpus: -1 is too small
          |     gpus: -1
          |           ^^
          do:   give at least 0
        job.yaml:8:13: meshes.trainers.memory: '64Q' is not a size
          |     memory: 64Q
          |             ^^^
          do:   write a number with a unit, such as 512Mi, 16Gi or 200GB
        job.yaml:9:14: meshes.trainers.env.A: 1 is not text
          |     env: {A: 1, 2B: x, C: , D: true}
          |              ^
          do:   put it in quotes
        job.yaml:9:17: meshes.trainers.env.2B: '2B' is not a name of a variable
          |     env: {A: 1, 2B: x, C: , D: true}
          |                 ^^
          do:   use letters, digits and _, and no digit first
        job.yaml:9:24: meshes.trainers.env.C: has no value
          |     env: {A: 1, 2B: x, C: , D: true}
          |                        ^
          do:   write "" for an empty text
        job.yaml:9:32: meshes.trainers.env.D: true is not text
          |     env: {A: 1, 2B: x, C: , D: true}
          |                                ^^^^
          do:   put it in quotes
        job.yaml:10:5: meshes.trainers.hosts: is set twice
          |     hosts: 2
          |     ^^^^^
          do:   it is set in line 5, too
        job.yaml:11:3: meshes.class: the name 'class' is a reserved word: `state.<name>` means something else
          |   class: 1
          |   ^^^^^
          do:   start with a letter, use letters, digits, '_' and '-', at most 63 characters
        job.yaml:12:3: meshes.a b: the name 'a b' has characters that are not allowed
          |   a b: 0
          |   ^^^
          do:   start with a letter, use letters, digits, '_' and '-', at most 63 characters
        job.yaml:12:8: meshes.a b: 0 is too small
          |   a b: 0
          |        ^
          do:   give at least 1
        job.yaml:13:6: meshes.x: 'yes' is neither a number of hosts nor a mapping
          |   x: yes
          |      ^^^
          do:   write a number, or {hosts: 2, gpus: 8}
        job.yaml:14:3: meshes.y: has no value
          |   y:
          |   ^
          do:   write a number, or {hosts: 2, gpus: 8}
        """
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("code: {include: [*.py, 3]}", ["4:18: code.include[0]: the alias *.py has no anchor before it", "4:24: code.include[1]: 3 is not text"]),
        ("code: []", ["4:7: code: a list is not a mapping"]),
        ("code: {workdir: 3}", ["4:17: code.workdir: 3 is not text"]),
        ("lifetime: {idle_timeout: soon}", ["4:26: lifetime.idle_timeout: 'soon' is not a duration"]),
        ("lifetime: {time_limit: 0}", ["4:24: lifetime.time_limit: 0.0 is not more than zero"]),
        ("run: python 'x", ["4:6: run: \"python 'x\" is not a command line: no closing quotation"]),
        ("run: [python, 0.1]", ["4:15: run[1]: 0.1 is not text"]),
        ("on_change: asq", ["4:12: on_change: 'asq' is not one of: ask, repair, replace, new"]),
        ("on_change: no", ["4:12: on_change: 'no' is not one of: ask, repair, replace, new"]),
        ("k8s: {}", ["4:1: k8s: unknown key"]),
        ("local: 5", ["4:8: local: 5 is not a mapping"]),
        ("process: [a]", ["4:10: process: a list is not a mapping"]),
        ("process: {transport: tcp}", ["4:22: process.transport: 'tcp' is not one of: ipc, tls"]),
        ("process: {stream_logs: yes}", ["4:24: process.stream_logs: 'yes' is not true or false"]),
        ("process: {partition: gpu}", ["4:11: process.partition: unknown key"]),
        ("env: {<<: {A: b}}", ["4:11: env.<<: a mapping is not text", "4:7: env.<<: '<<' is not a name of a variable"]),
        ("<<: {env: {}}", ["4:1: <<: unknown key"]),
        ("1: 2", ["4:1: a key must be text, not 1"]),
        ("? [a]\n: 2", ["4:3: a key must be text, not a list"]),
        ("env: {A: !!str 5}", ["4:10: env.A: the tag !!str is not allowed"]),
        ("run: !!python/object/apply:os.system [ls]", ["4:6: run: the tag !!python/object/apply:os.system is not allowed"]),
        ("env: &e {A: *e}", ["4:13: env.A: the alias *e contains itself"]),
        ("name: again", ["4:1: name: is set twice"]),
    ],
)  # fmt: skip
def test_each_mistake_has_its_place(text: str, expected: list[str]) -> None:
    """A mistake is told once, with the line, column and path of the value or key that is wrong."""
    found = places_of(SMALL + text + "\n")
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("-x", "1:7: name: '-x' has characters that are not allowed"),
        ("a b", "1:7: name: 'a b' has characters that are not allowed"),
        ('""', "1:7: name: is empty"),
        ("12", "1:7: name: 12 is not text"),
        ("", "1:1: name: has no value"),
    ],
)
def test_bad_job_names_have_their_place(name: str, place: str) -> None:
    """The checks of the job's own name point at it."""
    assert places_of(SMALL.replace("demo", name)) == [place]


@pytest.mark.parametrize(
    ("meshes", "place"),
    [
        ("{}", "3:1: meshes: a job needs at least one mesh"),
        ("", "3:1: meshes: a job needs at least one mesh"),
        ("3", "3:9: meshes: 3 is not a mapping"),
        ("[a, b]", "3:9: meshes: a list is not a mapping"),
        ("{items: 1}", "3:10: meshes.items: the name 'items' is a reserved word: `state.<name>` means something else"),
        ("{a: true}", "3:13: meshes.a: true is neither a number of hosts nor a mapping"),
        ("{a: 1.5}", "3:13: meshes.a: 1.5 is neither a number of hosts nor a mapping"),
        ("{a: {}}", "3:10: meshes.a.hosts: is missing"),
        ("{a: {hosts: 1, cpus: 0}}", "3:30: meshes.a.cpus: 0 is too small"),
        ("{a: {hosts: 1, gpu_type: 100}}", "3:34: meshes.a.gpu_type: 100 is not text"),
        ("{a: {hosts: 99999999999999999999}}", "3:21: meshes.a.hosts: 99999999999999999999 is too large"),
    ],
)  # fmt: skip
def test_bad_meshes_have_their_place(meshes: str, place: str) -> None:
    """The checks of names, sizes and counts point at the mesh's own line."""
    assert places_of(f"name: demo\non: process\nmeshes: {meshes}\n") == [place]


def test_everything_that_is_missing_is_told() -> None:
    """A file that lacks all it needs is told so once per key."""
    assert places_of("env: {}\n") == [
        "1:1: name: is missing",
        "1:1: on: is missing",
        "1:1: meshes: a job needs at least one mesh",
    ]


def test_required_options_of_a_backend() -> None:
    """A backend's block can have keys that must be there, even when the block is not."""
    text = SMALL.replace("process", "slurm")
    assert places_of(text) == ["1:1: slurm.partition: is missing"]
    assert places_of(text + "slurm: {}\n") == ["4:1: slurm.partition: is missing"]


def test_a_broken_backend_is_told_at_its_name() -> None:
    """A backend that cannot be loaded is a mistake of the line that names it."""

    def options_of(name: str) -> Mapping[str, OptionField] | None:
        raise BackendError(f"the backend {name!r} is broken", seen="no module x", hint="install it")

    assert error_of(SMALL, options_of) == lines(
        """
        job.yaml:2:5: on: the backend 'process' is broken (no module x)
          | on: process
          |     ^^^^^^^
          do:   install it
        """
    )


def test_later_checks_of_the_spec_have_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the job itself can find wrong points at the field it names."""

    def refuse(**_: Any) -> JobSpec:
        raise SpecError("meshes.workers: too lonely", hint="take more")

    monkeypatch.setattr(read, "JobSpec", refuse)
    assert error_of(SMALL) == lines(
        """
        job.yaml:3:19: meshes.workers: too lonely
          | meshes: {workers: 2}
          |                   ^
          do:   take more
        """
    )


def test_a_mistake_in_an_alias_points_at_the_alias() -> None:
    """The place of a wrong value is where it is used."""
    assert places_of("name: &n demo\non: process\nmeshes: {a: *n}\n") == [
        "3:13: meshes.a: 'demo' is neither a number of hosts nor a mapping"
    ]


def test_long_lines_are_shown_around_the_mistake() -> None:
    """A line too long for a terminal is cut, and the caret still points at the value."""
    text = f"{{name: {'x' * 300}, on: process, meshes: 3}}"
    shown, caret = error_of(text).splitlines()[-3:-1]
    assert len(shown) <= 104
    assert shown[caret.index("^")] == "3"


def test_carets_stand_under_wide_characters() -> None:
    """Characters that take two columns move the caret by two."""
    shown = error_of(SMALL + "env: {A: 日本, B: 1}\n").splitlines()
    assert shown[1:3] == ["  | env: {A: 日本, B: 1}", "  |                   ^"]


def test_keys_cannot_break_the_report() -> None:
    """A key with a line break, or an endless one, still gives one line per mistake."""
    assert places_of(SMALL + '"a\\nb": 1\n') == ["4:1: a�b: unknown key"]
    assert len(places_of(SMALL + f"? {'k' * 3000}\n: 1\n")[0]) < 100


def test_the_error_is_one_of_the_spec() -> None:
    """The error is a SpecError with all its text in `what`, so any face can show it."""
    with pytest.raises(SpecError) as caught:
        parse_jobfile("name: @x\n", "job.yaml", options_of=TABLES.get)
    assert caught.value.what == str(caught.value)

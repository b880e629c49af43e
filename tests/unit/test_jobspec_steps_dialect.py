"""The compspec language 0.0.1: scripts, and steps in their order."""

from __future__ import annotations

import pytest

from milkweed.jobspec import load_jobspec, parse_jobspec
from milkweed.jobspec.graph import Auth, Batch, Custom, Need, RunFile, Shape, Stage, Submit, Write
from milkweed.jobspec.scripts import interpreter
from unit.jobspecs import EXAMPLES, STEPS, wrong

TRANSFORM = STEPS[STEPS.index("  transform:") :]


def with_steps(*lines: str, command: str = "") -> str:
    """The file with other steps."""
    more = f"  command: {command}\n" if command else ""
    text = STEPS.replace(TRANSFORM, more + "  transform:\n")
    return text + "".join(f"  - {line}\n" for line in lines)


WRITES = (
    "{step: write, filename: install.sh}",
    "{step: write, filename: job.sh}",
)


def test_steps_come_one_after_the_other() -> None:
    """Each step needs the one before it; after a job that nobody waits for, only its submission."""
    graph = parse_jobspec(STEPS.replace("wait: true", "wait: false"))
    assert [step.id for step in graph.steps] == [
        "write-install.sh",
        "stage-install.sh",
        "submit-install.sh",
        "write-job.sh",
        "stage-job.sh",
        "submit-job.sh",
    ]
    assert graph.steps[2].needs == (Need("stage-install.sh"),)
    assert graph.steps[3].needs == (Need("submit-install.sh", "submitted"),)
    assert parse_jobspec(STEPS).steps[3].needs == (Need("submit-install.sh", "afterok"),)


def test_every_step_becomes_what_it_says() -> None:
    """Files have their content, jobs their script and the shape of the resources."""
    write, stage, submit, *_ = parse_jobspec(STEPS).steps
    assert isinstance(write, Write)
    assert (write.content, write.executable) == (b"#!/bin/bash\necho install\n", True)
    assert isinstance(stage, Stage)
    assert stage.filename == "install.sh"
    assert isinstance(submit, Submit)
    assert submit.work.argv == ("/bin/bash", RunFile("install.sh"))
    assert submit.work.shape == Shape(nodes=4, slots=4, cores_per_slot=4)
    assert submit.wait


def test_steps_know_their_lines() -> None:
    """Errors of transformers can name the place of a step."""
    graph = parse_jobspec(STEPS, "job.yaml")
    assert [step.at.line for step in graph.steps if step.at] == [11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (b"#!/bin/sh\nx", ("/bin/sh",)),
        (b"#!/usr/bin/env  python3 -u\n", ("/usr/bin/env", "python3 -u")),
        (b"echo plain\n", ("/bin/bash",)),
        (b"", ("/bin/bash",)),
        (b"#!\n", ("/bin/bash",)),
    ],
)
def test_scripts_are_started_as_the_kernel_would(script: bytes, words: tuple[str, ...]) -> None:
    """The first line names the program and at most one argument; without one it is bash."""
    assert interpreter(script) == words


def test_the_command_runs_the_script_that_it_names() -> None:
    """A submit step whose script the command names runs the command; another one its own script."""
    graph = parse_jobspec(
        with_steps(
            *WRITES,
            "{step: submit, filename: install.sh}",
            "{step: submit, filename: job.sh}",
            command='[python3, ./job.sh, "a b"]'.replace("./", ""),
        )
    )
    first, second = (step for step in graph.steps if isinstance(step, Submit))
    assert first.work.argv == ("/bin/bash", RunFile("install.sh"))
    assert second.work.argv == ("python3", RunFile("job.sh"), "a b")


def test_a_step_without_a_file_runs_the_command() -> None:
    """Words of the command that are written files are those files, with or without a dot before them."""
    text = with_steps(*WRITES, "{step: submit}", command="[./install.sh, other.sh]")
    (submit,) = (step for step in parse_jobspec(text).steps if isinstance(step, Submit))
    assert submit.work.argv == (RunFile("install.sh"), "other.sh")


def test_a_task_may_be_a_command_alone() -> None:
    """Without steps, the command is submitted."""
    text = STEPS[: STEPS.index("  scripts:")] + "  command: [hostname]\n"
    (submit,) = parse_jobspec(text).steps
    assert isinstance(submit, Submit)
    assert submit.work.argv == ("hostname",)


def test_batch_auth_and_steps_of_ones_own() -> None:
    """All kinds of steps are read; those that nobody knows here wait for a transformer that does."""
    graph = parse_jobspec(
        with_steps(
            *WRITES,
            "{step: auth, secret: hub, variable: HUB_TOKEN, export: TOKEN}",
            "{step: auth, secret: vault, command: [vault, read]}",
            "{step: auth, secret: key, file: ~/.key}",
            "{step: notify, who: me, how: {by: mail}}",
            "{step: batch, filename: job.sh, watch: true}",
        )
    )
    *_, hub, vault, key, notify, batch = graph.steps
    assert isinstance(hub, Auth)
    assert (hub.id, hub.secret, hub.variable, hub.export) == (
        "auth-hub",
        "hub",
        "HUB_TOKEN",
        "TOKEN",
    )
    assert isinstance(vault, Auth)
    assert vault.command == ("vault", "read")
    assert isinstance(key, Auth)
    assert key.file == "~/.key"
    assert isinstance(notify, Custom)
    assert (notify.step, notify.options) == ("notify", {"who": "me", "how": {"by": "mail"}})
    assert isinstance(batch, Batch)
    assert (batch.filename, batch.wait, batch.watch) == ("job.sh", True, True)


def test_what_the_place_must_have_is_kept() -> None:
    """`task.resources` are requirements, for transformers to look up or refuse."""
    text = STEPS.replace(
        "  scripts:", "  resources: {io.archspec: {cpu.target: amd64}}\n  scripts:"
    )
    submit = parse_jobspec(text).steps[2]
    assert isinstance(submit, Submit)
    wanted = {"name": "io.archspec", "field": "cpu.target", "value": "amd64"}
    assert submit.work.attributes == {"requires": [wanted]}


def test_system_attributes_are_those_of_flux() -> None:
    """Seconds, variables, folders and where output goes."""
    more = """\
attributes:
  user: {note: x}
  system:
    duration: 90
    cwd: /data
    queue: debug
    environment: {A: b, C: null}
    job: {name: demo}
    shell: {options: {verbose: 1, output: {stdout: {type: file, path: out.txt}}}}
"""
    graph = parse_jobspec(STEPS + more)
    work = graph.steps[2].work if isinstance(graph.steps[2], Submit) else None
    assert work is not None
    assert graph.name == "demo"
    assert (work.duration_s, work.cwd, work.queue, work.output) == (
        90.0,
        "/data",
        "debug",
        "out.txt",
    )
    assert work.environment == {"A": "b", "C": None}
    assert work.attributes == {"user": {"note": "x"}, "shell.options": {"verbose": 1}}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["{step: write, filename: gone.sh}"],
            "job.yaml:11:29: task.transform[0].filename: no script is named 'gone.sh'",
        ),
        (["{step: write}"], "task.transform[0].filename: is missing"),
        (["{filename: job.sh}"], "task.transform[0].step: is missing"),
        (["job.sh"], "task.transform[0]: 'job.sh' is not a mapping"),
        (["{step: stage, filename: job.sh}"], "no step before this one writes 'job.sh'"),
        (["{step: write, filename: job.sh, mode: 7}"], "task.transform[0].mode: unknown key"),
        (["{step: write, filename: job.sh, executable: 1}"], "1 is not true or false"),
        ([*WRITES, "{step: submit}"], "task.transform[2]: has nothing to submit"),
        ([*WRITES, "{step: batch}"], "task.transform[2].filename: is missing"),
        ([*WRITES, "{step: auth, secret: x}"], "says not exactly once where the secret comes from"),
        ([*WRITES, "{step: auth, secret: x, variable: A, file: b}"], "says not exactly once"),
        ([*WRITES, "{step: auth, secret: ../x, variable: A}"], "'../x' is no plain file name"),
        ([*WRITES, "{step: auth, secret: x, variable: A, export: a-b}"], "export"),
        (["{step: write, filename: job.sh}"], "no step writes the script 'install.sh'"),
    ],
)
def test_wrong_steps_are_refused_with_their_place(lines: list[str], said: str) -> None:
    """What a step lacks or has too much is named, with the line it stands in."""
    assert said in wrong(with_steps(*lines))


def test_a_command_that_nothing_runs_is_refused() -> None:
    """Nothing that is said is left out without a word."""
    text = with_steps(*WRITES, "{step: submit, filename: job.sh}", command="[hostname]")
    assert "task.command: no step runs this command" in wrong(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("slot: hello", "slot: other", "task.slot: no slot is labelled 'other'"),
        ("version: 1", "version: 2", "version: 2 is not 1"),
        ("per_slot: 1", "per_slot: 0", "task.count.per_slot: 0 is too small"),
        ("{per_slot: 1}", "{per_slot: 1, total: 2}", "needs either per_slot or total"),
        ("count: 4, with", "count: 2-4, with", "'2-4' is not a whole number"),
        ("name: job.sh", "name: install.sh", "a second script named 'install.sh'"),
        ("name: job.sh", "name: a/b", "'a/b' is no plain file name"),
        ("{type: core, count: 4}", "{type: disk, count: 4}", "'disk' is not one of: core, gpu"),
        (", label: hello", "", "label: is missing"),
        ("task:", "tusk: 1\ntask:", "tusk: unknown key"),
    ],
)
def test_wrong_files_are_refused(old: str, new: str, said: str) -> None:
    """Every key and count is checked."""
    assert said in wrong(STEPS.replace(old, new, 1))


def test_files_belong_to_scripts_here() -> None:
    """Flux's files are not part of this language."""
    text = STEPS + "attributes: {system: {files: {}}}\n"
    assert "put files under task.scripts" in wrong(text)


def test_the_example_is_one() -> None:
    """The example file is read, and has the steps of the document."""
    kinds = [step.kind for step in load_jobspec(EXAMPLES / "steps.yaml").steps]
    assert kinds == ["write", "stage", "submit"] * 2

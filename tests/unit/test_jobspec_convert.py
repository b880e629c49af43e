"""Writing graphs in a dialect: nothing is dropped, and what cannot be said is named."""

from __future__ import annotations

import pytest

from milkweed.errors import JobspecError
from milkweed.jobspec import DIALECTS, load_jobspec, parse_jobspec, render_jobspec
from milkweed.jobspec.graph import (
    Auth,
    Batch,
    Custom,
    Graph,
    Group,
    Need,
    RunFile,
    Shape,
    Stage,
    Step,
    Submit,
    Work,
    Write,
)
from milkweed.jobspec.yaml_text import render_yaml
from unit.jobspecs import EXAMPLES, FLUX, STEPS, TASKS, graph, job


def lacking(steps: Graph, dialect: str) -> str:
    """What a dialect says it cannot express."""
    with pytest.raises(JobspecError) as caught:
        render_jobspec(steps, dialect)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [STEPS, TASKS, FLUX, *(path.read_text("utf-8") for path in sorted(EXAMPLES.iterdir()))],
)
def test_what_is_written_means_the_same(text: str) -> None:
    """A file that is read and written is read as the same graph."""
    found = parse_jobspec(text)
    assert parse_jobspec(render_jobspec(found, found.dialect)) == found


def test_one_job_goes_from_any_dialect_to_any_other() -> None:
    """A plain job can be said in all of them, with the same shape and command."""
    work = Work(
        argv=("echo", "a b"),
        shape=Shape(nodes=2, slots=2, cores_per_slot=4),
        duration_s=90.0,
        cwd="/x",
    )
    one = graph(Submit(id="job", work=work))
    for dialect in DIALECTS:
        (found,) = parse_jobspec(render_jobspec(one, dialect)).steps
        assert isinstance(found, Submit)
        assert found.work == work, dialect


def test_files_travel_from_scripts_to_flux() -> None:
    """A script that is written and submitted becomes a file of Flux's jobspec."""
    text = (
        STEPS[: STEPS.index("  - {name: job.sh")]
        + STEPS[STEPS.index("  transform:") : STEPS.index("  - {step: stage")]
    )
    made = render_jobspec(
        parse_jobspec(text + "  - {step: submit, filename: install.sh}\n"), "flux-v1"
    )
    write, submit = parse_jobspec(made).steps
    assert isinstance(write, Write)
    assert isinstance(submit, Submit)
    assert submit.work.argv == ("/bin/bash", RunFile("install.sh"))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (job("a", replicas=2), "the 2 replicas of 'a'"),
        (job("a", local=True), "'a', which runs without a job of its own"),
        (job("a", wait=True), "`wait` and `watch` of 'a'"),
        (Stage(id="a", path="/x"), "the step 'a', which is a stage"),
        (Group(id="a", steps=(job("a/b"),), work=Work(argv=())), "the step 'a', which is a group"),
        (
            Submit(id="a", work=Work(argv=("x",), shape=Shape(tasks_per_slot=2))),
            "2 tasks in a slot",
        ),
        (Submit(id="a", work=Work(argv=("x",), shape=Shape(tasks_total=2))), "2 tasks in 1 slots"),
        (
            Submit(id="a", work=Work(argv=("x",), attributes={"requires": []})),
            "the attribute 'requires'",
        ),
    ],
)
def test_what_flux_cannot_say(step: Step, said: str) -> None:
    """Flux's jobspec is one job and its files."""
    assert f"flux-v1 cannot express {said}" in lacking(graph(step), "flux-v1")


def test_flux_has_one_job() -> None:
    """Two jobs are two jobspecs."""
    assert "2 jobs: it has exactly one" in lacking(graph(job("a"), job("b")), "flux-v1")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((job("a"), job("b")), "that 'b' needs nothing"),
        ((job("a"), job("b", Need("a", "afterany"))), "that 'b' needs afterany:a"),
        ((job("a", replicas=3),), "the 3 replicas of 'a'"),
        ((job("a", local=True),), "'a', which runs without a job of its own"),
        ((Stage(id="a", path="/x"),), "that 'a' stages '/x', which is no script"),
        ((Group(id="g", steps=(job("g/x"),), work=Work(argv=())),), "the group 'g'"),
        (
            (job("a"), job("b", Need("a", "submitted"), argv=("other",))),
            "more than one command: one task has one",
        ),
        (
            (
                job("a"),
                Submit(
                    id="b", needs=(Need("a", "submitted"),), work=Work(argv=("true",), cwd="/x")
                ),
            ),
            "that 'b' has resources or attributes of its own",
        ),
        ((Write(id="w", filename="x", content=b"\xff"),), "the file 'x', which is not text"),
        (
            (
                Write(id="w", filename="x", content=b"1"),
                Write(id="v", filename="x", content=b"2", needs=(Need("w"),)),
            ),
            "two contents of the file 'x'",
        ),
        (
            (
                Write(id="w", filename="x", content=b""),
                Batch(id="b", filename="x", work=Work(argv=("sh",)), needs=(Need("w"),)),
            ),
            "the command of the batch step 'b'",
        ),
        (
            (Submit(id="a", work=Work(argv=("x",), attributes={"schedule": False})),),
            "the attribute 'schedule'",
        ),
        (
            (
                Submit(
                    id="a",
                    work=Work(argv=("x",), attributes={"requires": [{"name": "n", "match": "m"}]}),
                ),
            ),
            "a requirement with other keys",
        ),
    ],
)
def test_what_steps_cannot_say(steps: tuple[Step, ...], said: str) -> None:
    """The language of steps is a chain around one task."""
    assert f"compspec-0.0.1 cannot express {said}" in lacking(graph(*steps), "compspec-0.0.1")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((job("a"), job("b", Need("a", "afterany"))), "that 'b' needs afterany:a"),
        ((job("a", wait=True),), "`wait` of 'a' without `watch`"),
        ((Write(id="w", filename="x", content=b""),), "the step 'w', which is a write"),
        ((job("a", local=True), job("b")), "that 'b' does not wait for 'a', which runs in place"),
        ((Submit(id="a", work=Work(argv=("x",), queue="q")),), "'queue' of 'a'"),
        ((Submit(id="a", work=Work(argv=("x",), attributes={"user": {}})),), "'user' of 'a'"),
        (
            (Submit(id="a", work=Work(argv=("x",), shape=Shape(tasks_per_slot=2))),),
            "2 tasks in 1 slots",
        ),
        (
            (Submit(id="a", work=Work(argv=("x",), shape=Shape(slots=2, exclusive=True))),),
            "exclusive nodes together with what is used of them",
        ),
    ],
)
def test_what_tasks_cannot_say(steps: tuple[Step, ...], said: str) -> None:
    """The language of tasks knows neither files nor queues, and one kind of need."""
    assert f"compspec-0.1 cannot express {said}" in lacking(graph(*steps), "compspec-0.1")


def test_all_that_lacks_is_named() -> None:
    """One look at the error is enough."""
    text = lacking(parse_jobspec(STEPS), "compspec-0.1")
    assert text.count("cannot express") > 4
    assert "nothing was dropped" in text


def test_secrets_and_steps_of_ones_own_are_written() -> None:
    """Every kind of step comes back as it was."""
    steps = (
        Auth(id="auth-s", secret="s", command=("vault", "read it"), export="TOKEN"),
        Custom(id="notify-1", step="notify", options={"who": "me"}, needs=(Need("auth-s"),)),
    )
    found = graph(*steps)
    assert (
        parse_jobspec(render_jobspec(found, "compspec-0.0.1"), dialect="compspec-0.0.1").steps
        == steps
    )
    renamed = parse_jobspec(render_jobspec(found, "compspec-0.1"))
    assert renamed.steps == steps


def test_an_unknown_dialect_is_refused() -> None:
    """The known ones are told."""
    with pytest.raises(JobspecError, match="no dialect is named 'pbs'"):
        render_jobspec(graph(job("a")), "pbs")


def test_scripts_stay_readable() -> None:
    """Texts of several lines stand below their key; words that YAML would misread are quoted."""
    made = render_yaml(
        {
            "script": "#!/bin/sh\n\necho 'a: b'\n",
            "odd": " x\n",
            "words": ["a", "no", "1", "-c", "b c", ""],
            "n": 1.5,
        }
    )
    assert made == (
        "script: |\n  #!/bin/sh\n\n  echo 'a: b'\n"
        'odd: " x\\n"\n'
        'words: [a, "no", "1", "-c", "b c", ""]\n'
        '"n": 1.5\n'
    )


def test_the_group_example_keeps_its_place() -> None:
    """A group that stands between tasks is written as a group, with a task that stands for it."""
    made = render_jobspec(load_jobspec(EXAMPLES / "tasks.yaml"), "compspec-0.1")
    assert "- group: train\n  depends_on: [prepare]" in made

"""Transformers: steps are registered, everything is checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.errors import DeadlineError, JobspecError, SpecError, UnsupportedError
from milkweed.jobspec import StepBase, TransformerBase, parse_jobspec, steps
from milkweed.jobspec.graph import Auth, Custom, Group, Need, Shape, Stage, Submit, Work, Write
from milkweed.jobspec.plan import Action
from milkweed.jobspec.progress import DONE, Entry, State, StepStatus, ended
from milkweed.jobspec.runs import create_run, load_runs
from milkweed.jobspec.steps import Handle, Scene, can_be_asked
from milkweed.jobspec.tail import Tail
from milkweed.testing import FakeClock
from unit.jobspecs import STEPS, Talker, graph, job


def make_transformer() -> type[TransformerBase]:
    """A transformer as the document writes one."""

    class Transformer(TransformerBase):
        """A class with a name, a description and steps."""

        name = "mine"
        description = "made in a test"

    return Transformer


class Notify(StepBase):
    """A step of one's own."""

    name = "notify"
    required = ("who",)
    optional = ("how",)

    def run(self, stage: Path) -> None:
        """Leave a note."""
        (stage / "told").write_text(self.options["who"])


def refused(transformer: TransformerBase, *found: Submit | Custom | Group | Stage) -> str:
    with pytest.raises(JobspecError) as caught:
        transformer.render(graph(*found))
    assert load_runs() == []
    return str(caught.value)


def test_steps_are_registered_as_the_document_says() -> None:
    """Shared steps, one's own, and the empty one under a name."""
    cls = make_transformer()
    cls.register_step(steps.WriterStep)
    cls.register_step(Notify)
    cls.register_step(steps.EmptyStep, name="stage")
    assert cls.steps == {"write": steps.WriterStep, "notify": Notify, "stage": steps.EmptyStep}


def test_registering_touches_no_other_transformer() -> None:
    """Each class has a table of its own, and begins with what its parent has."""
    cls, other = make_transformer(), make_transformer()
    cls.register_step(Notify)
    assert other.steps == TransformerBase.steps == {}

    class Child(cls):  # type: ignore[valid-type, misc]
        """More of the same."""

    Child.register_step(steps.WriterStep)
    assert (set(Child.steps), set(cls.steps)) == ({"notify", "write"}, {"notify"})


def test_an_unknown_step_is_an_error_before_anything_runs() -> None:
    """It names the place, the step and those that are known."""
    text = STEPS.replace("{step: submit, filename: job.sh}", "{step: teleport, filename: job.sh}")
    with pytest.raises(JobspecError) as caught:
        Talker().render(parse_jobspec(text, "job.yaml"))
    assert str(caught.value) == (
        "job.yaml:16:5: step 'teleport-1': the transformer 'talker' knows no 'teleport' step\n"
        "  do:   it knows: auth, stage, submit, write"
    )


def test_groups_need_a_transformer_that_has_them() -> None:
    """A group is a step like any other."""
    inner = Group(id="g", steps=(job("g/x"),), work=Work(argv=()))
    assert "knows no 'group' step" in refused(Talker(), inner)


def test_what_is_not_honoured_is_refused() -> None:
    """Nothing that was said of work is dropped: all of it is named."""
    work = Work(argv=("x",), shape=Shape(gpus_per_slot=1), queue="q", attributes={"user": {}})
    text = refused(Talker(), Submit(id="a", work=work))
    for name in ("gpus", "queue", "user"):
        assert f"the transformer 'talker' does not honour {name!r}" in text
    assert "talker honours: nothing of the kind" in text


def test_a_job_that_nobody_can_ask_about_is_not_waited_for() -> None:
    """A transformer that only submits says so before it does."""

    class Submitter(StepBase):
        """Submits and knows no more."""

        name = "submit"

        def run(self, stage: Path) -> str:
            return "7"

    cls = make_transformer()
    cls.register_step(Submitter)
    assert "'mine' cannot wait for a 'submit' step" in refused(cls(), job("a", wait=True))
    run = cls().run(cls().render(graph(job("a"))))
    assert run.progress().entries["a"].handle == {"id": "7"}
    assert not can_be_asked(Submitter)


def test_options_of_ones_own_steps_are_checked() -> None:
    """What is required must be there, and what is not known must not."""
    cls = make_transformer()
    cls.register_step(Notify)
    assert "who: is missing" in refused(cls(), Custom(id="n", step="notify"))
    text = refused(cls(), Custom(id="n", step="notify", options={"who": "me", "hwo": "mail"}))
    assert "hwo: unknown key" in text
    run = cls().run(cls().render(graph(Custom(id="n", step="notify", options={"who": "me"}))))
    assert (run.files / "told").read_text() == "me"
    assert run.progress().exit_code() == 0


def test_all_steps_are_looked_at() -> None:
    """One error has what is wrong with each of them."""

    class Picky(StepBase):
        """Refuses everything."""

        name = "submit"

        @classmethod
        def validate(cls, step: object, scene: Scene) -> None:
            raise SpecError("no", hint="never")

        def run(self, stage: Path) -> None:
            """Never called."""

    cls = make_transformer()
    cls.register_step(Picky)
    text = refused(cls(), job("a"), job("b"))
    assert text == "step 'a': no\nstep 'b': no\n  do:   never"


def test_rendering_does_nothing() -> None:
    """A plan leaves no trace on disk, however often it is made."""
    Talker().render(parse_jobspec(STEPS))
    assert load_runs() == []


def test_the_rendered_value_is_the_one_that_is_run() -> None:
    """What a step does comes from its action alone."""
    talker = Talker()
    plan = talker.render(graph(Write(id="w", filename="x", content=b"one")))
    run = talker.run(plan)
    assert (run.files / "x").read_bytes() == b"one"
    assert run.plan is plan


def test_a_step_sees_what_was_prepared_for_it() -> None:
    """Files, secrets and the groups around it, and whether it runs in the run's folder."""
    write = Write(id="w", filename="x", content=b"")
    auth = Auth(id="k", secret="t", variable="T", needs=(Need("w"),))
    outer = Group(id="g", steps=(job("g/x"),), work=Work(argv=()), needs=(Need("k"),))
    found = graph(write, auth, outer, job("alone"))
    scene = Talker()._scene(found, "")
    inside = outer.steps[0]
    assert scene.files(inside) == {"x": write}
    assert scene.secrets(inside) == [auth]
    assert scene.around(inside) == [outer]
    assert (scene.has_folder(inside), scene.has_folder(job("alone"))) == (True, False)


def test_what_a_step_lacks_has_words() -> None:
    """A class without run, poll or cancel says so."""
    run = create_run(Talker().render(graph(job("a"))))
    step = StepBase(Action(id="a", kind="x"), run, {}, Talker())
    with pytest.raises(UnsupportedError, match=r"has no run\(\)"):
        step.run(run.files)
    for ask in (step.poll, step.cancel):
        with pytest.raises(UnsupportedError):
            ask({})
    with pytest.raises(UnsupportedError, match="nobody can tell whether"):
        step.find()
    assert list(step.logs({}, follow=False)) == []


def test_status_asks_about_what_runs_on_alone() -> None:
    """Without a driver, each submitted step is looked at once, and looking changes no record."""
    talker = Talker()
    run = talker.run(talker.render(graph(job("a"), job("b"))))
    talker.world.states = {"a": StepStatus(State.RUNNING), "b": ended(3)}
    progress = talker.status(run)
    assert progress.entries["a"].status.state is State.RUNNING
    assert progress.exit_code() == 3
    assert run.progress().entries["b"].status.state is State.PENDING


def test_status_says_when_nobody_carries_on() -> None:
    """Steps that wait for somebody who is gone are told as such."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    assert talker.status(run).entries["a"].status.reason == "nobody carries this run on"
    with run.hold():
        assert talker.status(run).entries["a"].status.reason == ""


def test_status_finds_what_was_about_to_be_submitted() -> None:
    """A crash between intent and record hides nothing."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    run.journal.write("intent", id="a")
    talker.world.marked[run.plan.mark("a")] = {"id": "job-a"}
    talker.world.states["a"] = DONE
    assert talker.status(run).over


def test_who_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while looking is not an end."""
    talker = Talker()
    run = talker.run(talker.render(graph(job("a"))))

    class Silent(StepBase):
        """Never answers."""

        name = "submit"

    talker.steps = {**talker.steps, "submit": Silent}  # type: ignore[misc]
    assert talker.status(run).entries["a"].status.state is State.UNKNOWN


def test_waiting_looks_until_it_is_over(clock: FakeClock) -> None:
    """The exit code is the run's; time passes only between looks."""
    talker = Talker()
    run = talker.run(talker.render(graph(job("a"))))

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock() > 5:
            talker.world.states["a"] = ended(7)

    assert talker.wait(run, sleep=sleep, clock=clock) == 7


def test_waiting_has_a_deadline(clock: FakeClock) -> None:
    """When it passes nothing is cancelled."""
    talker = Talker()
    run = talker.run(talker.render(graph(job("a"))))
    with pytest.raises(DeadlineError, match="is not over after 3 s"):
        talker.wait(run, 3, sleep=clock.sleep, clock=clock)
    assert talker.world.cancelled == []


def test_nobody_waits_for_a_run_without_a_driver(clock: FakeClock) -> None:
    """When nothing runs and nobody would start the rest, waiting ends with a failure."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    assert talker.wait(run, sleep=clock.sleep, clock=clock) == 1


def test_logs_come_from_the_steps() -> None:
    """Each submitted step tells its own; the others are silent."""

    class Chatty(StepBase):
        """Has a log."""

        name = "submit"

        def run(self, stage: Path) -> Handle:
            return {"id": "1"}

        def poll(self, handle: Handle) -> StepStatus:
            return DONE

        def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
            yield self.action.id, f"line of {handle['id']}"

    cls = make_transformer()
    cls.register_step(Chatty)
    cls.register_step(Notify)
    transformer = cls()
    notify = Custom(id="n", step="notify", options={"who": "me"})
    run = transformer.run(transformer.render(graph(job("a"), notify)))
    assert list(transformer.logs(run)) == [("a", "line of 1")]


def test_entries_know_whether_they_were_handed_over() -> None:
    """Only what waits has still to be started."""
    assert not Entry().handed_over
    assert Entry(StepStatus(State.UNKNOWN)).handed_over


def test_lines_are_shown_whole(tmp_path: Path) -> None:
    """Half a line waits for its other half, or for the end of its file."""
    shown: list[tuple[str, str]] = []
    tail = Tail(lambda label, line: shown.append((label, line)))
    log = tmp_path / "log"
    tail.add(str(log), "a")
    tail.pump()
    log.write_bytes(b"one\ntw")
    tail.pump()
    assert shown == [("a", "one")]
    log.write_bytes(b"one\ntwo\nthr\xff")
    tail.pump()
    tail.close(str(log))
    tail.close(str(log))
    assert shown == [("a", "one"), ("a", "two"), ("a", "thr\ufffd")]
    assert not tail.is_busy


def test_nothing_is_read_when_nobody_looks(tmp_path: Path) -> None:
    """Without somebody to show it to, no file is followed."""
    tail = Tail(None)
    tail.add(str(tmp_path / "log"), "a")
    assert not tail.is_busy


def test_a_step_class_without_run_is_refused_before_anything_runs() -> None:
    """Whoever writes a transformer hears of it at the first file, not in the middle of a run."""

    class Idle(StepBase):
        name = "submit"

    class Half(TransformerBase):
        name = "half"

    Half.register_step(Idle)
    with pytest.raises(JobspecError, match=r"the class for 'submit' steps has no run\(\)"):
        Half().render(graph(job("a")))
    assert not list(load_runs())

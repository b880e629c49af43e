"""`plan` and `apply`: what is shown is what is done, and nothing happens without a word."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeScheduler
from milkweed.cli.app import app
from milkweed.cli.commands import planning
from milkweed.job import SpecJob, base
from milkweed.job.waiting import wait_until
from milkweed.jobfile import load_jobfile

pytestmark = pytest.mark.usefixtures("folder")


def milkweed(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed", input=answer)


def declare(hosts: int = 2, *, more: str = "") -> None:
    Path("milkweed.yaml").write_text(
        f"name: demo\non: fake\nmeshes: {{workers: {hosts}}}\n{more}", encoding="utf-8"
    )


def pause_by(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], object]) -> None:
    """Do something else while a command waits."""
    monkeypatch.setattr(base, "wait_until", functools.partial(wait_until, sleep=pause))


@pytest.fixture(autouse=True)
def _no_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    pause_by(monkeypatch, lambda _seconds: None)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who can be asked."""
    monkeypatch.setattr(planning, "_can_ask", lambda: True)


def test_plan_shows_and_does_nothing(world: FakeScheduler) -> None:
    """`plan` tells what would be done and why, and asks the scheduler for nothing."""
    declare()
    done = milkweed("plan")
    assert done.stdout == (
        "create: job 'demo' on fake (workers=2)\n  because there is no allocation\n"
    )
    assert world.allocations == {}
    assert not Path(".milkweed").exists()


def test_plan_as_json(world: FakeScheduler) -> None:
    """`plan --json` is one JSON document with the same content."""
    declare()
    data = json.loads(milkweed("plan", "--json").stdout)
    assert (data["action"], data["meshes"], data["approved"]) == ("create", {"workers": 2}, True)


def test_a_wrong_job_file_is_shown_in_place(world: FakeScheduler) -> None:
    """A mistake in the job file is shown with its line, and the exit code is 1."""
    Path("milkweed.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 0}\n")
    done = milkweed("plan")
    assert done.exit_code == 1
    assert done.stderr.startswith("milkweed: milkweed.yaml:3:")


def test_apply_makes_the_hosts(world: FakeScheduler) -> None:
    """`apply` shows the plan, asks for the hosts, and records them beside the job file."""
    declare()
    done = milkweed("apply")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "create: job 'demo' on fake (workers=2)",
        "  because there is no allocation",
        "job 'demo' is running, 2/2 hosts ready",
    ]
    assert len(world.alive) == 1
    assert Path(".milkweed/demo.json").is_file()


def test_apply_twice_is_once(world: FakeScheduler) -> None:
    """The second `apply` finds the first one's hosts."""
    declare()
    milkweed("apply")
    assert milkweed("apply").stdout.startswith("reuse: job 'demo'")
    assert len(world.allocations) == 1


def test_apply_as_json(world: FakeScheduler) -> None:
    """`apply --json` prints the plan and the result as one document."""
    declare()
    data = json.loads(milkweed("apply", "--json").stdout)
    assert data["plan"]["action"] == "create"
    assert data["status"] == "running"
    assert [host["host"] for host in data["hosts"]] == ["workers/0", "workers/1"]
    assert data["apply_id"] in world.allocations


def test_apply_waits_through_the_queue(world: FakeScheduler) -> None:
    """`apply` returns when the hosts are there, however long they were queued."""
    world.queue_polls = 2
    declare()
    assert "running, 2/2 hosts ready" in milkweed("apply").stdout


def test_apply_can_leave_at_once(world: FakeScheduler) -> None:
    """With --no-wait the queue is left to itself."""
    world.queue_polls = 10**9
    declare()
    done = milkweed("apply", "--no-wait")
    assert done.exit_code == 0
    assert "job 'demo' is pending" in done.stdout


def interrupt(_seconds: float) -> None:
    """A person presses Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("cancels", [True, False])
def test_ctrl_c_while_the_job_is_in_the_queue_is_a_persons_word(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, *, cancels: bool
) -> None:
    """As in any program that waits: whether it is kept or cancelled, the person decides."""
    declare()
    world.queue_polls = 1000
    words: list[str] = []
    monkeypatch.setattr(base, "should_cancel", lambda word, *_, **__: words.append(word) or cancels)
    pause_by(monkeypatch, interrupt)
    assert milkweed("apply").exit_code == 130
    assert (words, len(world.alive)) == (["ask"], 0 if cancels else 1)


def test_ctrl_c_leaves_the_job_where_nobody_can_be_asked(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text says how to go on waiting, and how to end it."""
    declare()
    world.queue_polls = 1000
    pause_by(monkeypatch, interrupt)
    done = milkweed("apply")
    assert (done.exit_code, len(world.alive)) == (130, 1)
    assert "it stays, on record in" in done.stderr
    assert "`milkweed kill demo`" in done.stderr


def test_a_timeout_cancels_nothing(world: FakeScheduler) -> None:
    """When the time to wait is over, the command fails and the allocation stays."""
    world.queue_polls = 10**9
    declare()
    done = milkweed("apply", "--timeout", "0.001s")
    assert done.exit_code == 1
    assert "nothing was cancelled" in done.stderr
    assert len(world.alive) == 1


def test_a_timeout_that_is_no_time_starts_nothing(world: FakeScheduler) -> None:
    """A wrong --timeout is refused before anything is asked for."""
    declare()
    done = milkweed("apply", "--timeout", "soon")
    assert (done.exit_code, world.allocations) == (1, {})
    assert "--timeout: 'soon' is not a duration" in done.stderr


def test_a_change_needs_a_word(world: FakeScheduler) -> None:
    """Where nobody can be asked, a changed declaration shows the change and replaces nothing."""
    declare(2)
    milkweed("apply")
    declare(3)
    done = milkweed("apply")
    assert done.exit_code == 1
    assert "~ meshes.workers.hosts: 2 → 3" in done.stderr
    assert "--on-change replace" in done.stderr
    assert (done.stdout, len(world.allocations)) == ("", 1)


def test_a_change_needs_a_word_in_json_too(world: FakeScheduler) -> None:
    """With --json the change is told on stderr only, and nobody is asked."""
    declare(2)
    milkweed("apply")
    declare(3)
    done = milkweed("apply", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "2 → 3" in done.stderr


@pytest.mark.parametrize(("word", "alive"), [("replace", 1), ("new", 2)])
def test_the_word_can_be_given(world: FakeScheduler, word: str, alive: int) -> None:
    """--on-change replaces the allocation, or keeps it beside a new one."""
    declare(2)
    milkweed("apply")
    declare(3)
    done = milkweed("apply", "--on-change", word)
    assert done.exit_code == 0, done.output
    assert (len(world.allocations), len(world.alive)) == (2, alive)


def test_the_job_file_can_give_the_word(world: FakeScheduler) -> None:
    """`on_change` of the job file is heard, and an option wins over it."""
    declare(2)
    milkweed("apply")
    declare(3, more="on_change: replace\n")
    assert milkweed("apply", "--on-change", "ask").exit_code == 1
    assert milkweed("apply").exit_code == 0
    assert len(world.alive) == 1


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("word", "alive"), [("replace", 1), ("new", 2)])
def test_a_person_is_asked(world: FakeScheduler, word: str, alive: int) -> None:
    """On a terminal the person who types decides, and the plan that follows is shown."""
    declare(2)
    milkweed("apply")
    declare(3)
    done = milkweed("apply", answer=f"{word}\n")
    assert done.exit_code == 0, done.output
    assert "needs your word" not in done.stdout
    assert len(world.alive) == alive


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer", ["\n", "stop\n", "yes\n"])
def test_any_other_answer_does_nothing(world: FakeScheduler, answer: str) -> None:
    """Only a clear word ends an allocation."""
    declare(2)
    milkweed("apply")
    before = world.alive
    declare(3)
    done = milkweed("apply", answer=answer)
    assert done.exit_code == 1
    assert "nothing was done" in done.stderr
    assert world.alive == before


def test_silence_changes_nothing(world: FakeScheduler) -> None:
    """While the scheduler does not answer, `plan` says so and `apply` does nothing."""
    declare()
    milkweed("apply")
    before = Path(".milkweed/demo.json").read_bytes()
    world.go_silent(100)
    assert milkweed("plan").stdout.startswith("nothing: job 'demo'")
    done = milkweed("apply")
    assert done.exit_code == 1
    assert "nothing was changed" in done.stderr
    assert Path(".milkweed/demo.json").read_bytes() == before


def test_what_was_not_shown_is_not_done(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another client was faster, the command shows the new plan and does nothing."""
    declare()
    opened = SpecJob(load_jobfile("milkweed.yaml").spec)
    shown = opened.plan(".milkweed/demo.json")
    milkweed("apply")
    monkeypatch.setattr(planning, "approve", lambda *_args, **_kwargs: shown)
    result = milkweed("apply")
    assert result.exit_code == 1
    assert "things changed after the plan was shown, so nothing was done" in result.stderr


def test_a_recorded_job_is_applied_again(world: FakeScheduler) -> None:
    """A job whose allocation has ended is made again from its record alone."""
    declare()
    milkweed("apply")
    world.end(world.alive[0])
    Path("milkweed.yaml").unlink()
    done = milkweed("apply", "demo")
    assert done.exit_code == 0, done.output
    assert len(world.alive) == 1


def test_a_lost_record_cannot_be_applied(world: FakeScheduler) -> None:
    """Without a record and a job file nobody knows what was declared."""
    declare()
    milkweed("apply")
    Path(".milkweed/demo.json").unlink()
    done = milkweed("apply", "demo")
    assert done.exit_code == 1
    assert "name its job file" in done.stderr


def test_a_record_takes_the_word(world: FakeScheduler) -> None:
    """--on-change is heard for recorded jobs, too."""
    declare()
    milkweed("apply")
    assert milkweed("plan", "demo", "--on-change", "new").stdout.startswith("nothing")


def test_a_failed_host_ends_the_wait(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that fails while it is waited for ends the wait, with its reason and where to look."""
    declare()

    def fail(_seconds: float) -> None:
        world.fail_host(world.alive[0], "workers/1", "it died\nno such module")

    world.queue_polls = 1
    pause_by(monkeypatch, fail)
    done = milkweed("apply")
    assert done.exit_code == 1
    assert "host workers/1" in done.stderr
    assert "no such module" in done.stderr
    assert "milkweed status --why" in done.stderr


def test_an_allocation_that_ends_ends_the_wait(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation that ends while hosts are waited for is an error with the scheduler's reason."""
    declare()
    world.queue_polls = 10
    pause_by(monkeypatch, lambda _seconds: world.end(world.alive[0], "no money left"))
    done = milkweed("apply")
    assert done.exit_code == 1
    assert "no money left" in done.stderr


def test_capabilities_decide_whether_a_word_is_needed(world: FakeScheduler) -> None:
    """What took no queue to get is replaced without a word."""
    world.capabilities = Capabilities(queued=False)
    declare(2)
    milkweed("apply")
    declare(3)
    done = milkweed("apply")
    assert done.exit_code == 0
    assert done.stdout.startswith("replace: job 'demo'")

"""Waiting without a connection, and what Ctrl-C does to a job in the queue."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed.backends import programs
from milkweed.backends.programs import within
from milkweed.bell import bell
from milkweed.errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    SpecError,
    UnreachableError,
)
from milkweed.job.progress import QUIET_S
from milkweed.job.waiting import SLOWEST_POLL_S, insist, kill_after, should_cancel, wait_until
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock

PENDING = Status(liveness=Liveness.PENDING, reason="Priority")
UNKNOWN = Status(liveness=Liveness.UNKNOWN, reason="nobody answered")
ENDED = Status(liveness=Liveness.ENDED, reason="cancelled", exit_code=3)


def running(*states: HostState, reason: str = "") -> Status:
    hosts = [
        HostStatus(host=f"w/{rank}", state=state, reason=reason)
        for rank, state in enumerate(states)
    ]
    return Status(liveness=Liveness.RUNNING, hosts=tuple(hosts))


READY = running(HostState.READY, HostState.READY)


def wait(goal: str, clock: FakeClock, *says: Status, timeout_s: float | None = None) -> Status:
    words = list(says)

    def look() -> Status:
        return words.pop(0) if len(words) > 1 else words[0]

    return wait_until(goal, look, name="demo", timeout_s=timeout_s, sleep=clock.sleep, clock=clock)


def test_what_is_reached_needs_no_wait(clock: FakeClock) -> None:
    """One look is enough."""
    assert wait("running", clock, READY) is READY
    assert wait("ended", clock, ENDED) is ENDED
    assert clock.slept == []


def test_running_is_when_every_host_is_ready(clock: FakeClock) -> None:
    """Through the queue, through silence, and while hosts start."""
    starting = running(HostState.READY, HostState.STARTING)
    assert wait("running", clock, PENDING, UNKNOWN, starting, READY) is READY
    assert len(clock.slept) == 3


def test_ended_is_when_it_has_ended(clock: FakeClock) -> None:
    """However it ended, and whatever hosts do meanwhile: a failed host is not the end."""
    failed = running(HostState.FAILED)
    assert wait("ended", clock, PENDING, READY, failed, UNKNOWN, ENDED).exit_code == 3


def test_an_end_is_never_running(clock: FakeClock) -> None:
    """The wait is over, with the scheduler's reason."""
    with pytest.raises(AllocationEndedError) as caught:
        wait("running", clock, PENDING, ENDED)
    assert caught.value.seen == "cancelled"
    assert "makes another" in caught.value.hint


def test_a_host_that_fails_ends_the_wait_for_running(clock: FakeClock) -> None:
    """The first that fails, with its reason; the others need not be waited for."""
    with pytest.raises(HostFailedError, match="host w/1 has failed") as caught:
        wait("running", clock, running(HostState.STARTING, HostState.FAILED, reason="no engine"))
    assert caught.value.seen == "no engine"
    assert "status --why" in caught.value.hint


def test_a_host_that_is_only_not_heard_is_waited_for(clock: FakeClock) -> None:
    """Its scheduler may hear it again."""
    failed = running(HostState.READY, HostState.FAILED)
    silent = replace(failed, hosts=tuple(replace(host, unheard=True) for host in failed.hosts))
    assert wait("running", clock, silent, READY) is READY


def test_tidying_up_has_time_of_its_own() -> None:
    """What is ended after a wait is not cut off by the deadline of that wait."""
    limits: list[float] = []
    with within(time.monotonic() - 1.0):
        kill_after(lambda: limits.append(programs._limit(30.0)), KeyboardInterrupt())
    assert limits == [30.0]


def test_a_wait_has_a_deadline_that_cancels_nothing(clock: FakeClock) -> None:
    """The error says how it stands, and what can be done."""
    with pytest.raises(DeadlineError, match="not running within 5 s") as caught:
        wait("running", clock, PENDING, timeout_s=5.0)
    assert caught.value.seen == "pending (Priority)"
    assert "nothing was cancelled" in caught.value.hint
    assert 5.0 <= clock.now_s - 1000.0 <= 5.0 + SLOWEST_POLL_S


def test_looks_become_seldom(clock: FakeClock) -> None:
    """At first often, for what takes a moment; in the end every two seconds."""
    with pytest.raises(DeadlineError):
        wait("ended", clock, READY, timeout_s=600.0)
    assert clock.slept[0] <= 0.01
    assert clock.slept == sorted(clock.slept)
    assert clock.slept[-1] == SLOWEST_POLL_S
    assert len(clock.slept) < 350


def test_a_long_wait_tells_what_it_waits_for(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing at first, then what the scheduler says."""
    with pytest.raises(DeadlineError):
        wait("running", clock, PENDING, timeout_s=10.0)
    text = capsys.readouterr().err
    assert text.startswith("milkweed: waiting until job 'demo' is running: pending (Priority)")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("goal", ["ready", "", "RUNNING"])
def test_a_goal_that_is_none_is_refused(clock: FakeClock, goal: str) -> None:
    """Before anything is looked at."""
    with pytest.raises(SpecError, match="until: ") as caught:
        wait(goal, clock, READY)
    assert "«running» or «ended»" in caught.value.hint


def test_a_pause_ends_when_a_host_rings() -> None:
    """By default pauses are those of the bell."""
    assert wait_until.__kwdefaults__["sleep"] == bell.wait


# Ctrl-C


def test_a_word_that_was_given_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    """Cancel cancels, keep keeps; either way a person is told, and where to go on."""
    assert should_cancel("cancel", PENDING, name="demo", recorded="job.json")
    assert "job 'demo' is pending (Priority); it is being cancelled" in capsys.readouterr().err
    assert not should_cancel("keep", PENDING, name="demo", recorded="job.json")
    told = capsys.readouterr().err
    assert "it stays, on record in job.json" in told
    assert "`milkweed kill demo`" in told


def test_where_nobody_can_be_asked_the_job_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """Hours in a queue are not thrown away for want of an answer."""
    assert not should_cancel("ask", PENDING, name="demo", recorded="job.json")
    assert "it stays" in capsys.readouterr().err


@pytest.mark.parametrize("status", [UNKNOWN, ENDED])
@pytest.mark.parametrize("word", ["ask", "cancel"])
def test_what_may_not_wait_stays(
    status: Status, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word is for a job in the queue. Where its scheduler is silent it may run, and nobody is asked."""
    with terminal() as keyboard:
        os.write(keyboard, b"n\n")
        assert not should_cancel(word, status, name="demo", recorded="job.json")
        sys.stderr.flush()
        shown = read_until(keyboard, "milkweed kill")
    assert f"job 'demo' is {status.describe()}; it stays, on record in job.json" in shown
    assert "Keep it" not in shown
    assert capsys.readouterr().err == ""


@contextlib.contextmanager
def terminal() -> Generator[int]:
    """Sit at a terminal; this end is where the person types and reads."""
    person, program = pty.openpty()
    with (
        open(os.dup(program), encoding="utf-8") as stdin,
        open(program, "w", encoding="utf-8") as stderr,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stderr", stderr)
        yield person
    os.close(person)


def read_until(keyboard: int, word: str) -> str:
    shown = ""
    while word not in shown:
        shown += os.read(keyboard, 65536).decode()
    return shown


@pytest.mark.parametrize(
    ("answer", "cancels"),
    [
        ("\n", False),
        ("y\n", False),
        ("yes\n", False),
        ("n\n", True),
        ("N\n", True),
        ("no\n", True),
        (" No \n", True),
        ("what?\n", False),
        ("\x04", False),
    ],
)
def test_a_person_is_asked(answer: str, cancels: bool) -> None:
    """On a terminal the person who pressed Ctrl-C decides; only a clear no cancels."""
    with terminal() as keyboard:
        os.write(keyboard, answer.encode())
        assert should_cancel("ask", PENDING, name="demo", recorded="job.json") is cancels
        sys.stderr.flush()
        shown = read_until(keyboard, "cancelled" if cancels else "milkweed kill")
    assert "job 'demo' is pending (Priority)" in shown
    assert "Keep it in the queue? [Y/n]" in shown
    assert ("it is being cancelled" in shown) is cancels


class Impatient:
    """A person who presses Ctrl-C again instead of answering."""

    def isatty(self) -> bool:
        """A person is there."""
        return True

    def readline(self) -> str:
        """No answer, but Ctrl-C."""
        raise KeyboardInterrupt


def test_a_second_interrupt_keeps_the_job() -> None:
    """Whoever presses Ctrl-C again wants to leave, not to lose the place in the queue."""
    with terminal(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", Impatient())
        assert not should_cancel("ask", PENDING, name="demo", recorded="job.json")


def test_output_to_a_file_asks_nobody(tmp_path: Path) -> None:
    """A question that nobody sees is not asked."""
    with (
        terminal(),
        (tmp_path / "log").open("w") as file,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stderr", file)
        assert not should_cancel("ask", PENDING, name="demo", recorded="job.json")
    assert "it stays" in (tmp_path / "log").read_text()


# Where nobody reads


class Gone(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, text: str, /) -> int:
        """Nobody takes it."""
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@contextlib.contextmanager
def mute(how: str) -> Generator[None]:
    """Be a program whose output goes nowhere: its terminal is gone, or it never had one."""
    closed = io.StringIO()
    closed.close()
    file = {"gone": Gone(), "closed": closed, "none": None}[how]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        patch.setattr(sys, "stderr", file)
        yield


@pytest.mark.parametrize("how", ["gone", "closed", "none"])
def test_a_wait_goes_on_though_nobody_can_be_told(clock: FakeClock, how: str) -> None:
    """A reader that has gone ends no wait, and no job that waits in a queue."""
    with mute(how):
        assert wait("running", clock, *[PENDING] * 20, UNKNOWN, READY) is READY
    assert clock.now_s - 1000.0 > QUIET_S


@pytest.mark.parametrize("how", ["gone", "closed", "none"])
@pytest.mark.parametrize(("word", "cancels"), [("cancel", True), ("keep", False), ("ask", False)])
def test_a_word_is_followed_though_nobody_can_be_told(how: str, word: str, cancels: bool) -> None:
    """What was said before holds; where nobody can be asked the job stays."""
    with mute(how):
        assert should_cancel(word, PENDING, name="demo", recorded="job.json") is cancels


# A scheduler that is silent


def ask(
    clock: FakeClock, silent: int, *, patient: bool = True, timeout_s: float | None = None
) -> str:
    left = [UnreachableError("no answer", seen="squeue: timed out")] * silent

    def act() -> str:
        if left:
            raise left.pop()
        return "done"

    return insist(
        act, name="j", patient=patient, timeout_s=timeout_s, sleep=clock.sleep, clock=clock
    )


def test_a_scheduler_that_answers_late_is_waited_for() -> None:
    """Nothing was changed while it was silent, so the same is asked again."""
    clock = FakeClock()
    assert ask(clock, 5) == "done"
    assert clock() > 0


def test_a_silent_scheduler_meets_the_deadline() -> None:
    """The error says whose deadline it was and what the scheduler last said."""
    with pytest.raises(
        DeadlineError, match="'j' did not tell within 9 s what becomes of it"
    ) as caught:
        ask(FakeClock(), 1000, timeout_s=9)
    assert caught.value.seen == "squeue: timed out"


def test_a_silent_scheduler_has_what_is_left_of_a_wait() -> None:
    """What was waited for before counts, too: the deadline is for all of it, and is told as it was said."""
    clock = FakeClock()
    with (
        within(time.monotonic() - 1.0),
        pytest.raises(DeadlineError, match="did not tell within 9 s"),
    ):
        ask(clock, 1000, timeout_s=9)
    assert clock.slept == []


def test_where_nobody_queues_silence_is_an_error_at_once() -> None:
    """Hosts of this machine come back by no waiting."""
    with pytest.raises(UnreachableError):
        ask(FakeClock(), 1, patient=False)

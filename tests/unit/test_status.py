"""What is known about an allocation, and what may follow what."""

from __future__ import annotations

import itertools

import pytest

from milkweed.status import TRANSITIONS, HostState, HostStatus, Liveness, Status, is_legal

READY = HostStatus(host="a/0", state=HostState.READY)
STARTING = HostStatus(host="a/1", state=HostState.STARTING)
FAILED = HostStatus(host="a/2", state=HostState.FAILED, reason="killed", exit_code=-9)


def test_only_what_the_scheduler_says_is_alive() -> None:
    """Not knowing is not being alive, and it is not being dead."""
    assert {live for live in Liveness if live.alive} == {Liveness.PENDING, Liveness.RUNNING}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Liveness, Liveness)))
def test_ended_is_the_only_end(before: Liveness, after: Liveness) -> None:
    """Everything may follow everything, except that nothing follows the end."""
    assert is_legal(before, after) is (before is not Liveness.ENDED or after is Liveness.ENDED)


@pytest.mark.parametrize("first", list(Liveness))
def test_anything_may_come_first(first: Liveness) -> None:
    """Of what was never seen before, anything can be said."""
    assert is_legal(None, first)


def test_every_liveness_has_its_transitions() -> None:
    """No liveness was forgotten."""
    assert set(TRANSITIONS) == set(Liveness)


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        (Status(liveness=Liveness.RUNNING, hosts=(READY,)), True),
        (Status(liveness=Liveness.RUNNING), True),
        (Status(liveness=Liveness.RUNNING, hosts=(READY, STARTING)), False),
        (Status(liveness=Liveness.RUNNING, hosts=(READY, FAILED)), False),
        (Status(liveness=Liveness.PENDING), False),
        (Status(liveness=Liveness.UNKNOWN, hosts=(READY,)), False),
        (Status(liveness=Liveness.ENDED, hosts=(READY,)), False),
    ],
)
def test_ready_means_every_host(status: Status, ready: bool) -> None:
    """An allocation is ready when it runs and every host serves."""
    assert status.ready is ready


def test_failed_hosts_are_named() -> None:
    """The hosts that ended by themselves are told apart."""
    assert Status(liveness=Liveness.RUNNING, hosts=(READY, FAILED)).failed_hosts == (FAILED,)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status(liveness=Liveness.PENDING), "pending"),
        (
            Status(liveness=Liveness.PENDING, reason="Priority", expected_start="12:00"),
            "pending, expected start 12:00 (Priority)",
        ),
        (
            Status(liveness=Liveness.RUNNING, hosts=(READY, STARTING)),
            "running, 1/2 hosts ready",
        ),
        (
            Status(liveness=Liveness.ENDED, reason="its client ended", exit_code=0),
            "ended, exit code 0 (its client ended)",
        ),
    ],
)
def test_a_status_is_one_line(status: Status, text: str) -> None:
    """A person reads liveness, hosts, exit code and reason in one line."""
    assert status.describe() == text

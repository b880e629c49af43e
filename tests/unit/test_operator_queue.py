"""The queue: each mesh once, soon after a change, later after a failure, and nobody twice at a time."""

from __future__ import annotations

import threading

import pytest

from milkweed.operator.queue import (
    DEBOUNCE_S,
    FIRST_BACKOFF_S,
    REST_S,
    SLOWEST_BACKOFF_S,
    WorkQueue,
)
from milkweed.testing import FakeClock

A, B = ("team", "a"), ("team", "b")


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue:
    return WorkQueue(clock)


def test_a_change_is_looked_at_a_moment_later(queue: WorkQueue, clock: FakeClock) -> None:
    """Changes come in bursts: the first one does not start a look at once."""
    queue.add(A)
    assert queue.take() is None
    clock.advance(DEBOUNCE_S)
    assert queue.take() == A


def test_many_changes_are_one_look(queue: WorkQueue, clock: FakeClock) -> None:
    """Five hundred pods that start are few looks, and the first is not put off by the last."""
    for _ in range(10):
        queue.add(A)
        clock.advance(DEBOUNCE_S / 9)
    assert queue.take() == A
    assert queue.take() is None
    assert len(queue) == 0


def test_the_oldest_comes_first(queue: WorkQueue, clock: FakeClock) -> None:
    """Nobody starves."""
    queue.add(B)
    clock.advance(0.01)
    queue.add(A)
    clock.advance(DEBOUNCE_S)
    assert [queue.take(), queue.take()] == [B, A]


def test_one_pair_of_hands_for_a_mesh(queue: WorkQueue, clock: FakeClock) -> None:
    """A mesh that changes while it is looked at is looked at once more, afterwards."""
    queue.add(A, 0)
    assert queue.take() == A
    queue.add(A, 0)
    clock.advance(60)
    assert queue.take() is None
    queue.done(A)
    assert queue.take() is None
    clock.advance(REST_S)
    assert queue.take() == A


def test_other_meshes_do_not_wait(queue: WorkQueue, clock: FakeClock) -> None:
    """One mesh in hand keeps nobody else from being looked at."""
    queue.add(A, 0)
    queue.add(B, 0)
    assert {queue.take(), queue.take()} == {A, B}


def test_what_is_done_is_not_looked_at_again(queue: WorkQueue, clock: FakeClock) -> None:
    """Nothing is due when nothing changed."""
    queue.add(A, 0)
    queue.take()
    queue.done(A)
    clock.advance(10_000)
    assert queue.take() is None
    assert len(queue) == 0


def test_looking_again_after_some_time(queue: WorkQueue, clock: FakeClock) -> None:
    """A mesh that waits for something is looked at now and then."""
    queue.add(A, 0)
    queue.take()
    queue.done(A, again_s=10)
    clock.advance(9.9)
    assert queue.take() is None
    clock.advance(0.1)
    assert queue.take() == A


def test_a_change_comes_before_the_next_look(queue: WorkQueue, clock: FakeClock) -> None:
    """What changes is looked at soon, though a look was planned for later."""
    queue.add(A, 0)
    queue.take()
    queue.done(A, again_s=60)
    clock.advance(1)
    queue.add(A)
    clock.advance(DEBOUNCE_S)
    assert queue.take() == A


def test_the_earlier_of_two_looks_counts(queue: WorkQueue, clock: FakeClock) -> None:
    """A change that came meanwhile is not put off by the next planned look."""
    queue.add(A, 0)
    queue.take()
    queue.add(A)
    queue.done(A, again_s=60)
    clock.advance(REST_S)
    assert queue.take() == A


# Failures


def test_failures_are_tried_again_ever_later(queue: WorkQueue, clock: FakeClock) -> None:
    """Twice as long each time, up to a limit."""
    pauses = []
    queue.add(A, 0)
    for _ in range(14):
        assert queue.take() == A
        pauses.append(queue.failed(A))
        clock.advance(pauses[-1])
    assert pauses[:4] == [FIRST_BACKOFF_S * 2**n for n in range(4)]
    assert pauses[-1] == SLOWEST_BACKOFF_S


def test_a_change_does_not_shorten_the_pause(queue: WorkQueue, clock: FakeClock) -> None:
    """Its own status is a change, too; a mesh that is refused must not go round in circles."""
    queue.add(A, 0)
    for _ in range(5):
        clock.advance(SLOWEST_BACKOFF_S)
        queue.take()
        queue.failed(A)
    queue.add(A)
    clock.advance(DEBOUNCE_S)
    assert queue.take() is None
    assert queue.failures(A) == 5


def test_another_wish_is_looked_at_soon(queue: WorkQueue, clock: FakeClock) -> None:
    """Whoever corrects a mesh that is refused need not wait for minutes."""
    queue.add(A, 0)
    for _ in range(8):
        clock.advance(SLOWEST_BACKOFF_S)
        queue.take()
        queue.failed(A)
    queue.urge(A)
    clock.advance(DEBOUNCE_S)
    assert queue.take() == A
    assert queue.failures(A) == 0


def test_success_ends_a_row_of_failures(queue: WorkQueue, clock: FakeClock) -> None:
    """The next failure is a first one again."""
    queue.add(A, 0)
    queue.take()
    queue.failed(A)
    clock.advance(FIRST_BACKOFF_S)
    queue.take()
    queue.done(A)
    queue.add(A, 0)
    clock.advance(REST_S)
    queue.take()
    assert queue.failed(A) == FIRST_BACKOFF_S


def test_failures_of_one_are_not_those_of_another(queue: WorkQueue, clock: FakeClock) -> None:
    """Each mesh has its own pause."""
    queue.add(A, 0)
    queue.take()
    queue.failed(A)
    queue.add(B, 0)
    assert queue.take() == B


def test_all_are_urged(queue: WorkQueue, clock: FakeClock) -> None:
    """Whoever begins to act looks at everything."""
    queue.urge_all([A, B])
    clock.advance(DEBOUNCE_S)
    assert {queue.take(), queue.take()} == {A, B}


# Waiting


def test_waiting_ends_with_a_mesh() -> None:
    """Whoever waits gets the mesh that comes."""
    queue = WorkQueue(lambda: 0.0)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(queue.wait_take(lambda: False)))
    thread.start()
    queue.add(A, 0)
    thread.join(10)
    assert got == [A]


def test_waiting_ends_when_it_is_over() -> None:
    """Nobody waits for a mesh when the operator stops."""
    queue = WorkQueue(lambda: 0.0)
    over = threading.Event()
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(queue.wait_take(over.is_set)))
    thread.start()
    over.set()
    queue.wake()
    thread.join(10)
    assert got == [None]


def test_everything_can_be_forgotten(queue: WorkQueue, clock: FakeClock) -> None:
    """What is in somebody's hands stays there."""
    queue.add(A, 0)
    queue.add(B, 0)
    assert queue.take() == A
    queue.failed(A)
    queue.add(A, 0)
    queue.clear()
    clock.advance(600)
    assert (len(queue), queue.take(), queue.failures(A)) == (0, None, 0)

"""The lease: one operator acts, it stops before another begins, and whoever leaves lets go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from milkweed.errors import UnreachableError
from milkweed.kube.resources import LEASES
from milkweed.operator.lease import (
    ACTS_S,
    DURATION_S,
    STEP_S,
    Leadership,
    render_second,
    render_time,
)
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster, refuse

WALL = dt.datetime(2024, 1, 1, 12, 30, 15, 250, tzinfo=dt.UTC)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def make(cluster: Cluster, clock: Any, identity: str) -> Leadership:
    def wall() -> dt.datetime:
        return WALL + dt.timedelta(seconds=clock() - 1000.0)

    return Leadership(cluster, "system", "lease", identity, clock=clock, wall=wall)  # type: ignore[arg-type]


def spec(cluster: Cluster) -> dict[str, Any]:
    return cluster.get(LEASES, "system", "lease")["spec"]


def test_the_first_one_acts(cluster: Cluster, clock: FakeClock) -> None:
    """The lease is made, and says who has it."""
    first = make(cluster, clock, "first")
    assert not first.holds()
    assert first.step()
    assert first.holds()
    assert spec(cluster) == {
        "holderIdentity": "first",
        "leaseDurationSeconds": DURATION_S,
        "renewTime": "2024-01-01T12:30:15.000250Z",
        "acquireTime": "2024-01-01T12:30:15.000250Z",
        "leaseTransitions": 0,
    }


def test_the_second_one_waits(cluster: Cluster, clock: FakeClock) -> None:
    """As long as the first one renews, however long that is."""
    first, second = make(cluster, clock, "first"), make(cluster, clock, "second")
    for _ in range(50):
        assert first.step()
        assert not second.step()
        clock.advance(STEP_S)
    assert second.holder == "first"
    assert spec(cluster)["leaseTransitions"] == 0


def test_a_silent_holder_is_followed(cluster: Cluster, clock: FakeClock) -> None:
    """Only after the lease's time, and the first one has stopped acting before that."""
    first, second = make(cluster, clock, "first"), make(cluster, clock, "second")
    first.step()
    start = clock()
    while not second.step():
        assert clock() - start <= DURATION_S + STEP_S
        clock.advance(STEP_S / 3)
        assert not (first.holds() and clock() - start >= ACTS_S)
    assert clock() - start >= DURATION_S
    assert not first.holds()
    assert spec(cluster)["leaseTransitions"] == 1
    assert not first.step()


@pytest.mark.parametrize("silence_s", [0.0, 1.0, 5.0, 9.0, 12.0, 20.0, 60.0])
def test_two_never_act_at_once(cluster: Cluster, clock: FakeClock, silence_s: float) -> None:
    """However long the first one is cut off, and whenever it comes back."""
    first, second = make(cluster, clock, "first"), make(cluster, clock, "second")
    first.step()
    end = clock() + 90
    silent_until = clock() + silence_s
    while clock() < end:
        if clock() >= silent_until:
            first.step()
        second.step()
        assert not (first.holds() and second.holds())
        clock.advance(0.5)
    assert first.holds() or second.holds()


def test_a_holder_that_cannot_renew_stops(cluster: Cluster, clock: FakeClock) -> None:
    """It acts for a while longer, and then no more, though nobody told it to stop."""
    first = make(cluster, clock, "first")
    first.step()
    cluster.down = True
    clock.advance(ACTS_S / 2)
    assert first.step()
    assert isinstance(first.trouble, UnreachableError)
    clock.advance(ACTS_S / 2)
    assert not first.step()


def test_time_counts_from_the_question(cluster: Cluster, clock: FakeClock) -> None:
    """An answer that took long leaves less time to act."""
    first = make(cluster, clock, "first")
    create = cluster.create

    def slow(*args: Any, **query: str) -> Any:
        clock.advance(ACTS_S - 1)
        return create(*args, **query)

    cluster.create = slow  # type: ignore[method-assign]
    assert first.step()
    clock.advance(1)
    assert not first.holds()


def test_whoever_is_second_to_write_is_refused(cluster: Cluster, clock: FakeClock) -> None:
    """Both saw the lease run out; one of them gets it."""
    first, second, third = (make(cluster, clock, name) for name in ("first", "second", "third"))
    first.step()
    second.step()
    third.step()
    clock.advance(DURATION_S)
    replace = cluster.replace

    def overtaken(*args: Any) -> Any:
        cluster.replace = replace  # type: ignore[method-assign]
        assert third.step()
        return replace(*args)

    cluster.replace = overtaken  # type: ignore[method-assign]
    assert not second.step()
    assert third.holds()
    assert second.trouble is None


def test_two_make_the_lease(cluster: Cluster, clock: FakeClock) -> None:
    """Neither saw one; one of them made it."""
    first, second = make(cluster, clock, "first"), make(cluster, clock, "second")
    create = cluster.create

    def overtaken(*args: Any, **query: str) -> Any:
        cluster.create = create  # type: ignore[method-assign]
        assert second.step()
        return create(*args, **query)

    cluster.create = overtaken  # type: ignore[method-assign]
    assert not first.step()
    assert second.holds()


def test_a_holder_whose_lease_was_taken_stops_at_once(cluster: Cluster, clock: FakeClock) -> None:
    """It sees another name in it, and does not wait for its own time to pass."""
    first = make(cluster, clock, "first")
    first.step()
    cluster.edit("leases", "system", "lease", lambda it: it["spec"].update(holderIdentity="other"))
    assert first.holds()
    assert not first.step()


def test_letting_go(cluster: Cluster, clock: FakeClock) -> None:
    """Whoever stops says so, and the next one acts at once."""
    first, second = make(cluster, clock, "first"), make(cluster, clock, "second")
    first.step()
    second.step()
    first.release()
    assert not first.holds()
    assert spec(cluster)["holderIdentity"] == ""
    assert second.step()


def test_only_ones_own_is_let_go(cluster: Cluster, clock: FakeClock) -> None:
    """Somebody else's lease is not touched."""
    first = make(cluster, clock, "first")
    first.step()
    cluster.edit("leases", "system", "lease", lambda it: it["spec"].update(holderIdentity="other"))
    first.release()
    assert spec(cluster)["holderIdentity"] == "other"
    make(cluster, clock, "third").release()
    assert spec(cluster)["holderIdentity"] == "other"


def test_letting_go_of_a_silent_server(cluster: Cluster, clock: FakeClock) -> None:
    """It cannot be told, and the lease runs out by itself."""
    first = make(cluster, clock, "first")
    first.step()
    cluster.down = True
    first.release()
    assert not first.holds()
    assert isinstance(first.trouble, UnreachableError)


def test_one_that_comes_back_under_its_name_goes_on(cluster: Cluster, clock: FakeClock) -> None:
    """A program that was restarted need not wait for itself."""
    make(cluster, clock, "first").step()
    assert make(cluster, clock, "first").step()


def test_rights_that_are_missing_are_told(cluster: Cluster, clock: FakeClock) -> None:
    """Nobody acts without a lease."""
    first = make(cluster, clock, "first")

    def forbid(*_args: Any, **_query: str) -> Any:
        raise refuse(403, "Forbidden", "leases are forbidden")

    cluster.create = forbid  # type: ignore[method-assign]
    assert not first.step()
    assert "leases are forbidden" in str(first.trouble)


def test_fields_of_others_in_a_lease_stay(cluster: Cluster, clock: FakeClock) -> None:
    """What a newer version writes there is not lost."""
    first = make(cluster, clock, "first")
    first.step()
    cluster.edit("leases", "system", "lease", lambda it: it["spec"].update(strategy="x"))
    first.step()
    assert spec(cluster)["strategy"] == "x"


def test_times_are_written_as_the_cluster_reads_them() -> None:
    """Universal time, with microseconds or without."""
    there = WALL.astimezone(dt.timezone(dt.timedelta(hours=2)))
    assert render_time(there) == "2024-01-01T12:30:15.000250Z"
    assert render_second(there) == "2024-01-01T12:30:15Z"


class Interrupting(Cluster):
    """A cluster in which something happens while it is looked at."""

    meanwhile: Callable[[], None] | None = None

    def get(self, *args: Any, **query: str) -> Any:
        """Look, after that has happened, which it does once."""
        happens, self.meanwhile = self.meanwhile, None
        if happens:
            happens()
        return super().get(*args, **query)


def test_what_was_let_go_is_not_taken_back(clock: FakeClock) -> None:
    """A look at the lease is under way when the program ends: neither it nor a later one takes the lease."""
    cluster = Interrupting()
    first = make(cluster, clock, "first")
    first.step()
    cluster.meanwhile = first.release
    assert not first.step()
    assert not first.step()
    assert spec(cluster)["holderIdentity"] == ""


def test_a_renewal_in_between_is_let_go_too(cluster: Cluster, clock: FakeClock) -> None:
    """The lease changed while it was let go, by a look of our own that was under way."""
    first = make(cluster, clock, "first")
    first.step()
    real = cluster.replace

    def replace(*args: Any) -> Any:
        cluster.replace = real  # type: ignore[method-assign]
        cluster.edit("leases", "system", "lease", lambda it: it["spec"].update(renewTime="x"))
        return real(*args)

    cluster.replace = replace  # type: ignore[method-assign]
    first.release()
    assert spec(cluster)["holderIdentity"] == ""

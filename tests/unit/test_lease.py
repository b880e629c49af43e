"""How long hosts live: not a moment past their owner, not a moment less than was asked for."""

from __future__ import annotations

import pytest

from milkweed.worker.lease import LEFT_GRACE_S, OWNER_GRACE_S, QUEUED_OWNER_GRACE_S, Lease


def lease(*, keep: bool, idle_timeout_s: float = 100.0, batch: bool = False) -> Lease:
    return Lease(keep=keep, idle_timeout_s=idle_timeout_s, batch=batch, born_s=0.0)


def test_hosts_that_are_not_kept_end_with_their_owner() -> None:
    """When the owner goes, so do its hosts, though others are connected."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    assert it.over(10.0, 1) == ""
    it.lost_client(10.0, owner=True)
    assert it.over(10.0, 3) == "its owner is gone"


def test_an_owner_may_come_back() -> None:
    """An owner that connects again is there."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    it.lost_client(10.0, owner=True)
    it.saw_client(owner=True)
    assert it.over(10.0, 1) == ""


def test_an_owner_that_never_comes_is_not_waited_for() -> None:
    """A client that died while it started its hosts leaves none behind."""
    it = lease(keep=False)
    it.saw_client(owner=False)
    assert it.over(OWNER_GRACE_S, 1) == ""
    assert "did not connect within 30 s" in it.over(OWNER_GRACE_S + 0.1, 1)


def test_an_owner_that_is_there_may_stay_forever() -> None:
    """Hosts in use never end by the clock."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    assert it.over(10**9, 1) == ""


def test_kept_hosts_end_when_they_idle_too_long() -> None:
    """From the moment nobody is connected, and not before, the idle time counts."""
    it = lease(keep=True)
    assert it.over(99.9, 0) == ""
    assert it.over(100.0, 0) == "nobody was connected for 100 s (its idle time-out)"
    it.saw_client(owner=False)
    assert it.over(10**9, 1) == ""
    it.lost_client(1000.0, owner=False)
    assert it.over(1099.9, 0) == ""
    assert it.over(1100.0, 0)


def test_kept_hosts_outlive_their_owner() -> None:
    """For recorded hosts the owner is one client among others."""
    it = lease(keep=True)
    it.saw_client(owner=True)
    it.lost_client(10.0, owner=True)
    assert it.over(11.0, 0) == ""


def test_one_of_two_clients_going_is_not_idling() -> None:
    """As long as somebody is connected the hosts are in use."""
    it = lease(keep=True)
    it.saw_client(owner=False)
    it.saw_client(owner=False)
    it.lost_client(0.0, owner=False)
    assert it.over(10**9, 1) == ""


def test_hosts_can_be_kept_later() -> None:
    """A record made after the hosts were started keeps them past their owner."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    it.keep = True
    it.lost_client(10.0, owner=True)
    assert it.over(11.0, 0) == ""


@pytest.mark.parametrize("keep", [True, False])
def test_a_batch_job_lives_as_long_as_its_client(keep: bool) -> None:
    """In batch mode nobody is ever connected; the client's end ends it."""
    assert lease(keep=keep, batch=True).over(10**9, 0) == ""


@pytest.mark.parametrize(
    ("idle_timeout_s", "expected"), [(0.01, 0.05), (10.0, 1.0), (3600.0, 5.0), (float("inf"), 5.0)]
)
def test_the_clock_is_looked_at_often_enough(idle_timeout_s: float, expected: float) -> None:
    """Short time-outs are kept precisely, and long ones cost nothing."""
    assert lease(keep=True, idle_timeout_s=idle_timeout_s).next_check_s == expected
    assert lease(keep=False, idle_timeout_s=idle_timeout_s).next_check_s == 1.0


# Places where hosts are started anew


def test_a_place_has_one_time_limit() -> None:
    """Whoever is started anew there has what is left of it: nothing, if it left for that."""
    limited = Lease(keep=True, idle_timeout_s=1000.0, time_limit_s=100.0, age_s=70.0, born_s=5.0)
    limited.saw_client(owner=False)
    assert limited.over(34.9, 1) == ""
    assert "time limit of 100 s" in limited.over(35.0, 1)
    over = Lease(keep=True, idle_timeout_s=1000.0, time_limit_s=100.0, age_s=100.1, born_s=0.0)
    assert "time limit" in over.over(0.0, 0)


def test_the_age_of_a_place_is_no_idle_time() -> None:
    """Idle time counts from the start of the host that idles."""
    it = Lease(keep=True, idle_timeout_s=100.0, age_s=5000.0, born_s=0.0)
    assert it.over(99.9, 0) == ""
    assert it.over(100.0, 0)


def test_who_has_left_and_came_back_does_not_wait_that_long_again() -> None:
    """Else hosts that idle since different moments never agree that it is over."""
    it = Lease(keep=True, idle_timeout_s=3600.0, left=True, born_s=0.0)
    assert it.over(LEFT_GRACE_S - 0.1, 0) == ""
    assert "nobody came within 60 s" in it.over(LEFT_GRACE_S, 0)
    assert it.over(LEFT_GRACE_S, 1) == ""
    quick = Lease(keep=True, idle_timeout_s=4.0, left=True, born_s=0.0)
    assert "nobody was connected for 4 s" in quick.over(4.0, 0)


def test_a_client_makes_up_for_having_left() -> None:
    """From then on it is as with any other host."""
    it = Lease(keep=True, idle_timeout_s=3600.0, left=True, born_s=0.0)
    it.saw_client(owner=False)
    it.lost_client(10.0, owner=False)
    assert it.over(3609.9, 0) == ""
    assert it.over(3610.0, 0)


def test_a_renewed_time_limit_counts_anew() -> None:
    """From the moment on when somebody says so, however old the place is; it may be another one."""
    it = Lease(keep=True, idle_timeout_s=1000.0, time_limit_s=100.0, age_s=70.0, born_s=5.0)
    assert it.time_left_s(15.0) == 20.0
    it.renew(15.0)
    assert it.time_left_s(15.0) == 100.0
    assert it.over(114.9, 1) == ""
    assert "time limit" in it.over(115.0, 1)
    it.renew(115.0, 7.0)
    assert it.time_left_s(120.0) == 2.0
    assert it.time_left_s(500.0) == 0.0


def test_where_there_is_no_limit_there_is_nothing_to_renew() -> None:
    """Nobody gets a limit by asking for more time."""
    it = Lease(keep=True, idle_timeout_s=1000.0, born_s=0.0)
    it.renew(10.0, 5.0)
    assert it.time_left_s(10.0) is None
    assert it.over(900.0, 1) == ""


# Owners that come back, and allocations that follow others


def test_an_owner_that_comes_back_is_waited_for() -> None:
    """When it said so, for as long as it said; a program that goes over to other hosts is gone for a moment."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    it.lost_client(10.0, owner=True, back_s=300.0)
    assert it.over(309.9, 0) == ""
    assert it.over(310.0, 0) == "its owner is gone"
    it.saw_client(owner=True)
    it.lost_client(400.0, owner=True)
    assert it.over(400.0, 0) == "its owner is gone"


@pytest.mark.parametrize("queued", [True, False])
def test_a_follow_up_idles_when_what_it_follows_is_over(queued: bool) -> None:
    """Nobody need use it before; and nobody may come at all, when the program that asked for it has ended."""
    it = Lease(keep=True, idle_timeout_s=100.0, queued=queued, spare_s=500.0, born_s=0.0)
    assert it.over(599.9, 0) == ""
    assert it.over(600.0, 0) == "nobody was connected for 100 s (its idle time-out)"
    it.saw_client(owner=False)
    it.lost_client(10.0, owner=False)
    assert it.over(599.9, 0) == ""
    it.lost_client(700.0, owner=False)
    assert it.over(799.9, 0) == ""
    assert it.over(800.0, 0)


def test_a_follow_up_that_comes_late_idles_from_its_start() -> None:
    """What it follows is over by then."""
    it = Lease(keep=True, idle_timeout_s=100.0, queued=True, spare_s=0.0, born_s=0.0)
    assert it.over(99.9, 0) == ""
    assert it.over(100.0, 0)


def test_a_follow_up_waits_for_its_owner_while_that_uses_others() -> None:
    """Else it would end, with the queue that it took, while its owner is busy."""
    it = Lease(keep=False, idle_timeout_s=1.0, queued=True, spare_s=500.0, born_s=0.0)
    assert it.over(500.0 + QUEUED_OWNER_GRACE_S, 0) == ""
    assert "did not connect" in it.over(500.1 + QUEUED_OWNER_GRACE_S, 0)

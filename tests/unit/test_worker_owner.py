"""What a keeper makes of those who come and go: owners, batch clients, and programs that ask for a follow-up."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from milkweed.worker.clients import Client
from milkweed.worker.fleet import Fleet
from milkweed.worker.keeper import Keeper
from unit.gangs import Machine, make_start

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Wire:
    """The far end of a connection, which nobody reads."""

    transport = property(lambda self: self)

    def is_closing(self) -> bool:
        """It is gone."""
        return True


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def make_keeper(machine: Machine, **more: Any) -> Keeper:
    place = {"folder": str(machine.folder), "share": "0.1.2"}
    start = {**make_start(machine.folder, "w/0"), **place, "keep": False, **more}
    return machine.do(Keeper, machine.folder, start)


def join(machine: Machine, keeper: Keeper, name: str, *, owner: bool = True) -> Client:
    client = Client(cast("Any", Wire()))
    hello = {"op": "hello", "client": name, "owner": owner}
    machine.do(keeper._take, client, hello)
    return client


def test_hosts_end_with_the_last_connection_of_their_owner(machine: Machine) -> None:
    """An owner may be there twice, when it goes over from one connection to another."""
    keeper = make_keeper(machine)
    first, second = join(machine, keeper, "a"), join(machine, keeper, "b")
    join(machine, keeper, "guest", owner=False)
    machine.do(keeper._gone, first)
    assert keeper.reason == ""
    machine.do(keeper._gone, second)
    assert keeper.reason == "its owner is gone"


def test_an_owner_that_says_so_may_come_back(machine: Machine) -> None:
    """For as long as it said, its hosts are there; not for ever."""
    keeper = make_keeper(machine)
    owner = join(machine, keeper, "a")
    machine.do(keeper._take, owner, {"op": "leave", "back_s": 300.0})
    machine.do(keeper._gone, owner)
    assert keeper.reason == ""
    now_s = time.monotonic()
    assert keeper.lease.over(now_s + 290.0, 0) == ""
    assert keeper.lease.over(now_s + 301.0, 0) == "its owner is gone"
    join(machine, keeper, "b")
    assert keeper.lease.over(now_s + 10**6, 1) == ""


def test_who_is_told_to_end_by_its_scheduler_does_not_end_the_job(machine: Machine) -> None:
    """The keeper hangs up then, so its owner goes too; a job that is requeued must not be cancelled for that."""
    keeper = make_keeper(machine)
    owner = join(machine, keeper, "a")
    machine.do(keeper.stop, "it was asked to stop by SIGTERM")
    machine.do(keeper._gone, owner)
    assert (keeper.lease_over, keeper.reason) == (False, "it was asked to stop by SIGTERM")


def test_a_job_ends_with_its_lease(machine: Machine) -> None:
    """When its owner has gone first, the job must not stay, whatever the keeper is told after that."""
    keeper = make_keeper(machine)
    machine.do(keeper._gone, join(machine, keeper, "a"))
    machine.do(keeper.stop, "it was asked to stop by SIGTERM")
    assert (keeper.lease_over, keeper.reason) == (True, "its owner is gone")


def test_hosts_of_a_batch_client_do_not_idle(machine: Machine) -> None:
    """It runs beside them: however long it is not connected, ending them would end it."""
    keeper = make_keeper(machine, keep=True, idle_timeout_s=10.0, queued=True, with_client=True)
    machine.do(keeper._gone, join(machine, keeper, "client", owner=False))
    assert keeper.lease.over(time.monotonic() + 10**6, 0) == ""


def test_hosts_that_met_a_client_wait_for_no_first_one_when_they_are_started_anew(
    machine: Machine,
) -> None:
    """A job that is requeued after its client has left ends when it idles; one that never had a client waits."""
    told: dict[str, Any] = {"keep": True, "idle_timeout_s": 100.0, "queued": True}
    keeper = make_keeper(machine, **told)
    assert keeper.lease.over(time.monotonic() + 10**6, 0) == ""
    assert not (machine.folder / "met-0.1").exists()
    join(machine, keeper, "a", owner=False)
    assert (machine.folder / "met-0.1").exists()
    again = make_keeper(machine, **told, met=True)
    assert again.lease.over(time.monotonic() + 90.0, 0) == ""
    assert "nobody was connected" in again.lease.over(time.monotonic() + 101.0, 0)


def test_a_job_that_nobody_records_has_as_long_for_its_owner_when_it_is_started_anew(
    machine: Machine,
) -> None:
    """Its owner waits in the queue as before, and looks as seldom."""
    keeper = make_keeper(machine, keep=False, queued=True, met=True)
    assert keeper.lease.over(time.monotonic() + 290.0, 0) == ""
    assert "did not connect within 300 s" in keeper.lease.over(time.monotonic() + 301.0, 0)


def test_a_follow_up_knows_until_when_others_are_used(machine: Machine) -> None:
    """By the clock on the wall, which is the same on both machines."""
    asked = {"queued": True, "follows_until": time.time() + 500.0}
    keeper = make_keeper(machine, keep=True, idle_timeout_s=100.0, **asked)
    now_s = time.monotonic()
    assert keeper.lease.over(now_s + 590.0, 0) == ""
    assert "nobody was connected" in keeper.lease.over(now_s + 601.0, 0)
    late = make_keeper(machine, keep=True, idle_timeout_s=100.0, queued=True, follows_until=1.0)
    assert "nobody was connected" in late.lease.over(time.monotonic() + 100.0, 0)


@pytest.mark.parametrize(("umask", "mode"), [("0022", 0o644), ("0007", 0o660), ("", 0o600)])
def test_what_is_started_has_the_umask_it_was_given(
    machine: Machine, umask: str, mode: int
) -> None:
    """Ranks here, and procs and commands alike; the log that the keeper writes stays closed."""
    before = os.umask(0o077)
    try:
        start = {**make_start(machine.folder, "w/0"), "umask": umask}
        machine.fleet = machine.gangs._fleet = Fleet(machine.folder, start, machine.news.append)
        machine.loop.add_signal_handler(17, machine.fleet.reap)
        machine.launch("echo said; touch mine")
        assert machine.codes() == {0: 0}
    finally:
        os.umask(before)
    assert (machine.folder / "mine").stat().st_mode & 0o777 == mode
    assert (machine.folder / "w.0.log").stat().st_mode & 0o777 == 0o600

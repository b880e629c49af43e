"""A client's sessions with many keepers, on real sockets: all of them, or those that answer."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed import pki
from milkweed.control import Session
from milkweed.job.presence import Presence
from unit.keepers import WAIT_S, FakeKeeper, free_ports, make_credentials


class Heard:
    """Everything that sessions say, and a way to wait for it."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def __call__(self, session: Session, message: Mapping[str, Any]) -> None:
        """Take one message."""
        with self._changed:
            self.messages.append((session.address, message["ev"]))
            self._changed.notify_all()

    def wait_for(self, kind: str, count: int) -> None:
        """Wait until so many of that kind were heard."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: [ev for _, ev in self.messages].count(kind) >= count, WAIT_S
            ), self.messages


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def presence(heard: Heard) -> Generator[Presence]:
    made = Presence(client="me", owner=True, output=False, hear=heard)
    yield made
    made.close(0.0)


@pytest.fixture
def keepers(tmp_path: Path) -> Generator[list[FakeKeeper]]:
    made = [FakeKeeper(f"w/{n}").listen_unix(tmp_path / f"ctl{n}") for n in range(3)]
    yield made
    for keeper in made:
        keeper.close()


def addresses(keepers: list[FakeKeeper]) -> list[str]:
    return [keeper.address for keeper in keepers]


def test_all_that_answer_are_joined(
    presence: Presence, keepers: list[FakeKeeper], heard: Heard
) -> None:
    """Each keeper hears who we are, and we hear of each host."""
    assert presence.join(addresses(keepers)) == {}
    assert {label for session in presence.sessions for label in session.labels} == {
        "w/0",
        "w/1",
        "w/2",
    }
    for keeper in keepers:
        assert keeper.orders == [{"op": "hello", "client": "me", "owner": True, "output": False}]
    assert sorted(heard.messages) == [(address, "host") for address in sorted(addresses(keepers))]


def test_those_that_do_not_answer_are_named(
    presence: Presence, keepers: list[FakeKeeper], tmp_path: Path
) -> None:
    """The others are joined all the same, and each that is missing has its reason."""
    gone = f"unix://{tmp_path}/gone"
    missing = presence.join([gone, *addresses(keepers)])
    assert list(missing) == [gone]
    assert "No such file" in missing[gone]
    assert len(presence.sessions) == 3


def test_one_alone_that_does_not_answer(presence: Presence, tmp_path: Path) -> None:
    """The same for a single host."""
    assert list(presence.join([f"unix://{tmp_path}/gone"])) == [f"unix://{tmp_path}/gone"]
    assert presence.sessions == []


def test_joining_again_joins_only_who_was_missing(
    presence: Presence, keepers: list[FakeKeeper]
) -> None:
    """Nobody is greeted twice."""
    presence.join(addresses(keepers)[:2])
    presence.join(addresses(keepers))
    presence.join(addresses(keepers))
    assert [len(keeper.orders) for keeper in keepers] == [1, 1, 1]


def test_what_is_told_to_all_is_told_to_those_who_come_later(
    presence: Presence, keepers: list[FakeKeeper]
) -> None:
    """Each hears it once, right after who we are; what is only sent is for those who are there."""
    presence.join(addresses(keepers)[:1])
    presence.tell({"op": "keep", "idle_timeout_s": 5})
    presence.send({"op": "leave", "back_s": 1})
    presence.join(addresses(keepers))
    for keeper in keepers:
        keeper.wait_for("keep")
    assert [order["op"] for order in keepers[0].orders] == ["hello", "keep", "leave"]
    assert [order["op"] for order in keepers[2].orders] == ["hello", "keep"]


def test_many_are_joined_at_once(presence: Presence, keepers: list[FakeKeeper]) -> None:
    """A keeper that takes its time does not keep the others waiting."""
    meet = threading.Barrier(3)
    for keeper in keepers:
        take = keeper._take

        def slowly(order: dict[str, Any], writer: Any, take: Any = take) -> None:
            meet.wait(WAIT_S)
            take(order, writer)

        keeper._take = slowly  # type: ignore[method-assign]
    assert presence.join(addresses(keepers)) == {}


def test_a_keeper_that_leaves_while_it_is_greeted_is_missing(
    presence: Presence, keepers: list[FakeKeeper]
) -> None:
    """It was there, and is not: that is no session, and nothing of it stays open."""
    first = keepers[0]
    first._take = lambda _order, writer: writer.close()  # type: ignore[method-assign]
    missing = presence.join(addresses(keepers))
    assert list(missing) == [first.address]
    assert len(presence.sessions) == 2


def test_only_a_thorough_join_looks_everywhere(heard: Heard, tmp_path: Path) -> None:
    """A host that had to take another port is found when somebody looks thoroughly."""
    authority = pki.make_authority("job")
    ours = make_credentials(tmp_path / "ours", authority)
    presence = Presence(client="me", owner=True, output=False, hear=heard)
    first, second = free_ports(2)
    with FakeKeeper("w/0") as neighbour, FakeKeeper("w/1") as keeper:
        neighbour.listen_tls(ours, first)
        keeper.listen_tls(ours, second)
        door = keeper.door(ours, skipped=1)
        assert "another host's" in presence.join([door], thorough=False)[door]
        assert presence.join([door]) == {}
        presence.close(WAIT_S)


def test_what_is_sent_goes_to_all(presence: Presence, keepers: list[FakeKeeper]) -> None:
    """A keeper that is gone is noticed elsewhere, and is no reason not to tell the others."""
    presence.join(addresses(keepers))
    keepers[0].close()
    presence.send({"op": "keep", "idle_timeout_s": 5})
    for keeper in keepers[1:]:
        assert keeper.wait_for("keep") == [{"op": "keep", "idle_timeout_s": 5}]


def test_a_session_that_ended_is_heard_and_dropped(
    presence: Presence, keepers: list[FakeKeeper], heard: Heard
) -> None:
    """Once dropped it can be joined again; dropping an old session leaves the new one."""
    presence.join(addresses(keepers))
    [old] = [each for each in presence.sessions if each.address == keepers[0].address]
    keepers[0].hang_up()
    heard.wait_for("closed", 1)
    presence.drop(old)
    assert len(presence.sessions) == 2
    assert presence.rejoin(old) is not None
    assert len(presence.sessions) == 3
    presence.drop(old)
    assert len(presence.sessions) == 3
    old.close()


def test_a_session_that_ended_lets_its_socket_go(
    presence: Presence, keepers: list[FakeKeeper], heard: Heard
) -> None:
    """A program that loses hosts and finds new ones for weeks does not run out of files."""
    presence.join(addresses(keepers)[:1])
    [session] = presence.sessions
    keepers[0].hang_up()
    heard.wait_for("closed", 1)
    presence.drop(session)
    session._thread.join(WAIT_S)
    channel: Any = session._connection._channel
    try:
        assert channel._socket.fileno() == -1
    finally:
        session.close()


def test_a_host_that_is_gone_cannot_be_joined_again(
    presence: Presence, keepers: list[FakeKeeper], heard: Heard
) -> None:
    """One try, and a plain answer."""
    presence.join(addresses(keepers)[:1])
    [old] = presence.sessions
    keepers[0].close()
    heard.wait_for("closed", 1)
    presence.drop(old)
    assert presence.rejoin(old) is None
    assert presence.sessions == []
    old.close()


def test_leaving_waits_for_what_was_printed(
    presence: Presence, keepers: list[FakeKeeper], heard: Heard
) -> None:
    """Every keeper is asked first, then each is waited for; all of it was heard before the end."""
    presence.join(addresses(keepers))
    for keeper in keepers:
        keeper.tell({"ev": "out"})
    presence.close(WAIT_S)
    assert presence.sessions == []
    for keeper in keepers:
        assert [order["op"] for order in keeper.orders] == ["hello", "sync"]
        assert (keeper.address, "out") in heard.messages


def test_leaving_does_not_wait_for_the_silent(
    presence: Presence, keepers: list[FakeKeeper]
) -> None:
    """A keeper that hangs costs the time there is, once for all of them."""
    presence.join(addresses(keepers))
    for keeper in keepers:
        keeper.silent = True
    presence.close(0.05)
    assert presence.sessions == []

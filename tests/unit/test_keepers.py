"""Asking keepers on real sockets: what they answer becomes statuses and hosts, and silence has a reason."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from milkweed.backends import keepers
from milkweed.backends.keepers import (
    ask_all,
    ask_keeper,
    check_running,
    follow_hosts,
    make_host,
    make_status,
    own_address,
    stop_keeper,
)
from milkweed.control import Door
from milkweed.errors import AccessError, AllocationError, BackendError, UnreachableError
from milkweed.status import HostState, Liveness, Status
from unit.keepers import FakeKeeper, host


@pytest.fixture
def keeper(tmp_path: Path) -> Generator[FakeKeeper]:
    with FakeKeeper(host("w/0"), host("w/1", "failed", reason="died", tail=["a"])) as made:
        yield made.listen_unix(tmp_path / "ctl")


def door(keeper: FakeKeeper, label: str = "w/0") -> Door:
    """Where a host's keeper takes orders."""
    return Door(path=keeper.path, host=label)


# Asking


def test_a_keeper_answers_for_the_host_that_was_asked_for(keeper: FakeKeeper) -> None:
    """It may keep several; the answer is about one."""
    assert ask_keeper(lambda: door(keeper, "w/1")) == keeper.hosts[1]


def test_a_host_that_its_keeper_does_not_know_has_not_answered(keeper: FakeKeeper) -> None:
    """Somebody else may listen there by now."""
    assert ask_keeper(lambda: door(keeper, "w/7")) == "its keeper does not know it"


def test_nobody_listens(tmp_path: Path) -> None:
    """Why there is no answer is told, with the place."""
    answer = ask_keeper(lambda: Door(path=str(tmp_path / "nobody"), host="w/0"))
    assert isinstance(answer, str)
    assert "nobody" in answer
    assert "No such file" in answer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnreachableError("no way", seen="no name"), "no name"),
        (UnreachableError("no way"), "no way"),
        (AccessError("no certificate", seen="the folder is gone"), "the folder is gone"),
        (BackendError("the API server forbids it", seen="{…}"), "the API server forbids it"),
    ],
)
def test_a_door_that_cannot_be_made_is_no_answer(error: Exception, words: str) -> None:
    """Whatever is between us and a host, the others are asked all the same."""

    def make_door() -> Door:
        raise error

    assert ask_keeper(make_door) == words


def test_a_mistake_of_ours_is_not_a_silent_host() -> None:
    """Only what milkweed can explain is an answer."""

    def make_door() -> Door:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask_keeper(make_door)


def test_answers_come_in_the_order_of_the_hosts() -> None:
    """However long each takes: the first answers last here."""
    last = threading.Event()

    def ask(number: int) -> str:
        assert number or last.wait(10)
        if number == 9:
            last.set()
        return f"host {number}"

    assert ask_all(range(10), ask) == [(n, f"host {n}") for n in range(10)]


def test_a_thousand_hosts_are_not_asked_with_a_thousand_threads() -> None:
    """So many at once that it is quick, and no more."""
    used: set[str] = set()
    ask_all(range(1000), lambda _number: used.add(threading.current_thread().name))
    assert len(used) <= keepers.AT_ONCE


def test_without_hosts_nobody_is_asked() -> None:
    """A pool without threads would be an error."""
    assert ask_all([], lambda _place: pytest.fail("nobody is there")) == []


# What answers mean


def test_a_keepers_answer_is_the_hosts_status() -> None:
    """State, reason with the last lines as they were written, and exit code."""
    said = host("w/1", "failed", reason="died", tail=["a", "", "  b"], exit_code=3)
    status = make_status(said)
    assert (status.host, status.state, status.exit_code) == ("w/1", HostState.FAILED, 3)
    assert status.reason == "died\na\n\n  b"
    assert make_status(host("w/0")).reason == ""


def test_an_answer_is_a_host_to_attach_to() -> None:
    """With the address that its worker serves, and the way there."""
    answer = host("my/mesh/3", address="tls://a:1", via="kube:…")
    made = make_host("my/mesh/3", answer, name="n1", control="unix:///c")
    assert (made.mesh, made.rank, made.name) == ("my/mesh", 3, "n1")
    assert (made.address, made.control, made.via) == ("tls://a:1", "unix:///c", "kube:…")
    assert make_host("w/0", host("w/0"), name="n1", control="").via == ""


def test_silence_is_no_host() -> None:
    """Why it was silent is told."""
    with pytest.raises(UnreachableError, match="host w/0 does not answer") as caught:
        make_host("w/0", "refused", name="n1", control="")
    assert caught.value.seen == "refused"


@pytest.mark.parametrize(
    ("live", "error"),
    [
        (Liveness.UNKNOWN, UnreachableError),
        (Liveness.PENDING, AllocationError),
        (Liveness.ENDED, AllocationError),
    ],
)
def test_only_what_runs_has_hosts(live: Liveness, error: type[Exception]) -> None:
    """What is not known is not said to be gone."""
    with pytest.raises(error, match="hosts") as caught:
        check_running(Status(liveness=live, reason="because"))
    assert "because" in str(caught.value)
    check_running(Status(liveness=Liveness.RUNNING))


# Ways


def test_the_address_for_a_machine() -> None:
    """The one at which it would answer."""
    assert own_address("127.0.0.1") == "127.0.0.1"


def test_a_machine_without_a_name_has_no_way() -> None:
    """The name is told, and what the resolver said."""

    def route(_machine: str) -> str:
        raise OSError("no such name")

    with pytest.raises(UnreachableError, match="no way to n7") as caught:
        own_address("n7", route)
    assert caught.value.seen == "no such name"


def test_a_machine_that_no_route_leads_to_has_no_way() -> None:
    """No certificate is made for an address that is none."""
    with pytest.raises(UnreachableError, match="no way to n7"):
        own_address("n7", lambda _machine: "")


# Ending


def test_a_keeper_is_told_why_it_stops(keeper: FakeKeeper) -> None:
    """Once; and this returns when it has closed."""
    stop_keeper(lambda: door(keeper), reason="it was released")
    assert keeper.wait_for("stop") == [{"op": "stop", "reason": "it was released"}]


def test_a_keeper_may_stop_for_good(keeper: FakeKeeper) -> None:
    """Its operator then ends the mesh, instead of starting it again."""
    stop_keeper(lambda: door(keeper), reason="over", for_good=True)
    assert keeper.wait_for("stop")[0]["for_good"] is True


def test_a_keeper_that_goes_on_talking_is_not_waited_for(keeper: FakeKeeper) -> None:
    """The time limit is for all of it, not for each word."""
    keeper.chatty = True
    stop_keeper(lambda: door(keeper), reason="over", timeout_s=0.05)
    assert keeper.wait_for("stop")


@pytest.mark.parametrize("error", [UnreachableError("gone"), AccessError("not let in")])
def test_a_keeper_that_cannot_be_told_is_left_to_its_scheduler(error: Exception) -> None:
    """Ending goes on: the scheduler ends the host in any case."""

    def make_door() -> Door:
        raise error

    stop_keeper(make_door, reason="over")


# Logs


def test_lines_of_one_host_or_of_all(tmp_path: Path) -> None:
    """Each with the host that wrote it."""
    logs = {label: str(tmp_path / label) for label in ("a", "b")}
    for label, path in logs.items():
        Path(path).write_text(f"1 {label}\n2 {label}\n")
    found = list(follow_hosts(logs, None, follow=False, alive=lambda: False))
    assert [(line.host, line.text) for line in found] == [
        *(("a", "1 a"), ("a", "2 a")),
        *(("b", "1 b"), ("b", "2 b")),
    ]
    found = list(follow_hosts(logs, "b", follow=False, alive=lambda: False))
    assert [line.text for line in found] == ["1 b", "2 b"]


def test_a_host_that_is_not_there_is_named() -> None:
    """With those that are."""
    with pytest.raises(BackendError, match="no host 'c'") as caught:
        list(follow_hosts({"a": "/a", "b": "/b"}, "c", follow=False, alive=lambda: False))
    assert caught.value.hint == "the hosts are a, b"

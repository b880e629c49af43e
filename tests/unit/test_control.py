"""Finding the right keeper behind a port, and talking to it: real sockets, real certificates."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed import pki
from milkweed.control import Connection, Door, RemoteLog, Session, parse_door
from milkweed.errors import DeadlineError, UnreachableError
from unit.keepers import WAIT_S, FakeKeeper, free_ports, make_credentials

JOB = pki.make_authority("job")
OTHER_JOB = pki.make_authority("other job")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Credentials of the job."""
    return make_credentials(tmp_path / "ours", JOB)


@contextlib.contextmanager
def stranger(port: int, *, reset: bool) -> Generator[None]:
    """A program of somebody else on a port, which hangs up on whoever speaks: rudely, or in order."""
    door = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = door.accept()
                # What was sent and never read makes the kernel reset the connection.
                caller.recv(1 if reset else 65536)
                caller.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        thread.join(WAIT_S)


# Addresses

NAMES = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789.-_"), min_size=1)
PATHS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1)


@given(path=PATHS)
def test_a_local_door_reads_back(path: str) -> None:
    """Whatever a path has in it, the address of a keeper here reads back the same."""
    door = Door(path=f"/{path}")
    assert parse_door(str(door)) == door


@given(
    machine=st.one_of(NAMES, st.ip_addresses().map(str)),
    port=st.integers(1, 65535),
    mesh=NAMES,
    rank=st.integers(0, 10**6),
    credentials=PATHS,
    job=st.one_of(st.just(""), st.uuids().map(str)),
)
def test_a_remote_door_reads_back(
    *, machine: str, port: int, mesh: str, rank: int, credentials: str, job: str
) -> None:
    """Names and addresses, also IPv6, any host of any job, and credentials in any folder."""
    door = Door(
        machine=machine,
        port=port,
        host=f"{mesh}/{rank}",
        credentials=f"/{credentials}",
        job=job,
    )
    assert parse_door(str(door)) == door


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix://",
        "tls://",
        "http://n1:1/w/0#/c",
        "tls://n1/w/0#/c",
        "tls://n1:x/w/0#/c",
        "tls://:1/w/0#/c",
        "tls://n1:1/#/c",
        "tls://n1:1/w/0",
        "tls://n1:1/w/0#",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """An address that a record was damaged to, or a newer milkweed wrote, is told as such."""
    with pytest.raises(UnreachableError, match="not a control address"):
        parse_door(text)


# Finding


def test_a_keeper_is_found_and_answers(ours: Path) -> None:
    """With a certificate of the job, the keeper of the host takes orders."""
    with FakeKeeper("w/0") as keeper:
        keeper.listen_tls(ours)
        with Connection(keeper.door(ours)) as connection:
            assert connection.ask({"op": "status"}, "status")["node"] == "n1"


def test_a_keeper_of_this_machine_is_found(tmp_path: Path) -> None:
    """Without certificates, by its socket."""
    with (
        FakeKeeper("w/0") as keeper,
        Connection(keeper.listen_unix(tmp_path / "ctl").address) as connection,
    ):
        assert connection.ask({"op": "status"}, "status")["hosts"][0]["host"] == "w/0"


def test_nobody_there_is_unreachable(ours: Path, tmp_path: Path) -> None:
    """A port that nobody took, and a socket that is not there: the error has the host and the reason."""
    [port] = free_ports(1)
    with pytest.raises(UnreachableError) as caught:
        Connection(f"tls://127.0.0.1:{port - 1}/w/0#{ours}", thorough=False)
    assert caught.value.seen.startswith("127.0.0.1 (host w/0): ")
    assert "refused" in caught.value.seen
    with pytest.raises(UnreachableError) as caught:
        Connection(f"unix://{tmp_path}/none")
    assert str(tmp_path / "none") in caught.value.seen


def test_hosts_of_one_machine_are_told_apart(ours: Path) -> None:
    """Another host of the same job took the first port: the next one is tried."""
    first, second = free_ports(2)
    with FakeKeeper("w/0") as neighbour, FakeKeeper("w/1") as keeper:
        neighbour.listen_tls(ours, first)
        keeper.listen_tls(ours, second)
        with Connection(keeper.door(ours, skipped=1)) as connection:
            assert connection.ask({"op": "status"}, "status")["hosts"][0]["host"] == "w/1"


def test_a_keeper_that_stops_is_passed_over(ours: Path) -> None:
    """A job that was put back into the queue may start where its last run is still leaving."""
    first, second = free_ports(2)
    with FakeKeeper("w/0", stopping=True) as old, FakeKeeper("w/0", node="new") as keeper:
        old.listen_tls(ours, first)
        keeper.listen_tls(ours, second)
        with Connection(keeper.door(ours, skipped=1)) as connection:
            assert connection.ask({"op": "status"}, "status")["node"] == "new"


def test_a_keeper_of_another_allocation_is_passed_over(ours: Path) -> None:
    """A host of the same name that belongs to another allocation is not the one that is meant."""
    first, second = free_ports(2)
    with FakeKeeper("w/0") as other, FakeKeeper("w/0") as keeper:
        other.job, keeper.job = "theirs", "mine"
        other.listen_tls(ours, first)
        keeper.listen_tls(ours, second)
        door = keeper.door(ours, "w/0@mine", skipped=1)
        with Connection(door) as connection:
            assert connection.ask({"op": "status"}, "status")["job"] == "mine"


def test_a_keeper_of_another_job_is_passed_over(ours: Path, tmp_path: Path) -> None:
    """It shows a certificate that our job did not sign: nothing is said to it, and the next port is tried."""
    theirs = make_credentials(tmp_path / "theirs", OTHER_JOB)
    first, second = free_ports(2)
    with FakeKeeper("w/0") as other, FakeKeeper("w/0") as keeper:
        other.listen_tls(theirs, first)
        keeper.listen_tls(ours, second)
        Connection(keeper.door(ours, skipped=1)).close()
        assert other.orders == []


@pytest.mark.parametrize("reset", [False, True], ids=["in order", "rudely"])
def test_a_stranger_that_hangs_up_is_passed_over(ours: Path, reset: bool) -> None:
    """Somebody's own program has the first port, which is why the keeper took the second."""
    first, second = free_ports(2)
    with FakeKeeper("w/0") as keeper, stranger(first, reset=reset):
        keeper.listen_tls(ours, second)
        Connection(keeper.door(ours, skipped=1)).close()


def test_only_a_thorough_look_tries_all_ports(ours: Path) -> None:
    """While hosts start, looking where they most likely are is enough."""
    first, second = free_ports(2)
    with FakeKeeper("w/0") as neighbour, FakeKeeper("w/1") as keeper:
        neighbour.listen_tls(ours, first)
        keeper.listen_tls(ours, second)
        with pytest.raises(UnreachableError) as caught:
            Connection(keeper.door(ours, skipped=1), thorough=False)
        assert f"port {first} is another host's" in caught.value.seen


def test_nobody_of_the_job_on_any_port(ours: Path, tmp_path: Path) -> None:
    """The error tells that somebody else is there."""
    theirs = make_credentials(tmp_path / "theirs", OTHER_JOB)
    with FakeKeeper("w/0") as other:
        other.listen_tls(theirs)
        with pytest.raises(UnreachableError) as caught:
            Connection(other.door(ours), thorough=False)
    assert f"port {other.port} is somebody else's" in caught.value.seen


def test_a_client_of_another_job_gets_no_answer(ours: Path, tmp_path: Path) -> None:
    """Trusting a keeper is not enough: without a certificate of its job it hears nothing, and does nothing."""
    theirs = make_credentials(tmp_path / "theirs", OTHER_JOB, JOB)
    with FakeKeeper("w/0") as keeper:
        keeper.listen_tls(ours)
        with pytest.raises(UnreachableError):
            Connection(keeper.door(theirs), thorough=False)
        assert keeper.orders == []


def test_a_keeper_that_says_nothing_is_not_waited_for(ours: Path) -> None:
    """One that hangs is passed over after the time there is; that others are not there says nothing of it."""
    _first, second = free_ports(2)
    with FakeKeeper("w/0") as keeper:
        keeper.silent = True
        keeper.listen_tls(ours, second)
        with pytest.raises(UnreachableError) as caught:
            Connection(keeper.door(ours, skipped=1), timeout_s=0.2)
    assert f"port {second} gives no answer" in caught.value.seen


# Talking


@pytest.fixture
def keeper(tmp_path: Path) -> Generator[FakeKeeper]:
    with FakeKeeper("w/0") as made:
        yield made.listen_unix(tmp_path / "ctl")


def test_an_answer_is_told_by_its_name(keeper: FakeKeeper) -> None:
    """What else is said meanwhile is passed over."""
    keeper.answers["keep"] = {"ev": "kept"}
    with Connection(keeper.address) as connection:
        connection.ask({"op": "status"}, "status")
        keeper.tell({"ev": "host", "host": "w/0"})
        assert connection.ask({"op": "keep", "idle_timeout_s": 5}, "kept") == {"ev": "kept"}


def test_an_answer_that_does_not_come_has_a_deadline(keeper: FakeKeeper) -> None:
    """The question was heard; that nobody answers is told after the time given."""
    with Connection(keeper.address) as connection, pytest.raises(DeadlineError, match=r"0\.05 s"):
        connection.ask({"op": "nothing"}, "something", timeout_s=0.05)


@pytest.mark.parametrize("abruptly", [False, True])
def test_an_end_while_one_waits(ours: Path, abruptly: bool) -> None:
    """A keeper that closes in order, or is gone at once: both are the end, and no error of TLS."""
    with FakeKeeper("w/0") as keeper:
        keeper.listen_tls(ours)
        with Connection(keeper.door(ours)) as connection:
            keeper.hang_up(abruptly=abruptly)
            assert connection.receive(WAIT_S) is None


def test_an_end_while_one_asks(keeper: FakeKeeper) -> None:
    """A question that is never answered because the keeper left is unreachable."""
    with Connection(keeper.address) as connection:
        with pytest.raises(UnreachableError, match="closed the connection"):
            connection.ask({"op": "stop"}, "stopped")
        with contextlib.suppress(UnreachableError):
            connection.send({"op": "status"})
        assert connection.receive(WAIT_S) is None


class Broken:
    """A channel whose machine is gone."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def receive_line(self, _timeout_s: float | None) -> bytes:
        """Nothing comes."""
        raise self.error

    def send(self, _data: bytes) -> None:
        """Nothing goes."""
        raise self.error

    def hang_up(self) -> None:
        """Nobody is there."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EHOSTUNREACH, "no route"),
        ValueError("not JSON"),
    ],
)
def test_a_connection_that_broke_is_an_end(keeper: FakeKeeper, error: Any) -> None:
    """The kernel's own time-out is the end of the connection, not a deadline of ours."""
    with Connection(keeper.address) as connection:
        whole, connection._channel = connection._channel, Broken(error)
        assert connection.receive(1.0) is None
        whole.close()


def test_a_wait_that_is_over_is_a_deadline(keeper: FakeKeeper) -> None:
    """Nothing came in time: the connection is still good."""
    with Connection(keeper.address) as connection:
        with pytest.raises(DeadlineError):
            connection.receive(0.01)
        assert connection.ask({"op": "status"}, "status")


def test_a_send_to_nobody_is_unreachable(keeper: FakeKeeper) -> None:
    """Whoever sends learns that the keeper is gone."""
    with Connection(keeper.address) as connection:
        whole, connection._channel = connection._channel, Broken(BrokenPipeError("gone"))
        with pytest.raises(UnreachableError, match="keeper is gone"):
            connection.send({"op": "status"})
        whole.close()


# Sessions


def test_a_session_hears_what_is_there_and_what_happens(keeper: FakeKeeper) -> None:
    """First every host as it is, then what changes, last the end; each once and in order."""
    heard: list[dict[str, Any]] = []
    over = threading.Event()

    def hear(_session: Session, message: Any) -> None:
        heard.append(dict(message))
        if message["ev"] == "closed":
            over.set()

    session = Session(keeper.address, client="c", owner=True, output=False, hear=hear)
    assert (session.node, session.labels) == ("n1", ["w/0"])
    assert keeper.orders == [{"op": "hello", "client": "c", "owner": True, "output": False}]
    session.start()
    keeper.tell({"ev": "ending", "reason": "enough"})
    keeper.hang_up()
    assert over.wait(WAIT_S)
    session.close()
    assert [message["ev"] for message in heard] == ["host", "ending", "closed"]


def test_a_session_can_wait_for_what_was_printed(keeper: FakeKeeper) -> None:
    """After the word that all is out, everything before it has been heard; with a keeper gone nobody waits."""
    heard: list[str] = []
    session = Session(
        keeper.address,
        client="c",
        owner=False,
        output=True,
        hear=lambda _s, m: heard.append(m["ev"]),
    )
    session.start()
    keeper.tell({"ev": "out"})
    session.ask_sync()
    session.wait_synced(WAIT_S)
    assert heard == ["host", "out"]
    keeper.close()
    session.ask_sync()
    session.wait_synced(WAIT_S)
    session.close()


# Logs elsewhere


def test_a_log_elsewhere_is_read_in_pieces(ours: Path) -> None:
    """The keeper reads its own file for us; one that is gone has nothing to say."""
    with FakeKeeper("w/0") as keeper:
        keeper.answers["log"] = {"ev": "log", "data": "aGVsbG8="}
        keeper.listen_tls(ours)
        log = RemoteLog()
        with contextlib.closing(log):
            door = keeper.door(ours)
            assert [log.read(door, 0), log.read(door, 5)] == [b"hello", b"hello"]
            asked = [(order["host"], order["offset"]) for order in keeper.wait_for("log", 2)]
            assert asked == [("w/0", 0), ("w/0", 5)]
            keeper.close()
            assert log.read(door, 10) == b""

"""The bell: a ring ends a pause, and that is all it can do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from types import SimpleNamespace

import pytest

from milkweed import bell as module
from milkweed.bell import Bell, route_to
from milkweed.worker import bell as worker_bell

WAIT_S = 10.0


class Rest:
    """The rest after a ring, which lasts until a test says so."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.over = threading.Semaphore(0)
        self.lengths: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Rest until a test says that it is over."""
        self.lengths.append(seconds)
        self.begun.release()
        self.over.acquire(timeout=WAIT_S)


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> Generator[Rest]:
    made = Rest()
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=made.sleep))
    yield made
    for _ in range(100):
        made.over.release()


def ring(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), WAIT_S).close()


def test_a_ring_ends_a_pause(rest: Rest) -> None:
    """Whoever pauses goes on at once when somebody rings."""
    bell = Bell()
    ring(bell.open())
    assert bell.wait(WAIT_S) is True


def test_without_a_ring_a_pause_lasts(rest: Rest) -> None:
    """Nobody rang."""
    bell = Bell()
    bell.open()
    assert bell.wait(0.0) is False


def test_a_bell_that_was_never_opened_is_a_pause() -> None:
    """Programs that gave nobody their address pause all the same."""
    assert Bell().wait(0.0) is False


def test_a_program_rings_itself() -> None:
    """What it watches has changed; for that nobody must have opened the bell."""
    bell = Bell()
    bell.ring()
    assert bell.wait(WAIT_S)
    assert not bell.wait(0.0)


def test_one_ring_ends_one_pause(rest: Rest) -> None:
    """The next pause needs the next ring."""
    bell = Bell()
    ring(bell.open())
    assert bell.wait(WAIT_S)
    assert not bell.wait(0.0)


def test_the_bell_has_one_port(rest: Rest) -> None:
    """Opened at first use, and the same from then on, for all threads."""
    bell = Bell()
    ports: list[int] = []
    threads = [threading.Thread(target=lambda: ports.append(bell.open())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(set(ports)) == 1
    assert ports[0] > 0


def test_nobody_makes_a_client_busy_by_ringing(rest: Rest) -> None:
    """After each ring there is a rest, in which others do not count."""
    bell = Bell()
    port = bell.open()
    ring(port)
    assert rest.begun.acquire(timeout=WAIT_S)
    assert bell.wait(WAIT_S)
    for _ in range(20):
        ring(port)
    assert not bell.wait(0.0)
    rest.over.release()
    assert bell.wait(WAIT_S)
    assert rest.lengths[0] > 0


def test_what_is_said_to_the_bell_is_not_read(rest: Rest) -> None:
    """Whatever somebody sends, the connection is closed and nothing is done with it."""
    bell = Bell()
    with socket.create_connection(("127.0.0.1", bell.open()), WAIT_S) as caller:
        assert bell.wait(WAIT_S)
        try:
            caller.sendall(b"x" * 100)
            assert caller.recv(1) == b""
        except OSError:
            pass


def test_where_nobody_may_listen_there_is_no_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that cannot be had is no error: the client looks by itself."""

    def refuse(*_args: object) -> socket.socket:
        raise PermissionError("not here")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert Bell().open() == 0


# Ways


def test_the_way_to_this_machine() -> None:
    """Seen from this machine, this machine is the loopback."""
    assert route_to("127.0.0.1") == "127.0.0.1"
    assert route_to("localhost") in {"127.0.0.1", "::1"}


def test_a_machine_that_nobody_knows_has_no_way() -> None:
    """A name that is not known is an error of the network, as callers expect it."""
    with pytest.raises(OSError, match=r"."):
        route_to("no-such-host.invalid")


# Ringing


def ring_from_worker(addresses: list[list[str | int]]) -> None:
    async def main() -> None:
        worker_bell.ring(addresses)
        await asyncio.gather(*worker_bell._ringing)

    asyncio.run(main())


def test_a_worker_rings(rest: Rest) -> None:
    """Every client that gave its address is woken."""
    first, second = Bell(), Bell()
    ring_from_worker([["127.0.0.1", first.open()], ["127.0.0.1", second.open()]])
    assert first.wait(WAIT_S)
    assert second.wait(WAIT_S)


def test_a_worker_rings_where_nobody_is_left(rest: Rest) -> None:
    """A client that has ended, or a name that nobody knows, is nobody's loss; the others are still woken."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    bell = Bell()
    ring_from_worker([["127.0.0.1", port], ["no-such-host.invalid", 1], ["127.0.0.1", bell.open()]])
    assert bell.wait(WAIT_S)
    assert worker_bell._ringing == set()


def test_nobody_to_ring() -> None:
    """Most hosts have nobody to wake."""
    ring_from_worker([])


def test_a_worker_does_not_wait_for_a_silent_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client behind a wall that swallows everything costs a few seconds in the background, and no error."""

    async def never(_host: str, _port: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    monkeypatch.setattr(worker_bell, "TIMEOUT_S", 0.01)
    ring_from_worker([["10.255.255.1", 9]])
    assert worker_bell._ringing == set()

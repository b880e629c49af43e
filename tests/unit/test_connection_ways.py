"""Joining hosts that others made, hosts that only an API server leads to, and hosts that will never come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import milkweed
from milkweed import registry
from milkweed.backends.base import Adopts, Capabilities
from milkweed.control import BY_HOST, Door
from milkweed.errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    UnreachableError,
)
from milkweed.events import Events
from milkweed.hosts import Host
from milkweed.job import reaching
from milkweed.job.connection import START_TIMEOUT_S, Connection
from milkweed.job.reaching import gateway, listen_for
from milkweed.kube import via as kube_via
from milkweed.spec import JobSpec, MeshSpec
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock
from unit.kubernetes_jobs import APPLY_ID

VIA = "here||lab|w-0"
RUNNING = Status(liveness=Liveness.RUNNING)
ENDED = Status(liveness=Liveness.ENDED, reason="its objects are gone")


def adopted(rank: int, via: str = "") -> Host:
    """A host that somebody else made."""
    return Host(name=f"p{rank}", mesh="w", rank=rank, address=f"tcp://10.0.0.{rank}:9", via=via)


class Backend:
    """A scheduler all of whose hosts were made by others; what it says changes as time passes."""

    name = "kubernetes"
    capabilities = Capabilities()

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.says: Callable[[float], Status] = lambda _s: RUNNING
        self.serves_s = 0.0
        """When the last of them serves."""
        self.asked = 0
        self.hosts_found: Sequence[Host] = [adopted(0), adopted(1)]

    @property
    def now_s(self) -> float:
        """Seconds since the test began."""
        return self.clock.now_s - 1000.0

    def glance(self, _handle: object, *, fresh: bool = False) -> Status:
        """What it says now."""
        return self.says(self.now_s)

    def controls(self, _handle: object) -> Sequence[str]:
        """There are no keepers."""
        return []

    def adopted_labels(self, _handle: object) -> Sequence[str]:
        """All of them."""
        return ["w/0", "w/1"]

    def adopted(self, _handle: object) -> Sequence[Host]:
        """All of them, once all serve."""
        self.asked += 1
        if self.now_s < self.serves_s:
            raise UnreachableError("host w/1 does not answer", seen="its pod is not ready")
        return self.hosts_found


@pytest.fixture
def backend(clock: FakeClock) -> Backend:
    registry.folder_of(APPLY_ID).mkdir(parents=True)
    return Backend(clock)


@pytest.fixture
def connection(backend: Backend, clock: FakeClock) -> Generator[Connection]:
    """A connection to two hosts that others made."""
    meshes = (MeshSpec(name="w", hosts=2),)
    spec = JobSpec(name="demo", backend="kubernetes", meshes=meshes, client={"stream_logs": False})
    made = Connection(
        cast("Any", backend),
        spec,
        {},
        Events(APPLY_ID),
        owner=False,
        sleep=clock.sleep,
        clock=clock,
    )
    yield made
    made.close()


# Hosts that others made


def test_hosts_of_others_need_no_keeper(connection: Connection, backend: Backend) -> None:
    """They count as there, and are asked for once they serve."""
    assert isinstance(backend, Adopts)
    connection.join(None)
    assert connection._wait_ready(None) == [adopted(0), adopted(1)]
    assert backend.clock.slept == []


def test_hosts_of_others_are_waited_for(connection: Connection, backend: Backend) -> None:
    """A second more or less; the engine would wait a minute for one that does not serve."""
    backend.serves_s = 30.0
    connection.join(None)
    assert len(connection._wait_ready(None)) == 2
    assert 30.0 <= backend.now_s < 31.0


@pytest.mark.parametrize("given_s", [7.0, None])
def test_hosts_that_never_serve_have_a_deadline(
    connection: Connection, backend: Backend, given_s: float | None
) -> None:
    """The one that was given, else five minutes; the error names the host and why."""
    backend.serves_s = float("inf")
    connection.join(None)
    with pytest.raises(DeadlineError) as caught:
        connection._wait_ready(None if given_s is None else backend.clock.now_s + given_s)
    assert backend.now_s == pytest.approx(given_s or START_TIMEOUT_S)
    assert "host w/1 does not answer: its pod is not ready" in caught.value.seen


def test_a_deadline_is_told_as_it_was_said(connection: Connection, backend: Backend) -> None:
    """It is for all of a wait, and the last stage may have begun late."""
    backend.serves_s = float("inf")
    connection._spec = replace(connection._spec, client={"start_timeout": 60.0})
    connection.join(None)
    with pytest.raises(DeadlineError, match="the hosts were not ready within 60 s"):
        connection._wait_ready(backend.clock.now_s + 7.0)


def test_an_end_ends_the_wait_for_hosts_of_others(connection: Connection, backend: Backend) -> None:
    """Nobody waits for what is gone."""
    backend.serves_s = float("inf")
    backend.says = lambda s: ENDED if s > 5 else RUNNING
    connection.join(None)
    with pytest.raises(AllocationEndedError):
        connection._wait_ready(None)
    assert backend.now_s < 6


# Hosts that will never come


@pytest.mark.parametrize("live", [Liveness.PENDING, Liveness.RUNNING])
def test_a_host_that_cannot_start_ends_the_wait(
    connection: Connection, backend: Backend, live: Liveness
) -> None:
    """The scheduler knows it while the others still wait: its reason is told at once."""
    lost = HostStatus(host="w/1", state=HostState.FAILED, reason="ErrImageNeverPull: no image")
    backend.says = lambda _s: Status(liveness=live, hosts=(lost,))
    with pytest.raises(HostFailedError, match="host w/1 did not start") as caught:
        connection.join(None)
    assert "ErrImageNeverPull" in caught.value.seen
    assert backend.now_s == 0


def test_hosts_that_start_are_no_failure(connection: Connection, backend: Backend) -> None:
    """Only what is lost for good ends the wait."""
    waits = HostStatus(host="w/1", state=HostState.STARTING)
    later = Status(liveness=Liveness.PENDING, hosts=(waits,))
    backend.says = lambda s: RUNNING if s > 60 else later
    connection.join(None)
    assert backend.now_s > 60


# Ways


@pytest.mark.parametrize(
    ("address", "via", "expected"),
    [
        ("ipc:///tmp/x", "", "localhost"),
        ("tls://n1:5", "", "localhost"),
        ("tcp://10.0.0.7:5", "", "to 10.0.0.7"),
        ("name@tcp://10.0.0.7:5", "", "to 10.0.0.7"),
        ("tcp://[fd00::7]:5", "", "to fd00::7"),
        ("tcp://10.0.0.7:5", VIA, "localhost"),
    ],
)
def test_where_hosts_reach_this_client(
    monkeypatch: pytest.MonkeyPatch, address: str, via: str, expected: str
) -> None:
    """At the address that leads to them; through a gateway they never dial back."""
    monkeypatch.setattr(reaching, "route_to", lambda machine: f"to {machine}")
    assert listen_for(Host(name="h", address=address, via=via)) == expected


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every way for which a port of this machine was opened."""
    found: list[tuple[str, int]] = []

    def forward(via: str, port: int) -> int:
        found.append((via, port))
        return 4711

    monkeypatch.setattr(kube_via, "forward_via", forward)
    return found


def test_hosts_that_can_be_dialled_need_no_gateway(forwarded: list[Any]) -> None:
    """Neither those of ours nor those of others."""
    door = Door(machine="m", port=1, host="w/0", credentials="/keys")
    assert gateway(Host(name="h", address="tls://m:2", control=str(door))) == ""
    assert gateway(Host(name="h", address="ipc:///x", control="unix:///x")) == ""
    assert gateway(adopted(0)) == ""
    assert forwarded == []


def test_a_host_behind_an_api_server_is_the_gateway(forwarded: list[Any]) -> None:
    """Its port of the engine, carried to a port of this machine."""
    door = Door(machine="m", port=1, host="w/0", credentials="/keys", via=VIA)
    host = Host(name="h", address="tls://w-0.w-svc.lab.svc:26602", control=str(door))
    assert gateway(host) == "tls://localhost:4711"
    named = Host(name="h", address="one@tcp://10.0.0.1:26600", via=VIA)
    assert gateway(named) == "tcp://localhost:4711"
    assert forwarded == [(VIA, 26602), (VIA, 26600)]


def test_hosts_that_cannot_dial_back_carry_it_themselves(forwarded: list[Any]) -> None:
    """The first of them is dialled as it is."""
    door = Door(machine="m", port=1, host="w/0", credentials="/keys", via=BY_HOST)
    host = Host(name="h", address="tls://m:2", control=str(door))
    assert gateway(host) == "tls://m:2"
    assert forwarded == []


@pytest.mark.parametrize(
    ("via", "listen", "gateway"),
    [("", "10.9.9.9", ""), (VIA, "localhost", "tcp://localhost:4711")],
)
def test_the_engine_is_told_the_way(
    connection: Connection,
    backend: Backend,
    forwarded: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    via: str,
    listen: str,
    gateway: str,
) -> None:
    """Where this client listens, and who carries its messages."""
    told: dict[str, Any] = {}
    fake = SimpleNamespace(
        attach=lambda cut, **more: told.update(more) or cut, forgive_faults=lambda _told: None
    )
    monkeypatch.setitem(sys.modules, "milkweed.engine", cast("Any", fake))
    monkeypatch.setattr(milkweed, "engine", fake, raising=False)
    monkeypatch.setattr(reaching, "route_to", lambda _machine: "10.9.9.9")
    backend.hosts_found = [adopted(0, via), adopted(1, via)]
    cut = connection.open(None)
    assert [host.label for host in cut["w"]] == ["w/0", "w/1"]
    assert (told["listen"], told["gateway"], told["credentials"]) == (listen, gateway, {})


def test_a_way_is_plain_data() -> None:
    """So that it stands in state files like any address."""
    assert adopted(0, VIA).to_json()["via"] == VIA
    assert adopted(0).to_json()["via"] == ""

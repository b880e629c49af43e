"""Ranks belong to clients: what becomes of them when a connection ends, breaks, or comes back."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from milkweed.worker import ranks
from milkweed.worker.clients import Client
from milkweed.worker.keeper import GANG_ORDERS, Keeper
from unit.gangs import Machine, make_order, make_start

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
WAIT = "touch up$RANK; while :; do sleep 0.01; done"
STEP_S = 0.2
"""Longer than the patience of these tests, where there is one that ends."""


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def start(machine: Machine) -> None:
    machine.launch(WAIT)
    machine.up("up0")


def lose(machine: Machine, patience_s: float, client: str = "me") -> None:
    machine.do(machine.gangs.lost_client, client, patience_s=patience_s)


def test_ranks_end_with_their_client(machine: Machine) -> None:
    """A client of this machine is gone when its connection is."""
    start(machine)
    lose(machine, 0.0)
    assert machine.codes() == {0: -signal.SIGTERM}
    assert machine.exits()[0]["halted"] is True
    assert machine.gangs._find("T.0") == []


def test_a_client_may_come_back(machine: Machine) -> None:
    """One whose connection broke has some time, and its ranks go on as if nothing was."""
    start(machine)
    lose(machine, STEP_S / 2)
    machine.do(machine.gangs.saw_client, "me")
    machine.rest(STEP_S)
    assert machine.processes
    assert len(machine.gangs._find("T.0")) == 1


def test_a_client_that_does_not_come_back(machine: Machine) -> None:
    """After that time ranks end; that another client is there does not help."""
    start(machine)
    lose(machine, STEP_S / 2)
    machine.do(machine.gangs.saw_client, "another")
    assert machine.codes() == {0: -signal.SIGTERM}
    machine.until(lambda: not machine.processes)


def test_ranks_of_others_go_on(machine: Machine) -> None:
    """The end of one client is not another's."""
    start(machine)
    order = make_order(WAIT, id="U.0", first=1, folder="other")
    machine.do(machine.gangs.launch, "another", order)
    machine.up("up1")
    lose(machine, 0.0, "another")
    assert machine.codes() == {1: -signal.SIGTERM}
    machine.rest(STEP_S)
    assert machine.codes() == {1: -signal.SIGTERM}


def test_a_client_without_ranks_is_not_waited_for(machine: Machine) -> None:
    """Nothing is kept of it."""
    lose(machine, 30.0)
    assert machine.gangs._waiting == {}
    machine.do(machine.gangs.saw_client, "me")


def test_held_ports_go_with_their_client(machine: Machine) -> None:
    """One that only prepared leaves nothing either."""
    order = {"id": "T.0", "host": "w/0", "nproc": 1, "env": {}, "port": True}
    machine.do(machine.gangs.prepare, "me", order)
    port = machine.told[-1][1]["port"]
    lose(machine, 0.0)
    machine.until(lambda: not machine.gangs._ports)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_a_client_that_was_lost_twice(machine: Machine) -> None:
    """However often its connection broke: when it is back, it is back."""
    start(machine)
    lose(machine, STEP_S / 2)
    lose(machine, STEP_S / 2)
    machine.do(machine.gangs.saw_client, "me")
    machine.rest(STEP_S)
    assert machine.processes


def test_files_are_closed_with_the_last_rank(machine: Machine) -> None:
    """What collects the lines of all ranks is not left open."""
    machine.launch("exit 0", ranks=2, filters={"out": ["x"], "err": []}, files={"out": True})
    machine.exits(2)
    assert open_files(machine.folder) == []


def test_files_of_a_launch_that_failed_are_closed(machine: Machine) -> None:
    """Nothing is left of it but its folder."""
    env = {"CUDA_VISIBLE_DEVICES": ""}
    filters = {"out": ["x"], "err": []}
    order = make_order("exit 0", 2, virtual=True, env=env, filters=filters)
    order["ranks"] = order["ranks"][1:]
    machine.do(machine.gangs.launch, "me", order)
    gang = machine.gangs._find("T.0")[0]
    machine.order("done")
    try:
        assert open_files(machine.folder) == []
    finally:
        gang.logs.close()


def open_files(folder: Path) -> list[str]:
    """Files for filtered lines that this process has open."""
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(f"{folder}/ranks") and "filtered" in path]


# A keeper and its connections


class Wire:
    """What a client would have been sent."""

    def __init__(self) -> None:
        self.transport = self
        self.sent: list[dict[str, Any]] = []

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def get_write_buffer_size(self) -> int:
        """It reads fast."""
        return 0

    def write(self, data: bytes) -> None:
        """Take a message."""
        self.sent.append(json.loads(data))

    def close(self) -> None:
        """Let go."""


class Kept:
    """A keeper whose loop is that of a machine, and clients of it."""

    def __init__(self, machine: Machine, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(ranks, "CLIENT_PATIENCE_S", STEP_S / 2)
        self.machine = machine
        start = make_start(machine.folder, "w/0", "w/1")
        self.keeper: Keeper = machine.do(Keeper, machine.folder, start)
        machine.loop.add_signal_handler(signal.SIGCHLD, self.keeper.fleet.reap)
        machine.fleet, machine.gangs = self.keeper.fleet, self.keeper.gangs

    def client(self, name: str, *, remote: bool = True) -> tuple[Client, Wire]:
        """A client that has said hello."""
        wire = Wire()
        client = Client(cast("Any", wire), remote=remote)
        self.take(client, op="hello", client=name, owner=False)
        return client, wire

    def take(self, client: Client, /, **message: Any) -> None:
        """Give the keeper a message."""
        self.machine.do(self.keeper._take, client, message)

    def start(self, client: Client) -> None:
        """Have ranks started, and wait until they run."""
        self.take(client, **make_order(WAIT))
        self.machine.up("up0")

    def drop(self, client: Client) -> None:
        """Let the connection of a client end."""
        self.machine.do(self.keeper._gone, client)

    @property
    def running(self) -> bool:
        """Whether ranks still run after a while."""
        self.machine.rest(STEP_S)
        return bool(self.machine.processes)


@pytest.fixture
def kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(machine, monkeypatch)


def words(wire: Wire) -> list[str]:
    return [message["ev"] for message in wire.sent]


def test_orders_about_ranks_are_carried_out(kept: Kept) -> None:
    """All of them, for the client that gave them; others hear nothing."""
    mine, wire = kept.client("me")
    _other, silence = kept.client("other")
    kept.take(mine, op="prepare", id="T.0", host="w/0", nproc=3, env={}, port=False)
    kept.take(mine, **make_order("echo hello; exit 3"))
    kept.machine.until(lambda: "rank-exit" in words(wire))
    kept.take(mine, op="report", id="T.0", host="w/0", number=1)
    kept.take(mine, op="heard", id="T.0", host="w/0", number=2)
    kept.take(mine, op="report", id="T.0", host="w/0", number=2)
    kept.take(mine, op="halt", id="T.0", host="w/0", signal="SIGTERM", grace_s=0)
    kept.take(mine, op="done", id="T.0", host="w/0")
    kept.take(mine, op="report", id="T.0", host="w/0", number=0)
    assert words(wire) == ["status", "prepared", "launched", "out", "rank-exit", "rank-exit"]
    assert words(silence) == ["status"]
    assert set(GANG_ORDERS) == {"prepare", "launch", "report", "heard", "halt", "done"}


def test_a_client_of_this_machine_has_no_patience(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks only with itself."""
    monkeypatch.setattr(ranks, "CLIENT_PATIENCE_S", 100.0)
    client, _wire = kept.client("me", remote=False)
    kept.start(client)
    kept.drop(client)
    kept.machine.until(lambda: not kept.machine.processes)


def test_a_client_elsewhere_is_waited_for(kept: Kept) -> None:
    """Its ranks go on; when it says hello again in time, for good, and it hears how they end."""
    client, _wire = kept.client("me")
    kept.start(client)
    kept.drop(client)
    again, wire = kept.client("me")
    assert kept.running
    kept.take(again, op="halt", id="T.0", host="w/0", signal="SIGTERM", grace_s=5)
    kept.machine.until(lambda: "rank-exit" in words(wire))


def test_a_client_elsewhere_that_stays_away(kept: Kept) -> None:
    """Its ranks end after a while."""
    client, _wire = kept.client("me")
    kept.start(client)
    kept.drop(client)
    kept.machine.until(lambda: not kept.machine.processes)


def test_a_broken_connection_that_is_noticed_late(kept: Kept) -> None:
    """A client notices first and comes back; when the keeper notices, too, there is nothing to end."""
    old, _wire = kept.client("me")
    kept.start(old)
    kept.client("me")
    kept.drop(old)
    assert kept.running


def test_a_host_is_revived_by_order(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper hands it on by name."""
    asked: list[str] = []
    monkeypatch.setattr(kept.keeper.fleet, "revive", asked.append)
    client, wire = kept.client("me")
    kept.take(client, op="revive", host="w/1")
    assert asked == ["w/1"]
    assert words(wire) == ["status"]


def test_unknown_orders_are_refused(kept: Kept) -> None:
    """A newer client may ask for more."""
    client, wire = kept.client("me")
    kept.take(client, op="sing")
    assert wire.sent[-1] == {"ev": "error", "what": "unknown order 'sing'"}

"""Being present at hosts that a program will use later: added ones, and those of a follow-up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.errors import UnreachableError
from milkweed.job import attending
from milkweed.job.attending import Attendance
from milkweed.job.connection import Connection
from milkweed.job.held import BACK_S, Held
from milkweed.job.presence import Presence
from milkweed.plan import Action, Plan, Renewal
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import Record, StateFile
from milkweed.status import Liveness, Status
from programs import wait_until
from unit.keepers import WAIT_S, FakeKeeper
from unit.slurm_fake import APPLY_ID

SPEC = JobSpec(
    name="demo",
    backend="slurm",
    meshes=(MeshSpec(name="w", hosts=1),),
    client={"stream_logs": False},
)


class Backend:
    """A scheduler whose keepers are known by generation, and which can be followed by another."""

    name = "slurm"
    capabilities = Capabilities()

    def __init__(self, *keepers: FakeKeeper) -> None:
        self.keepers = keepers
        self.elsewhere: list[str] = []
        """Doors behind which nobody answers."""
        self.admitted: list[Sequence[str]] = []
        self.mute = False

    def controls(self, handle: Any) -> Sequence[str]:
        """Where the keepers of a generation take orders."""
        if self.mute:
            raise UnreachableError("Slurm's controller did not answer")
        at = handle.get("generation", 0)
        return [each.address for each in self.keepers[at : at + 1]] + self.elsewhere

    def glance(self, _handle: object, *, fresh: bool = False) -> Status:
        """All of it runs."""
        return Status(liveness=Liveness.RUNNING)

    def admit(self, _handle: object, hosts: Sequence[str]) -> None:
        """Take down whom it was asked to let in."""
        self.admitted.append(list(hosts))

    def renewal(self, _handle: object, _renew: str | None) -> Renewal:
        """One was asked for."""
        return Renewal.WAITING

    def renew(self, handle: Any, _spec: JobSpec) -> Any:
        """There is one already."""
        return handle

    def move(self, handle: Any) -> Any:
        """The next generation."""
        return {**handle, "generation": handle.get("generation", 0) + 1}

    def retire(self, _handle: object) -> None:
        """Nothing is left."""


@pytest.fixture
def keepers(tmp_path: Path) -> Generator[list[FakeKeeper]]:
    """The keeper of a host, and the one of the host that follows it."""
    made = [FakeKeeper("w/0").listen_unix(tmp_path / f"ctl{n}") for n in range(2)]
    for number, keeper in enumerate(made):
        keeper.keeper = f"keeper{number}"
    yield made
    for keeper in made:
        keeper.close()


@pytest.fixture
def backend(keepers: list[FakeKeeper]) -> Backend:
    return Backend(*keepers)


Make = Callable[..., Attendance]


@pytest.fixture
def attend(backend: Backend) -> Generator[Make]:
    """Makes an attendance that ends with the test."""
    made: list[Attendance] = []

    def make(*, owner: bool, idle_timeout_s: float = 0.0) -> Attendance:
        known = cast("Any", backend)
        made.append(Attendance(known, owner=owner, idle_timeout_s=idle_timeout_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def orders(keeper: FakeKeeper) -> list[str]:
    return [order["op"] for order in keeper.orders if order["op"] != "sync"]


def test_an_owner_is_seen_by_hosts_that_it_does_not_use_yet(
    attend: Make, keepers: list[FakeKeeper]
) -> None:
    """They are greeted once, quietly, and asked for nothing."""
    made = attend(owner=True)
    made.attend({"generation": 1})
    made.attend({"generation": 1})
    [hello] = keepers[1].orders
    assert (hello["op"], hello["owner"], hello["output"]) == ("hello", True, False)
    assert keepers[0].orders == []


def test_hosts_of_a_recorded_job_are_kept(attend: Make, keepers: list[FakeKeeper]) -> None:
    """Whatever they were told when they were asked for: the job may have been recorded since."""
    attend(owner=False, idle_timeout_s=50.0).attend({})
    assert keepers[0].wait_for("keep") == [{"op": "keep", "idle_timeout_s": 50.0}]


def test_a_job_that_is_recorded_later_keeps_them(attend: Make, keepers: list[FakeKeeper]) -> None:
    """From that moment on they outlive their owner."""
    made = attend(owner=True)
    made.attend({})
    made.keep(70.0)
    assert keepers[0].wait_for("keep") == [{"op": "keep", "idle_timeout_s": 70.0}]


def test_hosts_that_wait_for_it_are_let_in(attend: Make, backend: Backend, tmp_path: Path) -> None:
    """Those that do not answer may not see the job's files; those that do are left alone."""
    backend.elsewhere = [f"tls://127.0.0.1:1/w/1#{tmp_path}/none"]
    attend(owner=True).attend({})
    assert backend.admitted == [["w/1"]]


def test_a_scheduler_that_is_silent_is_asked_later(attend: Make, backend: Backend) -> None:
    """Nothing is known then, and nothing is wrong."""
    backend.mute = True
    made = attend(owner=True)
    made.attend({})
    backend.mute = False
    made.attend({})
    assert len(made._presence.sessions) == 1


def test_a_host_that_is_gone_is_joined_when_it_is_back(
    attend: Make, keepers: list[FakeKeeper]
) -> None:
    """A broken connection is forgotten, and made anew at the next look."""
    made = attend(owner=True)
    made.attend({})
    keepers[0].hang_up()
    wait_until(lambda: not made._presence.sessions, WAIT_S)
    made.attend({})
    assert orders(keepers[0]) == ["hello", "hello"]


def test_what_is_used_now_is_left_to_its_user(
    attend: Make, keepers: list[FakeKeeper], backend: Backend
) -> None:
    """Where the program's own connection is the place is given up, and elsewhere it is kept."""
    made = attend(owner=True)
    for generation in (0, 1):
        made.attend({"generation": generation})
    own = Presence(client="me", owner=True, output=False, hear=lambda *_: None)
    own.join(backend.controls({"generation": 1}))
    made.hand_over(own)
    assert [session.keeper for session in made._presence.sessions] == ["keeper0"]
    own.close(0.0)


def test_who_has_left_joins_nobody_any_more(attend: Make, keepers: list[FakeKeeper]) -> None:
    """A look that was under way leaves nothing open."""
    made = attend(owner=True)
    made.close()
    made.attend({})
    assert made._presence.sessions == []


# What a job holds


def test_hosts_that_are_all_joined_need_no_scheduler(
    attend: Make, backend: Backend, keepers: list[FakeKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they run it is not asked at all; it is asked again when one has gone."""
    monkeypatch.setattr(attending, "LOOK_S", 0.01)
    asked: list[int] = []
    controls = backend.controls

    def count(handle: Any) -> Sequence[str]:
        asked.append(1)
        return controls(handle)

    monkeypatch.setattr(backend, "controls", count)
    made = attend(owner=True)
    made.stay({}, hosts=1)
    keepers[0].wait_for("hello")
    wait_until(lambda: len(made._presence.sessions) == 1, WAIT_S)
    before = len(asked)
    made._over.wait(0.1)
    assert len(asked) == before
    keepers[0].close()
    wait_until(lambda: len(asked) > before, WAIT_S)


@pytest.fixture
def held(home: Path, folder: Path) -> Generator[Held]:
    registry.folder_of(APPLY_ID).mkdir(parents=True)
    record = Record(spec=SPEC, apply_id=APPLY_ID, handle={"generation": 0})
    made = Held(record, StateFile("job.json"))
    yield made
    made.let_go()


def test_hosts_hear_that_their_owner_comes_back(
    held: Held, backend: Backend, keepers: list[FakeKeeper]
) -> None:
    """After a loss the connection is made anew: those that end with their owner must not take it for its end."""
    made = held.connect(cast("Any", backend), {"stream_logs": False}, owner=True)
    made.join(None)
    made._watch.lost["w/0"] = "its worker ended"
    again = held.connect(cast("Any", backend), {"stream_logs": False}, owner=True)
    assert again is not made
    again.join(None)
    assert orders(keepers[0]) == ["hello", "leave", "hello"]
    assert keepers[0].wait_for("leave") == [{"op": "leave", "back_s": BACK_S}]


def test_who_leaves_for_good_says_no_such_thing(
    held: Held, backend: Backend, keepers: list[FakeKeeper]
) -> None:
    """Then hosts end with their owner, at once."""
    held.connect(cast("Any", backend), {"stream_logs": False}, owner=True).join(None)
    held.let_go()
    assert orders(keepers[0]) == ["hello"]


def test_a_program_is_present_at_its_follow_up(
    held: Held, backend: Backend, keepers: list[FakeKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it uses the old hosts; and it stays there while it goes over to the new ones."""
    monkeypatch.setattr("milkweed.job.renewing.CHECK_S", 0.01)
    plan = Plan(action=Action.NOTHING, reasons=("x",), spec=SPEC, renewal=Renewal.WAITING)
    held.renew(cast("Any", backend), lambda: plan, lambda *_, **__: None, keep=False)
    assert keepers[1].wait_for("hello")[0]["owner"] is True
    held.let_go(back_s=BACK_S)
    made = held.attendance
    assert made is not None
    wait_until(lambda: len(made._presence.sessions) == 1, WAIT_S)
    held.let_go()
    assert held.attendance is None


def test_a_job_that_is_recorded_keeps_its_follow_up(
    held: Held, backend: Backend, keepers: list[FakeKeeper]
) -> None:
    """As it keeps the hosts that are used."""
    held.connect(cast("Any", backend), {"stream_logs": False}, owner=True).join(None)
    held._attend(cast("Any", backend), owner=True)
    held.keep()
    for keeper in keepers:
        keeper.wait_for("keep")


def test_who_stays_goes_over_to_the_hosts_that_there_are_now(
    held: Held, backend: Backend, keepers: list[FakeKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a change of sizes has added see their owner, and those before see nothing of it."""
    monkeypatch.setattr(attending, "LOOK_S", 0.01)
    held.stay(cast("Any", backend))
    keepers[0].wait_for("hello")
    keepers[1].hosts[0]["host"] = "w/1"
    grown = JobSpec(name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=2),))

    def resize() -> None:
        monkeypatch.setattr(backend, "controls", lambda _handle: [k.address for k in keepers])
        held.record = replace(held.record, spec=grown)

    held.resize(grown, resize)
    assert keepers[1].wait_for("hello")[0]["owner"] is True
    assert orders(keepers[0]) == ["hello"]


def test_hosts_that_a_connection_has_are_left_to_it(
    held: Held, backend: Backend, keepers: list[FakeKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stays asks no scheduler as long as all of them are joined, by whichever of the two."""
    monkeypatch.setattr(attending, "LOOK_S", 0.01)
    held.connect(cast("Any", backend), {"stream_logs": False}, owner=True).join(None)
    asked: list[int] = []
    monkeypatch.setattr(backend, "controls", lambda _handle: asked.append(1) or [])
    held.stay(cast("Any", backend))
    assert held.attendance
    held.attendance._over.wait(0.1)
    assert asked == []
    assert orders(keepers[0]) == ["hello"]


def test_hosts_that_were_handed_over_are_left_to_who_has_them(
    held: Held, backend: Backend, keepers: list[FakeKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked where they are any more, also when those are left for others."""
    monkeypatch.setattr(attending, "LOOK_S", 0.01)
    held.stay(cast("Any", backend))
    keepers[0].wait_for("hello")
    made = held.attendance
    assert made
    connection = held.connect(cast("Any", backend), {"stream_logs": False}, owner=True)
    connection.join(None)
    connection.take_over(made)
    asked: list[int] = []
    monkeypatch.setattr(backend, "controls", lambda _handle: asked.append(1) or [])
    connection.close()
    made._over.wait(0.1)
    assert asked == []


def test_added_hosts_see_their_owner_before_it_opens_them(
    held: Held, backend: Backend, keepers: list[FakeKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may come long before the program looks for them: it is there all the same, and then takes over."""
    monkeypatch.setattr(attending, "LOOK_S", 0.01)
    made: Connection = held.connect(cast("Any", backend), {"stream_logs": False}, owner=True)
    made.join(None)
    keepers[1].hosts[0]["host"] = "w/1"
    monkeypatch.setattr(backend, "controls", lambda _handle: [k.address for k in keepers])
    grown = JobSpec(name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=2),))
    made.change(grown, {"generation": 0})
    assert keepers[1].wait_for("hello")[0]["owner"] is True
    assert orders(keepers[0]) == ["hello"]
    made.join(None)
    assert len(keepers[1].wait_for("hello", 2)) == 2
    assert made._attendance is None

"""More time for hosts in a cluster: planned when their time limit is near, and given to all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.base import Renews
from milkweed.backends.kubernetes import backend as module, places
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.renewal import give_time
from milkweed.compute import Compute
from milkweed.errors import SpecError, UnreachableError
from milkweed.job import lifecycle, renewing
from milkweed.job.kubernetes import ImageSpec, KubernetesJob
from milkweed.job.observing import observe
from milkweed.job.renewing import Renewer
from milkweed.plan import Action, Plan, Renewal
from milkweed.spec import Lifetime
from milkweed.state import StateFile
from milkweed.worker.keeper import Keeper
from programs import wait_until
from unit.gangs import make_start
from unit.keepers import FakeKeeper, host
from unit.kubernetes_jobs import Space, create, make_spec, mesh_name
from unit.test_kubernetes_status import Keepers

LIMIT_S = 36000.0


def declare(hosts: int = 2, renew: str | None = "30m") -> Any:
    """A job with a time limit."""
    from dataclasses import replace

    spec = make_spec({"w": hosts}, client={"renew": renew} if renew else {})
    return replace(spec, lifetime=Lifetime(time_limit_s=LIMIT_S))


@pytest.fixture
def keepers(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Keepers]:
    """The keepers of a job of two hosts, which run."""
    made = Keepers(tmp_path)
    for each in (places, module):
        monkeypatch.setattr(each, "make_door", made.door)
    for rank in range(2):
        space.add_pod(f"{mesh_name()}-{rank}")
        made.add(f"w/{rank}").answers["renew"] = {"ev": "renewed"}
    yield made
    for keeper in made.by_label.values():
        keeper.close()


def set_left(keepers: Keepers, *left_s: float) -> None:
    """What is left of each host's time."""
    for keeper, each_s in zip(keepers.by_label.values(), left_s, strict=True):
        keeper.times = {"time_left_s": each_s, "time_limit_s": LIMIT_S}


def plan_now(spec: Any, record: Any) -> Plan:
    """What would be done now."""
    backend = KubernetesBackend()
    wish = lifecycle.Wish(spec=spec, backend=backend, apply_id=record.apply_id)
    _record, seen = observe(backend, record, None, wish)
    return lifecycle.plan_for(wish, seen)


@pytest.mark.parametrize(
    ("renew", "left", "expected"),
    [
        ("30m", (9000.0, 1801.0), Action.REUSE),
        ("30m", (9000.0, 1800.0), Action.RENEW),
        ("before time limit", (3601.0, 9000.0), Action.REUSE),
        ("before time limit", (3600.0, 9000.0), Action.RENEW),
        (None, (1.0, 1.0), Action.REUSE),
    ],
)
def test_more_time_is_planned_when_the_first_host_is_near_its_end(
    folder: Path, keepers: Keepers, renew: str | None, left: Any, expected: Action
) -> None:
    """And said with the time that is left; without a word nothing is renewed."""
    spec = declare(renew=renew)
    record = create(spec)
    set_left(keepers, *left)
    plan = plan_now(spec, record)
    assert plan.action is expected
    if expected is Action.RENEW:
        assert plan.reasons == (f"its time limit is reached in {min(left):.0f} s",)


def test_a_planned_renewal_gives_all_hosts_more_time(
    space: Space, folder: Path, keepers: Keepers
) -> None:
    """The record is the same, the hosts are the same, and nothing moves."""
    spec = declare()
    record = create(spec)
    set_left(keepers, 10.0, 20.0)
    backend = KubernetesBackend()
    wish = lifecycle.Wish(spec=spec, backend=backend, apply_id=record.apply_id or "")
    plan = plan_now(spec, record)
    writes = list(space.writes)
    after, _file = lifecycle.execute(plan, wish, record, StateFile("job.json"))
    assert after == record
    assert space.writes == writes
    for keeper in keepers.by_label.values():
        [order] = keeper.wait_for("renew")
        assert order["time_limit_s"] == LIMIT_S
    assert isinstance(backend, Renews)
    assert backend.move(record.handle or {}) == record.handle
    assert backend.capabilities.extends


def test_a_host_that_is_not_given_time_is_told(
    space: Space, folder: Path, keepers: Keepers
) -> None:
    """It is no success, so it is tried again; the others have it already, which does no harm."""
    record = create(declare())
    keepers.by_label.pop("w/1").close()
    with pytest.raises(UnreachableError, match="1 of 2 hosts were not given more time"):
        KubernetesBackend().renew(record.handle or {}, declare())
    keepers.by_label["w/0"].wait_for("renew")


def test_a_host_without_a_limit_has_nothing_to_renew(
    space: Space, folder: Path, keepers: Keepers
) -> None:
    """Whatever the program says now."""
    record = create(declare())
    assert KubernetesBackend().renewal(record.handle or {}, "30m") is Renewal.NONE


@pytest.mark.parametrize("renew", ["soon", "-1m"])
def test_what_says_no_time_is_refused(space: Space, renew: str) -> None:
    """As on Slurm."""
    with pytest.raises(SpecError, match="renew"):
        KubernetesBackend().validate(declare(renew=renew))


def test_renewing_what_never_ends_is_refused(space: Space) -> None:
    """There is nothing to renew."""
    with pytest.raises(SpecError, match="no time limit") as caught:
        KubernetesBackend().validate(make_spec(client={"renew": "30m"}))
    assert "time_limit" in caught.value.hint
    KubernetesBackend().validate(declare())


def test_a_job_in_python_has_a_time_limit() -> None:
    """In words or in seconds, beside an idle time-out."""
    job = KubernetesJob(time_limit="12h", renew="before time limit")
    job.add_mesh("w", 1, image_spec=ImageSpec("a"))
    assert job.spec.lifetime == Lifetime(time_limit_s=12 * 3600.0)
    assert job.spec.client["renew"] == "before time limit"
    both = KubernetesJob(time_limit=60, compute=Compute(image="a", inactivity_ttl="5m"))
    assert both.spec.lifetime == Lifetime(time_limit_s=60.0, idle_timeout_s=300.0)
    with pytest.raises(SpecError, match="time_limit"):
        KubernetesJob(time_limit="long")


def test_people_are_told_that_the_same_hosts_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no follow-up that anybody could wait for."""
    monkeypatch.setattr(renewing, "CHECK_S", 0.01)
    plan = Plan(action=Action.RENEW, reasons=("because",), spec=make_spec())
    done: list[Plan] = []
    renewer = Renewer("demo", lambda: plan, done.append, extends=True)
    wait_until(lambda: bool(done))
    renewer.stop()
    wait_until(lambda: "given more time: because" in capsys.readouterr().err or len(done) > 1)


# In the pod


class Heard:
    """A client that hears."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        """Hear something."""
        self.said.append(message)


def test_a_keeper_gives_its_place_more_time(tmp_path: Path) -> None:
    """Also the next container of its pod knows of it; and its status tells what is left."""
    memory = tmp_path / "began"
    memory.touch()
    os.utime(memory, (1000.0, 1000.0))
    start = {**make_start(tmp_path), "time_limit_s": 500.0, "age_s": 400.0, "memory": str(memory)}
    keeper, client = Keeper(tmp_path, start), Heard()
    keeper._take(client, {"op": "status"})  # type: ignore[arg-type]  it has what is used
    keeper._take(client, {"op": "renew", "time_limit_s": 700.0})  # type: ignore[arg-type]  likewise
    keeper._take(client, {"op": "status"})  # type: ignore[arg-type]  likewise
    before, renewed, after = client.said
    assert before["time_left_s"] <= 100.0
    assert renewed == {"ev": "renewed"}
    assert 600.0 < after["time_left_s"] <= 700.0
    assert after["time_limit_s"] == 700.0
    assert memory.stat().st_mtime > time.time() - 600


def test_asking_a_keeper_on_a_socket(tmp_path: Path) -> None:
    """The order as it goes over the wire, without another limit where none was said."""
    with FakeKeeper(host("w/0")) as keeper:
        keeper.answers["renew"] = {"ev": "renewed"}
        keeper.listen_unix(tmp_path / "ctl")
        give_time([keeper.address], None)
        assert keeper.wait_for("renew") == [{"op": "renew"}]

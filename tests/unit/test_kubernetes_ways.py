"""How a client goes to a job that is there: as it declares now, and never to another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes import asked
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.errors import BackendError, UnreachableError
from milkweed.job import lifecycle
from milkweed.job.load import job_load
from milkweed.job.observing import observe
from milkweed.plan import Action
from milkweed.state import Record, StateFile
from unit.kubernetes_jobs import APPLY_ID, Space, create, make_spec, submit

PATH = "job.json"
HERE, THERE = "https://here", "https://there"


def recorded() -> Record:
    """What the file records now."""
    found = StateFile(PATH).load()
    assert found is not None
    return found


def ask_again(**client: Any) -> tuple[Action, Record]:
    """What the next client does that declares the same with settings of its own, and its record."""
    wish = lifecycle.Wish(spec=make_spec(client=client), backend=KubernetesBackend())
    file = StateFile(PATH)
    record, seen = observe(wish.backend, file.load(), file, wish)
    plan = lifecycle.plan_for(wish, seen)
    return plan.action, lifecycle.execute(plan, wish, record, file)[0]


def test_the_next_client_has_a_way_of_its_own(space: Space, folder: Path, home: Path) -> None:
    """Nothing is made anew, and the record has it for commands."""
    first = create(make_spec(client={"stream_logs": False}))
    assert (first.handle or {})["reach"] == "auto"
    action, record = ask_again(reach="forward")
    assert action is Action.REUSE
    assert (record.handle or {})["reach"] == "forward"
    assert recorded() == record
    assert record.handle == {**(first.handle or {}), "reach": "forward"}
    assert record.spec.client == {"stream_logs": False, "reach": "forward"}


def test_who_declares_nothing_goes_the_usual_way(space: Space, folder: Path, home: Path) -> None:
    """A way is a word of its declaration: what an earlier client said does not stay."""
    create(make_spec(client={"reach": "forward"}))
    _action, record = ask_again()
    assert (record.handle or {})["reach"] == "auto"
    assert recorded().spec.client == {}


def test_a_job_that_is_loaded_goes_the_way_of_its_last_client(
    space: Space, folder: Path, home: Path
) -> None:
    """Its declaration is the recorded one, which has the way, too."""
    create()
    ask_again(reach="direct")
    job = job_load(PATH)
    job.apply()
    assert (recorded().handle or {})["reach"] == "direct"


def test_a_plan_is_no_deed(space: Space, folder: Path, home: Path) -> None:
    """Whoever only looks goes its own way, and leaves the record as it was."""
    create()
    before = Path(PATH).read_bytes()
    wish = lifecycle.Wish(spec=make_spec(client={"reach": "forward"}), backend=KubernetesBackend())
    record, _seen = observe(wish.backend, recorded(), None, wish)
    assert ((record and record.handle) or {})["reach"] == "forward"
    assert Path(PATH).read_bytes() == before


def test_a_record_that_was_deleted_stays_deleted(space: Space, folder: Path, home: Path) -> None:
    """A client that holds its job writes nothing where somebody has removed it."""
    record = create()
    StateFile(PATH).remove()
    wish = lifecycle.Wish(spec=make_spec(client={"reach": "forward"}), backend=KubernetesBackend())
    known, seen = observe(wish.backend, record, None, wish)
    plan = lifecycle.plan_for(wish, seen)
    lifecycle.execute(plan, wish, known, StateFile(PATH))
    assert StateFile(PATH).load() is None


def test_who_may_ask_nobody_has_one_way(space: Space, home: Path) -> None:
    """A client in a pod without rights knows hosts by their names."""
    blind = {**submit(), "blind": True}
    assert KubernetesBackend().reroute(blind, make_spec(client={"reach": "forward"})) == blind


# The operator's endpoint


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The endpoints that know the job."""
    found: set[str] = set()

    def look_up(endpoint: Any, _namespace: str, name: str, *, job: str) -> dict[str, str] | None:
        assert name.startswith(f"milkweed-{APPLY_ID[:8]}-")
        assert job == APPLY_ID
        return {} if endpoint.url in found else None

    monkeypatch.setattr(asked, "look_up_secret", look_up)
    return found


def reroute(handle: Any, **client: Any) -> Any:
    return KubernetesBackend().reroute(handle, make_spec(client=client))


def test_files_of_an_endpoint_are_the_clients_own(space: Space, home: Path) -> None:
    """The same address is the same job: nobody is asked."""
    handle = {**submit(), "provision": {"url": HERE}}
    space.asked.clear()
    said = {"url": HERE, "token_file": "/tmp/token"}  # noqa: S108  its name only
    assert reroute(handle, provision=said) == {**handle, "provision": said}
    assert space.asked == []


def test_another_endpoint_is_used_that_knows_the_job(
    space: Space, home: Path, known: set[str]
) -> None:
    """It may have another address than before."""
    handle = {**submit(), "provision": {"url": HERE}}
    known.add(THERE)
    assert reroute(handle, provision=THERE)["provision"] == {"url": THERE}


@pytest.mark.parametrize(("before", "now"), [(HERE, THERE), (None, THERE), (HERE, None)])
def test_a_way_that_leads_elsewhere_is_refused(
    space: Space, home: Path, known: set[str], before: str | None, now: str | None
) -> None:
    """What somebody else knows nothing of is not gone, so that nothing is made in its place."""
    handle = {**submit(), "provision": before and {"url": before}}
    space.objects.clear()
    with pytest.raises(BackendError, match="does not lead to the job") as caught:
        reroute(handle, provision=now)
    assert (now or "the API server") in caught.value.seen


def test_an_endpoint_is_left_for_the_api_server_that_has_the_job(space: Space, home: Path) -> None:
    """From then on its handle names the cluster, as that of any other job does."""
    handle = submit()
    assert reroute({**handle, "provision": {"url": HERE}, "cluster": {}, "context": ""}) == handle


def test_silence_on_another_way_is_no_answer(
    space: Space, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is done, and the record has the way that worked."""

    def look_up(*_: object, **_named: object) -> None:
        raise UnreachableError("the endpoint does not answer", seen="timed out")

    monkeypatch.setattr(asked, "look_up_secret", look_up)
    create()
    before = Path(PATH).read_bytes()
    with pytest.raises(UnreachableError, match="nothing is known now"):
        ask_again(provision=THERE)
    assert Path(PATH).read_bytes() == before

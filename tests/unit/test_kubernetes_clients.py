"""A batch client in a cluster: how its job is while it waits, when it is gone, and that its hosts end with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.base import Request
from milkweed.backends.kubernetes import blind, clients
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.batch import (
    CLIENT_LABEL,
    REQUESTS,
    client_name,
    make_job,
)
from milkweed.backends.kubernetes.pod_template import QUEUE_LABEL
from milkweed.backends.kubernetes.settings import make_plans
from milkweed.backends.kubernetes.start import (
    HANDLE_NOTE,
    JOB_LABEL,
    authority_name,
    secret_name,
)
from milkweed.errors import SpecError
from milkweed.kube.resources import EVENTS, JOBS, MESHES, SECRETS
from milkweed.status import Liveness
from milkweed.testing import FakeClock
from unit.kubernetes_jobs import APPLY_ID, Space, make_spec, mesh_name, submit

NAME = client_name(APPLY_ID)
POD = f"{NAME}-abcde"
LABELS = {JOB_LABEL: APPLY_ID, CLIENT_LABEL: "true"}
QUOTA = 'Error creating: pods "x" is forbidden: exceeded quota: few'


@pytest.fixture
def handle(space: Space, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job with a client, whose hosts run."""
    monkeypatch.setattr(clients, "_told", {})
    monkeypatch.setattr(clients, "ASK_EVERY_S", 0.0)
    made = submit(make_spec({"w": 1}), client_script=("true",))
    space.add_pod(f"{mesh_name()}-0")
    return made


def look(handle: dict[str, Any]) -> tuple[Liveness, str, int | None]:
    status = KubernetesBackend().glance(handle)
    return status.liveness, status.reason, status.exit_code


def test_a_client_that_runs_is_not_told_of(space: Space, handle: dict[str, Any]) -> None:
    """As long as it has a pod, nobody asks for its Job."""
    space.add_pod(POD, labels=LABELS)
    space.asked.clear()
    assert look(handle) == (Liveness.RUNNING, "", None)
    assert ("get", JOBS.plural) not in space.asked


def test_a_client_that_waits_says_why(space: Space, handle: dict[str, Any]) -> None:
    """Its hosts run, and do nothing meanwhile."""
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no cpu",
    }
    space.add_pod(POD, labels=LABELS, phase="Pending", status={"conditions": [why]})
    live, reason, _code = look(handle)
    assert live is Liveness.RUNNING
    assert reason.startswith("its client waits: Unschedulable")
    assert KubernetesBackend().poll(handle).reason == reason


def test_a_client_that_no_pod_is_made_for_says_why(space: Space, handle: dict[str, Any]) -> None:
    """Only events tell of a quota; an event of an earlier Job of that name does not count."""
    assert look(handle)[1] == "its client waits: it has no pod yet"
    uid = space.objects[JOBS.plural, "lab", NAME]["metadata"]["uid"]
    for number, (about, message) in enumerate(((uid, QUOTA), ("earlier", "something else"))):
        meta = {"name": f"e{number}", "namespace": "lab"}
        who = {"kind": "Job", "name": NAME, "uid": about}
        event = {
            "involvedObject": who,
            "type": "Warning",
            "reason": "FailedCreate",
            "message": message,
        }
        space.put(EVENTS.plural, {"metadata": meta, **event})
    assert look(handle)[:2] == (
        Liveness.RUNNING,
        f"its client waits: FailedCreate: {QUOTA}",
    )


def test_a_client_whose_pod_was_taken_away_has_ended(space: Space, handle: dict[str, Any]) -> None:
    """Its Job says so: nobody waits until the hosts go."""
    failed = {
        "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "once",
    }  # fmt: skip
    status = {"status": {"conditions": [failed]}}
    space.patch(JOBS, "lab", NAME, status)
    live, reason, code = look(handle)
    assert (live, code) == (Liveness.ENDED, 1)
    assert reason.endswith("its Job has failed: BackoffLimitExceeded: once")


def test_a_client_that_succeeded_has_ended_without_its_pod_too(
    space: Space, handle: dict[str, Any]
) -> None:
    """A node that is taken away takes the pod along; its Job knows how it ended."""
    status = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    space.patch(JOBS, "lab", NAME, status)
    live, reason, code = look(handle)
    assert (live, code) == (Liveness.ENDED, 0)
    assert reason == "its client ended with exit code 0, and its pod is gone"


def test_a_client_whose_job_is_gone_has_ended(space: Space, handle: dict[str, Any]) -> None:
    """Nothing comes of it any more. Who may not look sees no end."""
    space.remove(JOBS.plural, "lab", NAME)
    space.forbidden.add(("get", JOBS.plural))
    assert look(handle) == (Liveness.RUNNING, "", None)
    space.forbidden.clear()
    live, reason, code = look(handle)
    assert (live, code) == (Liveness.ENDED, 1)
    assert reason == "its client is gone: its Job is not there"


def test_a_client_without_a_pod_is_asked_for_seldom(
    space: Space, handle: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often somebody looks."""
    monkeypatch.setattr(clients, "ASK_EVERY_S", 10.0)
    clock = FakeClock()
    for _ in range(20):
        assert "no pod yet" in str(clients.read_client(space, handle, clock=clock))
    assert space.asked.count(("get", JOBS.plural)) == 1
    clock.advance(10.0)
    clients.read_client(space, handle, clock=clock)
    assert space.asked.count(("get", JOBS.plural)) == 2


def test_a_client_that_ended_has_its_own_exit_code(space: Space, handle: dict[str, Any]) -> None:
    """Its pod stays, and tells."""
    ended = {"name": "client", "state": {"terminated": {"exitCode": 7}}}
    space.add_pod(POD, labels=LABELS, phase="Failed", status={"containerStatuses": [ended]})
    live, reason, code = look(handle)
    assert (live, code) == (Liveness.ENDED, 7)
    assert reason.startswith("its client ended with exit code 7")


def test_other_sizes_do_not_make_a_client_forgotten(handle: dict[str, Any]) -> None:
    """The handle of before and that of after say that there is one."""
    assert KubernetesBackend().resize(handle, make_spec({"w": 2}))["client"] is True


# What it leaves


@pytest.fixture
def over(space: Space, handle: dict[str, Any], home: Path) -> None:
    """Its hosts have ended with it, their mesh is gone, and so is every file of this machine."""
    space.delete(MESHES, "lab", mesh_name())
    for secret in (secret_name(APPLY_ID), authority_name(APPLY_ID)):
        space.remove(SECRETS.plural, "lab", secret)  # as the cluster does: the mesh owned them
    shutil.rmtree(home)


def test_what_a_client_leaves_is_found_and_ended(
    space: Space, handle: dict[str, Any], over: None
) -> None:
    """It is listed with its name, and its Job says what the job was."""
    backend = KubernetesBackend()
    assert backend.allocations() == {APPLY_ID: "demo"}
    found = backend.find(APPLY_ID)
    assert found == handle
    backend.cancel(found)
    assert space.objects == {}
    assert backend.find(APPLY_ID) is None
    assert backend.allocations() == {}


def test_a_client_whose_note_says_nothing_is_ended_too(space: Space, over: None) -> None:
    """Its label is enough."""
    space.patch(JOBS, "lab", NAME, {"metadata": {"annotations": {HANDLE_NOTE: "?"}}})
    found = KubernetesBackend().find(APPLY_ID)
    assert found is not None
    assert (found["client"], found["meshes"], found["namespace"]) == (True, {}, "lab")
    KubernetesBackend().cancel(found)
    assert space.objects == {}


def test_a_client_is_found_without_its_secret(space: Space, handle: dict[str, Any]) -> None:
    """By who has the files of its job: the Job alone is enough."""
    for resource in (MESHES, SECRETS):
        for name in space.names(resource):
            space.remove(resource.plural, "lab", name)
    assert KubernetesBackend().find(APPLY_ID) == handle


def test_who_may_not_look_for_clients_has_made_none(space: Space, over: None) -> None:
    """Looking for jobs needs no right more; somebody who may look in one namespace looks there."""
    space.forbidden.add(("list all", JOBS.plural))
    assert KubernetesBackend().allocations() == {APPLY_ID: "demo"}
    space.forbidden.add(("list", JOBS.plural))
    assert KubernetesBackend().allocations() == {}
    assert KubernetesBackend().find(APPLY_ID) is None


def test_the_secret_of_a_client_goes_with_its_job(space: Space, handle: dict[str, Any]) -> None:
    """Whoever deletes that."""
    job = space.objects[JOBS.plural, "lab", NAME]
    assert space.objects[SECRETS.plural, "lab", NAME]["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": NAME, "uid": job["metadata"]["uid"]}
    ]


# Its pod


def test_a_client_runs_where_its_hosts_may_and_as_the_worker() -> None:
    """A sidecar that stands first is not the worker; nodes that hosts are kept off are not for it, either."""
    placed = {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "a"}],
        "securityContext": {"runAsNonRoot": True},
        "hostNetwork": True,
    }
    containers = [{"name": "side", "image": "side:1"}, {"name": "worker", "image": "worker:1"}]
    spec = make_spec(
        {"w": 1},
        image=None,
        meshes={"w": {"pod_template": {"spec": {"containers": containers, **placed}}}},
    )
    [plan] = make_plans(spec, "lab", APPLY_ID)
    made = make_job(Request(spec=spec, apply_id=APPLY_ID), plan, ["sh"], HANDLE)
    pod = made["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "worker:1"
    assert {key: pod[key] for key in placed if key in pod} == {
        key: value for key, value in placed.items() if key != "hostNetwork"
    }


def job_of(**said: Any) -> dict[str, Any]:
    """The Job of a client whose declaration says this."""
    spec = make_spec({"w": 1}, **said)
    [plan] = make_plans(spec, "lab", APPLY_ID)
    return make_job(Request(spec=spec, apply_id=APPLY_ID), plan, ["sh"], HANDLE)


def resources_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["template"]["spec"]["containers"][0]["resources"]


def test_a_client_asks_for_little_and_not_for_nothing() -> None:
    """A quota refuses pods that ask for nothing. What is said is what it gets, and the rest stays."""
    assert resources_of(job_of()) == {"requests": REQUESTS}
    assert {"cpu", "memory"} == REQUESTS.keys()
    own = resources_of(job_of(client={"client_resources": {"memory": "16Gi"}}))
    assert own["requests"] == {"cpu": REQUESTS["cpu"], "memory": "16Gi"}
    assert own["limits"] == {"memory": "16Gi"}


@pytest.mark.parametrize("said", ["16Gi", {"ram": "1Gi"}, {"memory": "much"}, {"cpu": 0}])
def test_resources_of_a_client_that_cannot_be(space: Space, said: Any) -> None:
    """They are refused before anything is asked for, also where there is no client yet."""
    with pytest.raises(SpecError, match="client_resources"):
        KubernetesBackend().validate(make_spec(client={"client_resources": said}))


@pytest.mark.parametrize("labels", [{QUEUE_LABEL: "team"}, {"a": "b"}])
def test_a_client_waits_in_the_queue_of_its_hosts(labels: dict[str, str]) -> None:
    """Kueue looks at Jobs, and at no other label of them."""
    queue = {key: value for key, value in labels.items() if key == QUEUE_LABEL}
    mesh = job_of(meshes={"w": {"labels": labels}})
    assert mesh["metadata"]["labels"] == {**LABELS, **queue}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "worker", "image": "x"}]},
    }
    pods = job_of(image=None, meshes={"w": {"pod_template": template}})
    assert pods["metadata"]["labels"] == {**LABELS, **queue}


def test_a_client_that_is_not_admitted_says_so(space: Space, handle: dict[str, Any]) -> None:
    """A queue holds its Job back."""
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    space.patch(JOBS, "lab", NAME, {"status": suspended})
    assert look(handle)[1] == "its client waits: its Job waits to be admitted"


# Its end

MESH = {"name": "w", "kept": True, "hosts": 2, "port": 26600}
HANDLE = {"apply_id": APPLY_ID, "namespace": "lab", "meshes": {"w": MESH}}


@pytest.mark.parametrize(("patience_s", "asked"), [(0.0, 2), (3.0, 4), (60.0, 6)])
def test_hosts_that_come_anew_are_told_too(
    home: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float, asked: int
) -> None:
    """A host that does not answer is asked again for a while; one that was told is left in peace."""
    clock, told = FakeClock(), list[str]()

    def tell(door: Any) -> bool:
        told.append(door.host)
        return door.host == "w/0" or told.count("w/1") > 4

    monkeypatch.setattr(blind, "_end", tell)
    blind.end(HANDLE, patience_s=patience_s, sleep=clock.advance, clock=clock)
    assert len(told) == asked
    assert told.count("w/0") == 1


def test_who_is_hurried_tells_every_host_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is evicted while it ends its hosts has some seconds left: none is forgotten for that."""
    clock, told, signals = FakeClock(), list[str](), list[int]()

    def tell(door: Any) -> bool:
        signals.append(15)  # it comes while the first of them is told
        told.append(door.host)
        return False

    monkeypatch.setattr(blind, "_end", tell)
    blind.end(
        HANDLE, patience_s=60.0, hurried=lambda: bool(signals), sleep=clock.advance, clock=clock
    )
    assert sorted(told) == ["w/0", "w/1"]

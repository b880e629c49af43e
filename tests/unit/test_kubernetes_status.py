"""How a job in a cluster is: what its pods tell, what its hosts tell, and what nobody can tell."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes import backend as module, places
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.control import Door
from milkweed.errors import AllocationError, BackendError, UnreachableError
from milkweed.kube.resources import MESHES, PODS
from milkweed.status import HostState, Liveness
from unit.keepers import FakeKeeper, host
from unit.kubernetes_jobs import FOUND, Space, make_spec, mesh_name, submit

PODS_OF_W = [f"{mesh_name()}-0", f"{mesh_name()}-1"]


def waiting(reason: str, message: str = "", restarts: int = 0) -> dict[str, Any]:
    """The status of a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "worker", "state": state, "restartCount": restarts}
    return {"containerStatuses": [container], "conditions": []}


class Keepers:
    """The keepers in the pods of a job, which take orders here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_label: dict[str, FakeKeeper] = {}

    def add(self, label: str, state: str = "ready", **more: Any) -> FakeKeeper:
        """One that tells how its host is."""
        made = FakeKeeper(host(label, state, **more))
        self.by_label[label] = made.listen_unix(self.folder / label.replace("/", "."))
        return made

    def door(self, _api: object, _handle: object, pod: places.Pod) -> Door:
        """Where the keeper of a pod takes orders; nobody is there, unless one was added."""
        keeper = self.by_label.get(pod.label)
        return Door(path=keeper.path if keeper else str(self.folder / "nobody"), host=pod.label)


@pytest.fixture
def keepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Keepers]:
    made = Keepers(tmp_path)
    for each in (places, module):
        monkeypatch.setattr(each, "make_door", made.door)
    yield made
    for keeper in made.by_label.values():
        keeper.close()


def look(handle: Any) -> tuple[Liveness, str]:
    """A quick look, which is what a thorough one says, too, as long as nothing runs."""
    status = KubernetesBackend().glance(handle)
    if status.liveness is not Liveness.RUNNING:
        assert KubernetesBackend().poll(handle) == status
    return status.liveness, status.reason


# Whether it is


def test_before_there_are_pods_it_waits(space: Space) -> None:
    """The operator has not got to it yet."""
    assert look(submit()) == (Liveness.PENDING, "0 of 2 pods run; w/0: it is not there yet")


def test_pods_that_wait_say_why(space: Space) -> None:
    """In the words of Kubernetes, of the first that waits."""
    handle = submit()
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no cpu",
    }
    space.add_pod(PODS_OF_W[0], phase="Pending", status={"conditions": [why]})
    live, reason = look(handle)
    assert live is Liveness.PENDING
    assert "w/0: Unschedulable" in reason
    assert "no cpu" in reason


def test_it_runs_as_soon_as_one_pod_does(space: Space) -> None:
    """The others are told of, and waited for by whoever needs them."""
    handle = submit()
    space.add_pod(PODS_OF_W[1])
    assert look(handle) == (
        Liveness.RUNNING,
        "1 of 2 pods run; w/0: it is not there yet",
    )
    space.add_pod(PODS_OF_W[0])
    space.wait_seen()
    assert look(handle) == (Liveness.RUNNING, "")


def test_a_pod_that_is_deleted_runs_no_more(space: Space) -> None:
    """Another one will come, so it waits."""
    handle = submit()
    for name in PODS_OF_W:
        space.add_pod(name, deletionTimestamp="2024-01-01T00:00:00Z")
    assert look(handle)[0] is Liveness.PENDING


def test_silence_is_unknown(space: Space) -> None:
    """An API server that does not answer is never an end, from the beginning or later."""
    handle = submit()
    space.go_away()
    assert look(handle) == (Liveness.UNKNOWN, "nobody is there")


def test_silence_after_a_word_is_unknown_too(space: Space) -> None:
    """What was seen before is no longer known to be true."""
    handle = submit()
    space.add_pod(PODS_OF_W[0])
    assert look(handle)[0] is Liveness.RUNNING
    space.go_away()
    assert look(handle)[0] is Liveness.UNKNOWN
    with pytest.raises(UnreachableError, match="not known which hosts"):
        KubernetesBackend().hosts(handle)


def test_without_its_objects_it_has_ended(space: Space) -> None:
    """Nothing can come of it any more, for a quick look, too: whoever waits must not wait for ever."""
    handle = submit()
    space.remove(MESHES.plural, "lab", mesh_name())
    assert look(handle) == (Liveness.ENDED, f"its objects are gone: {mesh_name()}")
    with pytest.raises(AllocationError, match="no hosts now"):
        KubernetesBackend().hosts(handle)


def test_pods_on_their_way_out_are_an_end_without_their_object(space: Space) -> None:
    """They take half a minute, and nobody needs to wait for that."""
    handle = submit()
    space.add_pod(PODS_OF_W[0], deletionTimestamp="2024-01-01T00:00:00Z")
    space.remove(MESHES.plural, "lab", mesh_name())
    assert look(handle)[0] is Liveness.ENDED


def test_an_object_that_is_being_deleted_is_gone(space: Space) -> None:
    """It stays until its last pod is gone, which a node that does not answer may keep for ever."""
    handle = submit()
    left = "2024-01-01T00:00:00Z"
    space.add_pod(PODS_OF_W[0], deletionTimestamp=left)
    space.edit(
        MESHES.plural,
        "lab",
        mesh_name(),
        lambda mesh: mesh["metadata"].update(deletionTimestamp=left),
    )
    assert look(handle) == (Liveness.ENDED, f"its objects are gone: {mesh_name()}")


@pytest.mark.parametrize("verb", ["list", "list all"])
def test_who_may_not_look_at_objects_sees_no_end(space: Space, verb: str) -> None:
    """What nobody can tell is not gone."""
    handle = submit()
    space.remove(MESHES.plural, "lab", mesh_name())
    space.forbidden |= {("list", MESHES.plural), (verb, MESHES.plural)}
    assert look(handle)[0] is Liveness.PENDING


def test_pods_of_others_never_end(space: Space) -> None:
    """They were there before, and may come again: nobody asks for objects they might come from."""
    handle = submit(FOUND)
    assert look(handle)[0] is Liveness.PENDING
    assert ("list", MESHES.plural) not in space.asked


def test_as_long_as_pods_are_there_nobody_asks_for_objects(space: Space) -> None:
    """Pods are watched, so looking costs nothing, however often."""
    handle = submit()
    for name in PODS_OF_W:
        space.add_pod(name, phase="Pending")
    look(handle)
    space.asked.clear()
    for _ in range(5):
        look(handle)
    assert space.asked == []


def test_a_mesh_that_is_deleted_loses_its_hosts(space: Space, keepers: Keepers) -> None:
    """The other mesh goes on; a person says what becomes of the job."""
    handle = submit(make_spec({"a": 1, "b": 1}))
    keepers.add("a/0")
    space.add_pod(f"{mesh_name('a')}-0", "a")
    space.remove(MESHES.plural, "lab", mesh_name("b"))
    for status in (KubernetesBackend().glance(handle), KubernetesBackend().poll(handle)):
        assert status.liveness is Liveness.RUNNING
        [lost] = status.failed_hosts
        assert (lost.host, lost.reason) == ("b/0", f"the MonarchMesh {mesh_name('b')} is gone")


# How its hosts are


def test_keepers_say_how_hosts_are(space: Space, keepers: Keepers) -> None:
    """Their own words, with the end of the log of one that failed."""
    handle = submit()
    keepers.add("w/0")
    keepers.add("w/1", "failed", reason="it ended", tail=["no module"], exit_code=1)
    for name in PODS_OF_W:
        space.add_pod(name)
    first, second = KubernetesBackend().poll(handle).hosts
    assert first.state is HostState.READY
    assert second.state is HostState.FAILED
    assert (second.reason, second.exit_code) == ("it ended\nno module", 1)


def test_a_silent_keeper_is_no_lost_host(space: Space, keepers: Keepers) -> None:
    """It may be starting: lost is only what Kubernetes calls so."""
    handle = submit()
    keepers.add("w/1")
    for name in PODS_OF_W:
        space.add_pod(name)
    first, second = KubernetesBackend().poll(handle).hosts
    assert (first.state, second.state) == (HostState.STARTING, HostState.READY)
    assert "No such file" in first.reason


def test_a_host_without_a_pod_is_starting(space: Space, keepers: Keepers) -> None:
    """The operator replaces pods."""
    handle = submit()
    keepers.add("w/1")
    space.add_pod(PODS_OF_W[1])
    first, _second = KubernetesBackend().poll(handle).hosts
    assert (first.state, first.reason) == (HostState.STARTING, "it has no pod")


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        ({"phase": "Failed"}, HostState.FAILED),
        ({"phase": "Succeeded"}, HostState.FAILED),
        ({"phase": "Unknown"}, HostState.FAILED),
        ({"phase": "Pending", "status": waiting("ContainerCreating")}, HostState.STARTING),
        ({"phase": "Pending", "status": waiting("InvalidImageName")}, HostState.FAILED),
        ({"deletionTimestamp": "2024-01-01T00:00:00Z"}, HostState.FAILED),
    ],
)
def test_what_kubernetes_says_of_a_host(
    space: Space, keepers: Keepers, pod: dict[str, Any], state: HostState
) -> None:
    """Ended, taken away, hopeless: lost; and everything else is still to come."""
    handle = submit()
    keepers.add("w/1")
    space.add_pod(PODS_OF_W[0], **pod)
    space.add_pod(PODS_OF_W[1])
    backend = KubernetesBackend()
    assert backend.poll(handle).hosts[0].state is state
    assert backend.explain(handle, "w/0").state is state


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (waiting("ErrImageNeverPull", "image is not present"), "ErrImageNeverPull"),
        (waiting("ImagePullBackOff", "manifest unknown"), "ImagePullBackOff"),
        (waiting("CrashLoopBackOff", restarts=3), "CrashLoopBackOff"),
    ],
)
def test_a_hopeless_pod_is_told_at_once(space: Space, status: dict[str, Any], word: str) -> None:
    """Though the job waits: somebody must change something, so nobody should wait for it."""
    handle = submit()
    space.add_pod(PODS_OF_W[0], phase="Pending", status=status)
    seen = KubernetesBackend().poll(handle)
    assert seen.liveness is Liveness.PENDING
    [lost] = seen.failed_hosts
    assert lost.host == "w/0"
    assert lost.reason.startswith(f"pod {PODS_OF_W[0]} cannot start; {word}")
    assert lost.reason.count(word) == 1


def test_a_pull_that_may_still_succeed_is_waited_for(space: Space) -> None:
    """A registry that is slow is no reason to give up."""
    handle = submit()
    status = waiting("ImagePullBackOff", "i/o timeout")
    space.add_pod(PODS_OF_W[0], phase="Pending", status=status)
    assert KubernetesBackend().glance(handle).failed_hosts == ()


def test_a_reason_is_told_once(space: Space, keepers: Keepers) -> None:
    """What keeps a host from answering and what ails its pod may be the same."""
    handle = submit()
    keepers.add("w/1")
    space.add_pod(PODS_OF_W[0], phase="Pending", status=waiting("ContainerCreating"))
    space.add_pod(PODS_OF_W[1])
    assert KubernetesBackend().poll(handle).hosts[0].reason.count("Pending") == 1


def test_a_host_that_is_not_there_is_not_explained(space: Space) -> None:
    """Nothing is known of it."""
    handle = submit()
    assert KubernetesBackend().explain(handle, "x/7").state is HostState.UNKNOWN


# Where its hosts are


def test_hosts_have_the_addresses_that_keepers_tell(space: Space, keepers: Keepers) -> None:
    """And the names of their pods."""
    handle = submit()
    for rank, name in enumerate(PODS_OF_W):
        keepers.add(f"w/{rank}", address=f"tls://{name}:26601")
        space.add_pod(name)
    hosts = KubernetesBackend().hosts(handle)
    assert [(each.name, each.label, each.address) for each in hosts] == [
        (name, f"w/{rank}", f"tls://{name}:26601") for rank, name in enumerate(PODS_OF_W)
    ]
    assert [each.control for each in hosts] == [
        keepers.by_label[label].address for label in ("w/0", "w/1")
    ]


def test_a_host_that_does_not_answer_has_no_address(space: Space, keepers: Keepers) -> None:
    """It is named, with the reason."""
    handle = submit()
    keepers.add("w/0")
    for name in PODS_OF_W:
        space.add_pod(name)
    with pytest.raises(UnreachableError, match="w/1 does not answer") as caught:
        KubernetesBackend().hosts(handle)
    assert "No such file" in caught.value.seen


def test_orders_are_for_pods_that_run(space: Space, keepers: Keepers) -> None:
    """The others have nobody yet who would take them."""
    handle = submit()
    keeper = keepers.add("w/1")
    space.add_pod(PODS_OF_W[0], phase="Pending")
    space.add_pod(PODS_OF_W[1])
    assert KubernetesBackend().controls(handle) == [keeper.address]


class Log:
    """What a keeper has written so far."""

    def read(self, address: str, offset: int) -> bytes:
        """The rest of it."""
        return f"{Path(address).name}\nthere\n".encode()[offset:]

    def close(self) -> None:
        """Nothing is open."""


def test_logs_come_from_keepers(
    space: Space, keepers: Keepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one host or of all; a host that is not there is told with those that are."""
    monkeypatch.setattr(module, "RemoteLog", Log)
    handle = submit()
    for rank, name in enumerate(PODS_OF_W):
        keepers.add(f"w/{rank}")
        space.add_pod(name)

    def read(label: str | None) -> list[tuple[str, str]]:
        lines = KubernetesBackend().logs(handle, label, follow=False)
        return sorted((line.host, line.text) for line in lines)

    assert read("w/1") == [("w/1", "there"), ("w/1", "w.1")]
    assert {label for label, _text in read(None)} == {"w/0", "w/1"}
    with pytest.raises(BackendError, match="no host 'w/9'") as caught:
        read("w/9")
    assert "w/0, w/1" in caught.value.hint


def test_a_pod_with_a_stranger_s_name_is_no_host(space: Space) -> None:
    """Somebody may copy a pod with all its labels, to look into it."""
    handle = submit()
    for name in (*PODS_OF_W, f"{PODS_OF_W[0]}-debug", "copy-0", f"{mesh_name()}-2"):
        space.add_pod(name)
    assert look(handle) == (Liveness.RUNNING, "")
    pods = KubernetesBackend()._pods(handle)
    assert [pod.view.name for pod in pods if pod.view] == PODS_OF_W
    assert len(space.names(PODS)) == 5

"""What a pod is, and what ails it: every situation of the corpus, in Kubernetes' words and in a person's."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes.ranks import pods_by_rank, rank_of
from milkweed.backends.kubernetes.reasons import (
    MAX_RESTARTS,
    MEANINGS,
    PodView,
    describe_pod,
    is_hopeless,
)
from milkweed.errors import SpecError

CORPUS = Path(__file__).parents[1] / "corpus" / "kubernetes"
INDEX = "apps.kubernetes.io/pod-index"


def load(name: str) -> dict[str, Any]:
    return json.loads((CORPUS / f"{name}.json").read_text())


def look(name: str, **more: Any) -> PodView:
    found = load(name)
    return describe_pod(found["pod"], **{"events": found["events"], **more})


# A pod that is well


def test_a_ready_pod_has_no_reason() -> None:
    """All that is known of it, and nothing to complain of."""
    assert look("ready") == PodView(
        name="trainers-1",
        rank=1,
        phase="Running",
        ready=True,
        node="gpu-07",
        ip="10.244.3.17",
        uid=load("ready")["pod"]["metadata"]["uid"],
        word="",
        reason="",
        exit_code=None,
        container="worker",
        restarts=0,
        started=1794816020.0,
        labels=load("ready")["pod"]["metadata"]["labels"],
        deleting=False,
        owner="StatefulSet/trainers",
    )


def test_a_pod_that_nobody_looked_at_yet() -> None:
    """The API leaves out what is empty."""
    view = look("pending")
    assert (view.phase, view.node, view.ip, view.started) == ("Pending", "", "", None)
    bare = describe_pod({"metadata": {"name": "x"}})
    assert (bare.phase, bare.rank, bare.word) == ("Unknown", None, "")


# What is the matter

SITUATIONS = [
    # name, word, what a person must find in it, hopeless
    ("pending", "Pending", "the scheduler has not looked at it yet", False),
    ("unschedulable", "Unschedulable", "9 Insufficient nvidia.com/gpu", False),
    ("claim-missing", "Unschedulable", 'persistentvolumeclaim "datasets" not found', True),
    ("gated", "SchedulingGated", "waits to be admitted", False),
    ("creating", "ContainerCreating", 'Pulling image "ghcr.io', False),
    ("mount-failed", "FailedMount", 'secret "aws" not found', True),
    ("sandbox-failed", "FailedCreatePodSandBox", "unable to allocate IP", False),
    ("pull-backoff", "ImagePullBackOff", "ghcr.io/acme/nope:1: not found", True),
    ("pull-backoff-before-1.31", "ImagePullBackOff", "401 Unauthorized", True),
    ("pull-network", "ErrImagePull", "i/o timeout", False),
    ("image-name", "InvalidImageName", "must be lowercase", True),
    ("config-error", "CreateContainerConfigError", 'secret "hf-token" not found', True),
    ("config-error-passing", "CreateContainerConfigError", "timed out waiting", False),
    ("start-error", "RunContainerError", "executable file not found in $PATH", True),
    ("crash-loop", "CrashLoopBackOff", "4 times so far, last Error: exit code 1: Module", True),
    ("crash-once", "CrashLoopBackOff", "once so far, last Error: exit code 1", False),
    ("oom-loop", "CrashLoopBackOff", "last OOMKilled: exit code 137, which is SIGKILL", True),
    ("oom", "OOMKilled", "used more memory than it was given", False),
    ("error-bare", "Error", "exit code 3", True),
    ("killed-bare", "Error", "exit code 137, which is SIGKILL", True),
    ("completed-bare", "Completed", "ended by itself: exit code 0", True),
    ("evicted", "Evicted", "low on resource: ephemeral-storage", False),
    ("preempted", "PreemptionByScheduler", "something of a higher priority", False),
    ("node-silent", "NodeLost", "its node does not answer: Node is not ready", False),
    ("node-lost", "NodeLost", "its node does not answer: Taint manager", False),
    ("node-lost-said", "NodeLost", "Node gpu-07 which was running pod", False),
    ("node-gone", "DeletionByPodGC", "its node is gone", False),
    ("init-crash", "CrashLoopBackOff", "container 'fetch': CrashLoopBackOff", True),
    ("init-running", "PodInitializing", "its init containers run", False),
    ("not-ready", "NotReady", "Readiness probe failed: dial tcp", False),
    ("sidecar-crash", "CrashLoopBackOff", "container 'metrics': CrashLoopBackOff", True),
    ("terminating", "Terminating", "it is being deleted", False),
]


def test_every_situation_of_the_corpus_is_looked_at() -> None:
    """None is recorded for nothing."""
    assert {name for name, *_rest in SITUATIONS} | {"ready"} == {
        path.stem for path in CORPUS.glob("*.json")
    }


@pytest.mark.parametrize(("name", "word", "part", "hopeless"), SITUATIONS)
def test_what_ails_a_pod(name: str, word: str, part: str, hopeless: bool) -> None:
    """Kubernetes' own word first, then what a person needs; and whether waiting is of use."""
    view = look(name)
    assert view.word == word
    assert word in view.reason
    assert MEANINGS[word] in view.reason
    assert part in view.reason
    assert is_hopeless(view) is hopeless
    assert "\n" not in view.reason


@pytest.mark.parametrize(
    ("name", "code", "restarts", "container"),
    [
        ("crash-loop", 1, 4, "worker"),
        ("oom", 137, 0, "worker"),
        ("oom-loop", 137, 7, "worker"),
        ("error-bare", 3, 0, "worker"),
        ("completed-bare", 0, 0, "worker"),
        ("init-crash", 6, 3, "fetch"),
        ("sidecar-crash", 2, 9, "metrics"),
        ("start-error", 128, 1, "worker"),
        ("unschedulable", None, 0, "worker"),
        ("evicted", 137, 0, "worker"),
    ],
)
def test_how_a_container_ended(name: str, code: int | None, restarts: int, container: str) -> None:
    """Exit code and restarts are those of the container that the reason is about."""
    view = look(name)
    assert (view.exit_code, view.restarts, view.container) == (code, restarts, container)


def test_a_pod_that_is_being_deleted_says_so() -> None:
    """Whatever else is the matter, and though it still answers."""
    for name in ("terminating", "preempted", "node-lost", "node-lost-said"):
        assert look(name).deleting
    assert look("terminating").ready
    assert not look("node-lost").ready


def test_a_container_of_another_name_is_the_workers() -> None:
    """The first one of the spec, or the one that is asked for."""
    pod = load("sidecar-crash")["pod"]
    assert describe_pod(pod, container="metrics").restarts == 9
    for each in (*pod["spec"]["containers"], *pod["status"]["containerStatuses"]):
        each["name"] = each["name"].replace("worker", "main")
    assert describe_pod(pod).started is not None


def test_restarts_that_are_over_are_no_reason() -> None:
    """A worker that came back is well; that it had ended is still to be seen."""
    pod = load("ready")["pod"]
    [status] = pod["status"]["containerStatuses"]
    status["restartCount"] = 2
    status["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
    view = describe_pod(pod)
    assert (view.reason, view.restarts, view.exit_code) == ("", 2, 1)


def test_an_init_container_that_is_done_is_no_reason() -> None:
    """Only those that are not."""
    pod = load("not-ready")["pod"]
    pod["status"]["initContainerStatuses"] = [
        {"name": "fetch", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    ]
    assert describe_pod(pod).word == "NotReady"


def test_an_init_container_that_failed_once() -> None:
    """Its end is told, before it is tried again."""
    pod = load("init-running")["pod"]
    ended = {"terminated": {"exitCode": 2, "reason": "Error"}}
    pod["status"]["initContainerStatuses"][0]["state"] = ended
    view = describe_pod(pod)
    assert (view.word, view.container, view.exit_code) == ("Error", "fetch", 2)


def test_a_word_that_nobody_knows_is_told_as_it_is() -> None:
    """Kubernetes learns new ones."""
    pod = load("config-error")["pod"]
    waiting = {"reason": "BrandNewError", "message": "something new"}
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    view = describe_pod(pod)
    assert view.reason == "BrandNewError: something new"
    assert not is_hopeless(view)


def test_what_a_container_says_at_its_end_is_one_line() -> None:
    """Views are shown in lists."""
    pod = load("error-bare")["pod"]
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["message"] = "Traceback:\n  line 1\nValueError\n"
    assert describe_pod(pod).reason.endswith("exit code 3: Traceback: line 1 ValueError")


def test_an_old_word_for_a_lost_node() -> None:
    """Clusters of long ago had a phase for it."""
    pod = load("ready")["pod"]
    pod["status"]["phase"] = "Unknown"
    assert describe_pod(pod).word == "NodeLost"


def test_null_is_as_good_as_nothing() -> None:
    """Some clients write out what is empty."""
    pod = load("not-ready")["pod"]
    pod["metadata"]["ownerReferences"] = None
    pod["status"]["initContainerStatuses"] = None
    pod["status"]["message"] = None
    pod["status"]["containerStatuses"][0]["lastState"] = None
    assert describe_pod(pod).word == "NotReady"


# Hope


def test_a_failed_pod_has_hope_when_something_makes_it_anew() -> None:
    """A StatefulSet does; nobody does for a pod that was made by hand."""
    pod = load("error-bare")["pod"]
    assert is_hopeless(describe_pod(pod))
    pod["metadata"]["ownerReferences"] = load("ready")["pod"]["metadata"]["ownerReferences"]
    assert not is_hopeless(describe_pod(pod))


@pytest.mark.parametrize(
    ("restarts", "last", "hopeless"),
    [
        (MAX_RESTARTS - 1, "Error", False),
        (MAX_RESTARTS, "Error", True),
        (1, "StartError", True),
        (1, "ContainerCannotRun", True),
    ],
)
def test_how_often_a_worker_may_end(restarts: int, last: str, hopeless: bool) -> None:
    """A few times, unless its command cannot even be started."""
    pod = load("crash-once")["pod"]
    [status] = pod["status"]["containerStatuses"]
    status["restartCount"] = restarts
    status["lastState"]["terminated"]["reason"] = last
    assert is_hopeless(describe_pod(pod)) is hopeless


@pytest.mark.parametrize(
    ("message", "hopeless"),
    [
        ("manifest unknown", True),
        ("pull access denied, repository does not exist", True),
        ("no match for platform in manifest", True),
        ("dial tcp: lookup ghcr.io: no such host", False),
        ("toomanyrequests: You have reached your pull rate limit; access denied", False),
        ("connection reset by peer", False),
        ("context deadline exceeded", False),
    ],
)
def test_which_images_will_never_come(message: str, hopeless: bool) -> None:
    """What is not there or not allowed stays so; what the network does may pass."""
    pod = load("pull-network")["pod"]
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = message
    assert is_hopeless(describe_pod(pod)) is hopeless


# Events


def test_events_of_other_pods_are_not_listened_to() -> None:
    """By their uid: a pod that had the name before is another one."""
    found = load("mount-failed")
    for event in found["events"]:
        event["involvedObject"]["uid"] = "another"
    assert describe_pod(found["pod"], events=found["events"]).word == "ContainerCreating"
    for event in found["events"]:
        del event["involvedObject"]["uid"]
    assert describe_pod(found["pod"], events=found["events"]).word == "FailedMount"


def test_the_latest_event_counts() -> None:
    """In whatever order and form they come."""
    found = load("not-ready")
    [event] = found["events"]
    later = copy.deepcopy(event)
    later.update(message="later", lastTimestamp=None, eventTime="2026-11-16T09:00:00.000000Z")
    series = copy.deepcopy(event)
    series.update(message="latest", series={"lastObservedTime": "2026-11-16T10:00:00.000000Z"})
    for events in ([event, later, series], [series, later, event]):
        assert describe_pod(found["pod"], events=events).reason.endswith("latest")


def test_events_of_the_new_kind() -> None:
    """`events.k8s.io` has other names for the same."""
    found = load("not-ready")
    [event] = found["events"]
    event["regarding"] = event.pop("involvedObject")
    event["note"] = event.pop("message")
    assert "Readiness probe failed" in describe_pod(found["pod"], events=[event]).reason


def test_without_events_less_is_known() -> None:
    """And what is known is still told."""
    assert (
        look("mount-failed", events=()).reason == "ContainerCreating: its container is being made"
    )
    assert "containers with unready status: [worker]" in look("not-ready", events=()).reason


# Ranks


def make_pod(rank: object, name: str = "", **status: Any) -> dict[str, Any]:
    labels = {} if rank is None else {INDEX: str(rank)}
    return {"metadata": {"name": name or f"w-{rank}", "labels": labels}, "status": status}


def test_the_rank_is_what_a_label_says() -> None:
    """A StatefulSet's, or any other."""
    assert rank_of(load("ready")["pod"]) == 1
    assert rank_of(load("error-bare")["pod"], "rank") == 1


def test_pods_of_a_statefulset_have_their_rank_in_their_names() -> None:
    """Clusters before 1.28 have no label for it; others' names mean nothing."""
    pod = load("ready")["pod"]
    del pod["metadata"]["labels"][INDEX]
    assert rank_of(pod) == 1
    with pytest.raises(SpecError, match="has no label 'other'"):
        rank_of(pod, "other")
    del pod["metadata"]["ownerReferences"]
    with pytest.raises(SpecError, match=r"has no label 'apps\.kubernetes\.io/pod-index'"):
        rank_of(pod)


@pytest.mark.parametrize("rank", ["", "x", "-1", "1.0", " 1", "1e3", "\u0661", "9" * 10])
def test_a_rank_is_a_number(rank: str) -> None:
    """Anything else is told with the pod's name; a view leaves it open."""
    with pytest.raises(ValueError, match=r"^pod 'p': .* is not a rank"):
        rank_of(make_pod(rank, "p"))
    assert describe_pod(make_pod(rank, "p")).rank is None


def test_pods_are_found_by_their_ranks() -> None:
    """In whatever order the API gives them, and as numbers; some may not be there yet."""
    pods = [make_pod(rank) for rank in (11, 10, 2, 0)]
    found = pods_by_rank(pods, replicas=12)
    assert list(found) == [0, 2, 10, 11]
    assert found[10]["metadata"]["name"] == "w-10"


def test_two_pods_of_one_rank() -> None:
    """Both are named."""
    with pytest.raises(SpecError, match="pods 'a' and 'b' both have rank 0"):
        pods_by_rank([make_pod(0, "a"), make_pod(0, "b")], replicas=1)


def test_more_pods_than_hosts() -> None:
    """A selector that finds too much is told, and never cut silently."""
    with pytest.raises(SpecError, match="pod 'w-2' has rank 2, but the mesh has 2 hosts"):
        pods_by_rank([make_pod(rank) for rank in range(3)], replicas=2)


@pytest.mark.parametrize("order", [1, -1])
def test_a_pod_that_goes_makes_way_for_the_one_that_comes(order: int) -> None:
    """While a pod is replaced there are two of its rank."""
    going = make_pod(0, "old")
    going["metadata"]["deletionTimestamp"] = "2026-11-16T08:10:00Z"
    failed = make_pod(0, "older", phase="Failed")
    pods = [going, make_pod(0, "new"), failed][::order]
    assert pods_by_rank(pods, replicas=1)[0]["metadata"]["name"] == "new"
    assert pods_by_rank([going], replicas=1)[0] is going

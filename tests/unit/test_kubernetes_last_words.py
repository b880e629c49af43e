"""Why a container ended that has no keeper: the end of what it printed is told with its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.last_words import MOST, TAIL_LINES
from milkweed.backends.kubernetes.pod_template import inject_worker
from milkweed.errors import UnreachableError
from milkweed.kube.resources import PODS
from milkweed.status import HostState
from unit.kubernetes_jobs import FOUND, Space, make_spec, submit
from unit.operator_cluster import refuse

FALLBACK = "FallbackToLogsOnError"
ENDED = {"exitCode": 3, "reason": "Error"}
FAILED = {"phase": "Failed", "status": {"containerStatuses": [
    {"name": "worker", "state": {"terminated": ENDED}, "restartCount": 0},
]}}  # fmt: skip
LOOPS = {"status": {"containerStatuses": [
    {
        "name": "worker",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ENDED},
        "restartCount": 4,
    },
]}}  # fmt: skip


class Logs:
    """The logs of pods, and who asked for them."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str]]] = []

    def read(self, path: str, **query: str) -> bytes:
        """As `Api.read` does."""
        self.asked.append((path, query))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def attach(space: Space, answer: bytes | Exception, **pod: Any) -> tuple[Logs, Any]:
    """A job of pods that somebody else made, one of which has ended."""
    logs = Logs(answer)
    space.read = logs.read  # type: ignore[method-assign]
    handle = submit(FOUND)
    space.add_pod("a", labels={"app": "x", "rank": "0"}, uid="u", ready=False, **pod)
    space.add_pod("b", labels={"app": "x", "rank": "1"})
    return logs, handle


def told(handle: Any) -> str:
    """What a look at the job tells of its first host."""
    [first] = [each for each in KubernetesBackend().glance(handle).hosts if each.host == "w/0"]
    assert first.state is HostState.FAILED
    return first.reason


def test_every_container_that_is_made_leaves_its_last_words() -> None:
    """Init containers, sidecars, and workers with a command of their own; what a person said of that stays."""
    own = {"name": "own", "image": "x", "terminationMessagePolicy": "File"}
    for more in ({}, {"command": ["serve"]}):
        containers = [{"name": "worker", "image": "x", **more}, own]
        spec = {"containers": containers, "initContainers": [{"name": "first", "image": "x"}, own]}
        made = inject_worker({"spec": spec}, command=["run"]).template["spec"]
        found = [
            each["terminationMessagePolicy"] for each in made["containers"] + made["initContainers"]
        ]
        assert found == [FALLBACK, "File", FALLBACK, "File"]


def test_the_log_of_a_pod_of_others_is_told(space: Space, home: Path) -> None:
    """Its last lines, asked for once, however often somebody looks."""
    logs, handle = attach(space, b"starting\nno such data\n", **FAILED)
    for _ in range(3):
        assert told(handle).endswith("exit code 3\nstarting\nno such data")
    path = PODS.path("lab", "a", "log")
    assert logs.asked == [(path, {"container": "worker", "tailLines": str(TAIL_LINES)})]


def test_a_container_that_ends_again_and_again_told_it_before(space: Space, home: Path) -> None:
    """What waits to be started again has printed nothing yet."""
    logs, handle = attach(space, b"no such data", **LOOPS)
    assert told(handle).endswith("exit code 3\nno such data")
    assert logs.asked[0][1]["previous"] == "true"


@pytest.mark.parametrize("answer", [refuse(403, "Forbidden"), UnreachableError("away")])
def test_who_may_not_read_logs_hears_the_rest(space: Space, home: Path, answer: Exception) -> None:
    """No word is lost for that, and none is said about it."""
    _logs, handle = attach(space, answer, **FAILED)
    assert told(handle).endswith("exit code 3")


def test_what_is_in_the_status_is_not_asked_for(space: Space, home: Path) -> None:
    """A pod of others may have its last words there, too."""
    ended = {"name": "worker", "state": {"terminated": {**ENDED, "message": "no such data"}}}
    logs, handle = attach(
        space, b"", phase="Failed", status={"containerStatuses": [{**ended, "restartCount": 0}]}
    )
    assert told(handle).endswith("exit code 3: no such data")
    assert logs.asked == []


def test_hosts_that_fail_together_are_not_all_asked(space: Space, home: Path) -> None:
    """The first of them tell enough."""
    logs = Logs(b"no such data")
    space.read = logs.read  # type: ignore[method-assign]
    count = MOST + 3
    meshes = {"w": {"label_selector": "app=x", "pod_rank_label": "rank"}}
    handle = submit(make_spec({"w": count}, image=None, meshes=meshes))
    for rank in range(count):
        labels = {"app": "x", "rank": str(rank)}
        space.add_pod(f"a{rank}", labels=labels, ready=False, **FAILED)
    hosts = KubernetesBackend().glance(handle).hosts
    assert len(hosts) == count
    assert sum("no such data" in each.reason for each in hosts) == len(logs.asked) == MOST

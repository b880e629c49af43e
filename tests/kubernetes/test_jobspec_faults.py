"""Jobspecs on a real cluster, when things go wrong: nothing is lost, nothing is left, and the reason is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kubernetes.jobspecs import LIMIT_S, Place, graph, states, work
from kubernetes.lab import wait
from milkweed.errors import SpecError
from milkweed.jobspec import load_runs
from milkweed.jobspec.graph import Auth, Need, Shape, Submit, Work
from milkweed.jobspec.progress import State
from milkweed.jobspec.runs import create_run
from milkweed.jobspec.transformers.kubernetes_cluster import ensure_objects
from milkweed.kube.api import ApiError


def open_gate(place: Place) -> None:
    """Let the work in the only pod go on: it waits for a file."""

    def is_open() -> bool:
        pods = place.lab.kubectl("-n", place.namespace, "get", "pods", "-o", "name", check=False)
        pod = pods.stdout.strip()
        gate = "/tmp/go"  # noqa: S108  of the pod
        return place.lab.in_pod(place.namespace, pod, "touch", gate, check=False).returncode == 0

    wait(is_open, 60, "the pod can be reached")


def test_a_time_limit(place: Place) -> None:
    """Work that takes too long is ended, in a pod of its own and in a group."""
    run = place.run(graph(work("long", "sleep", "100", duration_s=2.0)))
    entry = run.progress().entries["long"]
    assert (entry.status.state, entry.status.code) == (State.FAILED, 124)
    assert "DeadlineExceeded" in entry.status.reason


def test_cancelling(place: Place) -> None:
    """What runs is told to end, what waits never begins, and all objects are gone."""
    catch = "trap 'echo ended; exit 0' TERM; echo began; while :; do sleep 0.1; done"
    steps = (work("run", "sh", "-c", catch), work("next", "true", needs=("run",)))
    run = place.run(graph(*steps), waits=False)
    made = place.make()
    wait(lambda: ("run", "began") in place.lines(run), 60, "it began", lambda: states(run))
    assert len(place.lab.objects(place.namespace)) >= 2
    progress = made.cancel(run)
    assert progress.exit_code() == 143
    assert ("run", "ended") in place.lines(run), "it was told to end, and not killed"
    assert states(run) == {"run": "cancelled", "next": "cancelled"}
    place.lab.wait_empty(place.namespace)


def test_the_api_server_goes_away(place: Place) -> None:
    """Nothing is known then, and nothing is lost: every line is there once, and the code is that of the work."""
    count = (
        "i=0; until [ -e /tmp/go ]; do echo $i; i=$((i+1)); sleep 0.2; done; echo last $i; exit 5"
    )
    steps = (
        work("count", "sh", "-c", count),
        Submit(id="then", work=Work(argv=("true",)), needs=(Need("count", "afterany"),)),
    )
    run = place.run(graph(*steps), waits=False)
    wait(lambda: len(place.lines(run)) > 3, 60, "it began", lambda: states(run))
    place.lab.stop_api()
    wait(lambda: states(run)["count"] == "unknown", 60, "unknown", lambda: states(run))
    place.lab.start_api()
    open_gate(place)
    assert place.make().wait(run, LIMIT_S) == 5
    *lines, last = [text for _, text in place.make().logs(run)]
    assert lines == [str(each) for each in range(len(lines))]
    assert last == f"last {len(lines)}"
    assert states(run) == {"count": "failed", "then": "done"}


def test_a_crash_between_intent_and_record(place: Place) -> None:
    """Whoever carries the run on finds what was made, and makes nothing twice."""
    made: Any = place.make()
    plan = made.render(graph(work("once", "sh", "-c", "echo here; exit 6")))
    run = create_run(plan)
    run.journal.write("intent", id="once", durable=True)
    run.journal.close()
    job = ensure_objects(made.api, plan.actions[0].details["objects"], {})
    assert made.status(run).entries["once"].status.state is not State.WAITING
    made.carry_on(run, wait=True)
    assert run.progress().exit_code() == 6
    assert place.lines(run) == [("once", "here")]
    assert job["metadata"]["uid"]


def test_a_driver_that_is_killed(place: Place) -> None:
    """Its Job goes on, is seen without it, and is carried on by the next."""
    script = "echo a; until [ -e /tmp/go ]; do sleep 0.1; done; echo b; exit 7"
    run = place.run(graph(work("long", "sh", "-c", script)), waits=False)
    wait(lambda: ("long", "a") in place.lines(run), 60, "it began", lambda: states(run))
    driver = run.driver()
    assert driver is not None
    os.kill(driver["pid"], 9)
    wait(lambda: not run.is_driven(), 60, "the driver is gone")
    made = place.make()
    assert made.status(run).entries["long"].status.state is State.RUNNING
    assert list(made.logs(run)) == [("long", "a")]
    open_gate(place)
    made.carry_on(run, wait=True)
    assert run.progress().exit_code() == 7
    assert place.lines(run) == [("long", "a"), ("long", "b")]


def test_an_image_that_is_not_there(place: Place) -> None:
    """The reason is Kubernetes' own, and nobody waits for ever."""
    run = place.run(graph(work("x", "true")), image="localhost/nothing:1")
    status = run.progress().entries["x"].status
    assert status.state is State.FAILED
    assert "ErrImageNeverPull" in status.reason


def test_what_the_cluster_refuses(place: Place) -> None:
    """It is told before anything is made or recorded: a quota, a queue that nobody serves."""
    with pytest.raises(SpecError, match="there is no queue 'fast'"):
        place.run(graph(work("x", "true", queue="fast")))
    place.lab.kubectl("-n", place.namespace, "create", "quota", "none", "--hard=count/jobs.batch=0")
    with pytest.raises(SpecError, match="step 'x': the API server forbids it"):
        place.run(graph(work("x", "true")))
    assert load_runs() == []
    place.lab.kubectl("-n", place.namespace, "delete", "quota", "none")


def test_a_pod_that_no_node_can_take(place: Place) -> None:
    """It waits, and says why."""
    run = place.run(graph(work("x", "true", shape=Shape(cores_per_slot=500))), waits=False)

    def reason() -> str:
        return run.progress().entries["x"].status.reason

    wait(lambda: "Unschedulable" in reason(), 60, "a reason", reason)
    assert states(run) == {"x": "pending"}
    place.make().cancel(run)


RULES = [
    {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "verbs": ["create", "get", "list", "watch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {
        "apiGroups": [""],
        "resources": ["configmaps", "secrets"],
        "verbs": ["create", "get", "list", "patch", "delete"],
    },
]
"""What docs/jobspec-kubernetes.md says that is needed."""


def test_the_rights_that_are_needed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are documented are enough, and with less the error comes first."""
    lab, namespace = place.lab, place.namespace
    said = ("--verb=list", "--resource=events")
    login = lab.make_login(tmp_path, namespace, "runner", *said)
    with pytest.raises(ApiError, match="forbids"):
        place.run(graph(work("x", "true")), kubeconfig=login)
    role = lab.get("role", "runner", "-n", namespace)
    role["rules"] += RULES
    lab.kubectl("replace", "-f", "-", text=json.dumps(role))
    monkeypatch.setenv("HUB_TOKEN", "word")
    auth = Auth(id="a", secret="hub", variable="HUB_TOKEN", export="T")
    run = place.run(graph(auth, work("x", "sh", "-c", "echo $T", needs=("a",))), kubeconfig=login)
    assert place.lines(run) == [("x", "word")]
    for kind in ("serviceaccount", "role", "rolebinding"):
        lab.kubectl("-n", namespace, "delete", kind, "runner")

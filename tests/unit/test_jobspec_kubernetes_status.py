"""How a step is, from what a cluster tells of its Job and pods."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.jobspec.progress import State, StepStatus
from milkweed.jobspec.transformers.kubernetes_status import ADMISSION, judge_job
from unit.jobspec_kubernetes import make_pod

UNSCHEDULABLE = {
    "phase": "Pending",
    "state": {},
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes",
        }
    ],
}


def waiting(word: str, message: str = "") -> dict[str, Any]:
    """A container that does not begin."""
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    state = {"waiting": {"reason": word, "message": message}}
    return {"phase": "Pending", "conditions": scheduled, "state": state}


def judge(*pods: dict[str, Any], over: str = "", holding: bool = False, **spec: Any) -> StepStatus:
    """The status of a Job with these pods."""
    conditions = [{"type": over, "status": "True", "reason": "Because", "message": "of it"}]
    job = {
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"completions": len(pods) or 1, **spec},
        "status": {"conditions": conditions if over else []},
    }
    made = [make_pod(f"j-{index}", index, **dict(each)) for index, each in enumerate(pods)]
    return judge_job(job, made, holding=holding)


def test_a_job_that_is_complete() -> None:
    """It is done."""
    assert judge({"code": 0}, over="Complete") == StepStatus(State.DONE, 0)


def test_pods_that_ended_are_not_yet_the_end() -> None:
    """The Job says when it is over."""
    assert judge({"code": 0}).state is State.RUNNING
    assert judge({"code": 3}).state is State.RUNNING


def test_the_code_is_that_of_the_work() -> None:
    """There is nothing to add to a plain code."""
    assert judge({"code": 3}, over="Failed") == StepStatus(State.FAILED, 3, "")
    assert judge({"code": 137}, over="Failed").code == 137


def test_the_first_that_failed_counts() -> None:
    """What ended later may have ended because of it."""
    pods = ({"code": 143, "at": "2026-01-03"}, {"code": 5, "at": "2026-01-01"}, {"code": 0})
    assert judge(*pods, over="Failed").code == 5


@pytest.mark.parametrize(
    ("pod", "code", "words"),
    [
        ({"code": 137, "word": "OOMKilled"}, 137, "it used more memory than it was given"),
        ({"code": 128, "word": "StartError", "message": "exec: x: not found"}, 127, "StartError"),
        ({"code": 128, "word": "StartError", "message": "permission denied"}, 126, "StartError"),
        ({"code": 143, "reason": "DeadlineExceeded"}, 124, "DeadlineExceeded"),
        ({"phase": "Failed", "state": {}, "reason": "Evicted"}, 1, "its node ran out of something"),
    ],
)
def test_failures_that_are_not_the_works_own(pod: dict[str, Any], code: int, words: str) -> None:
    """They have their reason, in Kubernetes' words and in plain ones."""
    status = judge(pod, over="Failed")
    assert (status.state, status.code) == (State.FAILED, code)
    assert words in status.reason


def test_a_job_that_failed_without_a_pod() -> None:
    """The Job's own words are all there is."""
    assert judge(over="Failed") == StepStatus(State.FAILED, 1, "Because: of it")


def test_which_pod_failed_is_told_where_there_are_several() -> None:
    """One of many is found by its name."""
    status = judge({"code": 0}, {"code": 137, "word": "OOMKilled"}, over="Failed")
    assert status.reason.startswith("pod j-1: OOMKilled")


def test_waiting_has_a_reason() -> None:
    """No node, an image that comes, a queue: each is told."""
    assert judge(UNSCHEDULABLE).state is State.PENDING
    assert "no node can take it now: 0/2 nodes" in judge(UNSCHEDULABLE).reason
    assert "ContainerCreating" in judge(waiting("ContainerCreating")).reason
    assert judge(suspend=True) == StepStatus(State.PENDING, None, ADMISSION)


def test_some_run_and_some_wait() -> None:
    """It runs, and says what is missing."""
    status = judge({}, UNSCHEDULABLE)
    assert status.state is State.RUNNING
    assert status.reason.startswith("1 of 2 pods run; Unschedulable")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ErrImageNeverPull", ""),
        ("ImagePullBackOff", "manifest unknown"),
        ("InvalidImageName", ""),
        ("CreateContainerConfigError", 'secret "x" not found'),
    ],
)
def test_what_never_begins_has_failed(word: str, message: str) -> None:
    """Nobody waits for ever for what only a person can mend."""
    status = judge(waiting(word, message))
    assert (status.state, status.code) == (State.FAILED, 1)
    assert word in status.reason


def test_what_may_still_begin_is_waited_for() -> None:
    """A registry that is slow is no failure."""
    assert judge(waiting("ImagePullBackOff", "i/o timeout")).state is State.PENDING


def test_pods_that_hold_their_nodes() -> None:
    """The first one decides, also where the cluster does not know that rule."""
    assert judge({"code": 0}, {}, holding=True).state is State.DONE
    assert judge({}, {}, holding=True).state is State.RUNNING
    assert judge({"code": 0}, {}).state is State.RUNNING


def test_a_pod_with_a_strange_index() -> None:
    """It is taken for the first."""
    pod = make_pod("j-0", 0)
    pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "x"}
    job = {"metadata": {"name": "j"}, "spec": {}, "status": {}}
    assert judge_job(job, [pod]).state is State.RUNNING

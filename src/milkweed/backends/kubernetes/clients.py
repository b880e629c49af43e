"""A batch client in the cluster: whether it runs, and how it ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import AccessError, MilkweedError
from ...kube.api import Api, ApiError
from ...kube.resources import EVENTS, JOBS
from ...status import Liveness, Status
from ..base import Handle
from .batch import client_name, read_exit
from .finding import client_pods
from .places import AnyApi
from .pod_parts import condition, part, parts, text
from .reasons import describe_pod

ASK_EVERY_S = 10.0
"""How often the cluster is asked for a client that has no pod: pods are watched, which costs nothing."""
_told: dict[tuple[int, str], tuple[float, Status | str]] = {}


def read_client(
    api: AnyApi, handle: Handle, *, clock: Callable[[], float] = time.monotonic
) -> Status | str:
    """How a job ended whose client did; else why that waits, and nothing while it runs."""
    if not isinstance(api, Api):
        return ""
    pods = client_pods(api, handle)
    for pod in pods:
        code = read_exit(pod)
        if code is not None:
            words = [f"its client ended with exit code {code}"]
            words += filter(None, [describe_pod(pod).reason if code else ""])
            return Status(liveness=Liveness.ENDED, reason="; ".join(words), exit_code=code)
    if pods:
        return _wait([describe_pod(pod).reason for pod in pods if _is_pending(pod)])
    key = (id(api), handle["apply_id"])
    at, known = _told.get(key, (-ASK_EVERY_S, ""))
    if clock() - at >= ASK_EVERY_S:
        known = _ask(api, handle)
        _told[key] = (clock(), known)
    return known


def _is_pending(pod: Mapping[str, Any]) -> bool:
    return text(part(pod, "status"), "phase") == "Pending"


def _wait(words: list[str]) -> str:
    said = "; ".join(filter(None, words))
    return f"its client waits: {said}" if said else ""


def _ask(api: Api, handle: Handle) -> Status | str:
    """What became of a client that has no pod: its Job has failed, is gone, or cannot make one."""
    name = client_name(handle["apply_id"])
    try:
        job = api.get(JOBS, handle["namespace"], name)
    except (ApiError, AccessError) as error:
        if not isinstance(error, ApiError) or not error.missing:
            return ""  # who may not look, or cannot log in just now, sees no end
        reason = "its client is gone: its Job is not there"
        return Status(liveness=Liveness.ENDED, reason=reason, exit_code=1)
    failed = condition(part(job, "status"), "Failed")
    if failed.get("status") == "True":
        said = ": ".join(filter(None, (text(failed, "reason"), text(failed, "message"))))
        reason = f"its client's pod is gone, and its Job has failed: {said}"
        return Status(liveness=Liveness.ENDED, reason=reason, exit_code=1)
    if condition(part(job, "status"), "Complete").get("status") == "True":
        reason = "its client ended with exit code 0, and its pod is gone"
        return Status(liveness=Liveness.ENDED, reason=reason, exit_code=0)
    suspended = condition(part(job, "status"), "Suspended").get("status") == "True"
    quiet = "its Job waits to be admitted" if suspended else "it has no pod yet"
    return _wait([_find_trouble(api, job) or quiet])


def _find_trouble(api: Api, job: Mapping[str, Any]) -> str:
    """Why the cluster makes no pod of a Job: of that only events tell."""
    meta = job["metadata"]
    chosen = f"type=Warning,involvedObject.kind=Job,involvedObject.name={meta['name']}"
    with contextlib.suppress(MilkweedError):
        found = api.get(EVENTS, meta["namespace"], fieldSelector=chosen)
        ours = [
            each
            for each in parts(found, "items")
            if text(part(each, "involvedObject"), "uid") in {"", text(meta, "uid")}
        ]
        if ours:
            return f"{text(ours[-1], 'reason')}: {' '.join(text(ours[-1], 'message').split())}"
    return ""

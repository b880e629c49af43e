"""A batch client in the cluster: how it ended, and what it printed."""

from __future__ import annotations

import contextlib

from ...kube.api import Api, ApiError
from ...kube.resources import PODS
from ...status import Liveness, Status
from ..base import Handle
from .batch import read_exit
from .finding import client_pods
from .places import AnyApi
from .reasons import describe_pod


def read_client(api: AnyApi, handle: Handle) -> Status | None:
    """How a job ended whose client did; None while that runs, or waits."""
    for pod in client_pods(api, handle):
        code = read_exit(pod)
        if code is not None:
            words = [f"its client ended with exit code {code}"]
            words += filter(None, [describe_pod(pod).reason if code else ""])
            return Status(liveness=Liveness.ENDED, reason="; ".join(words), exit_code=code)
    return None


def read_client_log(api: AnyApi, handle: Handle) -> bytes:
    """All that a client has printed so far; the cluster has it."""
    for pod in client_pods(api, handle):
        if isinstance(api, Api):
            with contextlib.suppress(ApiError):  # it has not begun yet
                path = PODS.path(handle["namespace"], pod["metadata"]["name"], "log")
                return api.read(path)
    return b""

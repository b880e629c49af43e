"""What workers printed last that have no keeper to tell it, and whose pods do not have it in their status."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...errors import MilkweedError
from ...kube.api import Api, ApiError
from ...kube.resources import PODS
from ...status import HostStatus
from .places import AnyApi, Pod

TAIL_LINES = 20
MOST = 4
"""Of how many hosts it is asked: those that failed together mostly say the same."""
_UNTOLD = re.compile(r"exit code \d+(?:, which is \w+| \(\w+\))?(?:;|$)")
"""An exit code with nothing behind it."""


def add_last_words(
    api: AnyApi, pods: Iterable[Pod], told: Iterable[HostStatus]
) -> tuple[HostStatus, ...]:
    """What is told of hosts, with the end of the log of those that ended without a word."""
    others = {pod.label: pod for pod in pods if not pod.kept}
    found, asked = list[HostStatus](), 0
    for status in told:
        pod = others.get(status.host)
        if pod and isinstance(api, Api) and asked < MOST and _is_untold(status.reason):
            asked += 1
            tail = _ask(api, pod)
            found.append(replace(status, reason="\n".join([status.reason, *tail])))
        else:
            found.append(status)
    return tuple(found)


def _is_untold(reason: str) -> bool:
    return "\n" not in reason and bool(_UNTOLD.search(reason))


def _ask(api: Api, pod: Pod) -> Sequence[str]:
    view = pod.view
    if view is None:
        return ()
    # The log of a container that runs again, or waits for that, is not the one that ended.
    again = view.restarts > 0 and view.started is not None
    before = again or view.word == "CrashLoopBackOff"
    with contextlib.suppress(MilkweedError):  # what is told of it without that is true as well
        run = (view.uid, view.restarts)
        return _read(api, pod.namespace, view.name, view.container, run, before=before)
    return ()


@functools.lru_cache(maxsize=64)
def _read(
    api: Api, namespace: str, name: str, container: str, run: tuple[str, int], *, before: bool
) -> Sequence[str]:
    """The last lines of one run of a container, asked for once; none for whom that is not allowed."""
    del run
    query = {"container": container, "tailLines": str(TAIL_LINES)}
    if before:
        query["previous"] = "true"
    try:
        data = api.read(PODS.path(namespace, name, "log"), **query)
    except ApiError:
        return ()
    return data.decode(errors="replace").splitlines()[-TAIL_LINES:]

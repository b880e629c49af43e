"""Letting in hosts that do not see the job's folder, through a step that only the job's owner can start.

Requests and certificates pass through it, which anybody may read. What must stay private follows over TLS.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import AccessError, UnreachableError
from ...pki import Authority, load_authority
from ..admitting import GRACE_S, begin, certify, hear, name_share, say
from ..credentials import KEY_FOLDER
from ..launch import DEFAULT_PYTHON, render_bridge
from . import commands
from .places import Place
from .script import render_visit

VISIT_TIMEOUT_S = 20.0
SELDOMEST_S = 60.0
"""The longest pause between two visits to a job some of whose hosts stay silent."""


_PASSING = (
    *(UnreachableError, AccessError, OSError, subprocess.SubprocessError),
    *(ValueError, LookupError),  # an answer that is none of a keeper's
)
"""Why a visit may come to nothing: whoever waits looks again."""


class Pace:
    """How often jobs are visited: each visit is a step of Slurm, so the longer hosts are silent the seldomer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._visits: dict[object, tuple[float, float]] = {}

    def is_due(self, places: Sequence[Place]) -> bool:
        """Whether it is time to visit hosts, in this run of their jobs; who asks then goes."""
        key = frozenset((place.row.job_id, place.row.start) for place in places if place.row)
        now_s = self._clock()
        next_s, pause_s = self._visits.get(key, (now_s, GRACE_S))
        if now_s < next_s:
            return False
        self._visits[key] = (now_s + pause_s, min(pause_s * 2, SELDOMEST_S))
        return True


def is_silent(place: Place, now: float) -> bool:
    """Whether a host has been silent for so long that it may be waiting."""
    return place.row is not None and place.row.start is not None and now - place.row.start > GRACE_S


def admit(folder: Path, places: Sequence[Place], door: Callable[[Place], str]) -> None:
    """Visit every component that has silent hosts; let in those that wait, and tell them what they are."""
    authority = load_authority(folder / KEY_FOLDER)
    for component in sorted({place.component for place in places}):
        silent = [place for place in places if place.component == component]
        with contextlib.suppress(*_PASSING):
            for place in _visit(authority, silent):
                begin(door(place), place.part)


def _visit(authority: Authority, places: Sequence[Place]) -> list[Place]:
    """Fetch requests, bring certificates; the hosts that were let in."""
    first = places[0]
    if first.row is None:
        return []
    command = [
        *render_visit(first.row, len(first.row.nodes)),
        *render_bridge(first.part.get("python", DEFAULT_PYTHON)),
    ]
    share = name_share(first.part, "*")
    step = commands.start(command)
    clock = threading.Timer(VISIT_TIMEOUT_S, step.kill)
    clock.start()
    try:
        say(step, {"share": share, "index_env": "SLURM_PROCID"})
        return _talk(step, authority, {place.node: place for place in places}, first.row.nodes)
    finally:
        clock.cancel()
        step.kill()
        with contextlib.suppress(OSError):
            step.communicate()


def _talk(
    step: subprocess.Popen[str],
    authority: Authority,
    silent: dict[str, Place],
    nodes: Sequence[str],
) -> list[Place]:
    admitted: dict[str, Any] = {}
    for _ in nodes:
        if (request := hear(step)) is None:
            break  # one whose keeper is gone says nothing, and ends its task
        # One that was let in already, or sees the folder and starts slowly, asks for nothing.
        # The step's tasks are counted along the nodes there are now, and not as those of the keepers.
        if request.get("ev") == "request" and (at := nodes[int(request["index"])]) in silent:
            admitted[request["index"]] = certify(authority, request, silent[at])
    if not admitted:
        return []
    say(step, admitted)
    heard = [answer for _ in admitted if (answer := hear(step))]
    let_in = {nodes[int(answer["index"])] for answer in heard if answer.get("ev") == "admitted"}
    return [place for node, place in silent.items() if node in let_in]

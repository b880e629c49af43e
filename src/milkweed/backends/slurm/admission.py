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
        with contextlib.suppress(
            UnreachableError, AccessError, OSError, subprocess.SubprocessError
        ):
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
        return _talk(step, share, authority, {place.node: place for place in places}, first)
    finally:
        clock.cancel()
        step.kill()
        with contextlib.suppress(OSError):
            step.communicate()


def _talk(
    step: subprocess.Popen[str],
    share: str,
    authority: Authority,
    silent: dict[str, Place],
    first: Place,
) -> list[Place]:
    nodes = first.row.nodes if first.row else ()
    say(step, {"share": share, "index_env": "SLURM_PROCID"})
    admitted: dict[str, Any] = {}
    for _ in nodes:
        if (request := hear(step)) is None:
            break  # one whose keeper is gone says nothing, and ends its task
        # One that was let in already, or sees the folder and starts slowly, asks for nothing.
        if request.get("ev") == "request":
            admitted[request["index"]] = _certify(authority, request, nodes, first)
    if not admitted:
        return []
    say(step, admitted)
    heard = [answer for _ in admitted if (answer := hear(step))]
    let_in = {nodes[int(answer["index"])] for answer in heard if answer.get("ev") == "admitted"}
    return [place for node, place in silent.items() if node in let_in]


def _certify(
    authority: Authority, request: dict[str, Any], nodes: Sequence[str], first: Place
) -> dict[str, str]:
    node = nodes[int(request["index"])]
    return certify(authority, request, [first.part["addresses"].get(node, node), node])

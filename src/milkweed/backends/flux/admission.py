"""Letting in hosts that do not see the job's folder, through the job: only its owner can run something there."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from ...errors import AccessError, UnreachableError
from ...pki import Authority, load_authority
from ..admitting import GRACE_S, begin, certify, hear, name_share, say
from ..credentials import KEY_FOLDER
from ..keepers import ask_all
from ..launch import DEFAULT_PYTHON, render_bridge
from ..places import make_door
from . import commands
from .places import FluxPlace

VISIT_TIMEOUT_S = 20.0


def is_silent(place: FluxPlace, now: float) -> bool:
    """Whether a host has been silent for so long that it may be waiting."""
    return place.row is not None and place.row.start is not None and now - place.row.start > GRACE_S


def admit(folder: Path, places: Sequence[FluxPlace], uri: str) -> None:
    """Visit every silent host; let in those that wait, and tell them what they are."""
    authority = load_authority(folder / KEY_FOLDER)

    def visit(place: FluxPlace) -> None:
        with contextlib.suppress(UnreachableError, AccessError, subprocess.SubprocessError):
            if _visit(authority, place, uri):
                begin(str(make_door(place)), place.part)

    ask_all(places, visit)


def render_visit(job_id: int, index: int) -> list[str]:
    """The words of `flux` that run something beside one task of a job."""
    return ["exec", f"--jobid={job_id}", f"--rank={index}", "--quiet", "--dir=/"]


def _visit(authority: Authority, place: FluxPlace, uri: str) -> bool:
    """Fetch a host's request, bring its certificate; whether it was let in."""
    if place.row is None:
        return False
    bridge = render_bridge(place.part.get("python", DEFAULT_PYTHON))
    step = commands.start([*render_visit(place.row.job_id, place.index), *bridge], uri=uri)
    clock = threading.Timer(VISIT_TIMEOUT_S, step.kill)
    clock.start()
    try:
        return _talk(step, authority, place)
    finally:
        clock.cancel()
        step.kill()
        with contextlib.suppress(OSError):
            step.communicate()


def _talk(step: subprocess.Popen[str], authority: Authority, place: FluxPlace) -> bool:
    """One that was let in already, or sees the folder and starts slowly, asks for nothing."""
    say(step, {"share": name_share(place.part, place.index), "index_env": ""})
    request = hear(step)
    if request is None or request.get("ev") != "request":
        return False
    known = [place.machine, place.node]
    say(step, {request["index"]: certify(authority, request, known)})
    answer = hear(step)
    return answer is not None and answer.get("ev") == "admitted"

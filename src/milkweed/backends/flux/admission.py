"""Letting in hosts that do not see the job's folder, through the job: only its owner can run something there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import AccessError, UnreachableError
from ...pki import Authority, load_authority
from ..admitting import GRACE_S, begin, certify, name_share, parse_bridge
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
        with contextlib.suppress(UnreachableError, AccessError, ValueError, KeyError):
            if _visit(authority, place, uri):
                begin(str(make_door(place)), place.part)

    ask_all(places, visit)


def render_visit(job_id: int, index: int) -> list[str]:
    """The words of `flux` that run something beside one task of a job."""
    return ["exec", f"--jobid={job_id}", f"--rank={index}", "--quiet", "--dir=/"]


def _visit(authority: Authority, place: FluxPlace, uri: str) -> bool:
    """Fetch a host's request, then bring its certificate; whether it was let in.

    One that was let in already, or sees the folder and starts slowly, asks for nothing.
    """
    where = {"share": name_share(place.part, place.index), "index_env": ""}
    request = _last_word(place, uri, where)
    if request.get("ev") != "request":
        return False
    certificate = certify(authority, request, place)
    return _last_word(place, uri, where, {request["index"]: certificate}).get("ev") == "admitted"


def _last_word(place: FluxPlace, uri: str, *said: object) -> dict[str, Any]:
    """Say something to a host's keeper, and hear its last answer.

    All is said at once, and the visit is over: what `flux exec` hears it keeps back until then.
    """
    if place.row is None:
        return {}
    bridge = render_bridge(place.part.get("python", DEFAULT_PYTHON))
    words = [*render_visit(place.row.job_id, place.index), *bridge]
    text = "".join(f"{json.dumps(message)}\n" for message in said)
    done = commands.attempt(words, uri=uri, text=text, timeout_s=VISIT_TIMEOUT_S)
    heard = [message for line in done.said.splitlines() if (message := parse_bridge(line))]
    return heard[-1] if heard else {}

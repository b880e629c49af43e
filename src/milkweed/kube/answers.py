"""What the API server says when it says no."""

from __future__ import annotations

import json
from typing import Any

from ..errors import BackendError, UnreachableError


class ApiError(BackendError):
    """The API server answered, and the answer is no."""

    status: int = 0
    reason: str = ""
    """The API server's own word: NotFound, AlreadyExists, Conflict, Invalid, …"""

    @property
    def missing(self) -> bool:
        """Whether there is no such thing."""
        return self.status == 404


def make_error(status: int, body: bytes, request: str) -> BackendError:
    """An error of the API server, in its own words."""
    try:
        said: Any = json.loads(body)
        message, reason = str(said.get("message") or ""), str(said.get("reason") or "")
    except (ValueError, AttributeError):
        message, reason = body.decode(errors="replace").strip()[:500], ""
    if status in {429, 500, 502, 503, 504}:
        return UnreachableError(
            f"the API server cannot answer now ({status})", seen=message or request
        )
    error = ApiError(_describe(status), seen=message or request)
    error.status, error.reason = status, reason
    return error


def _describe(status: int) -> str:
    known = {
        401: "the API server does not know who asks",
        403: "the API server forbids it",
        404: "there is no such thing in the cluster",
        409: "the cluster has another one already, or it was changed meanwhile",
        410: "the API server has forgotten that long ago",
        422: "the API server refuses it as wrong",
    }
    return known.get(status, f"the API server refuses it ({status})")

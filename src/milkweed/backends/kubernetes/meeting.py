"""Whether a client was ever connected to a job's hosts: pods that come anew read it where they read all else.

The first pods of a job wait for their client without end: nobody knows when the cluster has room for them. A pod
that takes the place of one which clients have used must not, or it alone would keep the whole mesh for ever.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import registry
from ...errors import MilkweedError
from ...kube.resources import SECRETS
from ..base import Handle
from .places import AnyApi
from .start import secret_name

MET_FILE = "met"
_PART = "part-"


def is_met(api: AnyApi, handle: Handle) -> bool:
    """Whether a client was there, of this machine or of another; where nobody can tell, none was."""
    if _marker(handle).exists():
        return True
    with contextlib.suppress(MilkweedError):
        parts = _read(api, handle)
        return bool(parts) and not any(part["queued"] for part in parts.values())
    return False


def note_met(api: AnyApi, handle: Handle) -> None:
    """Tell pods that come anew; done once for each machine from which clients come."""
    if _marker(handle).exists() or not any(mesh["kept"] for mesh in handle["meshes"].values()):
        return
    change = {
        key: base64.b64encode(json.dumps({**part, "queued": False}).encode()).decode()
        for key, part in _read(api, handle).items()
        if part["queued"]
    }
    if change:
        name = secret_name(handle["apply_id"])
        api.patch(SECRETS, handle["namespace"], name, {"data": change})
    _marker(handle).touch(mode=0o600)


def _marker(handle: Handle) -> Path:
    return registry.folder_of(handle["apply_id"]) / MET_FILE


def _read(api: AnyApi, handle: Handle) -> dict[str, dict[str, Any]]:
    """What the keepers of each mesh are told."""
    name = secret_name(handle["apply_id"])
    data: Mapping[str, str] = api.get(SECRETS, handle["namespace"], name).get("data") or {}
    return {
        key: json.loads(base64.b64decode(value))
        for key, value in data.items()
        if key.startswith(_PART)
    }

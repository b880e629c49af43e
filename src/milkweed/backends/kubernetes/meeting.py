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
        _version, parts = _read(api, handle)
        return bool(parts) and not any(part["queued"] for part in parts.values())
    return False


def is_kept(api: AnyApi, handle: Handle) -> bool:
    """Whether hosts outlive their client, as they were told; where nobody can tell, they do."""
    with contextlib.suppress(MilkweedError):
        _version, parts = _read(api, handle)
        return not parts or any(part["keep"] for part in parts.values())
    return True


def note_met(api: AnyApi, handle: Handle) -> None:
    """Tell pods that come anew; done once for each machine from which clients come."""
    if _marker(handle).exists() or not any(mesh["kept"] for mesh in handle["meshes"].values()):
        return
    version, parts = _read(api, handle)
    change = {
        key: base64.b64encode(json.dumps({**part, "queued": False}).encode()).decode()
        for key, part in parts.items()
        if part["queued"]
    }
    if change:
        name = secret_name(handle["apply_id"])
        # Never over what somebody has written meanwhile: then the next client notes it.
        seen = {"metadata": {"resourceVersion": version}} if version else {}
        api.patch(SECRETS, handle["namespace"], name, {**seen, "data": change})
    _marker(handle).touch(mode=0o600)


def _marker(handle: Handle) -> Path:
    return registry.folder_of(handle["apply_id"]) / MET_FILE


def _read(api: AnyApi, handle: Handle) -> tuple[str, dict[str, dict[str, Any]]]:
    """What the keepers of each mesh are told, and in which version of the Secret."""
    secret = api.get(SECRETS, handle["namespace"], secret_name(handle["apply_id"]))
    data: Mapping[str, str] = secret.get("data") or {}
    told = {
        key: json.loads(base64.b64decode(value))
        for key, value in data.items()
        if key.startswith(_PART)
    }
    return str(secret.get("metadata", {}).get("resourceVersion", "")), told

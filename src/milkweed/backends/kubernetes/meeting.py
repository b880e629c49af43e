"""What pods that come anew are told of the time before: whether a client was there, and whether they outlive it.

They read it where they read all else. The first pods of a job wait for their client without end: nobody knows
when the cluster has room for them. A pod that takes the place of one which clients have used must not, or it
alone would keep the whole mesh for ever.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import registry
from ...errors import MilkweedError, UnreachableError
from ...kube.answers import ApiError
from ...kube.resources import SECRETS
from ..base import Handle
from .places import AnyApi
from .start import secret_name

MET_FILE = "met"
_PART = "part-"
CHANGED = 409
"""What the API server answers to who would write over what others have written since."""


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
    if not _marker(handle).exists() and _has_keepers(handle):
        _tell(api, handle, "queued", value=False)
        _marker(handle).touch(mode=0o600)


def note_kept(api: AnyApi, handle: Handle) -> None:
    """Tell pods that come anew that they outlive who asked for them; where no Secret is, none will come."""
    if not _has_keepers(handle):
        return
    try:
        _tell(api, handle, "keep", value=True)
    except ApiError as error:
        if error.status == CHANGED:
            raise UnreachableError(
                "what pods are told was changed meanwhile", seen=error.seen
            ) from error
        if not error.missing:
            raise


def _has_keepers(handle: Handle) -> bool:
    return any(mesh["kept"] for mesh in handle["meshes"].values())


def _tell(api: AnyApi, handle: Handle, fact: str, *, value: bool) -> None:
    """Change what the keepers of every mesh are told, where it is not that already."""
    version, parts = _read(api, handle)
    change = {
        key: base64.b64encode(json.dumps({**part, fact: value}).encode()).decode()
        for key, part in parts.items()
        if part[fact] is not value
    }
    if change:
        name = secret_name(handle["apply_id"])
        # Never over what somebody has written meanwhile: that is read first, by whoever tells it next.
        seen = {"metadata": {"resourceVersion": version}} if version else {}
        api.patch(SECRETS, handle["namespace"], name, {**seen, "data": change})


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

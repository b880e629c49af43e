"""The authority of a job in a cluster: made by its first client, kept in a Secret for all others."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ... import registry
from ...errors import AccessError
from ...kube.api import Api
from ...kube.resources import SECRETS
from ...pki import Authority, load_authority, save_authority
from .. import credentials
from .asked import AskedApi
from .start import authority_name


def ensure_authority(
    apply_id: str, api: Api | AskedApi | None = None, handle: Mapping[str, Any] | None = None
) -> Authority:
    """The job's own authority; a client on another machine finds it in the cluster."""
    folder = registry.folder_of(apply_id)
    keys = folder / credentials.KEY_FOLDER
    try:
        return load_authority(keys)
    except AccessError:
        if api is None or handle is None:
            return credentials.ensure_authority(folder, apply_id)
    found = api.get(SECRETS, handle["namespace"], authority_name(apply_id))["data"]
    authority = Authority(
        cert_pem=base64.b64decode(found["ca.crt"]), key_pem=base64.b64decode(found["ca.key"])
    )
    save_authority(keys, authority)
    return authority

"""The certificates of a job on other machines: its authority, and what each client of it shows."""

from __future__ import annotations

import contextlib
import shutil
import socket
import uuid
from pathlib import Path

from ..errors import AccessError, UnreachableError
from ..pki import Authority, load_authority, make_authority, save_authority, save_credentials

KEY_FOLDER = "tls"


def ensure_authority(folder: Path, apply_id: str) -> Authority:
    """The job's own certificate authority, made once."""
    keys = folder / KEY_FOLDER
    with contextlib.suppress(AccessError):
        return load_authority(keys)
    authority = _own[0] if _own else make_authority(apply_id, days=365)
    save_authority(keys, authority)
    return _remember(authority)


_own: list[Authority] = []
"""The authority of this process's first job. A process shows one certificate for its life, so what it asks for
later, such as an allocation that takes the place of one that ended, must trust the same."""


def _remember(authority: Authority) -> Authority:
    if not _own:
        _own.append(authority)
    return authority


def ensure_client(folder: Path, address: str) -> Path:
    """A certificate for a client that hosts reach at an address; one for each address it was ever at."""
    keys = folder / KEY_FOLDER
    place = keys / f"client-{address.replace(':', '_')}"
    if place.exists():
        return place
    authority = _remember(load_authority(keys))
    leaf = authority.issue([address, socket.gethostname()])
    # Several clients, or threads of one, may come here at once: the first whole folder stays.
    made = keys / f".new-{uuid.uuid4().hex}"
    try:
        # Without its parents: a job that somebody has just ended stays ended.
        made.mkdir(mode=0o700)
    except FileNotFoundError as error:
        raise UnreachableError(
            "the job's folder is gone",
            seen=str(keys),
            hint="somebody has ended the job meanwhile, or deleted the folder: `milkweed ls` tells",
        ) from error
    save_credentials(made, leaf, authority.cert_pem)
    try:
        made.rename(place)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
    return place

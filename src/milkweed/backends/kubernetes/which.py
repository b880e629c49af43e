"""Which cluster a job is in: a context's name means another one in another kubeconfig.

What a cluster has nothing of is gone, so the wrong one must never be asked.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from ...errors import BackendError, MilkweedError
from ...kube.api import Api, ApiError
from ...kube.resources import NAMESPACES
from .asked import AskedApi
from .start import JOB_LABEL

SYSTEM = "kube-system"
"""The namespace that every cluster has, and none deletes."""


def identify(api: Api | AskedApi) -> dict[str, str]:
    """What tells a cluster from others: its address and authority, and its own id for whom that is shown."""
    if isinstance(api, AskedApi):
        return {}  # an endpoint is known by its address, which the handle has
    try:
        uid = _read_uid(api)
    except MilkweedError:
        uid = ""  # where a job is asked for is noted first; who asks next hears that nobody answers
    return {**_address(api), "uid": uid}


def _address(api: Api) -> dict[str, str]:
    cluster = api.config.cluster
    words = "".join((cluster.ca_pem or "").split())
    return {"server": cluster.server, "ca": hashlib.sha256(words.encode()).hexdigest()[:16]}


@functools.cache
def _read_uid(api: Api) -> str:
    """The id of a cluster, which stays when its address changes; none for whom it is not shown."""
    try:
        return str(api.get(NAMESPACES, "", SYSTEM)["metadata"]["uid"])
    except (ApiError, LookupError):
        return ""


def check_same(api: Api, handle: Mapping[str, Any]) -> None:
    """Refuse a cluster that is not the one of the handle: what it has nothing of may be well elsewhere."""
    known: Mapping[str, str] = handle.get("cluster") or {}
    here = _address(api)
    if not known or here == {key: known.get(key, "") for key in here}:
        return
    if known.get("uid") and known["uid"] == _read_uid(api):
        return
    context = api.config.context
    raise BackendError(
        f"the context {context!r} leads to another cluster than the one that the job is in",
        seen=f"it was asked for at {known.get('server')}, and this one is at {here['server']}"
        + ("" if here["server"] != known.get("server") else " with another authority"),
        hint="nothing was done: set KUBECONFIG to the file that has the job's cluster; if it is this one all the "
        f"same, kubectl -n {handle['namespace']} delete jobs,monarchmeshes,secrets "
        f"-l {JOB_LABEL}={handle['apply_id']} ends the job",
    )

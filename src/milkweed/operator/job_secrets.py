"""The Secrets of jobs whose clients have no rights: made beside their mesh, for nobody else, and gone with it.

What is in them is in no error, no event and no line of a log.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backends.kubernetes.start import JOB_LABEL, NAME_NOTE
from ..errors import BackendError
from ..kube.api import Api, ApiError
from ..kube.meshes import API_VERSION, KIND
from ..kube.resources import SECRETS
from .admission import is_of, sign
from .asked import Deny, Missing
from .podcheck import Complaint
from .policy import Caller
from .reading import Object, is_leaving, items, mapping, name_of, namespace_of, pick, text, uid_of

MOST = 4
"""How many Secrets one request may carry."""
LARGEST_DATA = 1024 * 1024
"""How much all of them may hold, in bytes."""
_JOB = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,55}")
_REST = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,38}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True, slots=True)
class AskedSecret:
    """A Secret as it was asked for; what it holds is base64."""

    name: str
    data: Mapping[str, str] = field(repr=False)


# What is asked for


def parse_secrets(found: Any) -> list[AskedSecret]:
    """The Secrets of a request that was checked."""
    return [AskedSecret(text(one, "name"), mapping(one, "data")) for one in found or ()]


def check_secrets(found: Any, job: str) -> Iterator[Complaint]:
    """What is wrong with the Secrets of a request for a mesh of a job."""
    if found is None or found == []:
        return
    if not isinstance(found, list):
        yield "secrets", "is a list"
        return
    asked = items({"secrets": found}, "secrets")
    if not _JOB.fullmatch(job):
        yield f"metadata.labels.{JOB_LABEL}", "is missing, or no job's id: only jobs have Secrets"
    if len(asked) > MOST:
        yield "secrets", f"{len(asked)} asked for, at most {MOST}"
    names = [text(one, "name") for one in asked]
    if len(set(names)) < len(names):
        yield "secrets", "two have the same name"
    for index, one in enumerate(asked):
        yield from _check_secret(one, job, f"secrets[{index}]")
    size = sum(measure_data(pick(one, "data")) for one in asked)
    if size > LARGEST_DATA:
        yield "secrets", f"{size} bytes in all, at most {LARGEST_DATA}"


def _check_secret(found: Any, job: str, path: str) -> Iterator[Complaint]:
    for key in mapping(found):
        if key not in {"name", "data"}:
            yield f"{path}.{key}", "is not allowed"
    name, start = text(found, "name"), f"milkweed-{job[:8]}-"
    if not name.startswith(start) or not _REST.fullmatch(name.removeprefix(start)):
        yield f"{path}.name", f"is not {start}… with lowercase letters, digits and dashes"
    yield from check_data(pick(found, "data"), f"{path}.data")


def check_data(data: Any, path: str = "data") -> Iterator[Complaint]:
    """What is wrong with what a Secret is to hold. No value is told."""
    if not isinstance(data, Mapping):
        yield path, "is missing"
        return
    for key, value in mapping(data).items():
        if not _KEY.fullmatch(key):
            yield path, "has a key with more than letters, digits, dots, dashes and underscores"
        elif _decode(value) is None:
            yield f"{path}.{key}", "is not base64"
    if measure_data(data) > LARGEST_DATA:
        yield path, f"is more than {LARGEST_DATA} bytes"


def measure_data(data: Any) -> int:
    """How many bytes a Secret holds."""
    return sum(len(_decode(value) or b"") for value in mapping(data).values())


def _decode(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


# What there is


class JobSecrets:
    """Makes, shows, changes and deletes Secrets of callers, each their own."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def check_free(self, caller: Caller, namespace: str, asked: Sequence[AskedSecret]) -> None:
        """Refuse names that somebody else's Secret has, before anything is made."""
        for one in asked:
            found = self._look(namespace, one.name)
            if found is not None and (not is_of(found, caller) or is_leaving(found)):
                raise Deny(409, f"there is another Secret {one.name!r} already")

    def save(self, caller: Caller, mesh: Object, asked: Sequence[AskedSecret]) -> None:
        """Have them as they are asked for, as the mesh's own; it may be one of several."""
        for one in asked:
            found = self._look(namespace_of(mesh), one.name)
            if found is None:
                self._write("create", _make(caller, mesh, one))
            elif not is_of(found, caller):
                raise Deny(409, f"there is another Secret {one.name!r} already")
            else:
                self._change(found, one.data, mesh)

    def show(self, caller: Caller, namespace: str, name: str, job: str = "") -> dict[str, Any]:
        """A Secret that the caller asked for."""
        found = self._find(caller, namespace, name, job)
        return {"metadata": {"name": name, "namespace": namespace}, "data": mapping(found, "data")}

    def update(
        self, caller: Caller, namespace: str, name: str, job: str, data: Mapping[str, str]
    ) -> None:
        """Have it hold something else."""
        self._change(self._find(caller, namespace, name, job), data)

    def delete(self, caller: Caller, namespace: str, name: str, job: str = "") -> None:
        """Delete a Secret that the caller asked for."""
        found = self._find(caller, namespace, name, job)
        self._api.delete(SECRETS, namespace, name, uid=uid_of(found))

    def _find(self, caller: Caller, namespace: str, name: str, job: str) -> Object:
        """A Secret of the caller's, and of the job if one was said; that there is another one is not told."""
        found = self._look(namespace, name)
        own = text(found, "metadata", "labels", JOB_LABEL)
        if found is None or not is_of(found, caller) or job not in {"", own}:
            raise Missing(f"there is no Secret {name!r} that {caller.username} asked for")
        return found

    def _look(self, namespace: str, name: str) -> Object | None:
        try:
            return self._api.get(SECRETS, namespace, name)
        except ApiError as error:
            if error.missing:
                return None
            raise

    def _change(self, found: Object, data: Mapping[str, str], mesh: Object | None = None) -> None:
        owners = items(found, "metadata", "ownerReferences")
        if mesh is not None and not any(text(one, "uid") == uid_of(mesh) for one in owners):
            owners.append(_own(mesh))
        made = {**found, "data": dict(data)}
        made["metadata"] = {**mapping(found, "metadata"), "ownerReferences": owners}
        if made != {**found, "metadata": {"ownerReferences": [], **mapping(found, "metadata")}}:
            self._write("replace", made)

    def _write(self, verb: str, made: Object) -> None:
        """Write a Secret. What the API server says of it may quote it, so only its one word is passed on."""
        namespace, name = namespace_of(made), name_of(made)
        try:
            if verb == "create":
                self._api.create(SECRETS, namespace, made)
            else:
                self._api.replace(SECRETS, namespace, name, made)
        except ApiError as error:
            status = 503 if error.status in {401, 403} else error.status
            words = f"the cluster does not take the Secret {name!r}: {error.reason}"
            raise Deny(status, words) from None
        except BackendError:
            raise Deny(503, f"the cluster did not answer about the Secret {name!r}") from None


def _make(caller: Caller, mesh: Object, asked: AskedSecret) -> dict[str, Any]:
    notes = {NAME_NOTE: text(mesh, "metadata", "annotations", NAME_NOTE)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": asked.name,
            "namespace": namespace_of(mesh),
            "labels": {JOB_LABEL: text(mesh, "metadata", "labels", JOB_LABEL)},
            "annotations": {key: value for key, value in notes.items() if value} | sign(caller),
            "ownerReferences": [_own(mesh)],
        },
        "data": dict(asked.data),
    }


def _own(mesh: Object) -> dict[str, str]:
    """One owner among several: none of them is the one that makes it."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name_of(mesh), "uid": uid_of(mesh)}

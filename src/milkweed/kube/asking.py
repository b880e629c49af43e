"""How a pod without rights asks the operator's endpoint for meshes. Standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import (
    AccessError,
    BackendError,
    ChangedError,
    MilkweedError,
    SpecError,
    UnreachableError,
)
from .login import read_token

TIMEOUT_S = 30.0
Secrets = Mapping[str, Mapping[str, str]]
"""Secrets by name; what each holds by key, as base64."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the endpoint is, and who asks."""

    url: str
    """As in `https://milkweed-provision.milkweed-system.svc`."""
    ca: str | None
    """The file with the authority of its certificate; None: those of this machine."""
    token: Callable[[], str]
    """Gives the ServiceAccount token that was made for the endpoint's audience."""


def read_endpoint(url: str, ca: str | None, token_file: str) -> Endpoint:
    """An endpoint with a token that the cluster writes to a file, and renews there."""
    _parse_url(url)

    def read() -> str:
        return read_token(Path(token_file), of="the endpoint") or ""

    return Endpoint(url, ca, read)


def _parse_url(url: str) -> tuple[str, int, str]:
    """The host, the port and the path of an endpoint."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urllib.parse.urlsplit("")
    if parts.scheme != "https" or not host:
        raise SpecError(f"{url!r} is no address of an endpoint", hint="https://HOST[:PORT]")
    return host, port or 443, parts.path.rstrip("/")


# Meshes


def request_mesh(
    endpoint: Endpoint, mesh: Mapping[str, Any], secrets: Secrets | None = None
) -> Any:
    """Have a mesh made with the Secrets that its pods use; the mesh, also when the same was asked for before.

    Args:
        endpoint: Where to ask.
        mesh: The mesh, with its namespace in `metadata`.
        secrets: Secrets of its job. Those that are there are brought up to date. A Secret of several meshes is
            given with each of them, and goes with the last.
    """
    namespace = str(mesh["metadata"]["namespace"])
    return _ask(endpoint, "POST", _path(namespace, "meshes"), {**mesh, **_carry(secrets)})


def look_up_mesh(endpoint: Endpoint, namespace: str, name: str, *, job: str = "") -> Any:
    """A mesh that this pod asked for, with its `pods`; None when there is none, or none of that job.

    Each of the pods is what a PodView has but labels and owner. `leaving` says that the mesh is being deleted.
    """
    return _look(endpoint, _path(namespace, "meshes", name, job))


def resize_mesh(
    endpoint: Endpoint,
    namespace: str,
    name: str,
    replicas: int,
    *,
    job: str = "",
    secrets: Secrets | None = None,
    annotations: Mapping[str, str] | None = None,
    files: Sequence[Mapping[str, str]] = (),
) -> Any:
    """Change how many hosts a mesh has; its Secrets first, and its annotations of `milkweed.dev/` with it.

    With `files`, each a `key` of its Secret and a `path`, its volume `milkweed` has those: its pods are replaced.
    Of a mesh of a job, it must be said of which: a name may be another job's by now.
    """
    change = {"replicas": replicas, **_carry(secrets)}
    change |= {"annotations": dict(annotations)} if annotations else {}
    change |= {"files": [dict(each) for each in files]} if files else {}
    return _ask(endpoint, "PATCH", _path(namespace, "meshes", name, job), change)


def delete_mesh(endpoint: Endpoint, namespace: str, name: str, *, job: str = "") -> bool:
    """Delete a mesh that this pod asked for; False when there is none. It is seen until its pods are gone.

    Of a mesh of a job, it must be said of which: a name may be another job's by now.
    """
    return _delete(endpoint, _path(namespace, "meshes", name, job))


# Secrets that came with a mesh


def look_up_secret(
    endpoint: Endpoint, namespace: str, name: str, *, job: str = ""
) -> dict[str, str] | None:
    """What a Secret holds that this pod asked for, as base64; None when there is none, or none of that job."""
    found = _look(endpoint, _path(namespace, "secrets", name, job))
    return None if found is None else dict(found["data"])


def update_secret(
    endpoint: Endpoint, namespace: str, name: str, data: Mapping[str, str], *, job: str = ""
) -> None:
    """Have a Secret hold something else, as base64."""
    _ask(endpoint, "PUT", _path(namespace, "secrets", name, job), {"data": dict(data)})


def delete_secret(endpoint: Endpoint, namespace: str, name: str, *, job: str = "") -> bool:
    """Delete a Secret before its mesh goes; False when there is none."""
    return _delete(endpoint, _path(namespace, "secrets", name, job))


def _carry(secrets: Secrets | None) -> dict[str, Any]:
    made = [{"name": name, "data": dict(data)} for name, data in (secrets or {}).items()]
    return {"secrets": made} if made else {}


# One request


class _MissingError(BackendError):
    """There is no such thing that this pod asked for."""


def _look(endpoint: Endpoint, path: str) -> Any:
    try:
        return _ask(endpoint, "GET", path)
    except _MissingError:
        return None


def _delete(endpoint: Endpoint, path: str) -> bool:
    try:
        _ask(endpoint, "DELETE", path)
    except _MissingError:
        return False
    return True


def _path(namespace: str, kind: str, name: str = "", job: str = "") -> str:
    words = ["v1", "namespaces", namespace, kind, *([name] if name else [])]
    path = "/" + "/".join(urllib.parse.quote(word, safe="") for word in words)
    return f"{path}?job={urllib.parse.quote(job, safe='')}" if job else path


def _ask(endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    url = endpoint.url
    host, port, prefix = _parse_url(url)
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {endpoint.token()}", "Content-Type": "application/json"}
    context = _trust(endpoint.ca)
    try:
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        try:
            connection.request(method, prefix + path, data, headers)
            response = connection.getresponse()
            return _read(url, response.status, response.read())
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        raise AccessError(
            f"the endpoint at {url} shows a certificate that is not trusted",
            seen=error.verify_message,
            hint="name the file with its authority: provision={'url': …, 'ca': …}",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"the endpoint at {url} does not answer", seen=str(error)) from error


def _trust(ca: str | None) -> ssl.SSLContext:
    """How to speak TLS with an endpoint whose certificate this authority has signed."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise AccessError(
            f"the authority of the endpoint cannot be read from {ca}", seen=str(error)
        ) from error


def _read(url: str, status: int, body: bytes) -> Any:
    try:
        said: Any = json.loads(body)
    except ValueError:
        said = None
    if status < 300:
        if not isinstance(said, Mapping):
            raise UnreachableError(f"what answers at {url} is no endpoint", seen=str(body[:200]))
        return cast("Any", said)
    said = cast("Mapping[str, Any]", said) if isinstance(said, Mapping) else {}
    if status == 404 and said.get("missing") is True:
        raise _MissingError(str(said.get("error")))
    if status == 404 and "error" not in said:  # whoever says so, it does not know what we asked for
        raise UnreachableError(f"what answers at {url} is no endpoint", seen=str(body[:200]))
    kind = _KINDS.get(status, UnreachableError if status >= 500 else BackendError)
    error = str(said.get("error") or f"the endpoint answered {status}")
    lines = [_line(one) for one in said.get("violations") or ()] or [str(said.get("seen") or "")]
    raise kind(error, seen="\n".join(lines))


_KINDS: Mapping[int, type[MilkweedError]] = {
    400: SpecError,
    401: AccessError,
    403: AccessError,
    409: ChangedError,
    422: SpecError,
}


def _line(violation: Mapping[str, str]) -> str:
    rule = f"rule {violation['rule']}: " if violation.get("rule") else ""
    return f"{rule}{violation.get('field', '')} {violation.get('text', '')}".strip()

"""The other side of the endpoint: how a pod without rights asks for a mesh. Standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, cast

from ..errors import AccessError, BackendError, MilkweedError, SpecError, UnreachableError
from .reading import mapping

TIMEOUT_S = 30.0


def request_mesh(url: str, ca: str | None, token: str, body: Mapping[str, Any]) -> Any:
    """Have a mesh made; the mesh, also when the same was asked for before.

    Args:
        url: Where the endpoint is, as in `https://milkweed-provision.milkweed-system.svc`.
        ca: The file with the authority of its certificate; None: those of this machine.
        token: The ServiceAccount token that was made for the endpoint's audience.
        body: The mesh, with its namespace in `metadata`.
    """
    namespace = str(body["metadata"]["namespace"])
    return _ask(url, ca, token, "POST", _path(namespace), body)


def look_up_mesh(url: str, ca: str | None, token: str, namespace: str, name: str) -> Any:
    """A mesh that this pod asked for; None when there is none."""
    try:
        return _ask(url, ca, token, "GET", _path(namespace, name))
    except _MissingError:
        return None


def delete_mesh(url: str, ca: str | None, token: str, namespace: str, name: str) -> bool:
    """Delete a mesh that this pod asked for; False when there is none."""
    try:
        _ask(url, ca, token, "DELETE", _path(namespace, name))
    except _MissingError:
        return False
    return True


class _MissingError(BackendError):
    """There is no such mesh."""


def _path(namespace: str, name: str = "") -> str:
    words = ["v1", "namespaces", namespace, "meshes", *([name] if name else [])]
    return "/" + "/".join(urllib.parse.quote(word, safe="") for word in words)


def _ask(  # noqa: PLR0917  all of one request
    url: str,
    ca: str | None,
    token: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
) -> Any:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise SpecError(f"{url!r} is no address of an endpoint", hint="https://HOST[:PORT]")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port or 443, timeout=TIMEOUT_S, context=context
        )
        try:
            connection.request(method, parts.path.rstrip("/") + path, data, headers)
            response = connection.getresponse()
            return _read(url, response.status, response.read())
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        raise AccessError(
            f"the endpoint at {url} shows a certificate that is not trusted",
            seen=error.verify_message,
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"the endpoint at {url} does not answer", seen=str(error)) from error


def _read(url: str, status: int, body: bytes) -> Any:
    try:
        said: Any = json.loads(body)
    except ValueError:
        said = None
    if status < 300:
        if not isinstance(said, Mapping):
            raise UnreachableError(f"what answers at {url} is no endpoint", seen=str(body[:200]))
        return cast("Any", said)
    said = mapping(said)
    kind = _KINDS.get(status, UnreachableError if status >= 500 else BackendError)
    error = str(said.get("error") or f"the endpoint answered {status}")
    lines = [_line(one) for one in said.get("violations") or ()] or [str(said.get("seen") or "")]
    raise kind(error, seen="\n".join(lines))


_KINDS: Mapping[int, type[MilkweedError]] = {
    400: SpecError,
    401: AccessError,
    403: AccessError,
    404: _MissingError,
    422: SpecError,
}


def _line(violation: Mapping[str, str]) -> str:
    rule = f"rule {violation['rule']}: " if violation.get("rule") else ""
    return f"{rule}{violation.get('field', '')} {violation.get('text', '')}".strip()

"""Meshes for pods without rights: who asks is told by the API server, what they may have by a policy."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MilkweedError, SpecError, UnreachableError
from ..kube.api import Api, ApiError
from ..kube.resources import MESHES, TOKEN_REVIEWS
from .admission import (
    REQUESTED_BY,
    RULE_LABEL,
    Usage,
    Violation,
    admit,
    check_shape,
    measure,
    measure_rule,
)
from .objects import API_VERSION, KIND
from .policy import Caller, Policy, load_policy, matches
from .reading import Key, Object, items, key_of, mapping, name_of, pick, text, uid_of

AUDIENCE = "milkweed-provision"
"""What tokens must be made for: one that was made for the API server is not taken."""
LARGEST = 256 * 1024
"""The largest request, in bytes."""
_PATH = re.compile(r"/v1/namespaces/([a-z0-9-]{1,63})/meshes(?:/([a-z0-9.-]{1,253}))?")
_EXISTS = 409


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks."""

    method: str
    path: str
    token: str = ""
    body: bytes = b""


@dataclass(slots=True)
class Answer:
    """What they are told, and what is written down of it."""

    status: int
    document: Mapping[str, Any]
    audit: dict[str, Any] = field(default_factory=dict[str, Any])


class PolicyFile:
    """A policy that is read again when its file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._policy = Policy()
        self._lock = threading.Lock()

    def get(self) -> Policy:
        """The policy as it is now; an error while it is wrong, so that nothing is allowed by an old one."""
        with self._lock:
            try:
                stat = self._path.stat()
            except OSError as error:
                raise SpecError(
                    f"the policy {self._path} cannot be read", seen=str(error)
                ) from error
            if (stat.st_mtime_ns, stat.st_ino) != self._seen:
                self._policy = load_policy(self._path)
                self._seen = (stat.st_mtime_ns, stat.st_ino)
            return self._policy


class _Deny(Exception):  # noqa: N818  an answer, not an accident
    def __init__(self, status: int, error: str, violations: Sequence[Violation] = ()) -> None:
        super().__init__(error)
        self.status = status
        self.document: dict[str, Any] = {"error": error}
        if violations:
            self.document["violations"] = [
                {"rule": one.rule, "field": one.field, "text": one.text} for one in violations
            ]


class Provisioner:
    """Answers requests for meshes."""

    def __init__(
        self,
        api: Api,
        policy: Callable[[], Policy],
        *,
        audience: str = AUDIENCE,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._api = api
        self._policy = policy
        self._audience = audience
        self._namespaces = namespaces
        self._counting = threading.Lock()

    def answer(self, request: Request) -> Answer:
        """Do what is asked, if it may be done."""
        audit: dict[str, Any] = {"verb": request.method, "path": request.path[:300]}
        try:
            status, document = self._answer(request, audit)
        except _Deny as deny:
            status, document = deny.status, deny.document
        except UnreachableError as error:
            status, document = 503, {"error": error.what}
        except ApiError as error:
            status, document = _pass_on(error), {"error": error.what, "seen": error.seen}
        except MilkweedError as error:
            status, document = 503, {"error": "the endpoint is not set up properly"}
            audit["trouble"] = str(error)
        audit["status"] = status
        if "error" in document:
            audit["error"] = document["error"]
        return Answer(status, document, audit)

    def is_ready(self) -> bool:
        """Whether there is a policy to go by."""
        try:
            self._policy()
        except MilkweedError:
            return False
        return True

    def _answer(self, request: Request, audit: dict[str, Any]) -> tuple[int, Mapping[str, Any]]:
        found = _PATH.fullmatch(request.path)
        if found is None:
            raise _Deny(404, "there is /v1/namespaces/NAMESPACE/meshes and …/meshes/NAME")
        namespace, name = found[1], found[2] or ""
        handle = {
            ("POST", False): self._create,
            ("GET", True): self._get,
            ("DELETE", True): self._delete,
        }.get((request.method, bool(name)))
        if handle is None:
            raise _Deny(
                405, "meshes are made by POST, and seen by GET or deleted by DELETE by name"
            )
        caller = self._review(request.token)
        audit |= {"user": caller.username, "namespace": namespace, "name": name}
        if self._namespaces and not matches(namespace, self._namespaces):
            raise _Deny(403, f"namespace {namespace!r} is not served here")
        return handle(caller, namespace, name, request.body, audit)

    # Who asks

    def _review(self, token: str) -> Caller:
        if not token:
            raise _Deny(
                401, "the token of a ServiceAccount must be given, as Authorization: Bearer"
            )
        body = {
            "apiVersion": f"{TOKEN_REVIEWS.group}/{TOKEN_REVIEWS.version}",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        status = mapping(self._api.create(TOKEN_REVIEWS, "", body), "status")
        for_us = self._audience in items(status, "audiences")
        if status.get("authenticated") is not True or not for_us:
            raise _Deny(401, f"the token is not valid, or not made for {self._audience!r}")
        return Caller(text(status, "user", "username"), items(status, "user", "groups"))

    # What they ask

    def _create(
        self, caller: Caller, namespace: str, _name: str, body: bytes, audit: dict[str, Any]
    ) -> tuple[int, Mapping[str, Any]]:
        mesh = _parse(body)
        audit["name"] = name_of(mesh)[:253]
        if wrong := [Violation("", *one) for one in check_shape(mesh, namespace)]:
            raise _Deny(400, "the mesh is not as it should be", wrong)
        size = measure(mesh)
        audit |= {"hosts": size.hosts, "gpus": size.gpus}
        with (
            self._counting
        ):  # from counting to making, so that two requests do not share what is left
            used = self._count((namespace, name_of(mesh)))
            verdict = admit(self._policy(), caller, namespace, mesh, used)
            if verdict.rule is None:
                raise _Deny(403, "the policy does not allow this mesh", verdict.violations)
            audit["rule"] = verdict.rule.name
            made = _mark(mesh, namespace, caller, verdict.rule.name)
            return self._make(caller, namespace, made)

    def _count(self, asked: Key) -> dict[str, Usage]:
        """What each rule has made, but for the mesh itself, which may be asked for twice."""
        found: list[Object] = []
        for namespace in self._namespaces or [""]:
            found += items(self._api.get(MESHES, namespace, labelSelector=RULE_LABEL), "items")
        others = [mesh for mesh in found if key_of(mesh) != asked]
        return {rule.name: measure_rule(others, rule.name) for rule in self._policy().rules}

    def _make(self, caller: Caller, namespace: str, mesh: Object) -> tuple[int, Mapping[str, Any]]:
        """Make the mesh; the same once more is the answer to a question that was asked twice."""
        try:
            return 201, _show(self._api.create(MESHES, namespace, mesh))
        except ApiError as error:
            if error.status != _EXISTS:
                raise
        found = self._api.get(MESHES, namespace, name_of(mesh))
        same = mapping(found, "spec") | mapping(mesh, "spec") == mapping(found, "spec")
        if not _is_of(found, caller) or not same:
            raise _Deny(409, f"there is another mesh {name_of(mesh)!r} already")
        return 200, _show(found)

    def _get(
        self, caller: Caller, namespace: str, name: str, _body: bytes, _audit: dict[str, Any]
    ) -> tuple[int, Mapping[str, Any]]:
        return 200, _show(self._find(caller, namespace, name))

    def _delete(
        self, caller: Caller, namespace: str, name: str, _body: bytes, _audit: dict[str, Any]
    ) -> tuple[int, Mapping[str, Any]]:
        found = self._find(caller, namespace, name)
        self._api.delete(MESHES, namespace, name, uid=uid_of(found))
        return 200, {"deleted": name}

    def _find(self, caller: Caller, namespace: str, name: str) -> Object:
        """A mesh of the caller's; that there is one of somebody else's is not told."""
        try:
            found: Object = self._api.get(MESHES, namespace, name)
        except ApiError as error:
            if not error.missing:
                raise
            found = mapping(None)
        if not _is_of(found, caller):
            raise _Deny(404, f"there is no mesh {name!r} that {caller.username} asked for")
        return found


def _parse(body: bytes) -> Object:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _Deny(400, "the body is no JSON object")
    return mapping(found)


def _mark(mesh: Object, namespace: str, caller: Caller, rule: str) -> dict[str, Any]:
    """The mesh that is made: what was asked for, and who did by which rule."""
    given = mapping(mesh, "metadata")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": given["name"],
            "namespace": namespace,
            "labels": mapping(given, "labels") | {RULE_LABEL: rule},
            "annotations": mapping(given, "annotations") | {REQUESTED_BY: caller.username},
        },
        "spec": pick(mesh, "spec"),
    }


def _is_of(found: Object, caller: Caller) -> bool:
    return text(found, "metadata", "annotations", REQUESTED_BY) == caller.username != ""


def _show(mesh: Object) -> dict[str, Any]:
    """A mesh as callers see it: where it is, what it is, how it is."""
    metadata = {
        key: pick(mesh, "metadata", key) for key in ("name", "namespace", "uid", "generation")
    }
    return {"metadata": metadata, "spec": pick(mesh, "spec"), "status": mapping(mesh, "status")}


def _pass_on(error: ApiError) -> int:
    """The API server's own no; what it says to us about ourselves is not the caller's doing."""
    return 503 if error.status in {401, 403} else error.status

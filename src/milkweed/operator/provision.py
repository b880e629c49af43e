"""Meshes for pods without rights: who asks is told by the API server, what they may have by a policy."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import MilkweedError, SpecError, UnreachableError
from ..kube.api import Api, ApiError
from ..kube.resources import TOKEN_REVIEWS
from .asked import Answer, Deny, Request
from .granting import Asked, Granter
from .policy import Caller, Policy, load_policy, matches
from .reading import items, mapping, text

AUDIENCE = "milkweed-provision"
"""What tokens must be made for: one that was made for the API server is not taken."""
_PATH = re.compile(
    r"/v1/namespaces/(?P<namespace>[a-z0-9-]{1,63})/"
    r"(?:(?P<kind>meshes)(?:/(?P<mesh>[a-z0-9.-]{1,253}))?|secrets/(?P<secret>milkweed-[a-z0-9-]{1,54}))"
    r"(?:\?job=(?P<job>[0-9a-f-]{1,63}))?"
)


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


class Provisioner:
    """Answers requests for meshes, and for the Secrets that came with them."""

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
        self._granter = Granter(api, policy, namespaces)

    def answer(self, request: Request) -> Answer:
        """Do what is asked, if it may be done."""
        audit: dict[str, Any] = {"verb": request.method, "path": request.path[:300]}
        try:
            status, document = self._answer(request, audit)
        except Deny as deny:
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
            raise Deny(
                404, "there is /v1/namespaces/NAMESPACE/meshes, …/meshes/NAME, …/secrets/NAME"
            )
        namespace, name = found["namespace"], found["mesh"] or found["secret"] or ""
        handle = self._find_handler(request.method, found["kind"] or "secrets", named=bool(name))
        caller = self._review(request.token)
        audit |= {"user": caller.username, "namespace": namespace, "name": name}
        if self._namespaces and not matches(namespace, self._namespaces):
            raise Deny(403, f"namespace {namespace!r} is not served here")
        return handle(Asked(caller, namespace, name, request.body, audit, found["job"] or ""))

    def _find_handler(
        self, method: str, kind: str, *, named: bool
    ) -> Callable[[Asked], tuple[int, Mapping[str, Any]]]:
        granter = self._granter
        handle = {
            ("POST", "meshes", False): granter.create,
            ("GET", "meshes", True): granter.get,
            ("PATCH", "meshes", True): granter.resize,
            ("DELETE", "meshes", True): granter.delete,
            ("GET", "secrets", True): granter.get_secret,
            ("PUT", "secrets", True): granter.update_secret,
            ("DELETE", "secrets", True): granter.delete_secret,
        }.get((method, kind, named))
        if handle is None:
            raise Deny(
                405,
                "meshes are made by POST; by name they are seen by GET, resized by PATCH and deleted by DELETE, "
                "and Secrets seen by GET, changed by PUT and deleted by DELETE",
            )
        return handle

    # Who asks

    def _review(self, token: str) -> Caller:
        if not token:
            raise Deny(401, "the token of a ServiceAccount must be given, as Authorization: Bearer")
        body = {
            "apiVersion": f"{TOKEN_REVIEWS.group}/{TOKEN_REVIEWS.version}",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        status = mapping(self._api.create(TOKEN_REVIEWS, "", body), "status")
        for_us = self._audience in items(status, "audiences")
        if status.get("authenticated") is not True or not for_us:
            raise Deny(401, f"the token is not valid, or not made for {self._audience!r}")
        user = mapping(status, "user")
        return Caller(text(user, "username"), items(user, "groups"), text(user, "uid"))


def _pass_on(error: ApiError) -> int:
    """The API server's own no; what it says to us about ourselves is not the caller's doing."""
    return 503 if error.status in {401, 403} else error.status

"""What callers get at the endpoint: meshes as far as the policy allows, each caller their own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.kubernetes.reasons import describe_pod
from ..backends.kubernetes.start import JOB_LABEL, VOLUME
from ..errors import MilkweedError
from ..kube.api import Api, ApiError
from ..kube.meshes import API_VERSION, KIND, make_selector, render_labels
from ..kube.resources import MESHES, PODS
from .admission import (
    RULE_LABEL,
    SECRETS_NOTE,
    Usage,
    Verdict,
    Violation,
    admit,
    check_replicas,
    check_shape,
    is_of,
    measure,
    measure_rule,
    sign,
)
from .asked import Deny, Missing, parse_body
from .job_secrets import AskedSecret, JobSecrets, check_data, check_secrets, parse_secrets
from .podcheck import Complaint
from .policy import Caller, Policy
from .reading import (
    Key,
    Object,
    is_leaving,
    items,
    key_of,
    mapping,
    name_of,
    number,
    pick,
    text,
    uid_of,
)

LARGEST_MESH = 256 * 1024
"""The largest mesh, in bytes."""
NOTES = "milkweed.dev/"
"""Annotations of a mesh that its caller may change."""
_EXISTS = 409
Said = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of somebody who is known, and what is written down of it."""

    caller: Caller
    namespace: str
    name: str
    body: bytes
    audit: dict[str, Any]
    job: str = ""
    """Of which job it is to be; empty where the caller does not mind."""


class Granter:
    """Makes, shows, resizes and deletes what callers ask for."""

    def __init__(self, api: Api, policy: Callable[[], Policy], namespaces: Sequence[str]) -> None:
        self._api = api
        self._policy = policy
        self._namespaces = namespaces
        self._secrets = JobSecrets(api)
        # From counting to making, so that two requests do not share what is left.
        self._counting = threading.Lock()

    # Making

    def create(self, asked: Asked) -> Said:
        """Make a mesh and its Secrets; the same once more is the answer to a question that was asked twice."""
        mesh = parse_body(asked.body)
        carried = mesh.pop("secrets", None)
        asked.audit["name"] = name_of(mesh)[:253]
        _refuse(_check_request(mesh, carried, asked.namespace), "the mesh is not as it should be")
        secrets = parse_secrets(carried)
        _write_down(asked, mesh, secrets)
        with self._counting:
            names = [one.name for one in secrets]
            rule = self._admit(asked, mesh, names)
            self._secrets.check_free(asked.caller, asked.namespace, secrets)
            status, made = self._make(asked, _mark(mesh, asked, rule, names))
            with self._undone(made if status == 201 else None):
                self._secrets.save(asked.caller, made, secrets)
        return status, _show(made)

    def _admit(self, asked: Asked, mesh: Object, secrets: Sequence[str]) -> str:
        """The name of the rule that allows a mesh."""
        used = self._count((asked.namespace, name_of(mesh)))
        verdict: Verdict = admit(
            self._policy(), asked.caller, mesh, used, namespace=asked.namespace, secrets=secrets
        )
        if verdict.rule is None:
            raise Deny(403, "the policy does not allow this mesh", verdict.violations)
        asked.audit["rule"] = verdict.rule.name
        return verdict.rule.name

    def _count(self, asked: Key) -> dict[str, Usage]:
        """What each rule has made, but for the mesh itself, which may be asked for twice."""
        found: list[Object] = []
        for namespace in self._namespaces or [""]:
            found += items(self._api.get(MESHES, namespace, labelSelector=RULE_LABEL), "items")
        others = [mesh for mesh in found if key_of(mesh) != asked]
        return {rule.name: measure_rule(others, rule.name) for rule in self._policy().rules}

    def _make(self, asked: Asked, mesh: Object) -> tuple[int, Object]:
        try:
            return 201, self._api.create(MESHES, asked.namespace, mesh)
        except ApiError as error:
            if error.status != _EXISTS:
                raise
        found = self._api.get(MESHES, asked.namespace, name_of(mesh))
        same = mapping(found, "spec") | mapping(mesh, "spec") == mapping(found, "spec")
        same = same and _job_of(found) == _job_of(mesh)
        if not is_of(found, asked.caller) or not same or is_leaving(found):
            raise Deny(409, f"there is another mesh {name_of(mesh)!r} already")
        return 200, found

    @contextlib.contextmanager
    def _undone(self, made: Object | None) -> Generator[None]:
        """A mesh that was just made does not stay without its Secrets."""
        try:
            yield
        except (Deny, MilkweedError):
            if made is not None:
                with contextlib.suppress(MilkweedError):
                    self._api.delete(MESHES, *key_of(made), uid=uid_of(made))
            raise

    # Looking, resizing and deleting

    def get(self, asked: Asked) -> Said:
        """A mesh, and why its hosts are not ready."""
        found = self._find(asked)
        return 200, _show(found) | {"pods": self._look_at_pods(asked)}

    def _look_at_pods(self, asked: Asked) -> list[dict[str, Any]]:
        chosen = render_labels(make_selector(asked.name))
        found = items(self._api.get(PODS, asked.namespace, labelSelector=chosen), "items")
        views = [dataclasses.asdict(describe_pod(pod)) for pod in found]
        ours = [view for view in views if view.pop("owner") == f"StatefulSet/{asked.name}"]
        return [{key: value for key, value in view.items() if key != "labels"} for view in ours]

    def resize(self, asked: Asked) -> Said:
        """Change how many hosts a mesh has. Secrets come first: new hosts need them."""
        change = parse_body(asked.body)
        with self._counting:
            found = self._find_named(asked)
            if is_leaving(found):
                raise Deny(409, f"the mesh {asked.name!r} is being deleted")
            _refuse(_check_change(change, _job_of(found)), "the change is not as it should be")
            secrets = parse_secrets(change.get("secrets"))
            spec = {"replicas": change["replicas"], **_lay_out(found, items(change, "files"))}
            wanted = {**found, "spec": {**found["spec"], "replicas": change["replicas"]}}
            _write_down(asked, wanted, secrets)
            names = sorted({*_own_secrets(found), *(one.name for one in secrets)})
            labels = mapping(found, "metadata", "labels")
            if change["replicas"] > number(found, "spec", "replicas"):
                labels[RULE_LABEL] = self._admit(asked, wanted, names)
            self._secrets.save(asked.caller, found, secrets)
            notes = mapping(change, "annotations") | _note(names)
            patch = {
                "metadata": {"uid": uid_of(found), "labels": labels, "annotations": notes},
                "spec": spec,
            }
            return 200, _show(self._api.patch(MESHES, asked.namespace, asked.name, patch))

    def delete(self, asked: Asked) -> Said:
        """Delete a mesh. It can be seen until its hosts are gone."""
        found = self._find_named(asked)
        place = asked.namespace, asked.name
        self._api.delete(MESHES, *place, uid=uid_of(found), policy="Foreground")
        return 200, {"deleted": asked.name}

    def _find_named(self, asked: Asked) -> Object:
        """A mesh that is to be changed: names are used again, so who means a job's says which job."""
        found = self._find(asked)
        if _job_of(found) and not asked.job:
            raise Deny(400, f"the mesh {asked.name!r} is of a job: say of which one, as ?job=ID")
        return found

    def _find(self, asked: Asked) -> Object:
        """A mesh of the caller's, and of the job that was said; that there is another one is not told."""
        try:
            found: Object = self._api.get(MESHES, asked.namespace, asked.name)
        except ApiError as error:
            if not error.missing:
                raise
            found = mapping(None)
        if not is_of(found, asked.caller) or asked.job not in {"", _job_of(found)}:
            whose = f" of the job {asked.job}" if asked.job else ""
            who = asked.caller.username
            raise Missing(f"there is no mesh {asked.name!r}{whose} that {who} asked for")
        return found

    # Secrets

    def get_secret(self, asked: Asked) -> Said:
        """A Secret that came with a mesh of the caller's."""
        return 200, self._secrets.show(asked.caller, asked.namespace, asked.name, asked.job)

    def update_secret(self, asked: Asked) -> Said:
        """Have it hold something else."""
        change = parse_body(asked.body)
        wrong = [(key, "is not allowed") for key in change if key != "data"]
        _refuse([*wrong, *check_data(change.get("data"))], "the Secret is not as it should be")
        place = asked.namespace, asked.name, asked.job
        self._secrets.update(asked.caller, *place, mapping(change, "data"))
        return 200, {"updated": asked.name}

    def delete_secret(self, asked: Asked) -> Said:
        """Delete it, before its mesh goes."""
        self._secrets.delete(asked.caller, asked.namespace, asked.name, asked.job)
        return 200, {"deleted": asked.name}


# What is wrong with a request


def _refuse(wrong: Iterator[Complaint] | Sequence[Complaint], error: str) -> None:
    if violations := [Violation("", *one) for one in wrong]:
        raise Deny(400, error, violations)


def _check_request(mesh: Object, carried: Any, namespace: str) -> Iterator[Complaint]:
    yield from check_shape(mesh, namespace)
    if len(json.dumps(mesh)) > LARGEST_MESH:
        yield "", f"the mesh has more than {LARGEST_MESH} bytes"
    yield from check_secrets(carried, _job_of(mesh))


def _check_change(change: Object, job: str) -> Iterator[Complaint]:
    known = {"replicas", "annotations", "secrets", "files"}
    yield from ((key, "is not allowed") for key in change if key not in known)
    yield from check_replicas(pick(change, "replicas"), "replicas")
    for key, value in mapping(change, "annotations").items():
        if not key.startswith(NOTES) or not isinstance(value, str):
            yield f"annotations.{key}", f"is not a text of {NOTES}…"
    yield from check_secrets(change.get("secrets"), job)
    yield from _check_files(change.get("files", []))


def _check_files(found: Any) -> Iterator[Complaint]:
    """Each a key of the Secret, and where it is; whether they are well is the API server's to say."""
    if not isinstance(found, list) or len(json.dumps(found)) > LARGEST_MESH // 2:
        yield "files", f"is a list of at most {LARGEST_MESH // 2} bytes"
        return
    for index, one in enumerate(items({"files": found}, "files")):
        if set(mapping(one)) != {"key", "path"} or not all(
            isinstance(word, str) for word in mapping(one).values()
        ):
            yield f"files[{index}]", "is not a key and a path"


def _lay_out(found: Object, files: Sequence[Any]) -> dict[str, Any]:
    """A change of a mesh after which its own volume has these files, and all else is as it was."""
    if not files:
        return {}
    volumes = items(found, "spec", "podTemplate", "spec", "volumes")
    own = [one for one in volumes if text(one, "name") == VOLUME]
    if [text(one, "secret", "secretName") in _own_secrets(found) for one in own] != [True]:
        raise Deny(400, f"the mesh has no volume {VOLUME!r} of a Secret that came with it")
    made = {**own[0], "secret": {**own[0]["secret"], "items": list(files)}}
    changed = [made if one is own[0] else one for one in volumes]
    return {"podTemplate": {"spec": {"volumes": changed}}}


def _write_down(asked: Asked, mesh: Object, secrets: Sequence[AskedSecret]) -> None:
    size = measure(mesh)
    asked.audit.update({"hosts": size.hosts, "gpus": size.gpus})
    if secrets:
        asked.audit["secrets"] = len(secrets)


# What is made, and what is shown


def _mark(mesh: Object, asked: Asked, rule: str, secrets: Sequence[str]) -> dict[str, Any]:
    """The mesh that is made: what was asked for, and who did by which rule."""
    given = mapping(mesh, "metadata")
    notes = mapping(given, "annotations") | sign(asked.caller) | _note(secrets)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": given["name"],
            "namespace": asked.namespace,
            "labels": mapping(given, "labels") | {RULE_LABEL: rule},
            "annotations": notes,
        },
        "spec": pick(mesh, "spec"),
    }


def _job_of(found: Object) -> str:
    return text(found, "metadata", "labels", JOB_LABEL)


def _note(secrets: Sequence[str]) -> dict[str, str]:
    return {SECRETS_NOTE: ",".join(secrets)} if secrets else {}


def _own_secrets(mesh: Object) -> list[str]:
    return [name for name in text(mesh, "metadata", "annotations", SECRETS_NOTE).split(",") if name]


def _show(mesh: Object) -> dict[str, Any]:
    """A mesh as callers see it: where it is, whose it is, what it is, how it is."""
    metadata = {
        key: pick(mesh, "metadata", key) for key in ("name", "namespace", "uid", "generation")
    }
    labels = {JOB_LABEL: job} if (job := _job_of(mesh)) else {}
    return {
        "metadata": {**metadata, "labels": labels},
        "spec": pick(mesh, "spec"),
        "status": mapping(mesh, "status"),
        "leaving": is_leaving(mesh),
    }

"""Making a job's objects in the cluster: its Secrets first, so that no pod ever waits for one."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BackendError, ChangedError, UnreachableError
from ...kube.api import Api, ApiError
from ...kube.resources import JOBS, MESHES, SECRETS
from ...pki import Authority
from ...spec import JobSpec
from ...state import save_private
from ...worker.wire import CONTROL_SOCKET, run_prefix
from ..base import Request
from ..packing import pack_package
from .asked import AskedApi
from .batch import RUN, client_name, make_client_data, make_job
from .pod_parts import part
from .pod_template import Template, inject_worker
from .settings import NO_ID, MeshPlan
from .start import (
    HANDLE_NOTE,
    JOB_LABEL,
    LOADER,
    MESH_LABEL,
    MOUNT,
    RUN_MOUNT,
    RUN_VOLUME,
    VOLUME,
    authority_name,
    check_size,
    count_certificates,
    files_of,
    make_environment,
    make_mesh,
    make_part,
    make_secret,
    make_secret_data,
    make_volume,
    render_note,
    run_python,
    secret_name,
)

PLACE_FILE = "kubernetes.json"
# A host is ready when its keeper takes orders. The kernel knows whether somebody listens; a file may be one that
# a dead keeper left. A shell alone can read it, so that images need no other program.
_LISTENS = """
while read -r line; do
    case $line in *" 00010000 "*" /tmp/milkweed-"*"/{run}."*"/{socket}") exit 0 ;; esac
done </proc/net/unix
exit 1
""".strip()
_FEWER = "declare fewer hosts in one job, or fewer and shorter variables: what is large belongs into the image"
_SMALLER = "a smaller script, or one that is in the image; fewer and shorter variables"
CONFLICT, FORBIDDEN = 409, 403
CHANGE_TRIES = 5
NO_KIND = ("could not find the requested resource", "page not found")
"""What an API server says of objects it does not know: in a group that it knows, and in one that it does not."""


def make_probe(apply_id: str) -> dict[str, Any]:
    """How Kubernetes sees that the keeper of a job takes orders in a pod."""
    check = _LISTENS.format(run=run_prefix(apply_id), socket=CONTROL_SOCKET)
    return {"exec": {"command": ["sh", "-c", check]}, "periodSeconds": 1, "failureThreshold": 3}


def save_place(folder: Path, handle: Mapping[str, Any]) -> None:
    """Remember where a job is asked for, before it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = json.dumps(handle).encode()
    save_private(folder / PLACE_FILE, data, what="where the job is asked for")


def load_place(folder: Path) -> dict[str, Any] | None:
    """Where a job was asked for; None when nobody got that far."""
    try:
        return json.loads((folder / PLACE_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def make_pod_template(plan: MeshPlan, told: Mapping[str, Any], number: int) -> Template:
    """The template of one mesh with the worker in it; what is in the way of that is refused."""
    apply_id = told["apply_id"]
    found = inject_worker(
        plan.template or {},
        command=run_python(LOADER),
        env=make_environment(plan.place),
        mounts=[
            {"name": VOLUME, "mountPath": MOUNT, "readOnly": True},
            {"name": RUN_VOLUME, "mountPath": RUN_MOUNT},
        ],
        volumes=[make_volume(apply_id, told, number), {"name": RUN_VOLUME, "emptyDir": {}}],
        ports=[{"name": "monarch", "containerPort": plan.place.port}],
        probe=make_probe(apply_id),
        field=f"kubernetes.meshes.{plan.mesh.name}.pod_template",
    ).template
    metadata = dict(found.get("metadata") or {})
    labels = dict(metadata.get("labels") or {})
    labels |= {JOB_LABEL: apply_id, MESH_LABEL: plan.mesh.name}
    return {**found, "metadata": {**metadata, "labels": labels}}


def check_templates(spec: JobSpec, plans: Sequence[MeshPlan]) -> None:
    """Refuse templates that leave no room for the worker, before anything is asked for."""
    request = Request(spec=spec, apply_id=NO_ID)
    for plan in plans:
        if plan.made:
            make_pod_template(plan, make_part(request, plan.mesh, plan.place, 0), 0)


class Maker:
    """Makes the objects of one job."""

    def __init__(
        self,
        api: Api | AskedApi,
        handle: Mapping[str, Any],
        request: Request,
        plans: Sequence[MeshPlan],
        *,
        met: bool = False,
    ) -> None:
        self._api = api
        self._handle = handle
        self._namespace = handle["namespace"]
        self._request = request
        self._plans = [plan for plan in plans if plan.made]
        self._met = met
        self._prepare([{} for _ in self._plans])
        self._client: dict[str, Any] = {}

    def _prepare(self, known: Sequence[Mapping[str, Any]]) -> None:
        """What pods are told, and their templates; pods of templates that are known find all they expect."""
        self._parts = [
            make_part(
                self._request,
                plan.mesh,
                plan.place,
                number,
                met=self._met,
                certificates=count_certificates(template),
            )
            for number, (plan, template) in enumerate(zip(self._plans, known, strict=True))
        ]
        self._templates = [
            make_pod_template(plan, told, number)
            for number, (plan, told) in enumerate(zip(self._plans, self._parts, strict=True))
        ]

    def make(self, authority: Authority, *, worker: bytes) -> None:
        """Make everything; what is there already with the job's mark is brought up to date."""
        if not self._plans:
            return
        secrets = self._make_secrets(authority, worker)
        if self._request.client_script:
            self._client = self._make_client_secret(authority)
        for plan in self._plans:
            self._check_free(plan)
        self._save_secrets(secrets)
        owners = [self._save_mesh(number) for number in range(len(self._plans))]
        apply_id = self._request.apply_id
        self._give_away(owners, secret_name(apply_id), authority_name(apply_id))

    def make_client(self) -> None:
        """The batch client, as a Job; its hosts need not be there yet."""
        self._apply(self._client)
        job = make_job(self._request, self._plans[0], run_python(RUN), self._handle)
        try:
            made = self._api.apply(JOBS, self._namespace, job)
        except ApiError as error:
            raise self._explain(error, "make Jobs") from error
        self._give_away([_owner(job, made)], client_name(self._request.apply_id))

    def resize(self, authority: Authority, *, worker: bytes) -> None:
        """Have certificates for hosts to come, then tell the operator the new sizes."""
        if self._plans:
            known = [self._read_template(plan) for plan in self._plans]
            self._prepare(known)
            self._save_secrets(self._make_secrets(authority, worker))
            for number, template in enumerate(known):
                self._save_size(number, template)

    # Secrets

    def _make_secrets(self, authority: Authority, worker: bytes) -> list[dict[str, Any]]:
        apply_id, job = self._request.apply_id, self._request.spec.name
        hosts = make_secret_data(self._parts, authority, worker)
        check_size(hosts, "what the hosts are told", hint=_FEWER)
        keys = {"ca.crt": authority.cert_pem, "ca.key": authority.key_pem}
        own = {key: base64.b64encode(value).decode() for key, value in keys.items()}
        return [
            make_secret(apply_id, authority_name(apply_id), own, job),
            make_secret(apply_id, secret_name(apply_id), hosts, job),
        ]

    def _make_client_secret(self, authority: Authority) -> dict[str, Any]:
        request = self._request
        data = make_client_data(request, self._handle, authority, pack_package())
        check_size(data, "what the batch client is given", hint=_SMALLER)
        return make_secret(request.apply_id, client_name(request.apply_id), data, request.spec.name)

    def _save_secrets(self, secrets: Sequence[Mapping[str, Any]]) -> None:
        for secret in secrets:
            self._apply(secret)

    def _apply(self, secret: Mapping[str, Any]) -> None:
        try:
            self._api.apply(SECRETS, self._namespace, secret)
        except ApiError as error:
            raise self._explain(error, "make Secrets") from error

    def _give_away(self, owners: Sequence[Mapping[str, Any]], *secrets: str) -> None:
        """Let Secrets go with the meshes or the client they are for, whoever deletes those."""
        body = {"metadata": {"ownerReferences": list(owners)}}
        for name in secrets:
            with contextlib.suppress(ApiError):  # then kill() deletes them by their mark
                self._api.patch(SECRETS, self._namespace, name, body)

    # Meshes

    def _check_free(self, plan: MeshPlan) -> Any:
        """The object that is there already, or nothing; one of another job is never taken."""
        try:
            found = self._api.get(MESHES, self._namespace, plan.place.name)
        except ApiError as error:
            if error.missing and not _is_unknown_kind(error):
                return None
            raise self._explain(error, "look at MonarchMesh objects") from error
        owner = part(found, "metadata", "labels").get(JOB_LABEL)
        if owner not in {None, self._request.apply_id}:
            raise ChangedError(
                f"the namespace {self._namespace!r} has a MonarchMesh {plan.place.name!r} of another job",
                seen=f"job {owner}",
                hint="kill that job, name the mesh otherwise, or use another namespace",
            )
        return found

    def _save_mesh(self, number: int) -> dict[str, Any]:
        plan = self._plans[number]
        made = make_mesh(
            self._request.spec,
            plan.mesh,
            plan.place,
            self._templates[number],
            apply_id=self._request.apply_id,
            labels=plan.labels,
            annotations=plan.annotations,
            handle=self._handle,
        )
        saved = self._create_mesh(made)
        for _ in range(CHANGE_TRIES):
            saved = saved or self._change_mesh(plan, made) or self._create_mesh(made)
        if not saved:
            raise UnreachableError(
                f"the MonarchMesh {plan.place.name!r} is changed by others all the time",
                hint="try again: what there is of the job is found; or kill it, and name the mesh otherwise",
            )
        return _owner(made, saved)

    def _create_mesh(self, made: Mapping[str, Any]) -> Any:
        """The new object; nothing when there is one of that name."""
        try:
            return self._api.create(MESHES, self._namespace, made)
        except ApiError as error:
            if error.status == CONFLICT:
                return None
            raise self._explain(error, "make MonarchMesh objects") from error

    def _change_mesh(self, plan: MeshPlan, made: Mapping[str, Any]) -> Any:
        """The object that is there as it should be; nothing when it is gone, or was changed meanwhile."""
        found = self._check_free(plan)
        if found is None:
            return None
        try:
            if isinstance(self._api, AskedApi):
                return self._api.patch(MESHES, self._namespace, plan.place.name, made)
            return self._api.replace(
                MESHES, self._namespace, plan.place.name, _put_into(found, made)
            )
        except ApiError as error:
            if error.missing or error.status == CONFLICT:
                return None
            raise self._explain(error, "change MonarchMesh objects") from error

    def _read_template(self, plan: MeshPlan) -> Mapping[str, Any]:
        """The template of a mesh that is there."""
        try:
            found = self._api.get(MESHES, self._namespace, plan.place.name)
        except ApiError as error:
            raise self._explain(error, "change the size of MonarchMesh objects") from error
        return part(found, "spec", "podTemplate")

    def _save_size(self, number: int, known: Mapping[str, Any]) -> None:
        """Nothing but the size: a template that differs in any way would have every pod replaced."""
        plan, template = self._plans[number], self._templates[number]
        note = {HANDLE_NOTE: render_note(self._handle)}
        change: dict[str, Any] = {"replicas": plan.mesh.hosts}
        if files_of(known) != files_of(template):
            change["podTemplate"] = template  # so large a mesh needs one certificate more
        body = {"metadata": {"annotations": note}, "spec": change}
        try:
            self._api.patch(MESHES, self._namespace, plan.place.name, body)
        except ApiError as error:
            raise self._explain(error, "change the size of MonarchMesh objects") from error

    def _explain(self, error: ApiError, what: str) -> BackendError:
        hint = ""
        if error.missing and error.seen.startswith("namespaces "):
            what = f"the cluster has no namespace {self._namespace!r}"
            hint = f"name another one, or make it: kubectl create namespace {self._namespace}"
        elif _is_unknown_kind(error):
            what = "the cluster does not know MonarchMesh objects"
            hint = "`milkweed operator manifests | kubectl apply -f -` installs the operator"
        else:
            what = f"it is not possible to {what}: {error.what}"
        if error.status == FORBIDDEN:
            hint = f"whoever runs the cluster can allow it in the namespace {self._namespace!r}"
        return BackendError(what, seen=error.seen, hint=hint)


def _is_unknown_kind(error: ApiError) -> bool:
    return error.missing and any(words in error.seen for words in NO_KIND)


def _put_into(found: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """An object that somebody made before, with what is asked for now: its pods are as declared, and no more.

    Of what others wrote on it only labels and annotations stay. The version is that of the object as it was read.
    """
    notes = {
        key: {**part(found, "metadata", key), **made["metadata"][key]}
        for key in ("labels", "annotations")
    }
    metadata = {**found["metadata"], **notes}
    return {**found, "metadata": metadata, "spec": {**part(found, "spec"), **made["spec"]}}


def _owner(made: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """How others name an object that they belong to; only the cluster knows its uid."""
    known = {"name": made["metadata"]["name"], "uid": saved["metadata"]["uid"]}
    return {"apiVersion": made["apiVersion"], "kind": made["kind"], **known}

"""Which pod is which host, and how it is reached."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ... import registry
from ...control import Door
from ...errors import MilkweedError, SpecError
from ...hosts import Host, natural_key
from ...kube.api import Api
from ...kube.forward import dial
from ...kube.via import render_via
from .. import keepers
from ..base import Handle
from ..credentials import ensure_client
from ..keepers import Answer, ask_keeper, own_address
from . import cluster
from .asked import AskedApi, views_of
from .credentials import ensure_authority
from .pod_parts import part, parts
from .ranks import pods_by_rank, stay_of
from .reasons import PodView, describe_pod
from .start import JOB_LABEL, MESH_LABEL, Place
from .told import NOTHING, Told

AnyApi: TypeAlias = Api | AskedApi
Dial: TypeAlias = Callable[[Api, str, str, int], socket.socket]
_EARLY = frozenset({"", "Pending", "ContainerCreating", "PodInitializing"})
"""What every pod goes through, whatever comes then."""
DIAL_S = 1.0
SETTLE_S = 0.5
CLUSTER_NAME = "kubernetes.default.svc"
"""What every cluster calls its API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One host: its pod, if there is one now."""

    label: str
    rank: int
    mesh: Mapping[str, Any]
    namespace: str
    view: PodView | None
    port: int
    service: str = ""
    """What stands before its address, where somebody else made it."""
    told: Told = NOTHING
    """What the operator says of its mesh."""

    @property
    def kept(self) -> bool:
        """Whether a keeper of ours is in it."""
        return bool(self.mesh["kept"])

    @property
    def running(self) -> bool:
        """Whether its processes run."""
        return self.view is not None and self.view.phase == "Running" and not self.view.deleting

    @property
    def leaving(self) -> bool:
        """Whether it is not there, or not for long."""
        return self.view is None or self.view.deleting

    @property
    def ailing(self) -> bool:
        """Whether its worker has ended, though it may be started again."""
        view = self.view
        return view is not None and not view.ready and view.exit_code not in {None, 0}

    @property
    def news(self) -> Told:
        """What is told of its mesh, where the pod itself tells nothing; it may be about another pod of it."""
        view = self.view
        quiet = view is None or (view.word in _EARLY and view.phase == "Pending")
        return self.told if quiet else NOTHING

    @property
    def place(self) -> Place:
        """Where its mesh is."""
        return Place(namespace=self.namespace, name=self.mesh["name"], port=self.mesh["port"])

    @property
    def machine(self) -> str:
        """The name by which others reach it."""
        return self.place.address(self.rank)


def pods_in(api: AnyApi, handle: Handle) -> list[Pod]:
    """Every host of a job."""
    if isinstance(api, AskedApi):
        return asked_pods(api, handle)
    found: list[Pod] = []
    selectors = selectors_of(handle)
    for name, mesh in handle["meshes"].items():
        pods = cluster.pods_of(api, handle["namespace"], selectors[name]).values()
        if mesh["made"]:
            pods = [pod for pod in pods if part(pod, "metadata", "labels").get(MESH_LABEL) == name]
        else:
            _check_nobodys(name, pods)
        ranked = _rank([pod for pod in pods if _counts(pod, mesh)], mesh)
        found += [
            _make_pod(name, rank, mesh, handle, ranked.get(rank)) for rank in range(mesh["hosts"])
        ]
    return found


def _check_nobodys(mesh: str, pods: Iterable[Mapping[str, Any]]) -> None:
    """Refuse pods that were made for a job: its hosts take nobody else, and go when it does."""
    for pod in pods:
        if job := part(pod, "metadata", "labels").get(JOB_LABEL):
            raise SpecError(
                f"mesh {mesh!r}: pod {pod['metadata']['name']!r} was made for another job",
                seen=f"job {job}",
                hint="connect to that job instead, from its record; or choose other pods with label_selector",
            )


def asked_pods(api: AskedApi, handle: Handle) -> list[Pod]:
    """Every host of a job that the endpoint made."""
    found: list[Pod] = []
    for name, mesh in handle["meshes"].items():
        views = [PodView(**each) for each in views_of(api, handle["namespace"], mesh["name"])]
        ranked = {view.rank: view for view in views}
        found += [
            Pod(
                label=f"{name}/{rank}",
                rank=rank,
                mesh=mesh,
                namespace=handle["namespace"],
                view=ranked.get(rank),
                port=mesh["port"],
            )
            for rank in range(mesh["hosts"])
        ]
    return found


def selectors_of(handle: Handle) -> dict[str, str]:
    """How the pods of each mesh are found: by the job's mark, or by labels that others gave them."""
    own = f"{JOB_LABEL}={handle['apply_id']}"
    return {name: mesh["selector"] or own for name, mesh in handle["meshes"].items()}


def _rank(pods: Sequence[Mapping[str, Any]], mesh: Mapping[str, Any]) -> Mapping[int, Any]:
    """The pod of each rank; pods that nobody numbered are numbered in the order of their names."""
    if mesh["rank_label"]:
        return pods_by_rank(pods, replicas=mesh["hosts"], label=mesh["rank_label"])
    found = sorted(stay_of(pods), key=lambda pod: natural_key(pod["metadata"]["name"]))
    return dict(enumerate(found[: mesh["hosts"]]))


def _counts(pod: Mapping[str, Any], mesh: Mapping[str, Any]) -> bool:
    """A pod beyond the size of a mesh of ours is about to go; one with another name is a person's copy."""
    if not mesh["made"]:
        return True
    name, _, index = pod["metadata"]["name"].rpartition("-")
    return name == mesh["name"] and index.isdecimal() and int(index) < mesh["hosts"]


def _make_pod(
    name: str, rank: int, mesh: Mapping[str, Any], handle: Handle, pod: Mapping[str, Any] | None
) -> Pod:
    return Pod(
        label=f"{name}/{rank}",
        rank=rank,
        mesh=mesh,
        namespace=handle["namespace"],
        view=None if pod is None else describe_pod(pod),
        port=mesh["port"] if pod is None else _port_of(pod, mesh["port"]),
        service="" if mesh["kept"] else _service_of(pod, rank),
    )


def _port_of(pod: Mapping[str, Any], port: int) -> int:
    """The port that a pod of somebody else was told to use."""
    said = _variable(pod, "MONARCH_PORT")
    return int(said) if said.isdecimal() else port


def _service_of(pod: Mapping[str, Any] | None, rank: int) -> str:
    """What the engine calls the worker of a pod of somebody else, where it was given a name of its own."""
    try:
        names = json.loads(_variable(pod or {}, "MONARCH_SERVICE_PROC_IDS") or "[]")
        return f"{names[rank]}@"
    except (ValueError, LookupError, TypeError):
        return ""


def _variable(pod: Mapping[str, Any], name: str) -> str:
    for container in parts(part(pod, "spec"), "containers"):
        for variable in parts(container, "env"):
            if variable.get("name") == name:
                return str(variable.get("value", ""))
    return ""


def is_inside(reach: str) -> bool:
    """Whether this client can dial pods by their names; else the API server must carry everything."""
    return _knows_names() if reach == "auto" else reach == "direct"


@functools.cache
def _knows_names() -> bool:
    """Found out once: a host has one way for the life of a program, and its own name comes and goes with it."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    try:
        socket.getaddrinfo(CLUSTER_NAME, None)
    except OSError:
        return False
    return True


def make_door(
    api: AnyApi, handle: Handle, pod: Pod, *, address: Callable[[str], str] = own_address
) -> Door:
    """Where the keeper of a host takes orders."""
    ensure_authority(handle["apply_id"], api, handle)
    inside = is_inside(handle["reach"])
    own = address(pod.machine) if inside else "127.0.0.1"
    folder = registry.folder_of(handle["apply_id"])
    via = "" if inside else via_of(handle, pod)
    return Door(
        machine=pod.machine,
        port=pod.port,
        host=pod.label,
        credentials=str(ensure_client(folder, own)),
        job=handle["apply_id"],
        via=via,
    )


def via_of(handle: Handle, pod: Pod) -> str:
    """The way to a pod through the API server."""
    name = pod.view.name if pod.view else ""
    return render_via(handle["context"], handle.get("kubeconfig"), handle["namespace"], name)


def ask_adopted(
    api: Api, handle: Handle, pod: Pod, *, dial: Dial = dial, settle_s: float = SETTLE_S
) -> Answer | str:
    """A host that somebody else made: whether its pod is ready, and its worker takes connections."""
    view = pod.view
    if view is None or not view.ready:
        return (view.reason if view else "") or "its pod is not ready"
    try:
        via = _way_to(api, handle, pod, dial=dial, settle_s=settle_s)
    except (OSError, MilkweedError) as error:
        return f"its pod {view.name} is ready, and nobody listens at port {pod.port} ({error})"
    ip = f"[{view.ip}]" if ":" in view.ip else view.ip
    address = f"{pod.service}tcp://{ip}:{pod.port}"
    said: Answer = {"reason": "", "tail": [], "exit_code": None}
    return {"host": pod.label, "state": "ready", "address": address, "via": via, **said}


def _way_to(api: Api, handle: Handle, pod: Pod, *, dial: Dial, settle_s: float) -> str:
    """How a pod of somebody else is reached: directly if that works, else through the API server."""
    view = pod.view
    if view is None:
        raise OSError("it has no pod")
    if handle["reach"] != "forward":
        try:
            socket.create_connection((view.ip, pod.port), DIAL_S).close()
        except OSError:
            if handle["reach"] == "direct":
                raise
        else:
            return ""
    with dial(api, pod.namespace, view.name, pod.port) as dialled:
        # The API server takes the connection before the pod does, and closes it when the pod does not.
        if select.select([dialled], [], [], settle_s)[0] and not dialled.recv(1, socket.MSG_PEEK):
            raise OSError("the connection was refused")
    return via_of(handle, pod)


def ask_pod(api: AnyApi, handle: Handle, pod: Pod) -> Answer | str:
    """A host's own answer, or why there is none."""
    if pod.view is None:
        return "it has no pod yet"
    if not pod.running:
        return pod.view.reason or f"its pod {pod.view.name} is {pod.view.phase}"
    if not pod.kept and isinstance(api, Api):
        return ask_adopted(api, handle, pod)
    return ask_keeper(lambda: make_door(api, handle, pod))


def make_host(api: AnyApi, handle: Handle, pod: Pod, answer: Answer | str) -> Host:
    """A host as its keeper described it; one that somebody else made has none to control it."""
    known = pod.kept and not isinstance(answer, str)
    return keepers.make_host(
        pod.label,
        answer,
        name=pod.view.name if pod.view else pod.label,
        control=str(make_door(api, handle, pod)) if known else "",
    )

"""KubernetesJob: hosts that are pods of a Kubernetes cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..backends.kubernetes.names import (
    MAX_SET_NAME,
    check_mesh_name,
    check_namespace,
    make_selector,
    parse_selector,
)
from ..backends.kubernetes.pod_template import (
    QUEUE_LABEL,
    ImageSpec,
    check_resources,
    make_from_compute,
    make_from_image,
    make_from_pod_spec,
    make_from_pod_template,
)
from ..backends.kubernetes.ranks import RANK_LABEL
from ..backends.kubernetes.settings import DEFAULT_NAMESPACE, make_plans
from ..compute import Compute
from ..errors import MilkweedError, SpecError
from ..image import Image
from ..kube.meshes import DEFAULT_PORT
from ..option_tables import KUBERNETES_OPTIONS
from ..options import check_options
from ..spec import JobSpec, Lifetime, MeshSpec
from ..units import parse_duration
from .base import JobTrait
from .preparing import choose_sync_dirs

__all__ = ["Compute", "Image", "ImageSpec", "KubernetesJob"]

WORKERS = "workers"
"""The mesh of a job that was declared without names of meshes."""


class KubernetesJob(JobTrait):
    """A job whose hosts are pods: found by their labels, or made by an operator from what is said here.

    Example:
        job = KubernetesJob(namespace="training")
        job.add_mesh("trainers", 2, image_spec=ImageSpec("ghcr.io/you/monarch:1"))
        state = job.state()
        state.trainers    # a HostMesh of 2 hosts

        job = KubernetesJob(compute=Compute(gpus=8, replicas=4))
        job.state().workers
    """

    _settings: dict[str, Any]
    _selector: str | None = None
    _port: int | None = None

    def __init__(
        self,
        namespace: str = DEFAULT_NAMESPACE,
        timeout: float | None = None,
        *,
        compute: Compute | None = None,
        selector: Mapping[str, str] | str | None = None,
        name: str | None = None,
        monarch_port: int = DEFAULT_PORT,
        use_websocket: bool = True,
        sync_dirs: Sequence[str] | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        provision: str | Mapping[str, str] | None = None,
        reach: str = "auto",
        client_resources: Mapping[str, str | int] | None = None,
        time_limit: str | float | None = None,
        renew: str | None = None,
        stream_logs: bool = True,
        on_interrupt: str = "ask",
        on_change: str | None = None,
    ) -> None:
        """Declare the job; nothing is asked of the cluster yet.

        Args:
            namespace: where its pods are.
            timeout: how many seconds `state()` waits for them; what was asked for stays.
            compute: what each host of the mesh `workers` is; `add_mesh` is for more, or other names.
            selector: labels of pods that exist already, all of which are the mesh `workers`.
            name: the job's name in `milkweed ls`.
            monarch_port: the first of the ports that hosts listen on, where `add_mesh` names none.
            use_websocket: as Kubetorch has it; from outside the cluster nothing but WebSockets is used.
            sync_dirs: folders of this machine that hosts get, and import from; with a compute, and none
                named, it is the Git repository that the program is started in.
            context: the context of the kubeconfig; else the current one.
            kubeconfig: the kubeconfig file; else the one that kubectl uses, or the pod's own rights.
            provision: for a program in a pod without rights, the address of the operator's endpoint, or a
                mapping with `url`, `ca` and `token_file`.
            reach: how pods are reached: direct, forward (through the API server), or auto.
            client_resources: what a batch client asks for, and is limited to: `{"memory": "16Gi"}`.
            time_limit: how long each host may live: seconds as a number, or `90m`, `12h`.
            renew: give hosts more time while a program is connected: `before time limit`, or `30m` before it.
            stream_logs: print what actors print.
            on_interrupt: what Ctrl-C does with a job whose pods wait: ask, keep or cancel.
            on_change: what to do with an allocation that differs: ask, repair, replace or new.
        """
        if not use_websocket:
            raise SpecError(
                "use_websocket: the API server forwards connections over WebSockets only",
                hint='leave it out; reach="direct" uses no API server at all, where pods can be dialled',
            )
        if compute is not None and selector is not None:
            raise SpecError(
                "compute and selector are two ways to say where hosts come from",
                hint="leave one out",
            )
        if provision is not None and selector is not None:
            raise SpecError(
                "selector: the endpoint (provision) shows only pods that it makes",
                hint="declare pods that are to be made; or leave out provision=, where this program may list pods",
            )
        said = {
            "namespace": choose_namespace(namespace, compute),
            "start_timeout": compute.launch_timeout if compute and timeout is None else timeout,
            "context": context,
            "kubeconfig": kubeconfig and _absolute(kubeconfig),
            "provision": provision,
            "reach": reach,
            "client_resources": check_resources(client_resources or {}, field="client_resources")
            or None,
            "renew": renew,
            "stream_logs": stream_logs,
            "on_interrupt": on_interrupt,
            "images": make_images(compute),
            "sync_dirs": choose_sync_dirs(sync_dirs) if compute or sync_dirs else None,
        }
        options, client = check_options(KUBERNETES_OPTIONS, said, where="kubernetes")
        lifetime = Lifetime(time_limit_s=_read_limit(time_limit))
        self._settings = {"name": name or "kubernetes", "options": options, "client": client}
        self._settings |= {"lifetime": lifetime} if lifetime != Lifetime() else {}
        self.on_change = on_change
        self._port = monarch_port
        if compute is not None:
            self._add_compute(compute, monarch_port)
        self._selector = None if selector is None else read_selector(selector)
        self._check(self._spec)

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job is what another one declares, and all of its pods are there and ready."""
        try:
            same = self._held is not None and self.spec.fingerprint() == spec.spec.fingerprint()
            return same and self.status().ready
        except MilkweedError:  # how many pods another one has may be for the cluster to say
            return False

    def _add_compute(self, compute: Compute, port: int) -> None:
        if compute.inactivity_ttl is not None:
            known = self._settings.get("lifetime", Lifetime())
            self._settings["lifetime"] = replace(known, idle_timeout_s=compute.inactivity_ttl)
        mesh = MeshSpec(name=WORKERS, hosts=compute.replicas)
        said = {"pod_template": make_from_compute(compute), "port": port}
        # Kueue looks at what makes pods, too, which has the labels of the mesh.
        queue = {QUEUE_LABEL: compute.queue_name} if compute.queue_name else {}
        self._add(mesh, {**said, "labels": queue} if queue else said)

    @property
    def spec(self) -> JobSpec:
        """The declaration as a value; there is none before the first mesh."""
        if self._selector is not None and WORKERS not in (self._spec.sizes if self._spec else {}):
            self._add_found(self._selector)
        if self._spec is None:
            raise SpecError("this job has no mesh yet", hint="call add_mesh() first")
        return super().spec

    def _add_found(self, selector: str) -> None:
        """How many hosts `workers` has is how many pods there are: only the cluster knows."""
        options = {**self._settings["options"], **self._settings["client"]}
        count = count_pods(options, selector)
        self._add(MeshSpec(name=WORKERS, hosts=count), self._found(selector))

    def _found(self, selector: str) -> dict[str, Any]:
        return {"label_selector": selector, "pod_rank_label": "", "port": self._choose_port()}

    def _choose_port(self, said: int | None = None) -> int:
        """The port of a mesh; a job that was loaded goes on with that of its meshes."""
        options: Mapping[str, Any] = self._spec.options if self._spec else {}
        meshes: Mapping[str, Mapping[str, Any]] = options.get("meshes", {})
        known: list[int | None] = [mesh.get("port") for mesh in meshes.values()]
        ports = (said, self._port, *known, DEFAULT_PORT)
        return next(port for port in ports if port is not None)

    def add_mesh(  # noqa: PLR0917  people who know monarch.job give these by position
        self,
        name: str,
        num_replicas: int,
        label_selector: str | None = None,
        pod_rank_label: str = RANK_LABEL,
        image_spec: ImageSpec | None = None,
        port: int | None = None,
        pod_spec: Any = None,
        labels: Mapping[str, str] | None = None,
        *,
        pod_template: Any = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Declare a mesh: of pods that exist, or with an image or a template of pods that are to be made."""
        check_mesh_name(name)
        given = [value for value in (image_spec, pod_spec, pod_template) if value is not None]
        if len(given) > 1:
            raise SpecError(
                f"mesh {name!r}: image_spec, pod_spec and pod_template are ways to say one thing",
                hint="leave out all but one",
            )
        said = {
            "label_selector": label_selector,
            "pod_rank_label": pod_rank_label,
            "port": self._choose_port(port),
            "labels": dict(labels) if labels else None,
            "annotations": dict(annotations) if annotations else None,
            "pod_template": _make_template(image_spec, pod_spec, pod_template),
            # One that is too long for what pods are made of is cut, and has the job's id.
            "object_name": name if len(name) <= MAX_SET_NAME or not given else None,
        }
        kept = {key: value for key, value in said.items() if value is not None}
        self._add(MeshSpec(name=name, hosts=num_replicas), kept)

    def _add(self, mesh: MeshSpec, said: Mapping[str, Any]) -> None:
        """Declare one more mesh, after a look at what is wrong with it."""
        made = self._make_spec(self._spec, mesh, said)
        self._check(made)
        self._spec = made

    def _check(self, made: JobSpec | None) -> None:
        """Refuse what is wrong with all that is declared so far."""
        if self._selector is not None and WORKERS not in (made.sizes if made else {}):
            # How many they are is asked later; whether they go with the others is known now.
            some = MeshSpec(name=WORKERS, hosts=1)
            made = self._make_spec(made, some, self._found(self._selector))
        if made is not None:
            make_plans(made, made.options.get("namespace", DEFAULT_NAMESPACE))

    def _make_spec(self, old: JobSpec | None, mesh: MeshSpec, said: Mapping[str, Any]) -> JobSpec:
        """A declaration with one mesh more; one that was loaded has all else from its record."""
        options: dict[str, Any] = dict(old.options if old else self._settings["options"])
        options["meshes"] = {**options.get("meshes", {}), mesh.name: dict(said)}
        if old is not None:
            return replace(old, meshes=(*old.meshes, mesh), options=options)
        return JobSpec(
            name=self._settings["name"],
            backend="kubernetes",
            meshes=(mesh,),
            options=options,
            client=self._settings["client"],
            lifetime=self._settings.get("lifetime", Lifetime()),
        )


def _make_template(image: ImageSpec | None, pod_spec: Any, pod_template: Any) -> Any:
    if image is not None:
        return make_from_image(image)
    if pod_spec is not None:
        return make_from_pod_spec(pod_spec)
    return None if pod_template is None else make_from_pod_template(pod_template)


def choose_namespace(namespace: str, compute: Compute | None) -> str:
    """The namespace, which a Compute may name, too."""
    named = compute.namespace if compute is not None else None
    if named is None or named == namespace:
        return check_namespace(namespace)
    if namespace != DEFAULT_NAMESPACE:
        raise SpecError(
            f"namespace: {namespace!r}, but compute.namespace is {named!r}", hint="say one"
        )
    return check_namespace(named, field="compute.namespace")


def make_images(compute: Compute | None) -> dict[str, Any] | None:
    """What is still to be done in the containers, as plain data, by mesh."""
    image = compute.image if compute is not None else None
    return {WORKERS: image.to_json()} if image is not None and image.lines else None


def read_selector(selector: Mapping[str, str] | str) -> str:
    """A selector as Kubernetes writes it; a mapping is a label for each of its items."""
    if isinstance(selector, str):
        parse_selector(selector, field="selector")
        return selector
    return make_selector(selector)


def count_pods(options: Mapping[str, Any], selector: str) -> int:
    """How many pods a selector finds that are not about to go; none is an error."""
    from ..backends.kubernetes.attaching import count_found

    return count_found(options, selector)


def _read_limit(said: str | float | None) -> float | None:
    return None if said is None else parse_duration(said, field="time_limit")


def _absolute(path: str) -> str:
    """The same file for a program that is started in another folder.

    `~` stays: what a batch client declares in its pod, where home is another one, must not seem changed.
    """
    return path if path.startswith("~") else os.path.abspath(path)

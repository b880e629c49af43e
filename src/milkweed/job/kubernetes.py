"""KubernetesJob: hosts that are pods of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backends.kubernetes.names import check_mesh_name, check_namespace
from ..backends.kubernetes.pod_template import (
    ImageSpec,
    make_from_image,
    make_from_pod_spec,
    make_from_pod_template,
)
from ..backends.kubernetes.ranks import RANK_LABEL
from ..backends.kubernetes.settings import make_plan
from ..backends.kubernetes.start import DEFAULT_PORT
from ..errors import SpecError
from ..option_tables import KUBERNETES_OPTIONS
from ..options import check_options
from ..spec import JobSpec, MeshSpec
from .base import JobTrait

__all__ = ["ImageSpec", "KubernetesJob"]


class KubernetesJob(JobTrait):
    """A job whose hosts are pods: found by their labels, or made by an operator from what is said here.

    Example:
        job = KubernetesJob(namespace="training")
        job.add_mesh("workers", 2, image_spec=ImageSpec("ghcr.io/you/monarch:1"))
        state = job.state()
        state.workers     # a HostMesh of 2 hosts
    """

    _settings: Mapping[str, Any]

    def __init__(
        self,
        namespace: str = "default",
        timeout: float | None = None,
        *,
        name: str = "kubernetes",
        context: str | None = None,
        kubeconfig: str | None = None,
        reach: str = "auto",
        stream_logs: bool = True,
        on_interrupt: str = "ask",
        on_change: str | None = None,
    ) -> None:
        """Declare the job; nothing is asked of the cluster yet.

        Args:
            namespace: where its pods are.
            timeout: how many seconds `state()` waits for them; what was asked for stays.
            name: the job's name in `milkweed ls`.
            context: the context of the kubeconfig; else the current one.
            kubeconfig: the kubeconfig file; else the one that kubectl uses, or the pod's own rights.
            reach: how pods are reached: direct, forward (through the API server), or auto.
            stream_logs: print what actors print.
            on_interrupt: what Ctrl-C does with a job whose pods wait: ask, keep or cancel.
            on_change: what to do with an allocation that differs: ask, replace or new.
        """
        check_namespace(namespace)
        said = {
            "namespace": namespace,
            "start_timeout": timeout,
            "context": context,
            "kubeconfig": kubeconfig,
            "reach": reach,
            "stream_logs": stream_logs,
            "on_interrupt": on_interrupt,
        }
        options, client = check_options(KUBERNETES_OPTIONS, said, where="kubernetes")
        self._settings = {"name": name, "options": options, "client": client}
        self.on_change = on_change

    @property
    def spec(self) -> JobSpec:
        """The declaration as a value; there is none before the first mesh."""
        if self._spec is None:
            raise SpecError("this job has no mesh yet", hint="call add_mesh() first")
        return super().spec

    def add_mesh(  # noqa: PLR0917  people who know monarch.job give these by position
        self,
        name: str,
        num_replicas: int,
        label_selector: str | None = None,
        pod_rank_label: str = RANK_LABEL,
        image_spec: ImageSpec | None = None,
        port: int = DEFAULT_PORT,
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
                f"mesh {name!r}: image_spec, pod_spec and pod_template are ways to say one thing"
            )
        said = {
            "label_selector": label_selector,
            "pod_rank_label": pod_rank_label,
            "port": port,
            "labels": dict(labels) if labels else None,
            "annotations": dict(annotations) if annotations else None,
            "pod_template": _make_template(image_spec, pod_spec, pod_template),
            "object_name": name,
        }
        kept = {key: value for key, value in said.items() if value is not None}
        self._add(MeshSpec(name=name, hosts=num_replicas), kept)

    def _add(self, mesh: MeshSpec, said: Mapping[str, Any]) -> None:
        """Declare one more mesh, after a look at what is wrong with it."""
        old = self._spec
        options: dict[str, Any] = dict(old.options if old else self._settings["options"])
        options["meshes"] = {**options.get("meshes", {}), mesh.name: dict(said)}
        made = JobSpec(
            name=self._settings["name"],
            backend="kubernetes",
            meshes=(*(old.meshes if old else ()), mesh),
            options=options,
            client=self._settings["client"],
        )
        make_plan(mesh, said, made, options.get("namespace", "default"))
        self._spec = made


def _make_template(image: ImageSpec | None, pod_spec: Any, pod_template: Any) -> Any:
    if image is not None:
        return make_from_image(image)
    if pod_spec is not None:
        return make_from_pod_spec(pod_spec)
    return None if pod_template is None else make_from_pod_template(pod_template)

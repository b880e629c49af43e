"""What a declaration says of its meshes on Kubernetes, read and checked: which pods are found, which are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import SpecError
from ...labels import check_annotations, check_labels
from ...spec import JobSpec, MeshSpec, suggest
from .names import check_namespace, make_mesh_name, parse_selector
from .pod_template import ImageSpec, Template, make_from_image, make_from_pod_template
from .ranks import RANK_LABEL
from .start import DEFAULT_PORT, Place

DEFAULT_NAMESPACE = "default"
MESH_KEYS = (
    *("image", "resources", "enable_fuse", "shared_memory_size", "pod_template", "port"),
    *("label_selector", "pod_rank_label", "labels", "annotations", "object_name"),
)
MAX_PORT = 65535 - 64
NO_ID = "0" * 8
"""Stands for a job's id where a declaration is only checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """One mesh: pods that somebody else made, or a template for pods of our own."""

    mesh: MeshSpec
    place: Place
    template: Template | None = None
    selector: str = ""
    rank_label: str = RANK_LABEL
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def made(self) -> bool:
        """Whether its pods are made for the job."""
        return self.template is not None


def default_selector(name: str) -> str:
    """How pods of a MonarchMesh are found that nobody described otherwise."""
    return f"app.kubernetes.io/name=monarch-worker,monarch.pytorch.org/mesh-name={name}"


def make_plans(spec: JobSpec, namespace: str, apply_id: str = NO_ID) -> list[MeshPlan]:
    """All meshes; SpecError, which is a ValueError, names the field that is wrong."""
    check_namespace(namespace)
    said: Mapping[str, Any] = spec.options.get("meshes") or {}
    for name in said:
        if name not in spec.sizes:
            raise SpecError(
                f"kubernetes.meshes: there is no mesh {name!r}", hint=suggest(name, spec.sizes)
            )
    return [
        make_plan(mesh, said.get(mesh.name) or {}, spec, namespace, apply_id)
        for mesh in spec.meshes
    ]


def make_plan(
    mesh: MeshSpec,
    said: Mapping[str, Any],
    spec: JobSpec,
    namespace: str,
    apply_id: str = NO_ID,
) -> MeshPlan:
    """One mesh; its object has a name of the job's own, unless one was given."""
    where = f"kubernetes.meshes.{mesh.name}"
    for key in said:
        if key not in MESH_KEYS:
            raise SpecError(f"{where}.{key}: is not known", hint=suggest(key, MESH_KEYS))
    template = make_template(said, spec, where)
    _check_together(said, template, where)
    name = said.get("object_name") or make_mesh_name(mesh.name, apply_id)
    port = check_port(said.get("port") or spec.options.get("port") or DEFAULT_PORT, where)
    return MeshPlan(
        mesh=mesh,
        place=Place(namespace=namespace, name=name, port=port),
        template=template,
        selector="" if template else _read_selector(said, mesh.name, where),
        rank_label=said.get("pod_rank_label", RANK_LABEL),
        labels=check_labels(said.get("labels") or {}, field=f"{where}.labels"),
        annotations=check_annotations(said.get("annotations") or {}, field=f"{where}.annotations"),
    )


def check_port(port: Any, where: str) -> int:
    """A port from which on 64 can be used."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= MAX_PORT:
        raise SpecError(f"{where}.port: {port!r} is not a port from 1 to {MAX_PORT}")
    return port


def make_template(said: Mapping[str, Any], spec: JobSpec, where: str) -> Template | None:
    """The template of pods that are to be made; None when they are there already."""
    if said.get("pod_template") is not None:
        if said.get("image") is not None:
            raise SpecError(f"{where}: image and pod_template are two ways to say one thing")
        return make_from_pod_template(said["pod_template"], field=f"{where}.pod_template")
    image = said.get("image") or spec.options.get("image")
    if image is None:
        return None
    keys = ("resources", "enable_fuse", "shared_memory_size")
    return make_from_image(ImageSpec(image, **{key: said[key] for key in keys if key in said}))


def _check_together(said: Mapping[str, Any], template: Template | None, where: str) -> None:
    if template is not None:
        for key in ("label_selector", "pod_rank_label"):
            if said.get(key) not in {None, RANK_LABEL}:
                raise SpecError(
                    f"{where}.{key}: pods that are made for the job are found by its own labels",
                    hint="leave it out, or leave out the image and the template",
                )
        return
    for key in ("labels", "annotations"):
        if said.get(key):
            raise SpecError(
                f"{where}.{key}: are for pods that are made for the job; these exist already",
                hint="give an image or a pod template, too, or leave it out",
            )


def _read_selector(said: Mapping[str, Any], name: str, where: str) -> str:
    text = said.get("label_selector")
    if text is None:
        return default_selector(name)
    parse_selector(text, field=f"{where}.label_selector")
    return str(text)

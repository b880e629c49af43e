"""What a declaration says of its meshes on Kubernetes, read and checked: which pods are found, which are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from ...compute import Compute
from ...errors import SpecError
from ...kube.meshes import DEFAULT_PORT, make_selector, render_labels
from ...labels import check_annotations, check_label_key, check_labels
from ...spec import JobSpec, MeshSpec, suggest
from .names import (
    check_mesh_name,
    check_namespace,
    check_set_name,
    make_mesh_name,
    parse_selector,
)
from .pod_template import (
    ImageSpec,
    Template,
    has_own_worker,
    make_from_image,
    make_from_pod_template,
)
from .ranks import RANK_LABEL
from .start import Place

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

    @property
    def kept(self) -> bool:
        """Whether keepers of ours are in its pods."""
        return self.template is not None and not has_own_worker(self.template)


def default_selector(name: str) -> str:
    """How pods of a MonarchMesh are found that nobody described otherwise."""
    return render_labels(make_selector(name))


def make_plans(spec: JobSpec, namespace: str, apply_id: str = NO_ID) -> list[MeshPlan]:
    """All meshes; SpecError, which is a ValueError, names the field that is wrong."""
    check_namespace(namespace)
    said = _check_mapping(spec.options.get("meshes"), "kubernetes.meshes")
    for name in said:
        if name not in spec.sizes:
            raise SpecError(
                f"kubernetes.meshes: there is no mesh {name!r}", hint=suggest(name, spec.sizes)
            )
    plans = [
        make_plan(mesh, said.get(mesh.name), spec, namespace, apply_id) for mesh in spec.meshes
    ]
    check_alike(plans)
    _check_asked(spec, plans)
    _check_names(plans)
    check_kept(spec, plans)
    return plans


def _check_asked(spec: JobSpec, plans: Sequence[MeshPlan]) -> None:
    """Refuse to look for pods where nobody shows any: the endpoint shows what it made."""
    found = [plan.mesh.name for plan in plans if not plan.made]
    if found and spec.client.get("provision"):
        raise SpecError(
            f"mesh {found[0]!r}: its pods exist already, and the endpoint (provision) shows only those it makes",
            hint="give an image or a pod template; or leave out provision=, where this program may list pods",
        )


def _check_names(plans: Sequence[MeshPlan]) -> None:
    """Refuse one object for two meshes: the second would take the hosts of the first."""
    owners: dict[str, str] = {}
    for plan in plans:
        owner = owners.setdefault(plan.place.name, plan.mesh.name) if plan.made else plan.mesh.name
        if owner != plan.mesh.name:
            field = f"kubernetes.meshes.{plan.mesh.name}.object_name"
            raise SpecError(
                f"{field}: {plan.place.name!r} is the object of mesh {owner!r}",
                hint="each mesh has an object of its own: name another one, or leave it out",
            )


def check_alike(plans: Sequence[MeshPlan]) -> None:
    """Refuse meshes that no program can use together: one speaks TLS with its hosts, or plain TCP."""
    kept = [plan.mesh.name for plan in plans if plan.kept]
    others = [plan.mesh.name for plan in plans if not plan.kept]
    if kept and others:
        raise SpecError(
            f"meshes {', '.join(map(repr, kept))} are hosts of milkweed, which speak TLS, and meshes "
            f"{', '.join(map(repr, others))} are workers of somebody else, which do not",
            hint="a program speaks one of both: declare two jobs, and run each in a program of its own; "
            "or have all pods made, with an image or a template that has no command of its own",
        )


def check_kept(spec: JobSpec, plans: Sequence[MeshPlan]) -> None:
    """Refuse what only keepers could do, where there are none: it would have no effect."""
    if any(plan.kept for plan in plans):
        return
    said = [key for key in ("images", "sync_dirs", "renew") if spec.client.get(key)]
    said += ["time_limit"] if spec.lifetime.time_limit_s is not None else []
    for key in said:
        raise SpecError(
            f"{key}: is for hosts of milkweed, and these are workers of somebody else",
            hint="leave it out, or have pods made: with an image, or a template without a command of its own",
        )


def make_plan(
    mesh: MeshSpec,
    settings: Any,
    spec: JobSpec,
    namespace: str,
    apply_id: str = NO_ID,
) -> MeshPlan:
    """One mesh; its object has a name of the job's own, unless one was given."""
    where = f"kubernetes.meshes.{mesh.name}"
    said = _check_mapping(settings, where)
    for key in said:
        if key not in MESH_KEYS:
            raise SpecError(f"{where}.{key}: is not known", hint=suggest(key, MESH_KEYS))
    template = make_template(mesh, said, spec, where)
    _check_together(said, template, where)
    name = _read_name(said, where, made=template is not None)
    ports = (said.get("port"), spec.options.get("port"), DEFAULT_PORT)
    port = check_port(next(each for each in ports if each is not None), where)
    return MeshPlan(
        mesh=mesh,
        place=Place(
            namespace=namespace, name=name or make_mesh_name(mesh.name, apply_id), port=port
        ),
        template=template,
        selector="" if template else _read_selector(said, mesh.name, where),
        rank_label=_read_rank_label(said, where),
        labels=check_labels(said.get("labels") or {}, field=f"{where}.labels"),
        annotations=check_annotations(said.get("annotations") or {}, field=f"{where}.annotations"),
    )


def _check_mapping(said: Any, where: str) -> Mapping[str, Any]:
    """What was said, or nothing."""
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        raise SpecError(f"{where}: {said!r} is not a mapping", hint="write names with their values")
    return cast("Mapping[str, Any]", said)


def check_port(port: Any, where: str) -> int:
    """A port from which on 64 can be used."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= MAX_PORT:
        raise SpecError(
            f"{where}.port: {port!r} is not a port from 1 to {MAX_PORT}",
            hint=f"leave it out for {DEFAULT_PORT}",
        )
    return port


_IMAGE_KEYS = ("resources", "enable_fuse", "shared_memory_size")
_RESOURCE_KEYS = {"memory_bytes": "memory", "disk_bytes": "disk"}


def make_template(
    mesh: MeshSpec, said: Mapping[str, Any], spec: JobSpec, where: str
) -> Template | None:
    """The template of pods that are to be made; None when they are there already."""
    own = said.get("pod_template")
    if own is not None and said.get("image") is not None:
        raise SpecError(
            f"{where}: image and pod_template are two ways to say one thing", hint="leave one out"
        )
    image = said.get("image") or spec.options.get("image")
    if own is None and image is not None:
        return _make_from_image(mesh, image, said)
    for name in _said_otherwise(mesh, said, where):
        raise SpecError(f"{name}: is for pods that are made of an image", hint=_NO_IMAGE)
    return None if own is None else make_from_pod_template(own, field=f"{where}.pod_template")


_NO_IMAGE = "say it in the pod template, or leave it out where pods exist already"


def _said_otherwise(mesh: MeshSpec, said: Mapping[str, Any], where: str) -> Iterator[str]:
    """What was said of pods for which something else decides."""
    for key, value in asdict(mesh.resources).items():
        if value is not None:
            yield f"meshes.{mesh.name}.{_RESOURCE_KEYS.get(key, key)}"
    yield from (f"{where}.{key}" for key in _IMAGE_KEYS if said.get(key))


def _make_from_image(mesh: MeshSpec, image: str, said: Mapping[str, Any]) -> Template:
    """What every backend understands is asked for in Kubernetes' words; those of its own block win."""
    wants = mesh.resources
    asked = Compute(
        cpus=wants.cpus,
        gpus=wants.gpus,
        gpu_type=wants.gpu_type,
        memory=wants.memory_bytes,
        disk_size=wants.disk_bytes,
    )
    keys = {key: said[key] for key in _IMAGE_KEYS if key in said}
    keys["resources"] = {**asked.resources, **(keys.get("resources") or {})}
    made = make_from_image(ImageSpec(image, **keys))
    if asked.selector:
        made["spec"]["nodeSelector"] = dict(asked.selector)
    return made


def _check_together(said: Mapping[str, Any], template: Template | None, where: str) -> None:
    if template is not None:
        for key in ("label_selector", "pod_rank_label"):
            if said.get(key) not in (None, RANK_LABEL):
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


def _read_name(said: Mapping[str, Any], where: str, *, made: bool) -> str:
    """The name of the object, if one was given."""
    name, field = said.get("object_name"), f"{where}.object_name"
    if name is None:
        return ""
    return check_set_name(name, field=field) if made else check_mesh_name(name, field=field)


def _read_rank_label(said: Mapping[str, Any], where: str) -> str:
    """The label that numbers pods; an empty one: they are numbered in the order of their names."""
    label = said.get("pod_rank_label")
    if label is None or label == "":
        return RANK_LABEL if label is None else ""
    return check_label_key(label, field=f"{where}.pod_rank_label")


def _read_selector(said: Mapping[str, Any], name: str, where: str) -> str:
    text = said.get("label_selector")
    if text is None:
        return default_selector(name)
    parse_selector(text, field=f"{where}.label_selector")
    return str(text)

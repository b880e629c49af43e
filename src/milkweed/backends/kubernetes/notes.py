"""What a job's objects say of it, for a client that has nothing else.

Whoever may make such objects may write anything there. So nothing of it says how the cluster is reached, with
which login, or which files of this machine are read; the rest is taken only where it is of the right kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import AccessError, SpecError
from ...kube.meshes import DEFAULT_PORT
from ...labels import check_dns_label, check_label_key
from ...spec import check_mesh_name
from .names import parse_selector
from .pod_parts import part, parts
from .ranks import RANK_LABEL
from .settings import check_port
from .start import HANDLE_NOTE, JOB_LABEL, MESH_LABEL, VOLUME

REACHES = ("auto", "direct", "forward")
MAX_HOSTS = 100_000
"""More than any cluster has: a number is not believed without end."""
Object = Mapping[str, Any]


def read_handle(
    apply_id: str, meshes: Sequence[Object], own: str = "", *, jobs: Sequence[Object] = ()
) -> dict[str, Any] | None:
    """What finds a job again, from its objects; None when none carries its mark. `own` is one's own namespace.

    A note that cannot be read is passed over: what the objects are is enough to end the job. `jobs` are those of
    batch clients, which stay when the meshes are gone.
    """
    marked = [each for each in (*meshes, *jobs) if _label(each, JOB_LABEL) == apply_id]
    if not marked:
        return None
    namespace = _choose_namespace(apply_id, marked, own)
    marked = [each for each in marked if each["metadata"]["namespace"] == namespace]
    notes = filter(None, (_read_note(each, apply_id) for each in marked))
    said: dict[str, Any] = next(notes, dict[str, Any]())
    return {
        "apply_id": apply_id,
        "namespace": namespace,
        "client": said.get("client") is True or any(each in jobs for each in marked),
        "provision": None,
        "reach": said["reach"] if said.get("reach") in REACHES else "auto",
        "meshes": said.get("meshes")
        or dict(_describe_mesh(each) for each in marked if each not in jobs),
    }


def _label(mesh: Object, name: str) -> str:
    return str(part(mesh, "metadata", "labels").get(name, ""))


def _choose_namespace(apply_id: str, marked: Sequence[Object], own: str) -> str:
    """Where a job is; somebody else may have copied its mark, and then nobody can tell."""
    found = sorted({str(mesh["metadata"]["namespace"]) for mesh in marked})
    if own in found:
        return own
    if len(found) > 1:
        raise AccessError(
            f"objects of several namespaces say that they are of job {apply_id}",
            seen=", ".join(found),
            hint="choose a context whose namespace is the job's own: a job is in one namespace only",
        )
    return found[0]


def _read_note(mesh: Object, apply_id: str) -> dict[str, Any] | None:
    """The note of one object; None when it is not what milkweed writes."""
    try:
        said = json.loads(part(mesh, "metadata", "annotations")[HANDLE_NOTE])
        if said["apply_id"] != apply_id:
            return None
        return {**said, "meshes": dict(_read_meshes(said["meshes"]))}
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _read_meshes(said: Object) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, mesh in said.items():
        check_mesh_name(name)
        yield name, _read_mesh(name, mesh)


def _read_mesh(name: str, mesh: Object) -> dict[str, Any]:
    rank_label, selector = mesh["rank_label"], mesh["selector"]
    if rank_label:
        check_label_key(rank_label, field=name)
    if selector:
        parse_selector(selector, field=name)
    return {
        "name": check_dns_label(mesh["name"], field=name),
        "made": mesh["made"] is True,
        "kept": mesh["kept"] is True,
        "hosts": _check_hosts(mesh["hosts"]),
        "port": check_port(mesh["port"], name),
        "selector": selector or "",
        "rank_label": rank_label or "",
    }


def _check_hosts(said: object) -> int:
    if isinstance(said, bool) or not isinstance(said, int) or not 0 < said <= MAX_HOSTS:
        raise SpecError(f"{said!r} is not a number of hosts", hint=f"say 1 to {MAX_HOSTS}")
    return said


def _describe_mesh(mesh: Object) -> tuple[str, dict[str, Any]]:
    """A mesh as its object shows it, whose note says nothing."""
    name, spec = str(mesh["metadata"]["name"]), part(mesh, "spec")
    volumes = [each.get("name") for each in parts(part(spec, "podTemplate", "spec"), "volumes")]
    return _label(mesh, MESH_LABEL) or name, {
        "name": name,
        "made": True,
        "kept": VOLUME in volumes,
        "hosts": min(max(int(spec.get("replicas", 1)), 1), MAX_HOSTS),
        "port": int(spec.get("port", DEFAULT_PORT)),
        "selector": "",
        "rank_label": RANK_LABEL,
    }

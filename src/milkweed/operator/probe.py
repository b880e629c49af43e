"""The readiness probe of workers whose template has none: a host is ready when somebody listens at its port."""

from __future__ import annotations

from typing import Any, cast

from ..kube.meshes import DEFAULT_PORT, WORKER
from ..kube.resources import MESHES
from .reading import Object, items, mapping, number, pick, text

PROBE_NOTE = f"{MESHES.group}/readiness-probe"
"""An annotation of a mesh. With `none` its workers get no probe; anything else means nothing."""
NO_PROBE = "none"
PROBE = "readinessProbe"
PORT_VARIABLE = "MONARCH_PORT"
"""Where a worker is told its port, and where programs look for it before they look at the mesh."""


def make_probe(port: int) -> dict[str, Any]:
    """Connects and hangs up. The engine writes nothing of it, with TLS and without."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": 3}


def read_port(mesh: Object) -> int:
    """The port of a mesh; Monarch's own where none is said."""
    return number(mesh, "spec", "port") or DEFAULT_PORT


def add_probe(template: dict[str, Any], mesh: Object) -> None:
    """Give the worker of a template a probe, unless it has one or the mesh wants none."""
    if text(mesh, "metadata", "annotations", PROBE_NOTE) == NO_PROBE:
        return
    port = _told_port(template) or read_port(mesh)
    worker = _find_worker(template, port)
    if worker is not None and PROBE not in worker:
        worker[PROBE] = make_probe(port)


def keep_probe(template: dict[str, Any], mesh: Object, seen: Any) -> None:
    """Leave the worker of a template with the probe that it has in the cluster, or without: both go on."""
    worker = _find_worker(template, _told_port(template) or read_port(mesh))
    if worker is None or PROBE in worker:
        return
    named = (one for one in items(seen, "spec", "containers") if _name(one) == _name(worker))
    if probe := mapping(next(named, None), PROBE):
        worker[PROBE] = probe


def _find_worker(template: Any, port: int) -> dict[str, Any] | None:
    """The container that runs the worker: the one of that name, else the one that has the port, else the first."""
    found = items(template, "spec", "containers")
    containers = [cast("dict[str, Any]", one) for one in found if isinstance(one, dict)]
    named = [one for one in containers if _name(one) == WORKER]
    open_ = [one for one in containers if port in _ports(one)]
    return next(iter([*named, *open_, *containers]), None)


def _name(container: Any) -> str:
    return text(container, "name")


def _ports(container: Any) -> list[int]:
    return [number(one, "containerPort") for one in items(container, "ports")]


def _told_port(template: Any) -> int:
    """The port that the first container says which says one; 0 where none does."""
    for container in items(template, "spec", "containers"):
        for variable in items(container, "env"):
            if pick(variable, "name") == PORT_VARIABLE:
                said = text(variable, "value")
                return int(said) if said.isdecimal() and 0 < int(said) < 65536 else 0
    return 0

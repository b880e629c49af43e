"""How this client and the hosts of a job reach each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..bell import route_to
from ..control import BY_HOST, parse_door
from ..hosts import Host


def make_host(seen: Mapping[str, Any], node: str, control: str) -> Host:
    """A host as its keeper described it."""
    mesh, _, rank = seen["host"].rpartition("/")
    name = node or seen["host"]
    return Host(name=name, mesh=mesh, rank=int(rank), address=seen["address"], control=control)


def listen_for(host: Host) -> str:
    """Where a host reaches this client: nowhere else than here, unless it is on another machine."""
    scheme, _, rest = host.address.partition("://")
    machine = rest.rpartition(":")[0].strip("[]")
    return route_to(machine) if scheme.endswith("tcp") and not host.via else "localhost"


def gateway(host: Host) -> str:
    """Through which host the others are reached, where a client cannot dial them; the engine does the rest."""
    via = parse_door(host.control).via if host.control else host.via
    if not via:
        return ""
    if via == BY_HOST:
        return host.address
    from ..kube.via import forward_via

    base, _, port = host.address.rpartition(":")
    scheme = base.partition("://")[0].rpartition("@")[2]
    return f"{scheme}://localhost:{forward_via(via, int(port))}"

"""What a connected job hands to a program: its host meshes by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ..errors import ServiceMissingError
from ..spec import suggest


class JobState(Mapping[str, Any]):
    """The host meshes of a job, each as an attribute and as an item.

    Example:
        state = job.state()
        state.trainers      # the HostMesh of the mesh "trainers"
        state["trainers"]   # the same
        list(state)         # the names
    """

    def __init__(self, hosts: Mapping[str, Any]) -> None:
        self._hosts = dict(hosts)

    def __getattr__(self, name: str) -> Any:
        # `_hosts` itself is asked for while copy and pickle rebuild the object: it must not recurse.
        if name == "_hosts" or name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._hosts[name]
        except KeyError:
            raise AttributeError(
                f"this job has no mesh {name!r} (its meshes: {', '.join(self._hosts)}; "
                f"{suggest(name, self._hosts)})"
            ) from None

    def __getitem__(self, name: str) -> Any:
        if name not in self._hosts:
            raise KeyError(f"{name!r} is not a mesh of this job; {suggest(name, self._hosts)}")
        return self._hosts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._hosts]

    def __repr__(self) -> str:
        return f"JobState({', '.join(self._hosts)})"

    @property
    def query_engine(self) -> Any:
        """Queries over telemetry."""
        _missing("telemetry")

    query_engine_client = query_engine
    telemetry_url = query_engine
    dashboard_url = query_engine

    @property
    def admin_url(self) -> Any:
        """Where the admin service answers."""
        _missing("admin")


def _missing(service: str) -> NoReturn:
    raise ServiceMissingError(
        f"the {service} service is not part of this version of milkweed",
        seen=f"enable_{service}() keeps its configuration with the job, and starts nothing yet",
        hint="`milkweed status --why` and `milkweed logs` tell what hosts do",
    )

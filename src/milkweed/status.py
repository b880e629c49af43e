"""What is known about an allocation, with «not known» as a value of its own."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class Liveness(enum.StrEnum):
    """Whether an allocation exists, as far as its scheduler has told us."""

    PENDING = "pending"  # asked for, and waiting for hosts
    RUNNING = "running"  # the scheduler has given hosts
    ENDED = "ended"  # over for good; the only state that is final
    UNKNOWN = "unknown"  # the scheduler did not answer; never a reason to write anything

    @property
    def alive(self) -> bool:
        """True only when the scheduler says so."""
        return self in {Liveness.PENDING, Liveness.RUNNING}


TRANSITIONS: Mapping[Liveness, frozenset[Liveness]] = MappingProxyType(
    {
        Liveness.PENDING: frozenset(Liveness),
        # RUNNING goes back to PENDING when a scheduler requeues the job.
        Liveness.RUNNING: frozenset(Liveness),
        Liveness.UNKNOWN: frozenset(Liveness),
        Liveness.ENDED: frozenset({Liveness.ENDED}),
    }
)


def is_legal(before: Liveness | None, after: Liveness) -> bool:
    """Say whether an allocation may go from one liveness to the next."""
    return before is None or after in TRANSITIONS[before]


class HostState(enum.StrEnum):
    """What one host's worker is doing."""

    STARTING = "starting"
    READY = "ready"  # its worker serves the engine
    FAILED = "failed"  # it ended by itself; exit code and reason say how
    STOPPED = "stopped"  # it was asked to stop
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """One host of a mesh, as last seen."""

    host: str
    state: HostState
    reason: str = ""
    exit_code: int | None = None
    unheard: bool = False
    """Its scheduler says no more than that it hears nothing of its machine: that may be the network, and pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An allocation as last seen, with the scheduler's own reason."""

    liveness: Liveness
    reason: str = ""
    hosts: tuple[HostStatus, ...] = ()
    exit_code: int | None = None
    expected_start: str = ""
    halted: bool = False
    """It keeps its hosts, and they stand still for now: nobody can say for how long."""
    ending: bool = False
    """Its scheduler is ending it now, and has not said yet what it is after that: over, or back in the queue."""
    details: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def ready(self) -> bool:
        """True when every host's worker serves the engine."""
        return self.liveness is Liveness.RUNNING and all(
            host.state is HostState.READY for host in self.hosts
        )

    @property
    def failed_hosts(self) -> tuple[HostStatus, ...]:
        """The hosts whose worker ended by itself."""
        return tuple(host for host in self.hosts if host.state is HostState.FAILED)

    @property
    def lost_hosts(self) -> tuple[HostStatus, ...]:
        """Those of them that will not come back; one that is only not heard may."""
        return tuple(host for host in self.failed_hosts if not host.unheard)

    def describe(self) -> str:
        """One line for a person: liveness, how many hosts are ready, and why."""
        text = self.liveness.value
        if self.hosts:
            ready = sum(host.state is HostState.READY for host in self.hosts)
            text += f", {ready}/{len(self.hosts)} hosts ready"
        if self.exit_code is not None:
            text += f", exit code {self.exit_code}"
        if self.expected_start:
            text += f", expected start {self.expected_start}"
        return f"{text} ({self.reason})" if self.reason else text

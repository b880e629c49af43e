"""A torchrun program that runs on a job's hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from ..backends.base import Backend
from ..errors import NotAppliedError
from ..spec import JobSpec
from .held import Held

if TYPE_CHECKING:
    from ..spmd.launch import Launch

TORCHRUN = "torchrun"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs, and in which surroundings; plain data, so that it can be recorded with its job."""

    command: tuple[str, ...]
    """The arguments of torchrun: its own, then the script and what the script is given."""
    mesh: str | None = None
    """Where it runs; None: on the job's only mesh."""
    wrapper: tuple[str, ...] = ()
    """A command that sets up an environment and runs its arguments."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None

    @classmethod
    def of_words(cls, words: Sequence[str], mesh: str | None) -> Self:
        """The program of a list that people write, with or without the word that begins a whole command line."""
        own = words[1:] if words[:1] in ([TORCHRUN], (TORCHRUN,)) else words
        return cls(command=tuple(own), mesh=mesh)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The program that `to_json` wrote."""
        known = cls(**data)
        return replace(known, command=tuple(known.command), wrapper=tuple(known.wrapper))

    def to_json(self) -> dict[str, Any]:
        """Plain data for records."""
        return {**asdict(self), "command": list(self.command), "wrapper": list(self.wrapper)}

    def parse(self) -> Launch:
        """Read the command; SpecError for what torchrun would refuse, and for what cannot be done."""
        from ..spmd.launch import parse

        return parse(self.command, os.environ)

    def check(self, backend: Backend, spec: JobSpec) -> None:
        """Say what is wrong with it before hosts are asked for."""
        from ..spmd.target import check_backend, check_size, choose_mesh

        launch = self.parse()
        check_backend(backend)
        check_size(spec, choose_mesh(spec, self.mesh or launch.mesh), launch.min_nodes)

    def run(self, backend: Backend, held: Held, *, cwd: str | None = None) -> None:
        """Run it to its end on hosts that were asked for; `cwd` is another folder than its own."""
        from ..spmd.run import run
        from ..spmd.target import Target, choose_mesh

        launch = self.parse()
        record = held.record
        if record.handle is None:
            raise NotAppliedError("this job has no allocation", hint="call apply() first")
        target = Target(
            backend=backend,
            handle=record.handle,
            spec=record.spec,
            mesh=choose_mesh(record.spec, self.mesh or launch.mesh),
        )
        run(
            target,
            launch,
            wrapper=self.wrapper,
            env=self.env,
            cwd=cwd or self.cwd,
            events=held.events,
            gathered=held.use,
        )

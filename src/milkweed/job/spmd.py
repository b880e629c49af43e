"""SPMD jobs: hosts for a torchrun program that an AppDef of torchx, or a command, declares."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from .. import registry
from ..backends import backend_names, load_backend, option_table
from ..errors import NotAppliedError, SpecError
from ..options import check_options
from ..spec import JobSpec, check_env, make_meshes, suggest
from ..spmd.appdef import Application, RoleSpec, read_appdef, read_command, resolve
from ..spmd.console import say
from ..spmd.schedulers import DIALECTS, Chosen, choose_backend
from ..state import Record, StateFile
from .base import JobTrait
from .held import Held
from .preparing import find_sent
from .programs import Program

ORIGINAL_KEYS = ("name", "entrypoint", "args", "env")
"""What may be said of a program that takes the place of another."""
PROGRAMS = "programs"
"""Where a spec keeps the programs of its meshes: they are the client's, and define no hosts."""


def serve(
    appdef: Any, scheduler: str = "mast_conda", scheduler_cfg: Mapping[str, Any] | None = None
) -> SPMDJob:
    """Ask for the hosts that an AppDef of torchx declares; `run_spmd()` then runs its program on them.

    A list of words is a torchrun command for one host. `scheduler` is `local_cwd` or `slurm` as torchx calls
    them, or any backend of milkweed; `scheduler_cfg` are its settings, by torchx's names or milkweed's.
    """
    alone = isinstance(appdef, list | tuple)
    app = read_command(cast("Sequence[str]", appdef)) if alone else read_appdef(appdef)
    chosen = choose_backend(scheduler, scheduler_cfg, app, backend_names())
    programs = [_make_program(role, app.name, _folder_of(role, chosen)) for role in app.roles]
    for role, program in zip(app.roles, programs, strict=True):
        _check_program(role, program, alone=alone)
    spec = _make_spec(app, chosen.backend, chosen.options, programs)
    for program in programs:
        program.check(load_backend(chosen.backend), spec)
    job = SPMDJob._of_spec(spec)  # pyright: ignore[reportPrivateUsage] its other half
    for note in (*app.notes, *chosen.notes):
        say(note)
    job.apply()
    say(f"job {app.name!r} asked {chosen.backend} for hosts; its handle is {job.handle}")
    return job


def _folder_of(role: RoleSpec, chosen: Chosen) -> str:
    """Where a role starts on its hosts: in its workspace, or where that is sent to; without one, here."""
    if load_backend(chosen.backend).capabilities.shares_files:
        return role.workspace or os.getcwd()
    sent = find_sent(chosen.options.get("sync_dirs") or (), role.workspace or os.getcwd())
    return sent or role.workspace


def _make_program(role: RoleSpec, app_id: str, folder: str) -> Program:
    made = resolve(role, folder=folder, app_id=app_id)
    return Program(
        command=made.command,
        mesh=made.name,
        wrapper=made.wrapper,
        env=dict(made.env),
        cwd=folder or None,
    )


def _check_program(role: RoleSpec, program: Program, *, alone: bool) -> None:
    """The command must mean what it says, and fit the hosts there will be; a mere command has one."""
    launch = program.parse()
    for word in (launch.script, *launch.args):
        if word in role.unexpanded:
            raise SpecError(
                f"roles.{role.name}.args: a shell would fill in {word!r}, and none runs the program",
                hint="write what it stands for, or read the variable in the program",
            )
    if launch.min_nodes > role.hosts and alone:
        raise SpecError(
            f"--nnodes: a command has one host, and this one asks for {launch.min_nodes}",
            hint="give an AppDef with num_replicas, or use `milkweed torchrun` on a job with more hosts",
        )
    if launch.min_nodes > role.hosts:
        raise SpecError(
            f"roles.{role.name}: --nnodes asks for {launch.min_nodes} hosts,"
            f" and num_replicas is {role.hosts}",
            hint="let them be the same",
        )


def _make_spec(
    app: Application, backend: str, said: Mapping[str, Any], programs: Sequence[Program]
) -> JobSpec:
    table = option_table(backend)
    options, client = check_options(table, said, where=backend) if table else (dict(said), {})
    kept = [program.to_json() for program in programs]
    return JobSpec(
        name=app.name,
        backend=backend,
        meshes=make_meshes(app.sizes, None, app.resources),
        options=options,
        client={**client, PROGRAMS: kept},
    )


class SPMDJob(JobTrait):
    """A job whose hosts run torchrun programs; made by `serve()`, or of the handle that `serve()` told."""

    def __init__(
        self,
        handle: str,
        scheduler: str,
        workspace: str | None = None,
        original_roles: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Take hold of an allocation that exists.

        Args:
            handle: what `serve()` told, or the allocation's id.
            scheduler: what `serve()` was told.
            workspace: the folder that ranks start in; else the one of `serve()`.
            original_roles: other programs than those of `serve()`: mappings with `entrypoint`, `args`,
                and `env`, whose variables come to those of `serve()`.
        """
        record, file = _find_record(handle.rpartition("/")[2], scheduler)
        self._declare(record.spec, on_change=None)
        self._services = record.spec.services
        self._held = Held(record, file)
        self._workspace = workspace
        self._roles = list(original_roles or ())

    _workspace: str | None = None
    _roles: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def _of_spec(cls, spec: JobSpec) -> Self:
        job = cls.__new__(cls)
        job._declare(spec, on_change=None)
        return job

    @property
    def handle(self) -> str:
        """By which this allocation is found again: `SPMDJob(handle, scheduler)`."""
        return f"{self.spec.backend}://milkweed/{self.apply_id or ''}"

    @property
    def programs(self) -> dict[str, Program]:
        """What runs on each mesh."""
        recorded = [Program.from_json(data) for data in self.spec.client.get(PROGRAMS, ())]
        found = {program.mesh or "": program for program in recorded}
        names = [mesh.name for mesh in self.spec.meshes]
        for number, role in enumerate(self._roles):
            mesh = str(role.get("name") or names[min(number, len(names) - 1)])
            found[mesh] = _read_original(role, mesh, found.get(mesh))
        return found

    def run_spmd(self, role: str | None = None) -> None:
        """Run the program on its hosts to its end; RanksFailedError when a rank fails for good.

        May be called again and again: the hosts stay until `kill()`. With several roles, name one.
        """
        found = self.programs
        if role is None and len(found) != 1:
            raise SpecError(
                "this job has several roles, and none was named",
                seen=", ".join(found),
                hint="name one of them: run_spmd('…')",
            )
        if role is not None and role not in found:
            raise SpecError(f"there is no role {role!r}", hint=suggest(role, found))
        program = found[role] if role is not None else next(iter(found.values()))
        with self._interruptible():
            program.run(self._backend(), self._require(), cwd=self._workspace)


def _read_original(role: Mapping[str, Any], mesh: str, known: Program | None) -> Program:
    """Another program than the one that `serve()` was told; it has the same folder and variables."""
    if unknown := sorted(set(role) - set(ORIGINAL_KEYS)):
        raise SpecError(
            f"original_roles: {unknown[0]!r} of role {mesh!r} is not known",
            hint=suggest(unknown[0], ORIGINAL_KEYS),
        )
    words = [*filter(None, [role.get("entrypoint")]), *role.get("args", ())]
    [found] = read_command(words).roles
    env: dict[str, Any] = {**(known.env if known else {}), **(role.get("env") or {})}
    check_env(env, where=f"original_roles.{mesh}.env")
    cwd = known.cwd if known else None
    return Program(command=found.command, mesh=mesh, wrapper=found.wrapper, env=env, cwd=cwd)


def _find_record(apply_id: str, scheduler: str) -> tuple[Record, StateFile]:
    """The record of an allocation, wherever it is kept."""
    backend = DIALECTS[scheduler].backend if scheduler in DIALECTS else scheduler
    for entry in registry.load_entries():
        if entry.apply_id == apply_id and entry.backend == backend:
            record = entry.state_file().load()
            if record is not None and record.apply_id == apply_id:
                return record, entry.state_file()
    raise NotAppliedError(
        f"no allocation {apply_id!r} on {backend} is recorded here",
        hint=f"`milkweed ls --on {backend}` asks the scheduler itself",
    )

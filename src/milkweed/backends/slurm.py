"""Hosts from Slurm: one batch job per allocation, with a keeper on every node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from .. import registry
from ..bell import route_to
from ..control import Connection, Door
from ..errors import AllocationEndedError, BackendError, DeadlineError, UnreachableError
from ..hosts import Host
from ..logs import follow_files, read_tail
from ..options import OptionField
from ..spec import JobSpec
from ..status import HostState, HostStatus, Liveness, Status
from . import slurm_commands as commands
from .base import Capabilities, Handle, LogLine, Request
from .slurm_check import check_components
from .slurm_options import SLURM_OPTIONS
from .slurm_script import DEFAULT_PYTHON, Submission, render_arguments, render_script
from .slurm_shape import make_components, make_parts
from .slurm_start import ensure_authority, ensure_client, load_parts, make_start, save_part
from .slurm_states import explain_state
explain_reason = lambda reason: ""
from .slurm_text import JobRow, parse_job_id, parse_mark

CANCEL_TIMEOUT_S = 120.0


class SlurmBackend:
    """A Slurm cluster, reached by its own commands."""

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(queued=True, batch=True)
    OPTIONS: ClassVar[Mapping[str, OptionField]] = SLURM_OPTIONS

    def validate(self, spec: JobSpec) -> None:
        """Compare what is asked for with what the cluster has; a cluster that does not answer refuses nothing."""
        parts = make_parts(spec)
        with contextlib.suppress(UnreachableError):
            commands.check_version()
            check_components(make_components(parts), commands.load_nodes())

    def submit(self, request: Request) -> Handle:
        """Write what the hosts will need, then hand the job to sbatch."""
        spec = request.spec
        folder = registry.folder_of(request.apply_id)
        logs = _ensure_logs(spec, request.apply_id)
        rows = commands.load_nodes()
        authority = ensure_authority(folder, request.apply_id)
        start = make_start(request, folder, logs, rows)
        submission = Submission(
            apply_id=request.apply_id,
            name=spec.name,
            generation=0,
            first=0,
            parts=tuple(make_parts(spec)),
            folder=str(folder),
            logs=str(logs),
            python=spec.options.get("python_exe", DEFAULT_PYTHON),
            client=tuple(request.client_script),
            state_path=request.state_path,
            cwd=start["cwd"],
        )
        for number, part in enumerate(submission.parts):
            name = submission.part_name(number)
            save_part(start, spec, part, name, authority=authority, rows=rows)
        answer = commands.run(render_arguments(submission), text=render_script(submission))
        commands.queue.wake()
        return _handle(request.apply_id, jobs=[parse_job_id(answer)])

    def find(self, apply_id: str) -> Handle | None:
        """Look through the queue for the mark that the job carries."""
        rows = [row for row in commands.queue.rows(0.0) if _is_marked(row, apply_id)]
        if not any(row.liveness is not Liveness.ENDED for row in rows):
            return _handle(apply_id, jobs=[row.job_id for row in rows]) if rows else None
        return _handle(apply_id, jobs=[row.job_id for row in rows])

    def glance(self, handle: Handle, *, fresh: bool = False) -> Status:
        """What Slurm alone says; asked of it no more often than it is worth."""
        return self._read(handle, 0.2 if fresh else None)

    def poll(self, handle: Handle) -> Status:
        """What Slurm says, and what the hosts' keepers say."""
        status = self._read(handle, 0.2)
        if status.liveness is not Liveness.RUNNING:
            return status
        doors = self._doors(handle)
        with ThreadPoolExecutor(max_workers=32) as pool:
            hosts = tuple(pool.map(_ask_host, doors))
        return Status(liveness=Liveness.RUNNING, hosts=hosts, details=status.details)

    def _read(self, handle: Handle, max_age_s: float | None) -> Status:
        try:
            rows = self._rows(handle, max_age_s)
        except UnreachableError as error:
            return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what)
        return make_status(rows)

    def _rows(self, handle: Handle, max_age_s: float | None = 1.0) -> list[JobRow]:
        rows = commands.queue.rows(max_age_s)
        return [row for row in rows if _is_marked(row, handle["apply_id"])]

    def _doors(self, handle: Handle) -> list[Door]:
        """Where the keeper of every host takes orders."""
        folder = Path(handle["folder"])
        parts = load_parts(folder, handle["generation"])
        doors: list[Door] = []
        for row in self._rows(handle):
            mark = parse_mark(row.comment)
            if mark is None or mark.component not in parts:
                continue
            part = parts[mark.component]
            for node, host in zip(row.nodes, part["hosts"], strict=False):
                machine = part["addresses"].get(node, node)
                credentials = str(ensure_client(folder, route_to(machine)))
                doors.append(
                    Door(
                        machine=machine,
                        port=part["port"],
                        host=f"{host['mesh']}/{host['rank']}",
                        credentials=credentials,
                    )
                )
        return doors

    def controls(self, handle: Handle) -> Sequence[str]:
        """Where the keepers take orders."""
        return [str(door) for door in self._doors(handle)]

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """The hosts, with the addresses their workers serve."""
        doors = self._doors(handle)
        with ThreadPoolExecutor(max_workers=32) as pool:
            return list(pool.map(_load_host, doors))

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """Read each host's file; the batch script's own is `slurm`."""
        parts = load_parts(Path(handle["folder"]), handle["generation"])
        files: dict[str, str] = {}
        for part in parts.values():
            for item in part["hosts"]:
                label = f"{item['mesh']}/{item['rank']}"
                files[label] = f"{part['logs']}/{item['mesh']}.{item['rank']}.log"
            files |= {word: f"{part['logs']}/{word}.log" for word in ("client", "slurm")}
        if host is not None and host not in files:
            raise BackendError(
                f"there is no host {host!r}", hint=f"the hosts are {', '.join(files)}"
            )
        chosen = {host: files[host]} if host else files

        def alive() -> bool:
            return self.glance(handle).liveness is not Liveness.ENDED

        for label, text in follow_files(chosen, follow=follow, alive=alive):
            yield LogLine(host=label, text=text)

    def cancel(self, handle: Handle) -> None:
        """Cancel every job that carries the mark, and wait until Slurm says that they are gone."""
        deadline_s = time.monotonic() + CANCEL_TIMEOUT_S
        asked = False
        while True:
            rows = [
                row
                for row in self._rows(handle, 0.05)
                if row.liveness is not Liveness.ENDED
            ]
            if not rows:
                return
            if not asked:
                commands.run(["scancel", *sorted({str(row.leader) for row in rows})])
                commands.queue.wake()
                asked = True
            if time.monotonic() > deadline_s:
                raise DeadlineError(
                    "Slurm has not ended the job yet", seen=make_status(rows).describe()
                )
            time.sleep(0.1)


def _handle(apply_id: str, *, jobs: Sequence[int]) -> Handle:
    folder = registry.folder_of(apply_id)
    return {
        "apply_id": apply_id,
        "generation": 0,
        "jobs": sorted(jobs),
        "folder": str(folder),
    }


def _is_marked(row: JobRow, apply_id: str) -> bool:
    mark = parse_mark(row.comment)
    return mark is not None and mark.apply_id == apply_id


def _ensure_logs(spec: JobSpec, apply_id: str) -> Path:
    base = spec.options.get("log_dir")
    folder = registry.folder_of(apply_id) / "logs"
    if base:
        folder = Path(base).absolute() / f"{spec.name}-{apply_id[:8]}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def make_status(rows: Sequence[JobRow]) -> Status:
    """What Slurm says of all components together."""
    if not rows:
        return Status(liveness=Liveness.ENDED, reason="Slurm has no trace of the job any more")
    seen = [row.liveness for row in rows]
    for liveness in (Liveness.RUNNING, Liveness.PENDING, Liveness.UNKNOWN, Liveness.ENDED):
        if liveness in seen:
            row = rows[seen.index(liveness)]
            return Status(liveness=liveness, reason=describe_row(row), details=_details(rows))
    raise AssertionError("a row has a liveness")


def describe_row(row: JobRow) -> str:
    """A job in one line: its id, state and reason in Slurm's words and in plain ones."""
    text = f"Slurm job {row.job_id} is {row.state}"
    if row.reason and row.reason != "None":
        text += f", reason {row.reason}"
    plain = explain_reason(row.reason) or explain_state(row.state)
    return f"{text}: {plain}" if plain else text


def _details(rows: Sequence[JobRow]) -> dict[str, str]:
    return {"slurm_jobs": ", ".join(str(row.job_id) for row in rows)}


def _ask_host(door: Door) -> HostStatus:
    try:
        with Connection(str(door)) as connection:
            answer = connection.ask({"op": "status"}, "status")
    except (UnreachableError, DeadlineError) as error:
        return HostStatus(host=door.host, state=HostState.STARTING, reason=error.seen)
    item = next(item for item in answer["hosts"] if item["host"] == door.host)
    return HostStatus(
        host=door.host,
        state=HostState(item["state"]),
        reason="\n".join(filter(None, [item["reason"], *item["tail"]])),
        exit_code=item["exit_code"],
    )


def _load_host(door: Door) -> Host:
    with Connection(str(door)) as connection:
        answer = connection.ask({"op": "status"}, "status")
    item = next(item for item in answer["hosts"] if item["host"] == door.host)
    mesh, _, rank = door.host.rpartition("/")
    return Host(
        name=answer["node"], mesh=mesh, rank=int(rank), address=item["address"], control=str(door)
    )

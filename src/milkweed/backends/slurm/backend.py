"""Hosts from Slurm: one batch job per allocation, with a keeper on every node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ... import registry
from ...errors import (
    BackendError,
    DeadlineError,
    SpecError,
    UnreachableError,
)
from ...option_tables import SLURM_OPTIONS, check_port
from ...options import OptionField
from ...plan import Renewal
from ...spec import JobSpec
from ...status import HostState, HostStatus, Liveness, Status
from .. import keepers
from ..base import Capabilities, Handle, Request
from ..credentials import ensure_authority
from ..keepers import Answer, ask_all
from ..launch import DEFAULT_PYTHON
from ..leads import check_renew
from ..parts import ensure_logs
from ..places import Kept, PartData, ask_host, make_door
from . import asking, commands
from .admission import Pace, admit, is_silent
from .check import check_components
from .hosts import NODES_AGE_S, load_nodes_of
from .places import Place, component_of, make_note, make_places, rows_of
from .renewal import followers, is_due, last_end
from .resize import (
    drop_gone,
    group,
    limit_growth,
    make_growth,
    next_component,
    places_of,
    release,
    surplus,
)
from .script import Submission, part_log, render_arguments, render_script
from .shape import Part, make_components, make_parts
from .start import (
    load_parts,
    make_start,
    save_note,
    save_part,
)
from .status import describe_row, explain_end, explain_ending, judge_host, make_status
from .text import JobRow, parse_mark

CANCEL_TIMEOUT_S = 120.0
_pace = Pace()


class SlurmBackend(Kept):
    """A Slurm cluster, reached by its own commands."""

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(queued=True, batch=True, resize=True)
    OPTIONS: ClassVar[Mapping[str, OptionField]] = SLURM_OPTIONS

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep

    def check(self, spec: JobSpec) -> None:
        """Refuse what is wrong on any cluster."""
        make_parts(spec)
        check_renew(spec.client.get("renew"))
        check_port(spec.options.get("monarch_port", 22222))

    def validate(self, spec: JobSpec) -> None:
        """Compare what is asked for with what the cluster has; one that does not answer refuses nothing."""
        self.check(spec)
        with contextlib.suppress(UnreachableError):
            commands.check_version()
            components, rows = make_components(make_parts(spec)), commands.load_nodes(NODES_AGE_S)
            if any(each.disk_mb for each in components):
                rows = commands.load_disks(rows)
            check_components(components, rows)

    # Asking

    def submit(self, request: Request) -> Handle:
        """Write what the hosts will need, then hand the job to sbatch."""
        if request.client_script and request.spec.client.get("renew"):
            raise SpecError(
                "renew: a batch client ends with its job, so a follow-up would have none"
            )
        parts = make_parts(request.spec)
        job_id = self._submit(request, parts, generation=0, first=0)
        return make_handle(request.apply_id, jobs=[job_id])

    def _submit(
        self, request: Request, parts: Sequence[Part], *, generation: int, first: int
    ) -> int:
        spec = request.spec
        folder = registry.folder_of(request.apply_id)
        logs = ensure_logs(spec, request.apply_id)
        rows = commands.load_nodes(10.0)
        start = make_start(request, folder, logs, rows)
        submission = Submission(
            apply_id=request.apply_id,
            name=spec.name,
            generation=generation,
            first=first,
            parts=tuple(parts),
            folder=str(folder),
            logs=str(logs),
            python=spec.options.get("python_exe", DEFAULT_PYTHON),
            client=tuple(request.client_script),
            state_path=request.state_path,
            cwd=start["cwd"],
            port=start["port"],
            bells=start["bells"],
            # A batch client that died with its node must not leave the other hosts behind: the job starts again.
            survives=spec.options.get("survive_node_failure", True) and not request.client_script,
            keep=start["keep"],
        )
        authority = ensure_authority(folder, request.apply_id)
        for number, part in enumerate(submission.parts):
            name = submission.part_name(number)
            save_part(start, spec, part, name, authority=authority, rows=rows)
        try:
            script = render_script(submission)
            return asking.ask(folder, render_arguments(submission), script, submission.mark(0))
        except UnreachableError:
            raise
        except BackendError:
            with contextlib.suppress(OSError):
                logs.rmdir()  # nothing was submitted, so nothing will be written there
            raise
        finally:
            commands.queue.wake()

    def resize(self, handle: Handle, spec: JobSpec) -> Handle:
        """Add what is wanted and not there as components of its own, and release what is not wanted."""
        folder, generation = Path(handle["folder"]), handle["generation"]
        rows = self._rows(handle, 0.0)
        unwanted = surplus(spec, places_of(rows, load_parts(folder, generation)))
        self._release(folder, unwanted)
        drop_gone(folder, load_parts(folder, generation), rows)
        parts = load_parts(folder, generation)
        places = places_of(rows, parts)
        lost = [] if unwanted else self._lost(places)
        jobs = list(handle["jobs"])
        request = Request(spec=spec, apply_id=handle["apply_id"], keep=_is_kept(parts))
        kept = [place for place in places if place not in lost]
        for part in limit_growth(make_growth(spec, kept), rows):
            first = next_component(load_parts(folder, generation))
            jobs.append(self._submit(request, [part], generation=generation, first=first))
        # Others take their place first: a job that has nothing left has ended.
        self._release(folder, group(lost))
        return {**handle, "jobs": sorted(jobs)}

    def _release(self, folder: Path, places: Mapping[int, Sequence[Place]]) -> None:
        for released in places.values():
            release(folder, released, make_door)

    def _lost(self, places: Sequence[Place]) -> list[Place]:
        """The hosts that will not answer any more: their nodes are down, or their keepers gone."""
        asked = self._ask([place for place in places if place.node])
        silent = [(place, answer) for place, answer in asked if isinstance(answer, str)]
        nodes = load_nodes_of(place for place, _answer in silent)
        judged = [(place, judge_host(place, answer, nodes)) for place, answer in silent]
        failed = [each for each in judged if each[1].state is HostState.FAILED]
        return [place for place, status in failed if not status.unheard]

    # Following up

    def renewal(self, handle: Handle, renew: str | None) -> Renewal:
        """How it stands with the generation that follows."""
        rows = _load_rows(handle, 0.5)
        if followers(rows, handle["generation"]):
            return Renewal.READY if self.poll(self.move(handle)).ready else Renewal.WAITING
        own = rows_of(rows, handle["apply_id"], handle["generation"])
        return Renewal.DUE if is_due(own, renew) else Renewal.NONE

    def renew(self, handle: Handle, spec: JobSpec) -> Handle:
        """Submit the same once more, as the next generation."""
        rows = _load_rows(handle, 0.0)
        if not followers(rows, handle["generation"]):
            parts = load_parts(Path(handle["folder"]), handle["generation"])
            request = Request(spec=spec, apply_id=handle["apply_id"], keep=_is_kept(parts))
            request = replace(request, follows_until=last_end(rows, handle["generation"]))
            generation = handle["generation"] + 1
            job_id = self._submit(request, make_parts(spec), generation=generation, first=0)
            return {**handle, "jobs": sorted([*handle["jobs"], job_id])}
        return handle

    def move(self, handle: Handle) -> Handle:
        """The next generation's handle."""
        return {**handle, "generation": handle["generation"] + 1}

    def retire(self, handle: Handle) -> None:
        """Cancel what is left of earlier generations."""
        if not handle["generation"]:
            return
        for row in _load_rows(handle, 0.0):
            mark = parse_mark(row.comment)
            old = mark is not None and mark.generation < handle["generation"]
            if old and row.liveness is not Liveness.ENDED:
                commands.run(["scancel", str(row.leader)])
                commands.queue.wake()

    def _rows(self, handle: Handle, max_age_s: float | None) -> list[JobRow]:
        return _load_rows(handle, max_age_s, handle["generation"])

    # Looking

    def find(self, apply_id: str) -> Handle | None:
        """Look through the queue for the mark that the job carries."""
        folder = registry.folder_of(apply_id)
        rows = asking.look(folder, apply_id, sleep=self._sleep)
        if not rows:
            _check_cluster(folder)
            return None
        # The oldest that lives: the record may not have gone over to its follow-up yet.
        alive = [row for row in rows if row.liveness is not Liveness.ENDED]
        ages = [mark.generation for row in alive or rows if (mark := parse_mark(row.comment))]
        jobs = [row.job_id for row in rows]
        return make_handle(apply_id, jobs=jobs, generation=min(ages))

    def allocations(self) -> Mapping[str, str]:
        """Every job in the queue that carries our mark."""
        rows = [row for row in commands.queue.rows(0.0) if row.liveness is not Liveness.ENDED]
        marks = [mark for row in rows if (mark := parse_mark(row.comment))]
        return {mark.apply_id: mark.name for mark in marks}

    def glance(self, handle: Handle, *, fresh: bool = False) -> Status:
        """What Slurm alone says; asked of it no more often than it is worth."""
        return self._read(handle, 0.2 if fresh else None)[0]

    def poll(self, handle: Handle) -> Status:
        """What Slurm says, and what the hosts' keepers say."""
        status, rows = self._read(handle, 0.2)
        if status.liveness is not Liveness.RUNNING:
            return status
        places = self._make_places(handle, rows)
        asked = self._ask(places)
        nodes = load_nodes_of(place for place, answer in asked if isinstance(answer, str))
        hosts = tuple(
            judge_host(place, answer, nodes)
            if isinstance(answer, str)
            else keepers.make_status(answer)
            for place, answer in asked
        )
        reason = status.reason if status.halted else ""
        return replace(status, hosts=hosts, reason=reason, expected_start="")

    def _read(self, handle: Handle, max_age_s: float | None) -> tuple[Status, list[JobRow]]:
        try:
            # What was read a moment ago may be older than the job: only a look from now on says that it is gone.
            rows = self._rows(handle, max_age_s) or self._rows(handle, 0.0)
            if not rows:
                _check_cluster(Path(handle["folder"]))
                _check_strangers(handle)
        except UnreachableError as error:
            return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what), []
        if all(row.liveness is Liveness.ENDED for row in rows):
            folder = Path(handle["folder"])
            parts = load_parts(folder, handle["generation"]).values()
            logs = [f"{part['logs']}/{part_log(part['part'])}" for part in parts]
            return explain_end(rows, _numbers(handle), folder, logs), rows
        status = make_status(rows)
        if status.ending and max_age_s is not None:
            status = replace(status, reason=explain_ending(rows) or status.reason)
        return status, rows

    def places(self, handle: Handle, *, note: bool = False) -> list[Place]:
        """Every host and its node."""
        return self._make_places(handle, self._rows(handle, 0.5), note=note)

    def _make_places(
        self, handle: Handle, rows: Sequence[JobRow], *, note: bool = False
    ) -> list[Place]:
        """Every host and its node; who connects while all nodes are there notes which is whose."""
        folder = Path(handle["folder"])
        parts = load_parts(folder, handle["generation"])
        for row in rows if note else ():
            part = parts.get(component_of(row))
            if part is not None and (made := make_note(part, row)):
                save_note(folder, part["part"], made)
                part.update(made)
        return make_places(rows, parts)

    def _ask(self, places: Sequence[Place]) -> list[tuple[Place, Answer | str]]:
        """Every host's own answer, or why there is none."""
        return ask_all(places, ask_host)

    def explain(self, handle: Handle, host: str) -> HostStatus:
        """What became of a host that no longer answers."""
        for place in self.places(handle):
            if place.host == host:
                return judge_host(place, "its keeper does not answer", load_nodes_of([place]))
        return HostStatus(host=host, state=HostState.UNKNOWN, reason="the job has no such host")

    def admit(self, handle: Handle, hosts: Sequence[str]) -> None:
        """Let in hosts whose nodes do not see the job's folder, through Slurm itself."""
        places = [place for place in self.places(handle) if place.host in hosts and place.node]
        waiting = [place for place in places if is_silent(place, time.time())]
        if waiting and _pace.is_due(waiting):
            admit(Path(handle["folder"]), places, lambda place: str(make_door(place)))

    def told_places(self, handle: Handle) -> list[Place]:
        """Every host as the job's own files have it."""
        return make_places([], load_parts(Path(handle["folder"]), handle["generation"]))

    # Ending

    def cancel(self, handle: Handle) -> None:
        """Cancel every job that carries the mark, and wait until Slurm says that they are gone."""
        if not _load_rows(handle, 0.0):
            _check_cluster(Path(handle["folder"]))
            _check_strangers(handle)
        deadline_s = time.monotonic() + CANCEL_TIMEOUT_S
        asked: set[int] = set()
        pause_s = 0.05
        while rows := self._live_rows(handle):
            new = {row.leader for row in rows} - asked
            if new:
                commands.run(["scancel", *(str(job_id) for job_id in sorted(new))])
                asked |= new
            if time.monotonic() > deadline_s:
                raise DeadlineError(
                    "Slurm was asked to cancel the job and has not ended it yet",
                    seen=make_status(rows).describe(),
                    hint="look at it with squeue; ask again later: kill() can be repeated",
                )
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.3, 1.0)

    def _live_rows(self, handle: Handle) -> list[JobRow]:
        folder = Path(handle["folder"])
        return asking.look(folder, handle["apply_id"], alive=True, sleep=self._sleep)


def make_handle(apply_id: str, *, jobs: Sequence[int], generation: int = 0) -> Handle:
    """All that is needed to find an allocation again; its folder may be gone."""
    return {
        "apply_id": apply_id,
        "generation": generation,
        "jobs": sorted(jobs),
        "folder": str(registry.folder_of(apply_id)),
    }


def _check_cluster(folder: Path) -> None:
    """What is not in this cluster's queue may be in another's: the job's own files tell which."""
    for part in load_parts(folder, None).values():
        commands.check_cluster(part.get("cluster", ""))


def _load_rows(
    handle: Handle, max_age_s: float | None, generation: int | None = None
) -> list[JobRow]:
    return asking.load_rows(Path(handle["folder"]), handle["apply_id"], max_age_s, generation)


def _numbers(handle: Handle) -> list[int]:
    """The numbers of the jobs of this generation, as far as it is known which those are."""
    marks = asking.load_marks(Path(handle["folder"]))
    own = handle["generation"]
    known = [job for job in handle["jobs"] if job not in marks or marks[job].generation == own]
    # A program that died before it could record a follow-up has left its mark.
    return known or sorted(job for job, mark in marks.items() if mark.generation == own)


def _check_strangers(handle: Handle) -> None:
    """A job that lives without our mark may be the one that is looked for: then nothing is known of it."""
    for row in asking.load_strangers(_numbers(handle)):
        raise UnreachableError(
            f"it is not known whose Slurm job {row.job_id} is",
            seen=f"{describe_row(row)}; its comment was milkweed's mark, and is {row.comment!r} now",
            hint=f"if it is this job, end it with `scancel {row.job_id}`",
        )


def _is_kept(parts: Mapping[int, PartData]) -> bool:
    return any(part["keep"] for part in parts.values())

"""Hosts from Slurm: one batch job per allocation, with a keeper on every node."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ... import registry
from ...errors import (
    BackendError,
    SpecError,
    UnreachableError,
)
from ...option_tables import SLURM_OPTIONS, check_port
from ...options import OptionField
from ...plan import Renewal
from ...spec import JobSpec
from ...status import HostState, HostStatus, Liveness, Status
from ..base import Capabilities, Handle, Look, Request
from ..credentials import ensure_authority
from ..launch import DEFAULT_PYTHON
from ..leads import check_renew
from ..noted import settle
from ..parts import ensure_logs
from ..places import make_door
from . import asking, commands, inherited
from .admission import Pace, admit, is_silent
from .ending import end_jobs
from .handles import (
    check_cluster,
    check_strangers,
    is_kept,
    load_rows,
    make_handle,
    numbers_of,
)
from .hosts import NODES_AGE_S, judge_hosts, load_nodes_of
from .places import (
    Place,
    declared_places,
    fit_places,
    make_note,
    make_places,
    missing_jobs,
    rows_of,
    standing_rows,
)
from .renewal import (
    ended_places,
    followers,
    is_broken,
    is_due,
    last_end,
    next_generation,
    next_try,
    serves,
    spare_jobs,
)
from .script import Submission, render_arguments, render_script
from .shape import Part, make_parts
from .sizing import Sized
from .start import (
    load_parts,
    make_start,
    remove_parts,
    save_note,
    save_part,
)
from .status import explain_end, explain_ending, judge_host, make_status
from .text import JobRow, parse_mark
from .trial import check_spec

_pace = Pace()


class SlurmBackend(Sized):
    """A Slurm cluster, reached by its own commands."""

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(
        queued=True, batch=True, resize=True, repairs=True
    )
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
        try:
            commands.check_version()
            inherited.check_clusters(os.environ)
            rows = commands.load_nodes(NODES_AGE_S)
        except UnreachableError:
            return
        check_spec(spec, rows)

    # Asking

    def submit(self, request: Request) -> Handle:
        """Write what the hosts will need, then hand the job to sbatch."""
        if request.client_script and request.spec.client.get("renew"):
            raise SpecError(
                "renew: a batch client ends with its job, so a follow-up would have none",
                hint="leave renew out, or run the program outside the job",
            )
        parts = make_parts(request.spec)
        job_id = self._submit(request, parts, generation=0, first=0)
        return make_handle(request.apply_id, jobs=[job_id], sizes=request.spec.sizes)

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
            whole=tuple(part.shape for part in make_parts(spec)),
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
        names = [submission.part_name(number) for number in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            save_part(start, spec, part, name, authority=authority, rows=rows)
        try:
            script = render_script(submission)
            argv = render_arguments(submission)
            environ = inherited.drop_overruled(os.environ, submission.shapes)
            return asking.ask(folder, argv, script, submission.mark(0), environ=environ)
        except UnreachableError:
            raise
        except BackendError:
            # Nothing was submitted, so nobody will read or write there.
            remove_parts(folder, names)
            with contextlib.suppress(OSError):
                logs.rmdir()
            raise
        finally:
            commands.queue.wake()

    # Following up

    def renewal(self, handle: Handle, renew: str | None, look: Look | None = None) -> Renewal:
        """How it stands with the generation that follows."""
        rows = load_rows(handle, 0.5)
        if following := followers(rows, handle["generation"]):
            status = (look or self.poll)(self.move(handle))
            if serves(status, handle.get("sizes")):
                return Renewal.READY
            if not self._is_broken(handle, status, rows):
                return Renewal.WAITING
        if not is_due(rows_of(rows, handle["apply_id"], handle["generation"]), renew):
            # What is left of a broken one is there, whether or not another is due.
            return Renewal.FAILED if following else Renewal.NONE
        again = next_try(Path(handle["folder"]), rows, handle["generation"])
        return Renewal.FAILED if again > time.time() else Renewal.DUE

    def _is_broken(self, handle: Handle, status: Status, rows: Sequence[JobRow]) -> bool:
        """Whether a follow-up has lost hosts; where it is all that is left, it is gone over to as it is."""
        own = rows_of(rows, handle["apply_id"], handle["generation"])
        if status.liveness is Liveness.UNKNOWN or all(r.liveness is Liveness.ENDED for r in own):
            return False
        return is_broken(status, self.places(self.move(handle)))

    def renew(self, handle: Handle, spec: JobSpec) -> Handle:
        """Submit the same once more, as the next generation."""
        folder, generation = Path(handle["folder"]), handle["generation"]
        settle(folder, self._sleep)  # what was asked for in vain may come after all
        rows = load_rows(handle, 0.0)
        if followers(rows, generation):
            # Hosts that wait, or serve, are given back for lost ones only when a second look agrees.
            if not self._is_broken(handle, self.look_again(self.move(handle)), rows):
                return handle
            self._cancel_following(handle)
        # One that failed may have been given other sizes, and so more parts.
        remove_parts(folder, (part["part"] for part in load_parts(folder, generation + 1).values()))
        request = Request(
            spec=spec,
            apply_id=handle["apply_id"],
            keep=is_kept(load_parts(folder, generation)),
            follows_until=last_end(rows, generation),
        )
        job_id = self._submit(request, make_parts(spec), generation=generation + 1, first=0)
        return {**handle, "jobs": sorted([*handle["jobs"], job_id])}

    def move(self, handle: Handle) -> Handle:
        """The handle of the generation that follows."""
        following = next_generation(load_rows(handle, 0.5), handle["generation"])
        return {**handle, "generation": following}

    def retire(self, handle: Handle) -> None:
        """Cancel what is left of earlier generations, and what has the mark of one that is used."""
        generation = handle["generation"]
        if not generation:
            return
        parts = load_parts(Path(handle["folder"]), generation)
        if spare := spare_jobs(load_rows(handle, 0.0), parts, generation):
            commands.run(["scancel", *map(str, spare)])
            commands.queue.wake()

    def _rows(self, handle: Handle, max_age_s: float | None) -> list[JobRow]:
        return load_rows(handle, max_age_s, handle["generation"])

    # Looking

    def find(self, apply_id: str) -> Handle | None:
        """Look through the queue for the mark that the job carries."""
        folder = registry.folder_of(apply_id)
        rows = asking.look(folder, apply_id, sleep=self._sleep)
        if not rows:
            check_cluster(folder)
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
        return self._poll(handle, 0.2, NODES_AGE_S)

    def look_again(self, handle: Handle) -> Status:
        """The same, and nothing that Slurm said before now counts."""
        return self._poll(handle, 0.0, 0.0)

    def _poll(self, handle: Handle, max_age_s: float, nodes_age_s: float) -> Status:
        status, rows = self._read(handle, max_age_s)
        try:
            return self._judge(handle, status, rows, nodes_age_s)
        except UnreachableError as error:  # it has fallen silent since
            return _unknown(error)

    def _judge(
        self, handle: Handle, status: Status, rows: Sequence[JobRow], nodes_age_s: float
    ) -> Status:
        """The same, with what is known of each host."""
        if status.liveness is Liveness.PENDING:
            ended = ended_places(self._make_places(handle, rows))
            lines = [judge_host(place, "", {}).reason.partition("\n")[0] for place in ended]
            return replace(status, reason="; ".join(dict.fromkeys([*lines, status.reason])))
        if status.liveness is not Liveness.RUNNING:
            return status
        judged = judge_hosts(self._ask(self._make_places(handle, rows)), nodes_age_s)
        hosts = tuple(host for _place, host in judged)
        reason = status.reason if status.halted else ""
        return replace(status, hosts=hosts, reason=reason, expected_start="")

    def _read(self, handle: Handle, max_age_s: float | None) -> tuple[Status, list[JobRow]]:
        try:
            rows = self._look(handle, max_age_s)
        except UnreachableError as error:
            return _unknown(error), []
        if all(row.liveness is Liveness.ENDED for row in rows):
            folder = Path(handle["folder"])
            parts = load_parts(folder, handle["generation"])
            return explain_end(rows, numbers_of(handle), folder, parts), rows
        status = make_status(rows)
        if status.ending and max_age_s is not None:
            status = replace(status, reason=explain_ending(rows) or status.reason)
        return status, rows

    def _look(self, handle: Handle, max_age_s: float | None) -> list[JobRow]:
        """Its jobs in the queue, those meant; UnreachableError where one that is not there may yet live."""
        folder = Path(handle["folder"])
        parts = load_parts(folder, handle["generation"])
        rows = standing_rows(self._rows(handle, max_age_s), parts).values()
        ended = all(row.liveness is Liveness.ENDED for row in rows)
        if not rows or (ended and missing_jobs(list(rows), parts)):
            # What was read a moment ago may be older than the job: only a look from now on says that it is gone.
            rows = standing_rows(self._rows(handle, 0.0), parts).values()
            if not rows:
                check_cluster(folder)
            check_strangers(numbers_of(handle))
        return list(rows)

    def places(self, handle: Handle, *, note: bool = False) -> list[Place]:
        """Every declared host and its node."""
        made = self._make_places(handle, self._rows(handle, 0.5), note=note)
        return declared_places(made, handle.get("sizes"))

    def _make_places(
        self, handle: Handle, rows: Sequence[JobRow], *, note: bool = False
    ) -> list[Place]:
        """Every host that there is and its node; who connects while all nodes are there notes which is whose."""
        folder = Path(handle["folder"])
        parts = load_parts(folder, handle["generation"])
        if jobs := missing_jobs(rows, parts):
            # Asked for since that look, or without its mark: only what a look from now on lacks is gone.
            rows = self._rows(handle, 0.0)
            rows = list(standing_rows(rows, parts).values())  # while it is known which that is
            strange = {row.leader for row in asking.load_strangers(jobs)}
            for part in parts.values():
                part["job"] = None if part["job"] in strange else part["job"]
        for at, row in standing_rows(rows, parts).items() if note else ():
            part = parts.get(at)
            if part is not None and (made := make_note(part, row)):
                save_note(folder, part["part"], made)
                part.update(made)
        return fit_places(make_places(rows, parts), parts, handle.get("sizes"))

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
        end_jobs(handle, self._sleep)


def _unknown(error: UnreachableError) -> Status:
    return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what)

"""Hosts from Flux: one job per component, with a keeper on every node of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ... import registry
from ...errors import BackendError, DeadlineError, UnreachableError
from ...option_tables import FLUX_OPTIONS, check_port
from ...options import OptionField
from ...spec import JobSpec
from ...status import HostState, HostStatus, Liveness, Status
from .. import keepers
from ..base import Capabilities, Handle, Request
from ..credentials import ensure_authority
from ..keepers import ask_all
from ..launch import DEFAULT_PYTHON
from ..noted import ask_noted, is_asked, look_twice
from ..parts import ensure_logs, load_parts, make_start, save_part
from ..places import Kept, ask_host
from ..programs import is_late
from . import commands
from .admission import admit, is_silent
from .check import check_parts
from .nodes import inventory
from .places import FluxPlace, make_places, rows_of
from .render import Submission, make_environment, render_jobspec
from .shape import make_parts
from .status import explain_end, judge_host, make_status
from .text import JobRow, parse_name

CANCEL_TIMEOUT_S = 120.0


class FluxBackend(Kept):
    """A Flux instance, reached by the command `flux`."""

    name: ClassVar[str] = "flux"
    capabilities: ClassVar[Capabilities] = Capabilities(queued=True, batch=True)
    OPTIONS: ClassVar[Mapping[str, OptionField]] = FLUX_OPTIONS

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._from_here: set[str] = set()
        """Instances that are this program's own, under an address that only another machine can use."""

    def validate(self, spec: JobSpec) -> None:
        """Compare what is asked for with what the instance has; one that does not answer refuses nothing."""
        parts = make_parts(spec)
        check_port(spec.options.get("monarch_port", 22222), "flux")
        with contextlib.suppress(UnreachableError):
            commands.check_version()
            found = inventory(commands.resolve(spec.options.get("uri", "")))
            check_parts(parts, found.nodes(), found.queues())

    # Asking

    def submit(self, request: Request) -> Handle:
        """Write what the hosts will need, then hand a job for each component to Flux."""
        spec = request.spec
        uri = _find_instance(spec.options.get("uri", ""))
        folder = registry.folder_of(request.apply_id)
        logs = ensure_logs(spec, request.apply_id)
        nodes = inventory(uri).nodes()
        start = make_start(request, folder, logs, nodes)
        start["uri"] = uri
        submission = Submission(
            apply_id=request.apply_id,
            name=spec.name,
            parts=tuple(make_parts(spec)),
            folder=str(folder),
            logs=str(logs),
            python=spec.options.get("python_exe", DEFAULT_PYTHON),
            client=tuple(request.client_script),
            state_path=request.state_path,
            cwd=start["cwd"],
            port=start["port"],
            bells=start["bells"],
            survives=spec.options.get("survive_node_failure", True),
            keep=start["keep"],
        )
        authority = ensure_authority(folder, request.apply_id)
        for number, part in enumerate(submission.parts):
            name = submission.part_name(number)
            machines = [node for node in nodes if node.has(part.shape.properties)]
            save_part(
                start, spec, part.hosts, name, authority=authority, machines=machines or nodes
            )
        try:
            jobs = ask_noted(folder, lambda: _submit_all(submission, uri))
        except UnreachableError:
            raise
        except BackendError:
            with contextlib.suppress(OSError):
                logs.rmdir()  # nothing was submitted, so nothing will be written there
            raise
        finally:
            commands.queue(uri).wake()
        return make_handle(request.apply_id, jobs=jobs, uri=uri)

    # Looking

    def find(self, apply_id: str) -> Handle | None:
        """Look through the instance's jobs for the mark that they carry."""
        folder = registry.folder_of(apply_id)
        uri = _told_uri(folder)
        try:
            rows = look_twice(folder, lambda: self._read_rows(uri, apply_id, 0.0), self._sleep)
        except UnreachableError:
            if uri or not folder.exists() or is_asked(folder):
                raise
            return None  # its files are not written yet, so nothing of it was handed to Flux
        if not rows:
            return None
        return make_handle(
            apply_id, jobs=[row.job_id for row in rows], uri=uri or commands.resolve()
        )

    def allocations(self) -> Mapping[str, str]:
        """Every job of this program's own instance that carries our mark."""
        rows = commands.queue().rows(0.0)
        alive = [row for row in rows if row.liveness is not Liveness.ENDED]
        marks = [mark for row in alive if (mark := parse_name(row.name))]
        return {mark.apply_id: mark.name for mark in marks}

    def _read_rows(self, uri: str, apply_id: str, max_age_s: float | None) -> list[JobRow]:
        """The allocation's jobs, as its instance tells them.

        The address of an instance is one of its first node, so on its other nodes it leads nowhere. There the
        instance is this program's own, if that has the jobs.
        """
        if uri in self._from_here:
            return rows_of(commands.queue().rows(max_age_s), apply_id)
        try:
            return rows_of(commands.queue(uri).rows(max_age_s), apply_id)
        except UnreachableError:
            rows = self._own_rows(apply_id, max_age_s) if uri else []
            if not rows:
                raise
            self._from_here.add(uri)
            return rows

    def _own_rows(self, apply_id: str, max_age_s: float | None) -> list[JobRow]:
        with contextlib.suppress(BackendError):
            if os.environ.get(commands.URI_ENV):
                return rows_of(commands.queue().rows(max_age_s), apply_id)
        return []

    def _uri(self, handle: Handle) -> str:
        return "" if handle["uri"] in self._from_here else handle["uri"]

    def _rows(self, handle: Handle, max_age_s: float | None) -> list[JobRow]:
        """The allocation's jobs; those that ended long ago are asked for by their numbers."""
        rows = self._read_rows(handle["uri"], handle["apply_id"], max_age_s)
        missing = set(handle["jobs"]) - {row.job_id for row in rows}
        if missing:
            # What was read a moment ago may be older than the job.
            rows = self._read_rows(handle["uri"], handle["apply_id"], 0.0)
            missing -= {row.job_id for row in rows}
        if missing:
            rows = [*rows, *commands.load_jobs(sorted(missing), uri=self._uri(handle))]
        return rows

    def glance(self, handle: Handle, *, fresh: bool = False) -> Status:
        """What Flux alone says; asked of it no more often than it is worth."""
        return self._read(handle, 0.2 if fresh else None)[0]

    def poll(self, handle: Handle) -> Status:
        """What Flux says, and what the hosts' keepers say."""
        return self._poll(handle, 0.2)

    def look_again(self, handle: Handle) -> Status:
        """The same, and nothing that Flux said before now counts."""
        return self._poll(handle, 0.0)

    def _poll(self, handle: Handle, max_age_s: float) -> Status:
        status, rows = self._read(handle, max_age_s)
        if status.liveness is not Liveness.RUNNING:
            return status
        uri = self._uri(handle)
        hosts = tuple(
            judge_host(place, answer, uri)
            if isinstance(answer, str)
            else keepers.make_status(answer)
            for place, answer in ask_all(self._make_places(handle, rows), ask_host)
        )
        return Status(liveness=Liveness.RUNNING, hosts=hosts, details=status.details)

    def _read(self, handle: Handle, max_age_s: float | None) -> tuple[Status, list[JobRow]]:
        try:
            rows = self._rows(handle, max_age_s)
        except UnreachableError as error:
            return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what), []
        if all(row.liveness is Liveness.ENDED for row in rows):
            folder = Path(handle["folder"])
            logs = [str(part["logs"]) for part in load_parts(folder, 0).values()]
            return explain_end(rows, handle["jobs"], folder, self._uri(handle), logs), rows
        return make_status(rows, time.time()), rows

    def places(self, handle: Handle, *, note: bool = False) -> list[FluxPlace]:  # noqa: ARG002  nothing changes
        """Every host and its node."""
        return self._make_places(handle, self._rows(handle, 0.5))

    def told_places(self, handle: Handle) -> list[FluxPlace]:
        """Every host as the job's own files have it."""
        return self._make_places(handle, [])

    def _make_places(self, handle: Handle, rows: Sequence[JobRow]) -> list[FluxPlace]:
        return make_places(rows, load_parts(Path(handle["folder"]), 0))

    def explain(self, handle: Handle, host: str) -> HostStatus:
        """What became of a host that no longer answers."""
        for place in self.places(handle):
            if place.host == host:
                return judge_host(place, "its keeper does not answer", self._uri(handle))
        return HostStatus(host=host, state=HostState.UNKNOWN, reason="the job has no such host")

    def admit(self, handle: Handle, hosts: Sequence[str]) -> None:
        """Let in hosts whose nodes do not see the job's folder, through Flux itself."""
        places = [place for place in self.places(handle) if place.host in hosts and place.node]
        silent = [place for place in places if is_silent(place, time.time())]
        if silent:
            admit(Path(handle["folder"]), silent, self._uri(handle))

    # Ending

    def cancel(self, handle: Handle) -> None:
        """Cancel every job that carries the mark, and wait until Flux says that they are gone."""
        deadline_s = time.monotonic() + CANCEL_TIMEOUT_S
        asked: set[int] = set()
        pause_s = 0.05
        while rows := self._live_rows(handle):
            new = {row.job_id for row in rows} - asked
            commands.cancel(sorted(new), uri=self._uri(handle), message="it was killed")
            asked |= new
            if time.monotonic() > deadline_s or is_late():
                raise DeadlineError(
                    "Flux was asked to cancel the job and has not ended it yet",
                    seen=make_status(rows, time.time()).describe(),
                    hint="look at it with flux jobs; ask again later: kill() can be repeated",
                )
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.3, 1.0)

    def _live_rows(self, handle: Handle) -> list[JobRow]:
        def read() -> list[JobRow]:
            rows = self._read_rows(handle["uri"], handle["apply_id"], 0.0)
            return [row for row in rows if row.liveness is not Liveness.ENDED]

        return look_twice(Path(handle["folder"]), read, self._sleep)


def _find_instance(uri: str) -> str:
    """The address of the instance to ask; a plain error where there is none to wait for."""
    try:
        return commands.resolve(uri)
    except UnreachableError as error:
        if uri or os.environ.get(commands.URI_ENV):
            raise
        raise BackendError(
            "there is no Flux instance here", seen=error.seen, hint=error.hint
        ) from error


def _submit_all(submission: Submission, uri: str) -> list[int]:
    """One job for each component; the first comes last, and with a batch client it ends the others."""
    jobs: list[int] = []
    environment = make_environment(os.environ)
    for number in reversed(range(len(submission.parts))):
        jobspec = render_jobspec(submission, number, environment=environment, others=jobs)
        jobs.append(commands.submit(jobspec, uri=uri))
    return jobs


def make_handle(apply_id: str, *, jobs: Sequence[int], uri: str) -> Handle:
    """All that is needed to find an allocation again; its folder may be gone."""
    return {
        "apply_id": apply_id,
        "jobs": sorted(jobs),
        "uri": uri,
        "folder": str(registry.folder_of(apply_id)),
    }


def _told_uri(folder: Path) -> str:
    """Where the instance is that the job's own files name; empty without them."""
    return next((part["uri"] for part in load_parts(folder, 0).values()), "")

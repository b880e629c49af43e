"""Jobs of Flux as steps: found again by their mark, with the needs that Flux itself keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ...backends.flux import commands
from ...backends.flux.text import parse_jobs
from ...backends.programs import read_answer
from ...errors import BackendError, SpecError, StateError, UnreachableError
from ...logs import follow_files
from ...options import Data
from .. import steps
from ..graph import WORKING, Group, NeedKind, Step, Work
from ..progress import Entry, State, StepStatus, judge_need
from ..steps import Handle, Scene
from .flux_groups import make_group
from .flux_job import make_command, make_details, make_jobspec
from .flux_output import Log, Source, make_label, read_output
from .flux_status import poll_jobs
from .groups import check_around, check_group, check_inside, labels_of, walk_group
from .local import check_cwd
from .requirements import read_machines

if TYPE_CHECKING:
    from .flux import Transformer

SETTLE_S = 5.0
"""How long an instance that answers again may take over what was sent to it before."""
_SLACK_S = 60.0
_AT_ONCE = 500
_NOT_FOR_JOBS = ("FLUX_", "MILKWEED_", "JOBSPEC_", "SLURM_", "PMI_", "PMIX_")
_KEPT = frozenset({"MILKWEED_HOME"})


def make_environment(environ: Mapping[str, str], hidden: tuple[str, ...]) -> dict[str, str]:
    """The variables of whoever submits, as `flux submit` takes them, without what belongs to other jobs."""
    return {
        key: value
        for key, value in environ.items()
        if (key in _KEPT or not key.startswith(_NOT_FOR_JOBS))
        and key not in hidden
        and _is_text(key + value)
    }


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class FluxStep(steps.StepBase):
    """What single jobs and groups have in common."""

    native: ClassVar[frozenset[NeedKind]] = frozenset(
        {"after", "afterok", "afterany", "afternotok"}
    )
    is_nested: ClassVar[bool] = False

    @property
    def _place(self) -> Transformer:
        return cast("Transformer", self.transformer)

    @property
    def _note(self) -> Path:
        return self.record.folder / "asked" / make_label(self.action.id)

    def run(self, stage: Path) -> Handle | StepStatus:
        """Hand the jobs over; those that an earlier try left are found first."""
        del stage
        self._check_folder()
        self.prepare()
        before = self._search() if self._note.exists() else {}
        self._note.parent.mkdir(mode=0o700, exist_ok=True)
        self._note.touch(mode=0o600)
        try:
            return self._submit_all(before)
        except UnreachableError:
            raise
        except BackendError as error:
            if "dependency" in error.seen and (status := self._judge_needs()):
                return status
            raise
        finally:
            commands.queue(self._place.uri).wake()

    def _submit_all(self, found: dict[int, int]) -> Handle:
        try:
            for number in range(len(self.options["jobs"])):
                if number not in found:
                    found[number] = commands.submit(self._jobspec(number), uri=self._place.uri)
        except UnreachableError:
            raise
        except BackendError:
            cancel_jobs([*found.values()], self._place.uri)
            raise
        return self._make_handle(found)

    def prepare(self) -> None:
        """Do what must be done on this machine before the job may start."""

    def _check_folder(self) -> None:
        said = self.options.get("folder", str(self.record.folder))
        if said != str(self.record.folder):
            raise StateError(
                f"the jobspec was made for {said}",
                seen=f"this run's folder is {self.record.folder}",
                hint="render the jobspec anew, with the same MILKWEED_HOME",
            )

    def _jobspec(self, number: int) -> dict[str, Any]:
        """What was planned, with what is known only now: numbers of other jobs, and variables."""
        planned: dict[str, Any] = json.loads(json.dumps(self.options["jobspec"]))
        system = planned["attributes"]["system"]
        environment = make_environment(os.environ, tuple(self.options.get("hidden", ())))
        if len(self.options["jobs"]) > 1:
            environment["JOBSPEC_REPLICA"] = str(number)
            planned["attributes"]["user"]["replica"] = number
        system["environment"] = environment
        if waits := self._dependencies():
            system["dependencies"] = [*system.get("dependencies", []), *waits]
        return planned

    def _dependencies(self) -> list[dict[str, str]]:
        """What Flux itself waits for: the needs that have not come true yet."""
        found: list[dict[str, str]] = []
        for need in self.action.needs:
            entry = self.before[need.id]
            if need.kind not in self.native or entry.handle is None:
                continue
            if judge_need(need.kind, entry) is None:
                ids = ids_of(entry.handle)
                found += [{"scheme": need.kind, "value": str(each)} for each in ids]
        return found

    def _judge_needs(self) -> StepStatus | None:
        """Whether a need came to nothing meanwhile: Flux refuses a job that could never start."""
        for need in self.action.needs:
            entry = self.before[need.id]
            if need.kind not in self.native or entry.handle is None:
                continue
            status = poll_jobs(ids_of(entry.handle), str(entry.handle.get("uri", "")))
            if status.state.over and judge_need(need.kind, Entry(status)) is False:
                reason = f"it needs {need.kind}:{need.id}, which is {status.state.value}"
                return StepStatus(State.SKIPPED, None, reason)
        return None

    def _make_handle(self, found: Mapping[int, int]) -> Handle:
        ids: list[Data] = [str(found[number]) for number in sorted(found)]
        handle: dict[str, Data] = {"id": ids[0], "ids": ids, "uri": self._place.uri}
        if self.transformer.tail.wants(self.action):
            for label, path in self._logs().items():
                self.transformer.tail.add(path, label)
            for source in self.sources(handle):
                self._place.keeper.follow(source, self.record.logs)
        return handle

    def sources(self, handle: Handle) -> list[Source]:
        """The jobs whose output it is."""
        inner = frozenset(self.options["prints"]) - frozenset(self.options["jobs"])
        return [
            Source(
                label=label,
                job_id=job_id,
                uri=str(handle.get("uri", "")),
                is_nested=self.is_nested or bool(self.options.get("nested")),
                inner=inner,
            )
            for label, job_id in zip(self.options["jobs"], ids_of(handle), strict=True)
        ]

    def _logs(self) -> dict[str, str]:
        return {
            label: str(self.record.logs / f"{make_label(label)}.log")
            for label in self.options["prints"]
        }

    def save(self, handle: Handle) -> None:
        """Keep what its jobs printed: an instance may end with all that it knows."""
        for source in self.sources(handle):
            self._place.keeper.save(source, self.record.logs)

    def poll(self, handle: Handle) -> StepStatus:
        """What Flux says; UNKNOWN when the instance does not answer."""
        try:
            return poll_jobs(ids_of(handle), str(handle.get("uri", "")))
        except BackendError as error:
            return StepStatus(State.UNKNOWN, None, error.what)

    def cancel(self, handle: Handle) -> None:
        """End the jobs; those that are over stay as they are."""
        cancel_jobs(ids_of(handle), str(handle.get("uri", "")))

    def find(self) -> Handle | None:
        """The jobs that carry the mark."""
        if not self._note.exists():
            return None
        found = self._search()
        if not found:
            # An instance that was silent may still read what it was sent.
            self._place.sleep(SETTLE_S)
            found = self._search()
        # What is missing of several is submitted by whoever runs the step again.
        return self._make_handle(found) if len(found) == len(self.options["jobs"]) else None

    def _search(self) -> dict[int, int]:
        """The jobs of this step, by the number of the replica."""
        name = self.options["jobspec"]["attributes"]["system"].get("job", {}).get("name", "")
        since = f"--since={self.record.created - _SLACK_S:.0f}"
        words = ["jobs", "--json", "--count=0", "-a", since]
        said = commands.run(words, uri=self._place.uri)
        found: dict[int, int] = {}
        for row in read_answer("flux jobs", lambda: parse_jobs(said)):
            if row.name == name:
                number = self._read_mark(row.job_id)
                if number is not None:
                    found.setdefault(number, row.job_id)
        return found

    def _read_mark(self, job_id: int) -> int | None:
        """Which replica a job is; None when it is not of this step."""
        said = commands.run(["job", "info", str(job_id), "jobspec"], uri=self._place.uri)
        jobspec: Any = read_answer("flux job info", lambda: json.loads(said))
        user = jobspec["attributes"].get("user", {})
        return int(user.get("replica", 0)) if user.get("milkweed") == self.mark else None

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        """What it printed so far, and with `follow` until its end."""
        sources = self.sources(handle)
        if all(Log(self.record.logs, source).is_saved for source in sources):
            return follow_files(self._logs(), follow=False)
        return self._read(handle, follow=follow)

    def _read(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        try:
            yield from read_output(
                self.sources(handle),
                follow=follow,
                alive=lambda: not self.poll(handle).state.over,
            )
        except UnreachableError:
            yield from follow_files(self._logs(), follow=False)


def ids_of(handle: Handle) -> list[int]:
    """The numbers of the jobs of a step."""
    ids: Any = handle.get("ids", ())
    return [int(each) for each in ids]


def cancel_jobs(job_ids: Sequence[int], uri: str) -> None:
    """End jobs, many with one word; those that have ended, or are not known any more, are fine."""
    for at in range(0, len(job_ids), _AT_ONCE):
        words = ["cancel", *map(str, job_ids[at : at + _AT_ONCE])]
        try:
            commands.run(words, uri=uri)
        except UnreachableError:
            raise
        except BackendError as error:
            told = error.seen.splitlines()
            if not all("inactive" in line or "unknown job" in line for line in told):
                raise
        finally:
            commands.queue(uri).wake()


def check_work(work: Work) -> None:
    """Refuse what could never be asked for so."""
    check_cwd(work)
    read_machines(work.attributes.get("requires"))
    if work.argv and isinstance(work.argv[0], str) and work.argv[0].startswith("-"):
        raise SpecError(f"command: {work.argv[0]!r} begins with a dash", hint="name a program")


class JobStep(FluxStep):
    """A job of its own, or several where there are replicas."""

    name = "submit"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what Flux could not be asked for."""
        super().validate(step, scene)
        if not isinstance(step, WORKING):
            return
        check_work(step.work)
        check_around(step, scene)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The jobspec that Flux gets."""
        if not isinstance(step, WORKING):
            return {}
        command = make_command(step, (), scene)
        found = make_details(step, make_jobspec(step, step.work, command, scene), scene)
        return {**found, "nested": True} if step.kind == "batch" else found


class SeveralStep(JobStep):
    """Replicas: a job for each of them. That one has failed Flux cannot wait for, only that all have."""

    name = "submit-replicas"
    native: ClassVar[frozenset[NeedKind]] = frozenset({"after", "afterok", "afterany"})


class GroupStep(FluxStep):
    """An instance of Flux with steps inside, which a small program on its first node carries out."""

    name = "group"
    is_nested: ClassVar[bool] = True

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what could not be carried out inside one instance."""
        super().validate(step, scene)
        if not isinstance(step, Group):
            return
        check_work(step.work)
        check_group(step)
        for group in scene.around(step):
            check_inside(step, step.work, group)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The jobspec that Flux gets, with those of the steps inside."""
        if not isinstance(step, Group):
            return {}
        found = make_details(step, make_group(step, scene, within=False), scene)
        return {**found, **_find_preparing(step, scene), "prints": [step.id, *labels_of(step)]}

    def prepare(self) -> None:
        """Get the secrets and archive the files of the steps inside: they must be there when the job starts."""
        from ..auth import get_secret, save_secret

        for source in self.options.get("auth", ()):
            save_secret(self.record, source["secret"], get_secret(source, os.environ))
        for stage in self.options.get("stage", ()):
            self._place.create_archive(stage["archive"], stage["path"])


def _find_preparing(group: Group, scene: Scene) -> dict[str, Data]:
    from ..graph import Auth, Stage
    from ..plan import make_source
    from .flux_files import archive_name, make_entries

    inside = list(walk_group(group))
    auths: list[Data] = [make_source(each) for each in inside if isinstance(each, Auth)]
    stages: list[Data] = [
        {"path": each.path, "archive": archive_name(scene.run_id, each.id)}
        for each in inside
        if isinstance(each, Stage) and each.path and make_entries(each, scene.run_id) is None
    ]
    found: dict[str, Data] = {"auth": auths} if auths else {}
    return {**found, "stage": stages} if stages else found

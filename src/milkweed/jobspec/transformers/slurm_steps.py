"""Jobs of Slurm as steps: one sbatch each, found again by its mark, with the needs that Slurm itself keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from ...backends.noted import SETTLE_S
from ...backends.slurm import asking, commands
from ...errors import BackendError, StateError
from ...logs import follow_files
from ...options import Data
from .. import steps
from ..graph import WORKING, Auth, Batch, Group, NeedKind, Stage, Step, Submit, Work
from ..plan import make_source
from ..progress import State, StepStatus
from ..steps import Handle, Scene
from .groups import (
    check_around,
    check_group,
    check_inside,
    cwd_of,
    environment_of,
    ids_of,
    labels_of,
    machines_of,
    walk_group,
)
from .local import check_cwd
from .slurm_files import Carried
from .slurm_groups import render_controller, render_group
from .slurm_jobs import make_files, make_job, pack_staged, parcel_name, save_parcel
from .slurm_script import (
    TASK,
    make_label,
    render_once,
    render_srun,
    render_task,
    render_work,
)
from .slurm_shape import check_work, render_step
from .slurm_status import find_began, poll_job, rows_of
from .task_file import Task

if TYPE_CHECKING:
    from .slurm import Transformer


class SlurmStep(steps.StepBase):
    """What single jobs and groups have in common."""

    native: ClassVar[frozenset[NeedKind]] = frozenset(
        {"after", "afterok", "afterany", "afternotok"}
    )

    def run(self, stage: Path) -> Handle:
        """Hand the script to sbatch."""
        del stage
        self._check_place()
        self.prepare()
        note = self.record.folder / "asked" / make_label(self.action.id)
        note.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [*self.options["command"], *self._dependency()]
        try:
            job_id = asking.ask(note, command, self.options["script"])
        finally:
            commands.queue.wake()
        return self._make_handle(job_id)

    def prepare(self) -> None:
        """Do what must be done on this machine before the job may start."""

    def _check_place(self) -> None:
        if self.options["folder"] != str(self.record.folder):
            raise StateError(
                f"the script was made for {self.options['folder']}",
                seen=f"this run's folder is {self.record.folder}",
                hint="render the jobspec anew, with the same MILKWEED_HOME",
            )

    def _dependency(self) -> list[str]:
        """What Slurm itself waits for: the needs that have not come true yet."""
        found: list[str] = []
        for need in self.action.needs:
            entry = self.before[need.id]
            if (
                need.kind in self.native
                and entry.handle is not None
                and not entry.status.state.over
            ):
                found.append(f"{need.kind}:{entry.handle['id']}")
        return [f"--dependency={','.join(found)}"] if found else []

    def _make_handle(self, job_id: int) -> Handle:
        if self.transformer.tail.wants(self.action):
            for label, path in self._logs().items():
                self.transformer.tail.add(path, label)
        return {"id": str(job_id), "cluster": commands.cluster_name()}

    def _logs(self) -> dict[str, str]:
        return {
            label: str(self.record.logs / f"{make_label(label)}.log")
            for label in self.options["prints"]
        }

    def poll(self, handle: Handle) -> StepStatus:
        """What Slurm says; UNKNOWN when its controller does not answer."""
        try:
            commands.check_cluster(str(handle.get("cluster", "")))
        except BackendError as error:
            return StepStatus(State.UNKNOWN, None, error.what)
        return poll_job(int(str(handle["id"])), self.mark, self.record.logs, self.labels())

    def cancel(self, handle: Handle) -> None:
        """End the job; one that is over stays as it is."""
        commands.check_cluster(str(handle.get("cluster", "")))
        cancel_jobs([str(handle["id"])])

    def find(self) -> Handle | None:
        """The job that carries the mark, or one that wrote down that it began."""
        rows = rows_of(self.mark, 0.0)
        asked = self.record.folder / "asked" / make_label(self.action.id) / "asked-for"
        if not rows and asked.exists():
            # A controller that was away may still read what it was sent.
            cast("Transformer", self.transformer).sleep(SETTLE_S)
            rows = rows_of(self.mark, 0.0)
        if rows:
            return self._make_handle(rows[0].leader)
        began = find_began(self.record.logs, self.labels())
        return None if began is None else self._make_handle(began)

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        """What it printed so far, and with `follow` until its end."""
        return follow_files(
            self._logs(), follow=follow, alive=lambda: not self.poll(handle).state.over
        )

    def labels(self) -> list[str]:
        """How the files of its jobs are called."""
        return [make_label(label) for label in self.options["jobs"]]

    def parcels(self) -> list[str]:
        """What of the run's folder the job wants where its nodes do not see it."""
        secrets = [f"secrets/{name}" for name in self.options.get("secrets", {})]
        return [*secrets, *(f"parcels/{name}" for name in self.options.get("parcels", ()))]


def cancel_jobs(job_ids: Sequence[str]) -> None:
    """End jobs; those that Slurm does not know any more are over."""
    try:
        if job_ids:
            commands.run(["scancel", *job_ids])
    except BackendError as error:
        if "Invalid job id" not in error.seen:
            raise
    finally:
        commands.queue.wake()


class JobStep(SlurmStep):
    """A job of its own: an srun of the command for all tasks, or a script that is started once."""

    name = "submit"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what Slurm could not be asked for."""
        super().validate(step, scene)
        if not isinstance(step, WORKING):
            return
        check_work(step.work)
        check_cwd(step.work)
        check_around(step, scene)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The command line of sbatch, and the script."""
        if not isinstance(step, WORKING):
            return {}
        work, once = step.work, isinstance(step, Batch)
        replicas = step.replicas if isinstance(step, Submit) else 1
        cwd = cwd_of(step, (), scene)
        task = _make_task(step, cwd, scene, replicas)
        words = render_once() if once else _render_tasks(work)
        output, error = (_join(cwd, said) for said in (work.output, work.error))
        files = [
            *make_files([step], scene),
            Carried(target=TASK, content=render_task(task).encode()),
        ]
        lines = render_work(words, output=output, error=error)
        found = make_job([step], step.id, work, scene, files=files, lines=lines, replicas=replicas)
        ids = ids_of(step)
        return {**found, "jobs": [*ids], "prints": [*ids]}


def _render_tasks(work: Work) -> list[str]:
    return render_srun(render_step(work.shape, label=work.shape.tasks > 1 and not work.output))


def _join(cwd: str | None, path: str | None) -> str | None:
    return None if path is None else os.path.join(cwd or "/", path)


def _make_task(step: Submit | Batch, cwd: str | None, scene: Scene, replicas: int) -> Task:
    once = isinstance(step, Batch)
    return Task(
        run_id=scene.run_id,
        step_id=step.id,
        argv=step.work.argv,
        tasks=1 if once else step.work.shape.tasks,
        cwd=cwd,
        environment=environment_of(step.work, ()),
        exports={each.secret: each.export for each in scene.secrets(step)},
        replica='"$SLURM_ARRAY_TASK_ID"' if replicas > 1 else "",
        alone=once,
        machines=machines_of(step.work, ()),
    )


class GroupStep(SlurmStep):
    """An allocation with steps inside, which a small program on its first node carries out."""

    name = "group"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what could not be carried out inside one allocation."""
        super().validate(step, scene)
        if not isinstance(step, Group):
            return
        check_work(step.work)
        check_cwd(step.work)
        check_group(step)
        for group in scene.around(step):
            check_inside(step, step.work, group)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The command line of sbatch, and the script with the plan of what is inside."""
        if not isinstance(step, Group):
            return {}
        inside = list(walk_group(step))
        files = [*make_files(inside, scene), *render_group(step, scene)]
        check = "command -v python3 >/dev/null || mw_fail 'a group needs python3 on its first node'"
        lines = [check, *render_work(render_controller(), output=None, error=None)]
        found = make_job(inside, step.id, step.work, scene, files=files, lines=lines)
        auths: list[Data] = [make_source(each) for each in inside if isinstance(each, Auth)]
        stages: list[Data] = [
            {"path": each.path, "parcel": parcel_name(each)}
            for each in inside
            if isinstance(each, Stage) and each.path and pack_staged(each, scene.run_id) is None
        ]
        more: dict[str, Data] = {"auth": auths} if auths else {}
        more |= {"stage": stages} if stages else {}
        return {**found, **more, "jobs": [step.id], "prints": [step.id, *labels_of(step)]}

    def prepare(self) -> None:
        """Get the secrets and pack the files of the steps inside: they must be there when the job starts."""
        from ..auth import get_secret, save_secret

        for source in self.options.get("auth", ()):
            save_secret(self.record, source["secret"], get_secret(source, os.environ))
        for stage in self.options.get("stage", ()):
            save_parcel(self.record, stage["path"], stage["parcel"])

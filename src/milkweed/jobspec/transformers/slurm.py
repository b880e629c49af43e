"""Steps on a Slurm cluster: a batch job for each piece of work, whose dependencies Slurm itself keeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...backends.slurm import commands
from ...backends.slurm.text import JobRow
from ...backends.slurm.trial import Trial, check_components
from ...errors import UnreachableError
from ...options import Data
from ...status import Liveness
from .. import steps
from ..graph import Stage
from ..plan import Plan
from ..progress import State, StepStatus
from ..runs import Run
from ..steps import Scene
from ..tail import Show
from .here import HONOURED, AwayStageStep, ElsewhereTransformer, HereStep, MaybeHereStep
from .slurm_courier import Courier
from .slurm_jobs import pack_staged, parcel_name, save_parcel
from .slurm_shape import make_component
from .slurm_status import rows_of
from .slurm_steps import GroupStep, JobStep, SlurmStep, cancel_jobs

if TYPE_CHECKING:
    from ..driver import Running, Wake

NODES_AGE_S = 60.0


class Transformer(ElsewhereTransformer):
    """A Slurm cluster, by its own commands."""

    name = "slurm"
    description = "batch jobs of a Slurm cluster"
    honours = HONOURED
    knows = ("partition", "account")

    def __init__(self, **settings: Data) -> None:
        super().__init__(**settings)
        self.courier = Courier()
        self.sleep: Callable[[float], object] = time.sleep

    def run(self, plan: Plan, *, wait: bool = False, show: Show | None = None) -> Run:
        """Compare what is asked for with what the cluster has, then carry out the plan."""
        self.check_cluster(plan)
        return super().run(plan, wait=wait, show=show)

    def check_cluster(self, plan: Plan) -> None:
        """Refuse what the cluster could never give, before anything is submitted."""
        asked = [action for action in plan.actions if "asks" in action.details]
        if not asked:
            return
        commands.check_version()
        nodes = commands.load_nodes(NODES_AGE_S)
        for action in asked:
            details: Any = action.details
            component = make_component(details["asks"], f"step {action.id}")
            check_components([component], nodes, partial(_make_trial, details))

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = 2.0
    ) -> Mapping[str, StepStatus]:
        """One look at the queue for all; processes of this machine are heard of as they end."""
        found = self.poll_here(running, wake, timeout_s)
        for name, each in running.items():
            if isinstance(each.step, SlurmStep):
                found[name] = each.step.poll(each.handle)
                if found[name].state is State.RUNNING:
                    self._attend(each.step)
        self.tail.pump()
        return found

    def _attend(self, step: SlurmStep) -> None:
        with contextlib.suppress(UnreachableError):
            for row in rows_of(step.mark):
                if row.liveness is Liveness.RUNNING:
                    self._visit(step, row)

    def _visit(self, step: SlurmStep, row: JobRow) -> None:
        self.courier.attend(str(row.job_id), step.labels(), step.record.folder, step.parcels())

    def end(self, running: Mapping[str, Running]) -> None:
        """End all jobs with one word."""
        jobs = self.end_here(running)
        for each in jobs:
            commands.check_cluster(str(each.handle.get("cluster", "")))
        cancel_jobs([str(each.handle["id"]) for each in jobs])


def _make_trial(details: Mapping[str, Any]) -> Trial:
    """The submission of a step, but for the jobs that it waits for."""
    return Trial(command=details["command"], script=details["script"])


class StageStep(AwayStageStep):
    """A file on every node of the jobs that come after: small ones travel in their scripts."""

    @classmethod
    def render_parcel(cls, step: Stage, scene: Scene) -> dict[str, Data]:
        """The archive of one that is too large for a script."""
        return {} if pack_staged(step, scene.run_id) else {"parcel": parcel_name(step)}

    def send(self) -> None:
        """Pack it into the run's folder."""
        if "parcel" in self.options:
            save_parcel(self.record, self.options["path"], self.options["parcel"])


class WorkStep(MaybeHereStep, JobStep):
    """Work: a job of Slurm, or a process of this machine."""


Transformer.register_step(steps.WriterStep)
Transformer.register_step(steps.AuthStep)
Transformer.register_step(StageStep)
Transformer.register_step(WorkStep)
Transformer.register_step(WorkStep, name="batch")
Transformer.register_step(GroupStep)
Transformer.register_step(HereStep)

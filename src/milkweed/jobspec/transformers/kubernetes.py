"""Steps in a Kubernetes cluster: work is a Job, a group is one pod; a process of this machine keeps the order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import BackendError, MilkweedError, SpecError, UnreachableError
from ...kube.api import Api
from ...kube.pod_logs import Follower
from ...kube.resources import SECRETS
from ...kube.via import api_of
from ...options import Data
from .. import steps
from ..graph import Graph, Need, Step, Submit
from ..order import sort_steps
from ..plan import Action, Plan
from ..progress import Progress, State, StepStatus
from ..runs import Run
from ..steps import Handle, Scene
from ..tail import Show
from ..transformer import TransformerBase
from . import local
from .kubernetes_cluster import (
    Picture,
    check_objects,
    check_rights,
    delete_job,
    delete_run,
    look,
    pods_of,
    wait_gone,
)
from .kubernetes_logs import follow_into, lines_of, write_output
from .kubernetes_objects import RUN_LABEL
from .kubernetes_reading import make_details
from .kubernetes_settings import Settings, read_settings, resolve
from .kubernetes_status import LOST, has_begun
from .kubernetes_steps import GroupStep, JobStep, LocalStep, files_of

if TYPE_CHECKING:
    from ..driver import Running, Wake

CHECKED = 64
"""How many objects the cluster looks at before anything is made."""
GONE_S = 8.0
"""How long pods that shall end are waited for; the cluster ends them, whether somebody waits or not."""
LAST_LINES_S = 2.0
"""How long the last lines of pods that are ended are waited for."""
SHOW_S, LOOK_S = 0.1, 0.25


class Transformer(TransformerBase):
    """A Kubernetes cluster."""

    name = "kubernetes"
    description = "Jobs of a Kubernetes cluster"
    honours = frozenset(
        {"duration_s", "environment", "cwd", "output", "gpus", "queue", "requires", "user"}
    )
    detaches = True
    reach: ClassVar[Callable[[str | None, str | None], Api]] = staticmethod(api_of)
    """How a cluster is reached, by context and kubeconfig."""

    def __init__(self, **settings: Data) -> None:
        super().__init__(**settings)
        self.environ: Mapping[str, str] = os.environ
        self._here: local.Transformer | None = None
        self._picture: Picture | None = None
        self._followers: dict[str, dict[str, Follower]] = {}
        self._over: list[tuple[str, str]] = []
        """Jobs whose end is known and written down."""

    @property
    def said(self) -> Settings:
        """The settings, checked."""
        return read_settings(self.settings)

    @property
    def api(self) -> Api:
        """The cluster."""
        return type(self).reach(self.said.context or None, self.said.kubeconfig or None)

    @property
    def namespace(self) -> str:
        """Where all objects are."""
        return self.said.namespace

    @property
    def here(self) -> local.Transformer:
        """What runs the steps that are said to be local."""
        self._here = self._here or local.Transformer()
        self._here.tail = self.tail
        return self._here

    # Before anything runs

    def check(self, graph: Graph) -> None:
        """Settings first: every step would complain of them."""
        read_settings(self.settings)
        super().check(graph)

    def render(self, graph: Graph, *, run_id: str | None = None) -> Plan:
        """The plan names the cluster and the namespace, so that it means the same everywhere."""
        self.settings = resolve(self.settings)
        return super().render(graph, run_id=run_id)

    def render_steps(self, steps: Sequence[Step], scene: Scene) -> Iterator[Action]:
        """Replicas are Jobs of their own, and an action that ends when all of them have."""
        for step in sort_steps(steps):
            if isinstance(step, Submit) and step.replicas > 1:
                ids = [f"{step.id}/{number}" for number in range(1, step.replicas + 1)]
                for number, each in enumerate(ids):
                    yield self._render_replica(step, each, number, scene)
                yield _make_join(step, ids)
            else:
                yield self.render_step(step, scene)

    def render_step(self, step: Step, scene: Scene) -> Action:
        """The action of one step; one that is local is done by another class."""
        action = super().render_step(step, scene)
        is_local = isinstance(step, Submit) and step.local
        return replace(action, kind=LocalStep.name) if is_local else action

    def _render_replica(self, step: Submit, step_id: str, number: int, scene: Scene) -> Action:
        action = replace(self.render_step(step, scene), id=step_id)
        if step.local:
            return replace(action, details={**action.details, "replica": number})
        seen = replace(scene, prepared={**scene.prepared, step_id: scene.prepared[step.id]})
        one = replace(step, id=step_id, replicas=1)
        return replace(action, details=make_details(one, seen, replica=number))

    # Carrying it out

    def run(self, plan: Plan, *, wait: bool = False, show: Show | None = None) -> Run:
        """Carry out a plan after the cluster itself has looked at it."""
        self.settings = plan.settings
        found = [body for action in plan.actions for body in _objects(action)]
        if found:
            check_rights(self.api, self.namespace)
            check_objects(self.api, found[:CHECKED])
        return super().run(plan, wait=wait, show=show)

    def can_start(self, action: Action, running: Mapping[str, Running]) -> bool:
        """Nothing is submitted while nobody answers."""
        if action.kind == LocalStep.name:
            return self.here.can_start(action, running)
        objects = _objects(action)
        if not objects:
            return True
        run_id = objects[0]["metadata"]["labels"][RUN_LABEL]
        return not isinstance(self._look_on(run_id).trouble(), UnreachableError)

    def _look_on(self, run_id: str) -> Picture:
        if self._picture is None:
            self._picture = Picture(self.api, self.namespace, run_id).start()
        return self._picture

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = 2.0
    ) -> Mapping[str, StepStatus]:
        """What has changed, as soon as the cluster tells."""
        ours = {key: each for key, each in running.items() if isinstance(each.step, JobStep)}
        others = {key: each for key, each in running.items() if key not in ours}
        pause_s = SHOW_S if self.tail.is_busy else timeout_s
        found: dict[str, StepStatus] = {}
        if others:
            found |= self.here.poll(others, wake, min(pause_s, LOOK_S))
        elif self._picture is not None:
            self._picture.bell.wait(wake, pause_s)
        elif not ours:
            wake.pause(pause_s)
        self._clear()
        found |= self._poll_jobs(ours)
        self.tail.pump()
        return found

    def _poll_jobs(self, running: Mapping[str, Running]) -> dict[str, StepStatus]:
        if not running:
            return {}
        run_id = next(iter(running.values())).step.record.id
        try:
            jobs, pods = self._look_on(run_id).objects()
        except MilkweedError as error:
            return dict.fromkeys(running, StepStatus(State.UNKNOWN, None, error.what))
        return {
            key: self._judge(key, each, jobs.get(str(each.handle["job"])), pods)
            for key, each in running.items()
        }

    def _judge(
        self,
        step_id: str,
        running: Running,
        job: Mapping[str, Any] | None,
        pods: Sequence[Mapping[str, Any]],
    ) -> StepStatus:
        """How one step is. Its end, and what is not in the picture yet, is looked at once more."""
        step = running.step
        if not isinstance(step, JobStep):
            return running.status
        own = pods_of(pods, job) if job is not None else []
        status = StepStatus(State.PENDING) if job is None else step.judge(job, own)
        if job is None or status.state.over:
            try:
                found = look(self.api, str(running.handle["namespace"]), str(running.handle["job"]))
            except MilkweedError as error:
                return StepStatus(State.UNKNOWN, None, error.what)
            if found is None:
                status, own = LOST, []
            else:
                status, own = step.judge(*found), found[1]
        self._follow(step_id, step, running.handle, own)
        if status.state.over and (trouble := self._settle(step_id, running)):
            return StepStatus(State.FAILED, status.code or 1, trouble)
        return status

    def _follow(
        self, step_id: str, step: JobStep, handle: Handle, pods: Sequence[Mapping[str, Any]]
    ) -> None:
        """Copy what pods print from their beginning."""
        followers = self._followers.setdefault(step_id, {})
        for pod in filter(has_begun, pods):
            name = str(pod["metadata"]["name"])
            files = step.pod_files(handle, pod)
            if name not in followers and files:
                lines = lines_of(self.api, str(handle["namespace"]), name)
                followers[name] = follow_into(lines, files, labelled=step.is_labelled)

    def _settle(self, step_id: str, running: Running) -> str:
        """All that a step printed is here before anybody hears that it is over; why not, where it cannot be."""
        for follower in self._followers.pop(step_id, {}).values():
            follower.finish()
        step, files = running.step, files_of(running.handle)
        for path in files.values():
            self.tail.close(path)
        self._over.append((str(running.handle["namespace"]), str(running.handle["job"])))
        try:
            if output := step.options.get("output"):
                write_output(os.path.join(step.record.cwd, str(output)), files)
        except OSError as error:
            return f"its output cannot be written: {error.strerror}: {error.filename}"
        return ""

    def _clear(self) -> None:
        """Delete Jobs whose end is written down; what cannot be deleted now is tried once more in the end."""
        while self._over and not self.said.keep:
            try:
                delete_job(self.api, *self._over[-1])
            except UnreachableError:
                return
            except BackendError:
                pass
            self._over.pop()

    def end(self, running: Mapping[str, Running]) -> None:
        """Delete all Jobs, then wait a while for their pods to end."""
        ours = {key: each for key, each in running.items() if isinstance(each.step, JobStep)}
        if others := {key: each for key, each in running.items() if key not in ours}:
            self.here.end(others)
        names: dict[str, list[str]] = {}
        for each in ours.values():
            each.step.cancel(each.handle)
            names.setdefault(str(each.handle["namespace"]), []).append(str(each.handle["job"]))
        for namespace, jobs in names.items():
            wait_gone(self.api, namespace, jobs, GONE_S)
        until_s = time.monotonic() + LAST_LINES_S
        for step_id in ours:
            for follower in self._followers.pop(step_id, {}).values():
                follower.finish(max(0.0, until_s - time.monotonic()))

    def finish(self, run: Run) -> None:
        """Leave nothing in the cluster, unless that is wanted; secrets in no case."""
        super().finish(run)
        if self._picture is not None:
            self._picture.stop()
            self._picture = None
        if any(action.kind == LocalStep.name for action in run.plan.actions):
            self.here.finish(run)
        if any(_objects(action) for action in run.plan.actions):
            self._delete_all(run)

    def _delete_all(self, run: Run) -> None:
        """The work is over, whether this can be done or not; the cluster forgets the rest in a week."""
        try:
            if self.said.keep:
                delete_run(self.api, self.namespace, run.id, (SECRETS,))
            else:
                delete_run(self.api, self.namespace, run.id)
        except BackendError as error:
            run.journal.write("left", reason=error.what)

    def _is_stuck(self, progress: Progress) -> bool:
        """Jobs go on without anybody here."""
        states = {entry.status.state for entry in progress.entries.values()}
        return not states & {State.PENDING, State.RUNNING, State.UNKNOWN}


def _objects(action: Action) -> list[Any]:
    found: Any = action.details.get("objects") or []
    return found


def _make_join(step: Step, ids: Sequence[str]) -> Action:
    needs = tuple(Need(each, "afterany") for each in ids)
    details: dict[str, Data] = {"steps": [*ids]}
    return Action(id=step.id, kind=JoinStep.name, needs=(*needs, *step.needs), details=details)


class JoinStep(local.JoinStep):
    """What is over when all replicas of a step are."""

    name = "join"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Nobody asks for it by this name."""
        del step, scene
        raise SpecError("a file cannot name such a step", hint="say `replicas:` of a task")


Transformer.register_step(steps.WriterStep)
Transformer.register_step(steps.AuthStep)
Transformer.register_step(local.StageStep)
Transformer.register_step(JobStep)
Transformer.register_step(JobStep, name="batch")
Transformer.register_step(GroupStep)
Transformer.register_step(JoinStep)
Transformer.register_step(LocalStep)

"""The steps of a jobspec in a cluster: Jobs, and groups that are one pod each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...backends.kubernetes.pod_parts import part
from ...errors import SpecError
from ...kube.resources import JOBS
from ...logs import follow_files
from ...options import Data
from .. import steps
from ..graph import WORKING, Group, Step, Submit
from ..progress import StepStatus
from ..steps import Handle, Scene
from . import local
from .kubernetes_cluster import delete_job, ensure_objects, look, look_up, why_no_pods
from .kubernetes_logs import lines_of
from .kubernetes_objects import MARK_NOTE, name_of
from .kubernetes_reading import check_group, check_work, log_files, make_details, make_group
from .kubernetes_status import LOST, has_begun, index_of, judge_job

if TYPE_CHECKING:
    from .kubernetes import Transformer


class LocalStep(local.JobStep):
    """Work that is said to be local: a process of this machine."""

    name = "local"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Nobody asks for it by this name."""
        if not isinstance(step, Submit):
            raise SpecError("a file cannot name such a step", hint="say `local: true` of a task")
        super().validate(step, scene)

    @property
    def _place(self) -> local.Transformer:
        return cast("Transformer", self.transformer).here


class JobStep(steps.StepBase):
    """Run a command in pods: a Job."""

    name = "submit"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what a cluster cannot give."""
        super().validate(step, scene)
        if isinstance(step, Submit) and step.local and step.parent is None:
            LocalStep.validate(step, scene)
        elif isinstance(step, WORKING):
            check_work(step, scene)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The objects, whole."""
        if isinstance(step, Submit) and step.local:
            return LocalStep.render(step, scene)
        return make_details(step, scene) if isinstance(step, WORKING) else {}

    @property
    def place(self) -> Transformer:
        """The transformer, which knows the cluster."""
        return cast("Transformer", self.transformer)

    def run(self, stage: Path) -> Handle:
        """Make the objects; those that an earlier try made are taken as they are."""
        del stage
        ensure_objects(self.place.api, self.options["objects"], self._secrets())
        handle = self._handle()
        for label, path in files_of(handle).items():
            self.place.tail.add(path, label)
        return handle

    def _secrets(self) -> dict[str, bytes]:
        from ..auth import get_secret

        found: dict[str, bytes] = {}
        inside = {each["secret"]: each for each in self.options.get("auth", ())}
        for body in self.options["objects"]:
            for name in body["data"] if body["kind"] == "Secret" else ():
                if name in inside:
                    found[name] = get_secret(inside[name], self.place.environ)
                else:
                    found[name] = (self.record.secrets / name).read_bytes()
        return found

    def _handle(self) -> Handle:
        return {
            "namespace": self.place.namespace,
            "job": name_of(self.record.id, self.action.id),
            "logs": log_files(str(self.record.logs), self.action.id, self.labels()),
        }

    def labels(self) -> list[str]:
        """What stands before the lines that it prints."""
        if "labels" in self.options:
            return list(self.options["labels"])
        tasks = int(self.options["tasks"])
        ranks = range(tasks)
        return [self.action.id] if tasks == 1 else [f"{self.action.id}.{rank}" for rank in ranks]

    def pod_files(self, handle: Handle, pod: Mapping[str, Any]) -> dict[str, str]:
        """The files for what a pod prints: of all labels, or of its one task; none where it only waits."""
        files = files_of(handle)
        if self.is_labelled:
            return files
        labels, index = self.labels(), index_of(pod)
        return {labels[index]: files[labels[index]]} if index < len(labels) else {}

    @property
    def is_labelled(self) -> bool:
        """Whether a line begins with what printed it."""
        return "labels" in self.options

    def poll(self, handle: Handle) -> StepStatus:
        """How its Job is."""
        found = look(self.place.api, str(handle["namespace"]), str(handle["job"]))
        return LOST if found is None else self.judge(*found)

    def judge(self, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> StepStatus:
        """How it is, from its Job and pods."""
        status = judge_job(job, pods, holding=self.options["pods"] > self.options["tasks"])
        if pods or status.reason or status.state.over:
            return status
        return replace(status, reason=why_no_pods(self.place.api, job))

    def cancel(self, handle: Handle) -> None:
        """Delete the Job, and with it whatever belongs to it."""
        delete_job(self.place.api, str(handle["namespace"]), str(handle["job"]))

    def find(self) -> Handle | None:
        """The Job that carries the mark."""
        handle = self._handle()
        job = look_up(self.place.api, JOBS, str(handle["namespace"]), str(handle["job"]))
        if job is None or part(job, "metadata", "annotations").get(MARK_NOTE) != self.mark:
            return None
        return handle

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        """What it printed: as its driver has copied it; of one that lost its driver, as the cluster has it."""
        files = files_of(handle)
        over = self.record.progress().entries[self.action.id].status.state.over
        if over or self.record.is_driven():
            return follow_files(files, follow=follow, alive=self.record.is_driven)
        return self._ask_logs(handle)

    def _ask_logs(self, handle: Handle) -> Iterator[tuple[str, str]]:
        namespace = str(handle["namespace"])
        _, pods = look(self.place.api, namespace, str(handle["job"])) or ({}, [])
        for pod in sorted(filter(has_begun, pods), key=index_of):
            labels = list(self.pod_files(handle, pod))
            lines = lines_of(self.place.api, namespace, pod["metadata"]["name"])
            for line in lines.read(follow=False) if labels else ():
                text = line.rstrip(b"\n").decode(errors="replace")
                label, tab, rest = text.partition("\t")
                known = self.is_labelled and tab and label in labels
                yield (label, rest) if known else (labels[0], text)


def files_of(handle: Handle) -> dict[str, str]:
    """Where what each label printed is kept."""
    logs: Any = handle.get("logs") or {}
    return {str(label): str(path) for label, path in logs.items()}


class GroupStep(JobStep):
    """Run the steps of a group in one pod, which is their allocation."""

    name = "group"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse a group that is not one pod."""
        if not isinstance(step, Group):
            raise SpecError("a file cannot name such a step", hint="write it under `groups:`")
        check_group(step, scene)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The pod, with all that runs inside."""
        return make_group(step, scene) if isinstance(step, Group) else {}

"""What is made in a cluster for one step: a Job, the ConfigMaps with its files, a Secret. Pure."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...options import Data
from ..graph import Shape
from ..plan import make_mark
from . import kubernetes_inside
from .kubernetes_files import File, make_data, make_source, pack, render_placing
from .kubernetes_settings import Settings

RUN_LABEL = "milkweed.dev/jobspec-run"
STEP_LABEL = "milkweed.dev/jobspec-step"
MARK_NOTE = "milkweed.dev/jobspec-mark"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
INDEX_NOTE = "batch.kubernetes.io/job-completion-index"
ARCH_LABEL = "kubernetes.io/arch"
HOST_LABEL = "kubernetes.io/hostname"
CONTAINER = "work"
IN, AUTH, RUN, SECRETS = "/jobspec/in", "/jobspec/auth", "/jobspec/run", "/jobspec/secrets"
START, CONTROL, PARTS = "start.sh", "control.py", "parts.json"
KEPT_S = 7 * 24 * 3600
"""How long what nobody cleared away stays in the cluster after its end."""
MAX_JOB_NAME = 52
"""The longest name of a Job: its pods' names have its index and a random word behind it."""
_DIGEST = 10
_FIND_PYTHON = f"""\
for python in python3 python; do
    command -v "$python" >/dev/null && exec "$python" {IN}/{CONTROL} {IN}/{PARTS} {SECRETS}
done
echo "jobspec: this image has no Python, which several tasks in one pod, and groups, need" >&2
exit 127
"""
_HOLD = """\
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
    trap 'exit 0' TERM
    while :; do sleep 3600 & wait $!; done
fi
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the slots and tasks of a shape lie in pods."""

    pods: int
    tasks: int
    cores: int
    """Of each pod; so are the GPUs."""
    gpus: int = 0
    apart: bool = False
    """Each pod on a node of its own."""
    holding: bool = False
    """The command runs in the first pod; the others hold their nodes."""

    @property
    def crowded(self) -> bool:
        """Whether a pod has more than one task to start."""
        return not self.holding and self.tasks > self.pods


def lay_out(shape: Shape, *, once: bool) -> Layout:
    """One pod a node where nodes are said, else one pod a slot; `once`: a command that is started once."""
    pods = shape.nodes or (1 if once else shape.slots)
    tasks = 1 if once else shape.tasks
    if not once:
        pods = min(pods, tasks)  # a pod without a task would be of no use to anybody
    per_pod = shape.slots // (shape.nodes or (1 if once else shape.slots))
    return Layout(
        pods=pods,
        tasks=tasks,
        cores=per_pod * shape.cores_per_slot,
        gpus=per_pod * shape.gpus_per_slot,
        apart=shape.nodes is not None and pods > 1,
        holding=once and pods > 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything that decides what is made for one step."""

    run_id: str
    step_id: str
    layout: Layout
    settings: Settings
    argv: Sequence[str] = ()
    cwd: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    files: Sequence[File] = ()
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    """The secrets it may use, and the variables in which it finds them."""
    parts: Sequence[Mapping[str, Data]] = ()
    """What is to be done inside, where that is more than one command."""
    duration_s: float | None = None
    queue: str | None = None
    arch: str | None = None
    replica: int | None = None

    @property
    def name(self) -> str:
        """The name of its objects: the same step of the same run has the same one."""
        return name_of(self.run_id, self.step_id)

    @property
    def prepared(self) -> bool:
        """Whether something comes before its command, which takes a shell."""
        unset = None in self.environment.values()
        return bool(self.files or self.secrets or self.parts or unset or self.layout.holding)


def name_of(run_id: str, step_id: str) -> str:
    """The name of a step's objects."""
    digest = hashlib.sha256(make_mark(run_id, step_id).encode()).hexdigest()[:_DIGEST]
    plain = re.sub(r"[^a-z0-9]+", "-", step_id.lower())[: MAX_JOB_NAME - _DIGEST - 1]
    return f"{plain.strip('-') or 'step'}-{digest}"


def make_objects(task: Task) -> list[dict[str, Data]]:
    """The manifests, in the order in which they are made; a Secret is filled in then."""
    packs = pack(task.files, _make_texts(task)) if task.prepared else []
    maps = [(f"{task.name}-{number}", files) for number, files in enumerate(packs)]
    found = [_make_object(task, "ConfigMap", name, make_data(files)) for name, files in maps]
    if task.secrets:
        found.append(_make_object(task, "Secret", task.name, {"data": dict.fromkeys(task.secrets)}))
    return [*found, _make_job(task, [make_source(name, files) for name, files in maps])]


def _make_object(
    task: Task, kind: str, name: str, body: Mapping[str, Data], *, version: str = "v1"
) -> dict[str, Data]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": task.settings.namespace,
            "labels": dict[str, Data](_labels(task)),
            "annotations": {MARK_NOTE: make_mark(task.run_id, task.step_id)},
        },
        **body,
    }


def _labels(task: Task) -> dict[str, str]:
    return {RUN_LABEL: task.run_id, STEP_LABEL: task.name}


# What runs in the container


def _make_texts(task: Task) -> dict[str, str]:
    texts = {START: make_start(task)}
    if task.parts:
        layout = task.layout
        told: dict[str, Data] = {"pods": layout.pods, "cores": layout.cores, "gpus": layout.gpus}
        told["parts"] = [dict(part) for part in task.parts]
        texts |= {
            PARTS: json.dumps(told, indent=1) + "\n",
            CONTROL: inspect.getsource(kubernetes_inside),
        }
    return texts


def make_start(task: Task) -> str:
    """The script before the command: files and secrets to their places, variables taken away."""
    lines = ["set -e"]
    if task.layout.holding:
        lines.append(_HOLD.rstrip("\n"))
    lines += render_placing(task.files, IN, RUN)
    if task.secrets:
        copy = f'cat "$each" >"{SECRETS}/${{each##*/}}"'
        lines.append(f"(umask 077; for each in {AUTH}/*; do {copy}; done)")
    if task.parts:
        return "\n".join([*lines, _FIND_PYTHON])
    for name, export in task.secrets.items():
        if export:  # a word behind it, which is taken off again, saves newlines at its end
            lines.append(f"{export}=$(cat {SECRETS}/{shlex.quote(name)}; echo x)")
            lines.append(f'export {export}="${{{export}%x}}"')
    lines += [f"unset {name}" for name, value in task.environment.items() if value is None]
    if task.cwd:
        lines.append(f"cd {shlex.quote(task.cwd)}")
    return "\n".join([*lines, 'exec "$@"', ""])


def make_command(task: Task) -> list[Data]:
    """The words of the container; Kubernetes would fill in `$(NAME)`, so that every dollar is doubled."""
    if not task.prepared:
        return [escape(word) for word in task.argv]
    return ["/bin/sh", f"{IN}/{START}", *(() if task.parts else map(escape, task.argv))]


def escape(word: str) -> str:
    """A word as it arrives unchanged."""
    return word.replace("$", "$$")


def _make_environment(task: Task) -> list[Data]:
    index: Data = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_NOTE}']"}}
    own: dict[str, Data] = {
        "JOBSPEC_RUN": task.run_id,
        "JOBSPEC_STEP": task.step_id,
        "JOBSPEC_FILES": RUN,
        "JOBSPEC_TASKS": str(task.layout.tasks),
        "JOBSPEC_NODES": str(task.layout.pods),
    }
    if task.replica is not None:
        own["JOBSPEC_REPLICA"] = str(task.replica)
    if task.secrets:
        own["JOBSPEC_SECRETS"] = SECRETS
    said: dict[str, Data] = {} if task.parts else dict(task.environment)
    found = {name: value for name, value in {**said, **own}.items() if isinstance(value, str)}
    made: list[Data] = [{"name": key, "value": escape(value)} for key, value in found.items()]
    return [
        *made,
        {"name": "JOBSPEC_NODE", "valueFrom": index},
        {"name": "JOBSPEC_TASK_RANK", "valueFrom": index},
    ]


# The Job


def _make_job(task: Task, sources: Sequence[Mapping[str, Data]]) -> dict[str, Data]:
    layout = task.layout
    spec: dict[str, Data] = {
        "completionMode": "Indexed",
        "completions": layout.pods,
        "parallelism": layout.pods,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": KEPT_S,
    }
    if layout.holding:
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    note: dict[str, Data] = {MARK_NOTE: make_mark(task.run_id, task.step_id)}
    meta: dict[str, Data] = {"labels": dict[str, Data](_labels(task)), "annotations": note}
    spec["template"] = {"metadata": meta, "spec": _make_pod(task, sources)}
    made = _make_object(task, "Job", task.name, {"spec": spec}, version="batch/v1")
    if task.queue:
        metadata = made["metadata"]
        labels = metadata["labels"] if isinstance(metadata, dict) else None
        if isinstance(labels, dict):
            labels[QUEUE_LABEL] = task.queue
    return made


def _make_pod(task: Task, sources: Sequence[Mapping[str, Data]]) -> dict[str, Data]:
    said, layout = task.settings, task.layout
    pod: dict[str, Data] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # the first process of a container would not hear SIGTERM
        "automountServiceAccountToken": bool(said.service_account),
    }
    if said.service_account:
        pod["serviceAccountName"] = said.service_account
    if said.pull_secret:
        pod["imagePullSecrets"] = [{"name": said.pull_secret}]
    if task.duration_s is not None:
        pod["activeDeadlineSeconds"] = max(1, math.ceil(task.duration_s))
    if task.arch:
        pod["nodeSelector"] = {ARCH_LABEL: task.arch}
    if layout.apart:
        selector: Data = {"matchLabels": {STEP_LABEL: task.name}}
        rule: Data = {"topologyKey": HOST_LABEL, "labelSelector": selector}
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        pod["affinity"] = {"podAntiAffinity": {key: [rule]}}
    volumes = _make_volumes(task, sources)
    mounts: list[Data] = [
        {"name": name, "mountPath": path, "readOnly": True} if path in {IN, AUTH} else
        {"name": name, "mountPath": path}
        for name, path, _ in volumes
    ]  # fmt: skip
    pod["containers"] = [_make_container(task, mounts)]
    pod["volumes"] = [{"name": name, **volume} for name, _, volume in volumes]
    return pod


def _make_volumes(
    task: Task, sources: Sequence[Mapping[str, Data]]
) -> list[tuple[str, str, Mapping[str, Data]]]:
    """Name, place and kind of each volume."""
    found: list[tuple[str, str, Mapping[str, Data]]] = [("run", RUN, {"emptyDir": {}})]
    if sources:
        found.append(("in", IN, {"projected": {"sources": [dict(each) for each in sources]}}))
    if task.secrets:
        found.append(("auth", AUTH, {"secret": {"secretName": task.name, "defaultMode": 0o444}}))
        found.append(("secrets", SECRETS, {"emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}))
    return found


def _make_container(task: Task, mounts: list[Data]) -> dict[str, Data]:
    said, layout = task.settings, task.layout
    requests: dict[str, Data] = {"cpu": str(layout.cores)}
    limits: dict[str, Data] = {said.gpu: str(layout.gpus)} if layout.gpus else {}
    if said.memory:
        requests["memory"] = limits["memory"] = said.memory
    container: dict[str, Data] = {"name": CONTAINER, "image": said.image}
    if said.pull_policy:
        container["imagePullPolicy"] = said.pull_policy
    container["command"] = make_command(task)
    if task.cwd and not task.prepared:
        container["workingDir"] = task.cwd
    container["env"] = _make_environment(task)
    container["resources"] = {"requests": requests, **({"limits": limits} if limits else {})}
    return {**container, "volumeMounts": mounts}

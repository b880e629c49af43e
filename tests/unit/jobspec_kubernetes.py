"""A cluster in memory that runs Jobs as a test says, and jobspecs in it; for tests of the transformer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from milkweed.jobspec.graph import Graph, Need, Submit, Work
from milkweed.jobspec.plan import Plan
from milkweed.jobspec.transformers.kubernetes import Transformer
from milkweed.jobspec.transformers.kubernetes_objects import INDEX_NOTE, STEP_LABEL
from milkweed.kube.resources import JOBS, PODS, Resource
from unit.kubernetes_jobs import Space
from unit.operator_cluster import refuse

RUN_ID = "11111111-2222-4333-8444-555555555555"
STAMP = "2026-01-02T03:04:05.{:09d}Z"


class Printed:
    """What a pod printed, as a stream."""

    def __init__(self, text: str) -> None:
        self._lines = text.encode().splitlines(keepends=True)
        self.status = 200

    def lines(self) -> Iterator[bytes]:
        """Every line, with when it was printed."""
        for number, line in enumerate(self._lines):
            yield f"{STAMP.format(number)} ".encode() + line

    def end(self) -> None:
        """There is nothing to wake."""


class Yard(Space):
    """A cluster whose Jobs do what `behave` says as soon as they are made."""

    def __init__(self, behave: Callable[[Yard, Any], None] | None = None) -> None:
        super().__init__()
        self.behave = behave or succeed
        self.printed: dict[str, str] = {}
        """What each pod printed."""
        self.looked_at: list[str] = []
        """What was only looked at, by a dry run."""

    def create(self, resource: Resource, namespace: str, body: Any, **query: str) -> Any:
        """Make a new object, or only look at it."""
        if query.get("dryRun"):
            with self.changed:
                self._check("create", resource, namespace)
                self.looked_at.append(body["metadata"]["name"])
                return body
        made = super().create(resource, namespace, body)
        if resource is JOBS:
            self.behave(self, made)
        return made

    @contextlib.contextmanager
    def follow(self, path: str, **query: str) -> Generator[Any]:
        """The log of a pod."""
        del query
        name = path.split("/")[-2]
        if (PODS.plural, "lab", name) not in self.objects:
            raise refuse(404, "NotFound")
        yield Printed(self.printed.get(name, ""))

    def read(self, path: str, **query: str) -> bytes:
        """There is no Kueue here."""
        raise refuse(404, "NotFound", path)

    def delete(
        self, resource: Resource, namespace: str, name: str, uid: str = "", **options: str
    ) -> bool:
        """A Job goes with its pods, and with whatever it owns."""
        found = super().delete(resource, namespace, name, uid, **options)
        if resource is JOBS and found:
            for plural, home, other in list(self.objects):
                meta = self.objects[plural, home, other]["metadata"]
                owners = [each["name"] for each in meta.get("ownerReferences", ())]
                if name in owners:
                    self.remove(plural, home, other)
        return found

    def add(self, job: Any, index: int = 0, *, prints: str = "", **status: Any) -> str:
        """A pod of a Job; its name."""
        meta = job["metadata"]
        name = f"{meta['name']}-{index}-abcde"
        owner = {"kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        self.printed[name] = prints
        body = make_pod(name, index, **status)
        body["metadata"] |= {"labels": dict(meta["labels"]), "ownerReferences": [owner]}
        key = (PODS.plural, "lab", name)
        if key in self.objects:
            self.edit(*key, lambda pod: pod.update(status=body["status"]))
        else:
            self.put(PODS.plural, {**body, "metadata": {**body["metadata"], "namespace": "lab"}})
        return name

    def conclude(self, job: Any, kind: str, **words: str) -> None:
        """A Job is over: Complete or Failed."""
        condition = {"type": kind, "status": "True", **words}
        status = {"status": {"conditions": [condition]}}
        self.edit(JOBS.plural, "lab", job["metadata"]["name"], lambda job: job.update(status))

    def made(self) -> list[str]:
        """All objects, by kind."""
        return sorted(plural for plural, _, _ in self.objects)


def make_pod(name: str, index: int, *, phase: str = "Running", **more: Any) -> dict[str, Any]:
    """A pod as the API server tells of it; `code` or `state` say how its container is."""
    state = more.pop("state", {"running": {"startedAt": "2026-01-02T03:04:05Z"}})
    if "code" in more:
        code = more.pop("code")
        word = more.pop("word", "Error" if code else "Completed")
        phase = "Failed" if code else "Succeeded"
        ended = {"exitCode": code, "reason": word, "finishedAt": more.pop("at", "2026-01-02")}
        state = {"terminated": {**ended, "message": more.pop("message", "")}}
    status = {"phase": phase, "containerStatuses": [{"name": "work", "state": state}], **more}
    meta = {"name": name, "uid": f"uid-{name}", "annotations": {INDEX_NOTE: str(index)}}
    spec = {"containers": [{"name": "work"}], "nodeName": "n1"}
    return {"metadata": meta, "spec": spec, "status": status}


def pods_of(job: Any) -> int:
    """How many pods a Job wants."""
    return int(job["spec"]["completions"])


def succeed(yard: Yard, job: Any) -> None:
    """All pods end well; each prints which it is."""
    for index in range(pods_of(job)):
        yard.add(job, index, prints=f"pod {index}\n", code=0)
    yard.conclude(job, "Complete")


def fail(code: int) -> Callable[[Yard, Any], None]:
    """The last pod ends with a code."""

    def behave(yard: Yard, job: Any) -> None:
        for index in range(pods_of(job)):
            yard.add(job, index, code=code if index == pods_of(job) - 1 else 0)
        yard.conclude(job, "Failed", reason="BackoffLimitExceeded")

    return behave


def hang(yard: Yard, job: Any) -> None:
    """All pods run on."""
    for index in range(pods_of(job)):
        yard.add(job, index, prints="so far\n")


def by_step(**behaviours: Callable[[Yard, Any], None]) -> Callable[[Yard, Any], None]:
    """Each step in its own way; the others succeed."""

    def behave(yard: Yard, job: Any) -> None:
        step = job["metadata"]["labels"][STEP_LABEL].rpartition("-")[0]
        behaviours.get(step, succeed)(yard, job)

    return behave


def make_transformer(yard: Space | None = None, **settings: Any) -> Transformer:
    """A transformer that reaches this cluster, and no other."""

    class Near(Transformer):
        """The cluster of a test."""

        reach = staticmethod((yard or Yard()).reach)

    return Near(**{"image": "app:1", "namespace": "lab", **settings})


def render(graph: Graph, **settings: Any) -> Plan:
    """The plan of a graph."""
    return make_transformer(**settings).render(graph, run_id=RUN_ID)


def work(name: str, *argv: Any, needs: tuple[str | Need, ...] = (), **more: Any) -> Submit:
    """A step that runs a command."""
    said = {key: more.pop(key) for key in ("wait", "replicas", "local") if key in more}
    found = tuple(each if isinstance(each, Need) else Need(each) for each in needs)
    return Submit(id=name, needs=found, work=Work(argv=argv or ("true",), **more), **said)


def graph(*steps: Any) -> Graph:
    """A graph of steps."""
    return Graph(steps=steps, source="job.yaml")


def objects_of(plan: Plan, kind: str = "Job") -> list[Any]:
    """The manifests of a kind."""
    found: list[Any] = []
    for action in plan.actions:
        details: Mapping[str, Any] = action.details
        found += [body for body in details.get("objects", ()) if body["kind"] == kind]
    return found


def pod_of(plan: Plan) -> Any:
    """The pod of the one Job."""
    (job,) = objects_of(plan)
    return job["spec"]["template"]["spec"]


def container_of(plan: Plan) -> Any:
    """The container of the one Job."""
    (found,) = pod_of(plan)["containers"]
    return found

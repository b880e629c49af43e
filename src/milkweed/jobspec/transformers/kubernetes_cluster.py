"""The objects of runs in a cluster: made once each, seen as they change, deleted with all that belongs to them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ...backends.kubernetes import cluster as seen
from ...backends.kubernetes.pod_parts import part, told
from ...errors import BackendError, MilkweedError, SpecError, UnreachableError
from ...kube.api import Api, ApiError
from ...kube.resources import CONFIG_MAPS, EVENTS, JOBS, PODS, SECRETS, Resource
from ...kube.watch import Watch
from .kubernetes_objects import MARK_NOTE, QUEUE_LABEL, RUN_LABEL, STEP_LABEL

if TYPE_CHECKING:
    from ..driver import Wake

KINDS: Mapping[str, Resource] = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS, "Job": JOBS}
FIRST_LIST_S = 10.0
TRIES, PAUSE_S = 5, 1.0
EXISTS = 409
Object = Mapping[str, Any]


class Bell:
    """Wakes whoever waits for a change; what rings before is heard later."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self, *_: object) -> None:
        """Something has changed."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._write, b"x")

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Wait for a change, a signal, or some time."""
        select.select([self._read, wake.fileno()], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def close(self) -> None:
        """Let the pipe go."""
        os.close(self._read)
        os.close(self._write)


class Picture:
    """The Jobs and pods of one run as they are now."""

    def __init__(self, api: Api, namespace: str, run_id: str) -> None:
        self.bell = Bell()
        labels = f"{RUN_LABEL}={run_id}"
        more: dict[str, Any] = {"labels": labels, "heed": self.bell.ring}
        self._jobs = Watch(api, JOBS, namespace, **more)
        self._pods = Watch(api, PODS, namespace, keep=seen.trim, **more)

    def start(self) -> Self:
        """Begin to look."""
        for watch in (self._jobs, self._pods):
            watch.start()
        for watch in (self._jobs, self._pods):
            watch.wait_listed(FIRST_LIST_S)
        return self

    def trouble(self) -> MilkweedError | None:
        """Why nothing is known now; None when all is."""
        try:
            self.objects()
        except MilkweedError as error:
            return error
        return None

    def objects(self) -> tuple[Mapping[str, Object], list[Object]]:
        """Jobs by name, and all pods; raises what keeps us from knowing."""
        return self._jobs.objects(), list(self._pods.objects().values())

    def stop(self) -> None:
        """Look no longer."""
        for watch in (self._jobs, self._pods):
            watch.stop()
        self.bell.close()


def pods_of(pods: Sequence[Object], job: Object) -> list[Object]:
    """The pods of a Job."""
    uid = job["metadata"]["uid"]
    return [
        pod
        for pod in pods
        if any(
            owner.get("uid") == uid for owner in part(pod, "metadata").get("ownerReferences", ())
        )
    ]


def look(api: Api, namespace: str, name: str) -> tuple[Object, list[Object]] | None:
    """A Job and its pods, by one look; None: there is no such Job."""
    try:
        job: Object = api.get(JOBS, namespace, name)
    except ApiError as error:
        if error.missing:
            return None
        raise
    found = api.get(PODS, namespace, labelSelector=f"{STEP_LABEL}={name}")["items"]
    return job, pods_of(found, job)


# Making


def ensure_objects(
    api: Api,
    objects: Sequence[Object],
    secrets: Mapping[str, bytes],
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> Object:
    """Make what is not there yet, the Job last; the Job. What was begun is undone when the cluster says no."""
    made: list[Object] = []
    try:
        for each in objects:
            found = _ensure(api, _fill_in(each, secrets), sleep)
            made.append(found)
    except UnreachableError:
        raise  # nobody knows what was made: the next try finds it
    except BackendError:
        for each in made:
            api.delete(KINDS[each["kind"]], each["metadata"]["namespace"], each["metadata"]["name"])
        raise
    job = made[-1]
    for each in made[:-1]:
        _own(api, each, job)
    return job


def _fill_in(body: Object, secrets: Mapping[str, bytes]) -> Object:
    if body["kind"] != "Secret":
        return body
    return {**body, "data": {key: base64.b64encode(secrets[key]).decode() for key in body["data"]}}


def _ensure(api: Api, body: Object, sleep: Callable[[float], object]) -> Object:
    """Make one object; an answer that did not come is asked for again, and finds what was made."""
    resource, meta = KINDS[body["kind"]], body["metadata"]
    for left in reversed(range(TRIES)):
        try:
            try:
                found = api.create(resource, meta["namespace"], body)
            except ApiError as error:
                if error.status != EXISTS:
                    raise
                found = _check_own(api.get(resource, meta["namespace"], meta["name"]), meta)
            return {**found, "kind": body["kind"]}
        except UnreachableError:
            if not left:
                raise
            sleep(PAUSE_S)
    raise AssertionError  # the last try returns or raises


def _check_own(found: Object, meta: Object) -> Object:
    if part(found, "metadata", "annotations").get(MARK_NOTE) != meta["annotations"][MARK_NOTE]:
        raise BackendError(
            f"the cluster has a {meta['name']!r} in namespace {meta['namespace']!r} that is not ours",
            hint="delete it, or use another namespace",
        )
    return found


def _own(api: Api, body: Object, job: Object) -> None:
    """Let an object go with its Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job"}
    owner |= {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    meta = body["metadata"]
    change = {"metadata": {"ownerReferences": [owner]}}
    with contextlib.suppress(BackendError):  # whoever tidies up finds it by its label
        api.patch(KINDS[body["kind"]], meta["namespace"], meta["name"], change)


def check_rights(api: Api, namespace: str) -> None:
    """Whoever makes Jobs must be able to see them, and their pods."""
    for resource in (JOBS, PODS):
        api.get(resource, namespace, limit="1")


def why_no_pods(api: Api, job: Object) -> str:
    """What keeps a Job from having pods, such as a quota or a rule for pods; nothing when nobody says."""
    meta = job["metadata"]
    try:
        found = api.get(
            EVENTS, meta["namespace"], fieldSelector=f"involvedObject.uid={meta['uid']}"
        )
    except BackendError:
        return ""
    return told(found["items"], "FailedCreate")


def check_objects(api: Api, objects: Sequence[Object]) -> None:
    """Have the cluster itself look at what would be made; nothing is."""
    for each in objects:
        meta = each["metadata"]
        body = (
            _fill_in(each, dict.fromkeys(each["data"], b"")) if each["kind"] == "Secret" else each
        )
        try:
            api.create(KINDS[each["kind"]], meta["namespace"], body, dryRun="All")
        except ApiError as error:
            if error.status != EXISTS:
                step = meta["annotations"][MARK_NOTE].rpartition(":")[2]
                what = f"step {step!r}: {error.what}"
                raise SpecError(what, seen=error.seen, hint="nothing was made") from error
    for name, namespace in {_queue_of(each) for each in objects} - {("", "")}:
        check_queue(api, namespace, name)


def _queue_of(body: Object) -> tuple[str, str]:
    name = part(body, "metadata", "labels").get(QUEUE_LABEL, "")
    return (name, body["metadata"]["namespace"]) if name else ("", "")


def check_queue(api: Api, namespace: str, name: str) -> None:
    """A queue that nobody serves would be passed by without a word."""
    group = QUEUE_LABEL.partition("/")[0]
    hint = "ask for no queue, or for one that `kubectl get localqueues` shows"
    try:
        version = json.loads(api.read(f"/apis/{group}"))["preferredVersion"]["version"]
        api.get(Resource(group, version, "localqueues"), namespace, name)
    except ApiError as error:
        if not error.missing:
            raise
        what = f"queue: there is no queue {name!r} in namespace {namespace!r}"
        raise SpecError(what, seen=error.seen, hint=hint) from error


# Deleting


def delete_job(api: Api, namespace: str, name: str) -> bool:
    """Delete a Job after its pods, which are told to end; False when it is not there."""
    return api.delete(JOBS, namespace, name, policy="Foreground")


def wait_gone(
    api: Api,
    namespace: str,
    names: Sequence[str],
    timeout_s: float,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Wait until Jobs are gone; those that still are there, whose pods take their time."""
    deadline_s, left = clock() + timeout_s, list(names)
    while True:
        left = [name for name in left if look_up(api, JOBS, namespace, name) is not None]
        if not left or clock() > deadline_s:
            return left
        sleep(0.1)


def look_up(api: Api, resource: Resource, namespace: str, name: str) -> Object | None:
    """An object, if it is there."""
    try:
        return api.get(resource, namespace, name)
    except ApiError as error:
        if error.missing:
            return None
        raise


def delete_run(
    api: Api, namespace: str, run_id: str, kinds: Sequence[Resource] = (JOBS, CONFIG_MAPS, SECRETS)
) -> None:
    """Delete everything that carries the label of a run."""
    for resource in kinds:
        for each in api.get(resource, namespace, labelSelector=f"{RUN_LABEL}={run_id}")["items"]:
            policy = "Foreground" if resource is JOBS else "Background"
            api.delete(resource, namespace, each["metadata"]["name"], policy=policy)

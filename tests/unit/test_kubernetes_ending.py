"""The end of a job on Kubernetes: all that carries its mark goes, and for how long that is waited for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.finding import delete_objects
from milkweed.backends.programs import within
from milkweed.errors import DeadlineError, UnreachableError
from milkweed.job import lifecycle
from milkweed.kube.resources import MESHES, PODS, SECRETS, Resource
from milkweed.state import StateFile
from unit.kubernetes_jobs import APPLY_ID, OTHER_ID, Space, create, make_spec, mesh_name, submit


def test_ending_deletes_everything_with_the_mark(space: Space, folder: Path, home: Path) -> None:
    """And nothing else; the record and the keys of this machine go, too."""
    record = create()
    other = submit(make_spec({"x": 1}), OTHER_ID)
    for rank in range(2):
        space.add_pod(f"{mesh_name()}-{rank}")
    lifecycle.end(KubernetesBackend(), record, StateFile("job.json"))
    assert space.names(MESHES) == [other["meshes"]["x"]["name"]]
    assert len(space.names(SECRETS)) == 2
    assert space.names(PODS) == []
    assert not registry.folder_of(APPLY_ID).exists()
    assert list(folder.iterdir()) == []


def test_ending_twice_is_ending_once(space: Space) -> None:
    """What is gone already is fine."""
    handle = submit()
    KubernetesBackend().cancel(handle)
    space.writes.clear()
    KubernetesBackend().cancel(handle)
    assert space.writes == []


def test_ending_waits_for_the_pods(space: Space) -> None:
    """Objects are deleted once; pods take their time."""
    handle = submit()
    space.add_pod(f"{mesh_name()}-0")
    space.stuck = True
    waits: list[Any] = []

    def pause(_api: object, handle: Any) -> None:
        waits.append(handle["apply_id"])
        if len(waits) == 3:
            space.drop_pods(mesh_name())

    delete_objects(space, handle, pause=pause)
    assert waits == [APPLY_ID] * 3
    assert [verb for verb, _plural, _name in space.writes].count("delete") == 3


def test_ending_waits_for_the_objects_too(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh goes after all that was made of it: until then something could still make a pod."""
    handle = submit()
    policies: list[str] = []
    waits: list[Any] = []

    def delete(
        resource: Resource, namespace: str, name: str, uid: str = "", **options: str
    ) -> bool:
        if resource is not MESHES:
            return Space.delete(space, resource, namespace, name, uid)
        policies.append(options["policy"])
        return True

    def pause(_api: object, _handle: object) -> None:
        waits.append(1)
        if len(waits) == 2:
            space.remove(MESHES.plural, "lab", mesh_name())

    monkeypatch.setattr(space, "delete", delete)
    delete_objects(space, handle, pause=pause)
    assert (policies, len(waits)) == (["Foreground"], 2)


def test_an_end_that_does_not_come_has_a_deadline(space: Space) -> None:
    """A node that does not answer keeps its pods: the error names them, and one can ask again."""
    handle = submit()
    space.stuck = True
    space.add_pod(f"{mesh_name()}-1")
    with pytest.raises(DeadlineError, match="still there") as caught:
        delete_objects(space, handle, timeout_s=-1.0)
    assert caught.value.seen == f"{mesh_name()}-1"
    assert "node" in caught.value.hint
    space.drop_pods(mesh_name())
    KubernetesBackend().cancel(handle)


def test_an_end_is_not_waited_for_beyond_the_deadline_of_who_asks(space: Space) -> None:
    """A program that ends has ten seconds; what is still there then is told, and can be ended later."""
    handle = submit()
    space.stuck = True
    space.add_pod(f"{mesh_name()}-0")
    with within(time.monotonic()), pytest.raises(DeadlineError, match="still there"):
        delete_objects(space, handle, pause=lambda *_: space.drop_pods(mesh_name()))
    assert [verb for verb, _plural, _name in space.writes].count("delete") == 3


def test_ending_while_nobody_answers_changes_nothing(space: Space, folder: Path) -> None:
    """The record stays, so that the job can be ended later."""
    record = create()
    space.go_away()
    with pytest.raises(UnreachableError):
        lifecycle.end(KubernetesBackend(), record, StateFile("job.json"))
    assert StateFile("job.json").load() == record
    assert registry.folder_of(APPLY_ID).is_dir()

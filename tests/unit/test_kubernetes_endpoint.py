"""Jobs behind a real endpoint, whose meshes have the same names: each has its own, and nothing of another's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends import credentials
from milkweed.backends.base import Request
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.start import VOLUME
from milkweed.errors import ChangedError
from milkweed.job import lifecycle
from milkweed.kube.resources import MESHES, SECRETS
from milkweed.operator.provision import Provisioner
from milkweed.state import StateFile
from milkweed.status import Liveness
from unit.kubernetes_jobs import APPLY_ID, OTHER_ID, make_spec
from unit.operator_asked import Reviewed
from unit.test_operator_door import Serving

NAMES = {"meshes": {"w": {"object_name": "trainers"}}}
BACKEND = KubernetesBackend()


@pytest.fixture
def cluster() -> Reviewed:
    return Reviewed()


@pytest.fixture
def where(
    tmp_path: Path, provisioner: Provisioner, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """How a pod without rights reaches the endpoint."""
    monkeypatch.setattr(credentials, "_own", [])
    monkeypatch.chdir(tmp_path)
    serving = Serving(tmp_path / "tls", provisioner)
    (tmp_path / "token").write_text("good")
    yield {"url": serving.url, "ca": serving.ca, "token_file": str(tmp_path / "token")}
    serving.close()


def declare(where: dict[str, str], hosts: int = 2, **options: Any) -> Any:
    made = {"namespace": "team", "image": "worker:1", **NAMES, **options}
    return make_spec({"w": hosts}, {"provision": where}, **made)


def create(where: dict[str, str], apply_id: str, path: str) -> Any:
    """As programs do, with a record each."""
    wish = lifecycle.Wish(spec=declare(where), backend=BACKEND, apply_id=apply_id)
    return lifecycle.create(wish, StateFile(path))[0]


def meshes(cluster: Reviewed) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.of_kind(MESHES.plural)]


def secrets(cluster: Reviewed) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.of_kind(SECRETS.plural)}


def test_a_mesh_of_another_job_is_left_alone(where: dict[str, str], cluster: Reviewed) -> None:
    """A second job of the same account that wants its name is refused, and undone without touching it."""
    first = create(where, APPLY_ID, "first.json")
    before = cluster.of_kind(MESHES.plural)
    with pytest.raises(ChangedError, match="'trainers' of another job") as caught:
        create(where, OTHER_ID, "second.json")
    assert APPLY_ID in caught.value.seen
    assert cluster.of_kind(MESHES.plural) == before
    assert secrets(cluster) == {"milkweed-0a1b2c3d-hosts", "milkweed-0a1b2c3d-authority"}
    assert not Path("second.json").exists()
    assert BACKEND.glance(first.handle).liveness is Liveness.PENDING


def test_a_job_whose_name_another_one_has_by_now(where: dict[str, str], cluster: Reviewed) -> None:
    """It has ended, and to kill it deletes nothing of the other's."""
    first = create(where, APPLY_ID, "first.json")
    cluster.remove(MESHES.plural, "team", "trainers")
    second = create(where, OTHER_ID, "second.json")
    ended = BACKEND.poll(first.handle)
    assert (ended.liveness, ended.reason) == (Liveness.ENDED, "its objects are gone: trainers")
    BACKEND.cancel(first.handle)
    assert meshes(cluster) == ["trainers"]
    assert "milkweed-99999999-hosts" in secrets(cluster)
    assert "milkweed-0a1b2c3d-hosts" not in secrets(cluster)
    assert BACKEND.glance(second.handle).liveness is Liveness.PENDING
    BACKEND.cancel(second.handle)
    assert meshes(cluster) == []


def test_a_size_past_the_last_certificate(
    where: dict[str, str], cluster: Reviewed, policy: dict[str, Any]
) -> None:
    """Its hosts find theirs where they look for it, behind the endpoint as well."""
    policy["rules"][0] |= {"maxHosts": 500, "maxTotalHosts": 500}
    spec = declare(where, 100)
    handle = BACKEND.submit(Request(spec=spec, apply_id=APPLY_ID))
    BACKEND.resize(handle, declare(where, 210))
    [mesh] = cluster.of_kind(MESHES.plural)
    [volume] = [
        one for one in mesh["spec"]["podTemplate"]["spec"]["volumes"] if one["name"] == VOLUME
    ]
    held = cluster.objects[SECRETS.plural, "team", "milkweed-0a1b2c3d-hosts"]["data"]
    assert "tls-1/tls.crt" in {item["path"] for item in volume["secret"]["items"]}
    assert {item["key"] for item in volume["secret"]["items"]} <= held.keys()
    assert mesh["spec"]["replicas"] == 210


def test_a_job_of_its_own_is_found_resized_and_ended(
    where: dict[str, str], cluster: Reviewed
) -> None:
    """By who asked for it, with nothing but its handle."""
    first = create(where, APPLY_ID, "first.json")
    assert BACKEND.find(APPLY_ID) == first.handle
    resized = BACKEND.resize(first.handle, declare(where, 3))
    assert resized["meshes"]["w"]["hosts"] == 3
    assert cluster.of_kind(MESHES.plural)[0]["spec"]["replicas"] == 3
    BACKEND.cancel(resized)
    assert meshes(cluster) == []
    assert secrets(cluster) == set()

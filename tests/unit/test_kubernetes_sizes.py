"""Large jobs: what a Secret can hold, certificates when sizes change, and what is refused before that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.start import MAX_SECRET_BYTES, secret_name
from milkweed.errors import SpecError
from milkweed.kube.resources import MESHES, SECRETS
from milkweed.spec import JobSpec, make_meshes
from unit.kubernetes_jobs import (
    APPLY_ID,
    SPEC,
    Space,
    create,
    make_spec,
    mesh_name,
    read_secret,
    submit,
)

HOSTS = secret_name(APPLY_ID)
MANY = {f"VARIABLE_{number}": "v" * 40 for number in range(20)}


def declare(hosts: int, env: dict[str, str]) -> JobSpec:
    options = {"namespace": "lab", "image": "python:3"}
    meshes = make_meshes({"w": hosts}, env)
    return JobSpec(name="demo", backend="kubernetes", meshes=meshes, options=options)


def template_of(space: Space, name: str = "w") -> Any:
    return space.objects[MESHES.plural, "lab", mesh_name(name)]["spec"]["podTemplate"]


# What a Secret can hold


def test_variables_are_told_once_for_all_hosts(space: Space) -> None:
    """A thousand hosts with twenty variables fit well into a Secret."""
    submit(declare(1000, MANY))
    held = read_secret(space, HOSTS)
    assert held["part-0"].count(b"VARIABLE_7") == 1
    assert json.loads(held["part-0"])["envs"] == {"w": MANY}
    assert sum(map(len, held.values())) < MAX_SECRET_BYTES / 2


def test_what_no_secret_can_hold_is_refused_before_anything_is_made(
    space: Space, folder: Path
) -> None:
    """With what is so large, and what to do about it."""
    spec = declare(2, {"LARGE": "x" * MAX_SECRET_BYTES})
    with pytest.raises(SpecError, match="what the hosts are told is too large") as caught:
        create(spec)
    assert str(MAX_SECRET_BYTES) in caught.value.what
    assert caught.value.seen.startswith("part-0 has 10")
    assert "variables" in caught.value.hint
    assert space.writes == []
    assert list(folder.iterdir()) == []


def test_a_client_that_is_too_large_is_refused_before_its_hosts_are_made(
    space: Space, tmp_path: Path
) -> None:
    """Milkweed itself, the script and the variables share one Secret."""
    script = tmp_path / "train.py"
    script.write_bytes(b"#" * (256 * 1024))
    spec = declare(2, {"LARGE": "x" * 300_000})
    with pytest.raises(SpecError, match="what the batch client is given is too large") as caught:
        submit(spec, client_script=("python", str(script)))
    assert "milkweed.zip has" in caught.value.seen
    assert "script" in caught.value.hint
    assert space.writes == []


def test_a_size_for_which_there_is_no_room_changes_nothing(space: Space) -> None:
    """Neither the Secret that is there nor the mesh."""
    handle = submit(declare(2, {}))
    space.writes.clear()
    with pytest.raises(SpecError, match="too large for a Secret"):
        KubernetesBackend().resize(handle, declare(20_000, {}))
    assert space.writes == []


# Certificates when sizes change


def test_a_size_that_needs_one_certificate_more_has_a_place_for_it(space: Space) -> None:
    """The template has its files then."""
    handle = submit(declare(100, {}))
    KubernetesBackend().resize(handle, declare(210, {}))
    assert "tls-1/tls.crt" in json.dumps(template_of(space))
    assert "cert-0-1" in read_secret(space, HOSTS)


def test_a_smaller_size_replaces_nobody(space: Space) -> None:
    """The template stays as it is, and all files that its pods expect are still there."""
    handle = submit(declare(210, {}))
    before = template_of(space)
    backend = KubernetesBackend()
    handle = backend.resize(handle, declare(1, {}))
    assert template_of(space) == before
    keys = [item["key"] for item in before["spec"]["volumes"][0]["secret"]["items"]]
    assert "cert-0-1" in keys
    assert set(keys) <= read_secret(space, HOSTS).keys()
    handle = backend.resize(handle, declare(210, {}))
    assert template_of(space) == before


# What stands where the worker's things go


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"volumes": [{"name": "milkweed", "emptyDir": {}}]}, "pod_template.volumes: the pod has"),
        ({"mounts": [{"name": "x", "mountPath": "/etc/milkweed"}]}, "pod_template.volumeMounts"),
        ({"mounts": [{"name": "x", "mountPath": "/run/milkweed"}]}, "pod_template.volumeMounts"),
    ],
)
def test_what_is_in_the_way_of_the_worker_is_refused_by_a_look(
    space: Space, change: dict[str, Any], words: str
) -> None:
    """Also in the second mesh: no plan is made for it, and nothing else."""
    container = {"name": "worker", "image": "i", "volumeMounts": change.get("mounts", [])}
    pod = {"containers": [container], "volumes": change.get("volumes", [])}
    spec = make_spec({"a": 1, "b": 1}, image=None, meshes={
        "a": {"image": "i"},
        "b": {"pod_template": {"spec": pod}},
    })  # fmt: skip
    for ask in (KubernetesBackend().validate, submit):
        with pytest.raises(SpecError) as caught:
            ask(spec)
        assert f"kubernetes.meshes.b.{words}" in caught.value.what
        assert "which milkweed needs for itself" in caught.value.what
    assert space.writes == []


def test_what_is_well_is_taken(space: Space) -> None:
    """A look makes nothing."""
    KubernetesBackend().validate(SPEC)
    assert space.of_kind(SECRETS.plural) == []

"""What pods are told, and what a declaration says of its meshes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.base import Request
from milkweed.backends.kubernetes.names import MAX_SET_NAME, make_mesh_name
from milkweed.backends.kubernetes.ranks import RANK_LABEL
from milkweed.backends.kubernetes.settings import default_selector, make_plans
from milkweed.backends.kubernetes.start import (
    LOADER,
    MOUNT,
    RUN_MOUNT,
    Place,
    authority_name,
    make_environment,
    make_mesh,
    make_part,
    make_secret,
    make_secret_data,
    make_volume,
    secret_name,
    spare_count,
)
from milkweed.backends.packing import pack_worker
from milkweed.errors import SpecError
from milkweed.pki import make_authority
from milkweed.spec import JobSpec, make_meshes

APPLY_ID = "0a1b2c3d-0000-4000-8000-000000000000"
PLACE = Place(namespace="ns", name="workers")


def make_spec(meshes: dict[str, Any] | None = None, **options: Any) -> JobSpec:
    """A declaration with two meshes."""
    return JobSpec(
        name="demo",
        backend="kubernetes",
        meshes=make_meshes({"workers": 3, "readers": 1}, {"MODE": "x"}),
        options={"meshes": meshes or {}, **options},
    )


def make_parts() -> list[dict[str, Any]]:
    """What both meshes are told."""
    spec = make_spec()
    request = Request(spec=spec, apply_id=APPLY_ID)
    return [
        make_part(request, mesh, Place(namespace="ns", name=mesh.name), number)
        for number, mesh in enumerate(spec.meshes)
    ]


def test_a_pod_has_a_name_that_stays() -> None:
    """However often a pod is replaced, its name is the same."""
    assert PLACE.pod(2) == "workers-2"
    assert PLACE.service == "workers-svc"
    assert PLACE.address(2) == "workers-2.workers-svc.ns.svc"


def test_every_host_is_in_its_part_and_in_a_certificate() -> None:
    """With spare names, so that most changes of size need no new certificates."""
    part, _other = make_parts()
    assert [host["rank"] for host in part["hosts"]] == [0, 1, 2]
    assert part["envs"] == {"workers": {"MODE": "x"}}
    [certificate] = part["certificates"]
    assert certificate["folder"] == f"{MOUNT}/tls-0"
    assert len(certificate["nodes"]) == spare_count(3) == 19
    assert certificate["nodes"][2] == PLACE.address(2)


def test_a_large_mesh_has_several_certificates() -> None:
    """A certificate is sent at every connection, so none has thousands of names."""
    spec = JobSpec(name="demo", backend="kubernetes", meshes=make_meshes({"workers": 400}))
    part = make_part(Request(spec=spec, apply_id=APPLY_ID), spec.meshes[0], PLACE, 0)
    assert [len(each["nodes"]) for each in part["certificates"]] == [200, 200, 200]


def test_the_secret_has_all_that_volumes_lay_out() -> None:
    """Every file of a volume is a key of the Secret, and nothing of another mesh is among them."""
    parts = make_parts()
    data = make_secret_data(parts, make_authority(APPLY_ID, days=1), b"zip")
    for number, part in enumerate(parts):
        volume = make_volume(APPLY_ID, part, number)["secret"]
        assert volume["secretName"] == secret_name(APPLY_ID)
        keys = {item["key"] for item in volume["items"]}
        assert keys <= set(data)
        assert not any(key.split("-")[1:2] == [str(1 - number)] for key in keys)
    assert json.loads(base64.b64decode(data["part-0"])) == parts[0]
    assert json.loads(base64.b64decode(data["invitation-1"]))["part"] == "0.1"


def test_the_authority_is_not_among_what_pods_see() -> None:
    """With its key a pod could sign certificates for anybody."""
    authority = make_authority(APPLY_ID, days=1)
    data = make_secret_data(make_parts(), authority, b"")
    assert base64.b64encode(authority.key_pem).decode() not in data.values()
    assert secret_name(APPLY_ID) != authority_name(APPLY_ID)


def test_objects_carry_the_jobs_mark() -> None:
    """By it they are found again, with every local file gone."""
    spec = make_spec()
    secret = make_secret(APPLY_ID, "s", {"a": "b"}, "demo")
    mesh = make_mesh(
        spec,
        spec.meshes[0],
        PLACE,
        {"spec": {}},
        apply_id=APPLY_ID,
        labels={"team": "a"},
        annotations={"n": "v"},
        handle={"apply_id": "x", "context": "mine", "kubeconfig": "/home/me"},
    )
    for made in (secret, mesh):
        assert made["metadata"]["labels"]["milkweed.dev/job"] == APPLY_ID
        assert made["metadata"]["annotations"]["milkweed.dev/name"] == "demo"
    assert mesh["metadata"]["labels"]["team"] == "a"
    note = json.loads(mesh["metadata"]["annotations"]["milkweed.dev/handle"])
    assert note == {"apply_id": "x"}, "how one client reaches the cluster is nothing to others"
    assert mesh["spec"] == {"replicas": 3, "port": 26600, "podTemplate": {"spec": {}}}


def test_a_pod_learns_its_own_name() -> None:
    """The variable with its address is made of the one with its name, which comes first."""
    names = [variable["name"] for variable in make_environment(PLACE)]
    assert names == ["MILKWEED_POD", "MILKWEED_NODE", "MONARCH_PORT"]
    assert make_environment(PLACE)[1]["value"] == "$(MILKWEED_POD).workers-svc.ns.svc"


def test_the_loader_starts_the_worker_that_came_along(tmp_path: Path) -> None:
    """It needs nothing but Python and the folder that is mounted."""
    (tmp_path / "worker.zip").write_bytes(pack_worker())
    with zipfile.ZipFile(tmp_path / "worker.zip") as archive:
        assert "milkweed/worker/remote.py" in archive.namelist()
    (tmp_path / "invitation.json").write_text("{}")
    code = LOADER.replace(MOUNT, str(tmp_path)).replace(RUN_MOUNT, str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={"MILKWEED_POD": "workers-2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "worker.zip/milkweed/worker/remote.py" in done.stderr
    assert "KeyError: 'index_env'" in done.stderr


# Settings


def test_pods_that_exist_are_found_by_the_usual_labels() -> None:
    """A mesh of which nothing is said is one of an operator."""
    plan, _other = make_plans(make_spec(), "ns")
    assert not plan.made
    assert plan.selector == default_selector("workers")
    assert plan.place == replace(PLACE, name="workersx00000000")


def test_an_image_makes_pods() -> None:
    """Said for all meshes, or for one."""
    workers, readers = make_plans(make_spec({"readers": {"image": "b"}}, image="a"), "ns")
    assert workers.template is not None
    assert readers.template is not None
    assert workers.template["spec"]["containers"][0]["image"] == "a"
    assert readers.template["spec"]["containers"][0]["image"] == "b"


@pytest.mark.parametrize(
    ("meshes", "words"),
    [
        ({"nobody": {}}, "there is no mesh 'nobody'"),
        ({"workers": {"imag": "a"}}, "kubernetes.meshes.workers.imag: is not known"),
        ({"workers": {"port": 0, "image": "a"}}, "is not a port"),
        ({"workers": {"port": 70000}}, "is not a port"),
        ({"workers": {"image": "a", "label_selector": "a=b"}}, "are found by its own labels"),
        ({"workers": {"image": "a", "pod_rank_label": "x"}}, "are found by its own labels"),
        ({"workers": {"labels": {"a": "b"}}}, "these exist already"),
        ({"workers": {"label_selector": "a=(b"}}, "label_selector"),
        ({"workers": {"image": "a", "pod_template": {}}}, "two ways to say one thing"),
        ({"workers": {"image": "a", "pod_rank_label": ["x"]}}, "are found by its own labels"),
        ({"workers": {"pod_rank_label": 5}}, "kubernetes.meshes.workers.pod_rank_label: 5"),
        ({"workers": {"pod_rank_label": "no good!"}}, "kubernetes.meshes.workers.pod_rank_label"),
        ({"workers": {"image": "a", "object_name": 5}}, "workers.object_name: 5 is not text"),
        ({"workers": {"image": "a", "object_name": ""}}, "workers.object_name: '' is empty"),
        ({"workers": {"object_name": "Bad Name"}}, "kubernetes.meshes.workers.object_name"),
        ({"workers": {"image": "a", "object_name": "a" * 53}}, "has 53 characters, at most 52"),
        (
            {name: {"image": "a", "object_name": "one"} for name in ("workers", "readers")},
            "kubernetes.meshes.readers.object_name: 'one' is the object of mesh 'workers'",
        ),
    ],
)
def test_mistakes_name_their_field(meshes: dict[str, Any], words: str) -> None:
    """Before anything is asked of a cluster."""
    with pytest.raises(SpecError) as caught:
        make_plans(make_spec(meshes), "ns")
    assert words in str(caught.value)


def test_a_rank_label_may_be_none_and_be_left_out() -> None:
    """An empty one means the order of names; nothing, or null, means the usual label."""
    for said, expected in (("", ""), (None, RANK_LABEL), ("example.com/rank", "example.com/rank")):
        plan, _other = make_plans(make_spec({"workers": {"pod_rank_label": said}}), "ns")
        assert plan.rank_label == expected


def test_pods_that_exist_are_not_looked_for_at_the_endpoint() -> None:
    """It shows none but those it makes, and the wait for others would have no end."""
    spec = make_spec({"workers": {"image": "a"}, "readers": {"image": "a"}})
    asked = replace(spec, client={"provision": "https://x"})
    assert all(plan.made for plan in make_plans(asked, "ns"))
    with pytest.raises(SpecError, match="mesh 'workers': its pods exist already") as caught:
        make_plans(replace(make_spec(), client={"provision": "https://x"}), "ns")
    assert "provision" in caught.value.hint


def test_a_namespace_must_be_one() -> None:
    """The rule is told."""
    with pytest.raises(SpecError, match="namespace"):
        make_plans(make_spec(), "No_Such")


# Names of objects


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w", "wx0a1b2c3d"),
        ("trainers2", "trainers2x0a1b2c3d"),
        ("a" * 34, "a" * 34 + "x0a1b2c3d"),
    ],
)
def test_a_plain_name_stays_readable(name: str, expected: str) -> None:
    """With the beginning of the job's id behind it, so that jobs of one namespace never meet."""
    assert make_mesh_name(name, APPLY_ID) == expected


def test_names_that_look_alike_stay_apart() -> None:
    """What Kubernetes does not take is left out, and then a hash of the whole tells them apart."""
    names = ["my_mesh", "my-mesh", "mymesh", "MyMesh", "a" * 35, "a" * 63, "Z"]
    made = [make_mesh_name(name, APPLY_ID) for name in names]
    assert len(set(made)) == len(names)
    for each in made:
        assert each.isalnum()
        assert each[0].isalpha()
        assert each == each.lower()
        assert len(each) <= MAX_SET_NAME

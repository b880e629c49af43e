"""What others have made, in a real cluster: an object without a job is taken whole, pods of a job are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubernetes.lab import BUSYBOX, Lab
from kubernetes.operators import Meshes, Operating
from kubernetes.test_job import IMPORTS, simple
from programs import Client


def make_theirs(meshes: Meshes) -> dict[str, Any]:
    """A mesh whose pods are different in every way."""
    init = {"name": "init", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["true"]}
    mesh = meshes.make(
        "w",
        replicas=1,
        nodeSelector={"kubernetes.io/hostname": "n1"},
        hostNetwork=True,
        serviceAccountName="theirs",
        initContainers=[init],
        volumes=[{"name": "old", "emptyDir": {}}],
        container={"env": [{"name": "OLD", "value": "1"}]},
    )
    mesh["metadata"] |= {"labels": {"team": "a"}, "annotations": {"example.com/note": "n"}}
    return mesh


@pytest.mark.timeout(300)
def test_nothing_of_an_earlier_template_stays(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The object stays the same one, its pods are what is declared and nothing else, and kill() leaves nothing."""
    lab.kubectl("-n", namespace, "create", "serviceaccount", "theirs")
    before = lab.objects(namespace)
    meshes = Meshes(lab, namespace)
    meshes.apply(make_theirs(meshes))
    meshes.wait_ready("w")
    uid = meshes.get("w")["metadata"]["uid"]
    assert "pods ['w-0', 'w-1']" in client.run(simple(namespace))
    mesh = meshes.get("w")
    assert mesh["metadata"]["uid"] == uid
    assert mesh["metadata"]["labels"]["team"] == "a"
    for pod in meshes.pods().values():
        spec = pod["spec"]
        assert not spec.get("hostNetwork")
        assert not spec.get("nodeSelector")
        assert not spec.get("initContainers")
        assert spec["serviceAccountName"] == "default"
        assert "OLD" not in json.dumps(spec["containers"])
    client.run("job_load().kill()")
    assert lab.objects(namespace) == before


@pytest.mark.timeout(300)
def test_pods_of_another_job_are_not_attached_to(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """By its labels they would be found: the error names their job, and nothing is done to them."""
    out = client.run(simple(namespace, 2, "print('id', job.apply_id)"))
    [job] = [line.split()[1] for line in out.splitlines() if line.startswith("id ")]
    uids = Meshes(lab, namespace).uids()
    code = f"""
        {IMPORTS}
        job = KubernetesJob({namespace!r}, timeout=60)
        job.add_mesh("w", 2)
        state = job.state(None)
    """
    out = client.run(code, code_expected=1)
    assert "SpecError" in out
    assert "was made for another job" in out
    assert job in out
    assert Meshes(lab, namespace).uids() == uids
    can_run = "job = job_load()\nprint('can', job.can_run(job))\njob.kill()\nprint('can', job.can_run(job))"
    out = client.run(can_run)
    assert "can True\ncan False" in out
    assert lab.objects(namespace) == []

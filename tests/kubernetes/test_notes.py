"""Whom a client believes in a cluster: not what somebody wrote on an object, and not a context's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Meshes
from kubernetes.test_job import IMPORTS, milkweed
from programs import Client

pytestmark = pytest.mark.usefixtures("alone")  # an operator writes on meshes

THEIRS = "5e0f1a2b-1111-4222-8333-444444444444"
OTHER_NAME = "https://kubernetes.default.svc"


def trap(folder: Path, kubeconfig: str) -> tuple[Path, Path]:
    """A kubeconfig whose login program leaves a trace, and that trace."""
    trace, path = folder / "trace", folder / "theirs.kubeconfig"
    data = json.loads(Path(kubeconfig).read_text()) if kubeconfig else {}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/usr/bin/touch",
        "args": [str(trace)],
        "interactiveMode": "Never",
    }
    data["users"] = [{"name": data["users"][0]["name"], "user": {"exec": plugin}}]
    path.write_text(json.dumps(data))
    return path, trace


def mark(meshes: Meshes, note: str) -> dict[str, Any]:
    """A mesh that says it is of a job of ours."""
    mesh = meshes.make("w", replicas=1)
    mesh["metadata"]["labels"] = {"milkweed.dev/job": THEIRS, "milkweed.dev/mesh": "w"}
    mesh["metadata"]["annotations"] = {"milkweed.dev/name": "theirs", "milkweed.dev/handle": note}
    return mesh


def write_config(lab: Lab, folder: Path, source: str, server: str) -> str:
    """The same kubeconfig, whose context leads to another address."""
    data = json.loads(
        lab.kubectl("config", "view", "--raw", "-o", "json", "--kubeconfig", source).stdout
    )
    data["clusters"][0]["cluster"]["server"] = server
    path = folder / f"other-{Path(source).name}"
    path.write_text(json.dumps(data))
    return str(path)


def ask(namespace: str) -> str:
    """A program that asks for a host, and does not wait for it: there is no operator."""
    lines = (
        f"job = KubernetesJob({namespace!r}, timeout=1)",
        f"job.add_mesh('w', 1, image_spec=ImageSpec({WORKER!r}))",
        "try: job.state()",
        "except TimeoutError: print('asked')",
    )
    return "\n".join((IMPORTS, *lines))


def using(client: Client, kubeconfig: str) -> Client:
    """The same client with another kubeconfig."""
    made = Client(client.folder, client.home)
    made.env |= {"KUBECONFIG": kubeconfig}
    return made


@pytest.mark.parametrize("readable", [True, False], ids=["evil", "unreadable"])
def test_what_an_object_says_runs_no_program_here(
    client: Client, lab: Lab, meshes: Meshes, tmp_path: Path, readable: bool
) -> None:
    """Whoever may make a mesh cannot have its finder use another login; and the job is found, and ended."""
    namespace = meshes.namespace
    login = lab.make_login(tmp_path, namespace, "finder")
    path, trace = trap(tmp_path, login)
    mesh: Mapping[str, Any] = {
        "name": "w", "made": True, "kept": True, "hosts": 1, "port": 26600, "selector": "",
        "rank_label": "",
    }  # fmt: skip
    note = {
        "apply_id": THEIRS, "kubeconfig": str(path), "reach": "auto", "client": False,
        "meshes": {"w": mesh},
    }  # fmt: skip
    meshes.apply(mark(meshes, json.dumps(note) if readable else "{"))
    assert THEIRS[:8] in milkweed(client, "ls", "--on", "kubernetes")
    milkweed(client, "status", THEIRS[:8], "--on", "kubernetes")
    assert "killed" in milkweed(client, "kill", THEIRS[:8], "--on", "kubernetes")
    assert not trace.exists()
    assert lab.kubectl("-n", namespace, "get", "monarchmeshes", "-o", "name").stdout == ""


def test_a_context_that_leads_elsewhere_is_not_the_job_s(
    client: Client, lab: Lab, namespace: str, meshes: Meshes, tmp_path: Path
) -> None:
    """A cluster that may not be the job's own is not asked whether the job is gone; nothing is made."""
    rights = ("--verb=*", "--resource=secrets,pods,monarchmeshes.monarch.pytorch.org")
    limited = lab.make_login(tmp_path, namespace, "limited", *rights)
    client.run(ask(namespace), KUBECONFIG=limited)
    before = meshes.get("w")["metadata"]
    other = write_config(lab, tmp_path, limited, OTHER_NAME)
    out = client.run(ask(namespace), code_expected=1, KUBECONFIG=other)
    assert "leads to another cluster than the one that the job is in" in out
    assert OTHER_NAME in out
    elsewhere = using(client, other)
    assert "unknown (the context 'lab' leads to another cluster" in milkweed(elsewhere, "status")
    milkweed(elsewhere, "kill", code=1)
    assert meshes.get("w")["metadata"]["resourceVersion"] == before["resourceVersion"]
    milkweed(using(client, limited), "kill")
    assert lab.kubectl("-n", namespace, "get", "monarchmeshes", "-o", "name").stdout == ""


def test_a_cluster_at_another_address_is_the_job_s_own(
    client: Client, lab: Lab, namespace: str, meshes: Meshes, tmp_path: Path
) -> None:
    """Who may see the cluster's id knows it again, whatever it is called."""
    client.run(ask(namespace), KUBECONFIG=lab.kubeconfig)
    elsewhere = using(client, write_config(lab, tmp_path, lab.kubeconfig, OTHER_NAME))
    assert "pending" in milkweed(elsewhere, "status")
    milkweed(elsewhere, "kill")
    assert lab.kubectl("-n", namespace, "get", "monarchmeshes", "-o", "name").stdout == ""

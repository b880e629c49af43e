"""The chart as Helm itself reads it, on a real cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kubernetes.lab import Lab
from kubernetes.operators import Meshes
from unit.operator_helm import find_helm, render_with_helm

CHART = Path(__file__).parents[2] / "charts" / "milkweed-operator"
pytestmark = pytest.mark.skipif(
    not find_helm(), reason="there is no Helm here (tests/labs/prepare.sh kubernetes)"
)


def helm(lab: Lab, *argv: str) -> str:
    """What a command of Helm prints, as the cluster's administrator."""
    command = [find_helm(), f"--kubeconfig={lab.kubeconfig}", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("everywhere", [True, False])
def test_what_helm_renders_is_taken(lab: Lab, meshes: Meshes, everywhere: bool) -> None:
    """By the API server itself, strictly, without making anything."""
    here = meshes.namespace
    chosen = [] if everywhere else [f"namespaces={{{here}}}"]
    text = render_with_helm(CHART, here, "provision.enabled=true", *chosen)
    argv = ("-n", here, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    done = lab.kubectl(*argv, text=text)
    assert len(done.stdout.splitlines()) == text.count("\nkind: ")
    assert "(server dry run)" in done.stdout


def test_a_release_comes_and_goes(lab: Lab, meshes: Meshes) -> None:
    """With everything that it made; the definition, which others need, stays."""
    here = meshes.namespace
    before = lab.objects(here)
    values = [f"namespaces={{{here}}}", "definition=false", "replicas=1"]
    chosen = [word for each in values for word in ("--set", each)]
    helm(lab, "install", "milkweed", str(CHART), "-n", here, *chosen)
    assert "deployment.apps/milkweed-operator" in lab.objects(here)
    helm(lab, "uninstall", "milkweed", "-n", here)
    lab.wait_objects(here, before)
    assert lab.get("customresourcedefinition", "monarchmeshes.monarch.pytorch.org")

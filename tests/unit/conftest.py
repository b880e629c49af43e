"""What unit tests of several files share: a Slurm that does what it is told, and a cluster in memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends import credentials
from milkweed.backends.kubernetes import attaching, cluster as watches
from milkweed.backends.slurm import commands
from milkweed.kube.api import Api
from milkweed.operator.loop import Operator
from milkweed.operator.policy import parse_policy
from milkweed.operator.provision import Provisioner
from milkweed.testing import FakeClock
from unit.flux_fake import FakeFlux, forget_flux
from unit.kube_fake import FakeApi, make_tls
from unit.kubernetes_jobs import Space
from unit.operator_asked import RULE
from unit.operator_cluster import Cluster
from unit.operator_runs import make_operator
from unit.slurm_fake import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Iterator[FakeSlurm]:
    """A cluster of no nodes and no jobs; its queue is read again whenever the clock was moved."""
    made = FakeSlurm(tmp_path / "slurm")
    made.answer("sbatch", "slurm-wlm 22.05.8\n")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(commands, "queue", commands.Queue(clock))
    monkeypatch.setattr(commands, "_nodes", [])
    commands.cluster_name.cache_clear()
    yield made
    commands.cluster_name.cache_clear()


@pytest.fixture
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFlux]:
    """An instance of four nodes and no jobs; nothing that was read before is remembered."""
    made = FakeFlux(tmp_path / "flux")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setenv("FLUX_URI", "local:///tmp/here/local-0")
    monkeypatch.delenv("FLUX_PROXY_REMOTE", raising=False)
    forget_flux()
    yield made
    forget_flux()


@pytest.fixture
def cluster(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A cluster of four nodes, which are this machine; a submission is number 7, and nobody sleeps."""
    slurm.nodes("n1", "n2", "n3", "n4", address="127.0.0.1")
    slurm.answer("sbatch", "7\n")
    slurm.then("sbatch", '[ "$1" = --version ] && exec echo "slurm-wlm 22.05.8"')
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    return slurm


# An API server on loopback


@pytest.fixture
def tls() -> bool:
    """Whether it speaks TLS; a file may have both."""
    return False


@pytest.fixture
def fake(tls: bool, tmp_path: Path) -> Iterator[FakeApi]:
    """An API server that does what a test says."""
    with FakeApi(make_tls(tmp_path / "tls") if tls else None) as made:
        yield made


@pytest.fixture
def api(fake: FakeApi) -> Iterator[Api]:
    """Who asks it."""
    made = fake.api()
    yield made
    made.close()


# Clusters in memory; which kind of `cluster` it is, a file of tests says


@pytest.fixture
def operator(cluster: Cluster, clock: FakeClock) -> Operator:
    """An operator that nobody runs but the test."""
    return make_operator(cluster, clock)


@pytest.fixture
def policy() -> dict[str, Any]:
    """What the policy says; a test may change it."""
    return {"rules": [{**RULE, "maxTotalHosts": 6}]}


@pytest.fixture
def provisioner(cluster: Cluster, policy: dict[str, Any]) -> Provisioner:
    """An endpoint that goes by the policy."""
    return Provisioner(cluster, lambda: parse_policy(policy))  # type: ignore[arg-type]


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A Kubernetes cluster with nothing in it, which is the one of this context."""
    made = Space()
    package = attaching.__name__.rpartition(".")[0]
    for name in [each for each in sys.modules if each.startswith(package)]:
        if hasattr(sys.modules[name], "api_of"):
            monkeypatch.setattr(sys.modules[name], "api_of", made.reach)
    monkeypatch.setattr(credentials, "_own", [])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield made
    for key in list(watches._watches):
        watches._watches.pop(key).stop()


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC, as it was where the corpus was recorded."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()

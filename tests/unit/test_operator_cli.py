"""`milkweed operator`: what it prints, what it refuses, and how it runs and ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from milkweed import pki
from milkweed.cli.commands.operator import app
from milkweed.errors import MilkweedError, SpecError
from milkweed.kube.login import parse_yaml
from milkweed.kube.resources import MESHES
from milkweed.operator import run as module
from milkweed.operator.door import Certificate
from milkweed.operator.health import answer, measure, parse_address, render_metrics, serve_health
from milkweed.operator.loop import SILENT_S, Operator, Settings
from milkweed.operator.provision import Provisioner
from milkweed.operator.run import (
    load_provisioner,
    log,
    make_identity,
    run_operator,
    run_provision,
    until_told,
)
from milkweed.testing import FakeClock
from unit.operator_asked import RULE
from unit.operator_cluster import Cluster
from unit.operator_runs import make_mesh, make_operator, run


def operator(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed operator")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster to talk to."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


# Manifests


def documents(*words: str) -> list[dict[str, Any]]:
    done = operator("manifests", *words)
    assert done.exit_code == 0, done.output
    return [parse_yaml(part) for part in done.stdout.split("---\n") if part]


def test_manifests_are_printed() -> None:
    """All of them, and nothing else, so that kubectl can read them."""
    kinds = [one["kind"] for one in documents()]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert "Deployment" in kinds
    assert "RoleBinding" in kinds


def test_manifests_as_asked() -> None:
    """Where, which image, for whom and how many."""
    words = [
        "--namespace",
        "ops",
        "--image",
        "x:1",
        "--only",
        "a",
        "--only",
        "b",
        "--replicas",
        "1",
    ]
    found = documents(*words)
    (deployment,) = [one for one in found if one["kind"] == "Deployment"]
    assert deployment["metadata"]["namespace"] == "ops"
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "x:1"
    roles = {one["metadata"]["namespace"] for one in found if one["kind"] == "Role"}
    assert roles == {"a", "b", "ops"}
    assert not [one for one in found if one["kind"] == "ClusterRole"]


def test_the_endpoint_is_there_when_asked_for() -> None:
    """With its own account, Service and pod."""
    names = {one["metadata"]["name"] for one in documents("--provision")}
    assert "milkweed-provision" in names
    assert "milkweed-provision" not in {one["metadata"]["name"] for one in documents()}


def test_no_replicas_are_no_operator() -> None:
    """There is at least one."""
    assert operator("manifests", "--replicas", "0").exit_code == 2


# Refused


@pytest.mark.usefixtures("nowhere")
def test_no_cluster() -> None:
    """Is told as such."""
    done = operator("run")
    assert isinstance(done.exception, SpecError)
    assert "no Kubernetes cluster" in str(done.exception)


@pytest.mark.parametrize("words", ["8080", "host:", "host:x", "host:99999", ""])
def test_addresses_that_are_none(words: str) -> None:
    """A host and a port."""
    with pytest.raises(SpecError, match="is no address"):
        parse_address(words)


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        (":80", ("0.0.0.0", 80)),  # noqa: S104  that is what it means
    ],
)
def test_addresses(words: str, address: tuple[str, int]) -> None:
    """As everybody writes them."""
    assert parse_address(words) == address


def test_a_policy_must_be_right_at_the_start(tmp_path: Path) -> None:
    """A program that could allow nothing does not start."""
    path = tmp_path / "policy.yaml"
    path.write_text("rules: x")
    with pytest.raises(SpecError):
        load_provisioner(Cluster(), path, "x", ())  # type: ignore[arg-type]
    path.write_text(json.dumps({"rules": [RULE]}))
    made = load_provisioner(Cluster(), path, "x", ())  # type: ignore[arg-type]
    assert made.is_ready()


# How it is


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_health(cluster: Cluster, clock: FakeClock) -> None:
    """Ready when everything was seen, unhealthy when it hangs."""
    made = make_operator(cluster, clock)
    assert answer(made, "/readyz")[0] == 503
    run(made, cluster, clock, 1)
    assert answer(made, "/readyz") == (200, "ok\n")
    assert answer(made, "/healthz") == (200, "ok\n")
    clock.advance(SILENT_S + 1)
    assert answer(made, "/healthz")[0] == 500
    assert answer(made, "/other")[0] == 404


def test_metrics(cluster: Cluster, clock: FakeClock) -> None:
    """Numbers that Prometheus reads, and no names of meshes."""
    cluster.put(MESHES.plural, make_mesh("secretproject"))
    made = make_operator(cluster, clock)
    run(made, cluster, clock)
    numbers = measure(made)
    assert (numbers["meshes"], numbers["meshes_ready"], numbers["pods"]) == (1, 1, 2)
    assert (numbers["leads"], numbers["terms_total"]) == (True, 1)
    assert numbers["writes_total"] == made.hands.writes > 0
    status, text = answer(made, "/metrics")
    assert status == 200
    assert "# TYPE milkweed_operator_meshes gauge\nmilkweed_operator_meshes 1\n" in text
    assert "# TYPE milkweed_operator_looks_total counter\n" in text
    assert "secretproject" not in text


def test_numbers_are_written_plainly() -> None:
    """As Prometheus has them."""
    assert render_metrics({"a": 1500000.0}) == (
        "# TYPE milkweed_operator_a gauge\nmilkweed_operator_a 1.5e+06\n"
    )


def test_health_over_the_network(cluster: Cluster, clock: FakeClock) -> None:
    """As the cluster asks."""
    server = serve_health(make_operator(cluster, clock), ("127.0.0.1", 0))
    try:
        port = server.socket.getsockname()[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz?x", timeout=10) as found:
            assert found.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)
        caught.value.close()
        assert caught.value.code == 503
    finally:
        server.shutdown()
        server.server_close()


# Running


def test_identities_are_different() -> None:
    """Two programs on one machine are two operators."""
    assert make_identity() != make_identity()


def test_a_line_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors of several lines stay together in the log."""
    log("one\ntwo")
    assert capsys.readouterr().err == "one |two\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_being_told_to_stop(number: int) -> None:
    """By a pod's end or by a person; afterwards signals mean what they meant before."""
    before = signal.getsignal(number)
    with until_told() as told:
        os.kill(os.getpid(), number)
        assert told.wait(10)
    assert signal.getsignal(number) is before


@pytest.fixture
def stopped_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Programs that are told to stop by an event instead of a signal."""
    told = threading.Event()

    class Told:
        def __enter__(self) -> threading.Event:
            return told

        def __exit__(self, *_: object) -> None:
            told.set()

    monkeypatch.setattr(module, "until_told", Told)
    yield told
    told.set()


def test_an_operator_runs_until_it_is_told(
    cluster: Cluster, stopped_soon: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it lets go of the lease."""
    started = threading.Event()
    real = Operator.start

    def start(self: Operator) -> None:
        self.lead()
        real(self)
        started.set()

    monkeypatch.setattr(Operator, "start", start)
    settings = Settings(identity="me", lease_namespace="system")
    target = (cluster, settings, ("127.0.0.1", 0))
    thread = threading.Thread(target=run_operator, args=target)
    thread.start()
    assert started.wait(10)
    stopped_soon.set()
    thread.join(20)
    assert not thread.is_alive()
    assert cluster.of_kind("leases")[0]["spec"]["holderIdentity"] == ""


def test_an_endpoint_runs_until_it_is_told(
    cluster: Cluster, tmp_path: Path, stopped_soon: threading.Event
) -> None:
    """Then its port is free again."""
    authority = pki.make_authority("x")
    keys = pki.save_credentials(
        tmp_path / "tls", authority.issue(["localhost"]), authority.cert_pem
    )
    certificate = Certificate(Path(keys.cert), Path(keys.key))
    provisioner = Provisioner(cluster, dict)  # type: ignore[arg-type]
    stopped_soon.set()
    run_provision(provisioner, certificate, ("127.0.0.1", 0))


def test_the_commands_start_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was said on the command line."""
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "ops"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            }
        )
    )
    told: list[Any] = []
    monkeypatch.setattr(module, "run_operator", lambda *words: told.append(words))
    monkeypatch.setattr(module, "run_provision", lambda *words: told.append(words))
    words = ["run", "-n", "a", "-n", "b", "--identity", "me", "--kubeconfig", str(kubeconfig)]
    done = operator(*words, "--listen", "127.0.0.1:9")
    assert done.exit_code == 0, done.exception
    _api, settings, address = told.pop()
    assert settings == Settings(identity="me", lease_namespace="ops", namespaces=("a", "b"))
    assert address == ("127.0.0.1", 9)
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"rules": [RULE]}))
    words = ["provision", "--policy", str(policy), "--cert", "c", "--key", "k"]
    done = operator(*words, "--kubeconfig", str(kubeconfig))
    assert done.exit_code == 0, done.exception
    assert told.pop()[2] == ("0.0.0.0", 8443)  # noqa: S104  pods of other machines ask


def test_errors_have_words() -> None:
    """What the programs raise is told as everything else."""
    assert isinstance(operator("run", "--listen", "x").exception, MilkweedError)

"""The endpoint for pods without rights on a real cluster: a program of its own, and those who ask it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from kubernetes.lab import CLIENT, Lab, skip_where_own, wait
from kubernetes.operators import Running, ended, free_port, make_login
from milkweed import pki
from milkweed.errors import AccessError, MilkweedError
from milkweed.kube.asking import Endpoint, look_up_mesh
from milkweed.operator.provision import AUDIENCE

POLICY = """
rules:
- name: small
  serviceAccounts: ["{namespace}/asker"]
  namespaces: ["{namespace}"]
  images: ["localhost/*"]
  maxHosts: 2
  maxGpus: 0
  maxTotalHosts: 3
"""


class Provisioning(Running):
    """One `milkweed operator provision`, with the endpoint's rights."""

    def __init__(self, folder: Path, kubeconfig: str, policy: Path, namespace: str) -> None:
        authority = pki.make_authority("endpoint")
        names = ["127.0.0.1", own_address()]
        keys = pki.save_credentials(folder / "tls", authority.issue(names), authority.cert_pem)
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(authority.cert_pem)
        port = free_port()
        self.address = f"https://{own_address()}:{port}"
        """As pods see it."""
        self.url = f"https://127.0.0.1:{port}"
        argv = [
            "provision",
            f"--policy={policy}",
            f"--cert={keys.cert}",
            f"--key={keys.key}",
            f"--listen=0.0.0.0:{port}",
            f"--namespace={namespace}",
            f"--kubeconfig={kubeconfig}",
        ]
        super().__init__(folder, port, *argv)

    def endpoint(self, token: str) -> Endpoint:
        """The same, for somebody with a token."""
        return Endpoint(self.url, self.ca, lambda: token)

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            look_up_mesh(self.endpoint("nobody"), "default", "x")
        except AccessError:
            return True
        except MilkweedError:
            return False
        return True


@contextlib.contextmanager
def provisioning(lab: Lab, folder: Path, namespace: str) -> Iterator[Provisioning]:
    """An endpoint for a namespace with the account `asker`, who has no rights at all."""
    lab.kubectl("-n", namespace, "create", "serviceaccount", "asker")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(namespace=namespace))
    kubeconfig = make_login(lab, folder, "milkweed-provision")
    running = Provisioning(folder, kubeconfig, policy, namespace)
    with ended([running]):
        wait(running.is_up, 60, "the endpoint does not answer", running.log.read_text)
        lab.kubectl(
            "-n", namespace, "create", "configmap", "ca", f"--from-file=ca.pem={running.ca}"
        )
        yield running
        assert running.stop() == 0, running.log.read_text()


def run_asking(lab: Lab, namespace: str, code: str, **env: str) -> str:
    """What a program prints in a pod with a token that the cluster projects for it, and no other right."""
    token = {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}
    sources = [{"serviceAccountToken": token}, {"configMap": {"name": "ca"}}]
    spec = {
        "serviceAccountName": "asker",
        "automountServiceAccountToken": False,
        "volumes": [{"name": "asking", "projected": {"sources": sources}}],
    }
    container = {
        "volumeMounts": [{"name": "asking", "mountPath": "/var/run/asking"}],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    argv = ("python3", "-c", code)
    lab.start_pod(namespace, "asking", *argv, image=CLIENT, spec=spec, container=container)
    try:
        lab.wait_phase(namespace, "asking", "Succeeded")
    except AssertionError as error:
        raise AssertionError(lab.logs(namespace, "asking")) from error
    return lab.logs(namespace, "asking")


def make_token(lab: Lab, namespace: str, account: str, audience: str = AUDIENCE) -> str:
    return lab.make_token(namespace, account, audience)


def own_address() -> str:
    """The address of this program as pods see it."""
    skip_where_own("pods of a cluster of yours do not reach this program")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.250.0.1", 1))
        return probe.getsockname()[0]

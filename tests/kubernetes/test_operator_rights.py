"""Who may do what on a real cluster: by the book, and as the API server answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubernetes.lab import BUSYBOX, Done, Lab
from kubernetes.operators import HOME, SLEEP, Meshes, make_login
from milkweed.operator.install import Install, make_install
from milkweed.operator.yaml import render_yaml

# The operator, and the endpoint

MAY = [
    ("list", "monarchmeshes"),
    ("watch", "monarchmeshes"),
    ("patch", "monarchmeshes//status"),
    ("delete", "monarchmeshes"),
    ("create", "statefulsets"),
    ("update", "statefulsets"),
    ("create", "services"),
    ("list", "pods"),
    ("create", "events"),
]
MAY_NOT = [
    ("create", "monarchmeshes"),
    ("deletecollection", "monarchmeshes"),
    ("update", "monarchmeshes"),
    ("delete", "statefulsets"),
    ("delete", "services"),
    ("delete", "pods"),
    ("create", "pods"),
    ("create", "pods//exec"),
    ("get", "secrets"),
    ("list", "secrets"),
    ("list", "configmaps"),
    ("create", "leases"),
    ("create", "tokenreviews"),
    ("list", "nodes"),
    ("create", "rolebindings"),
    ("impersonate", "users"),
]


def can_i(lab: Lab, account: str, verb: str, kind: str, namespace: str) -> bool:
    who = f"--as=system:serviceaccount:{HOME}:{account}"
    kind, _, sub = kind.partition("//")
    more = (f"--subresource={sub}",) if sub else ()
    done = lab.kubectl("auth", "can-i", verb, kind, "-n", namespace, who, *more, check=False)
    return done.stdout.split()[:1] == ["yes"]


def test_what_the_operator_may_do(lab: Lab, meshes: Meshes) -> None:
    """What it needs and nothing else; above all it deletes nothing but meshes, and reads no secret."""
    account, here = "milkweed-operator", meshes.namespace
    assert [what for what in MAY if not can_i(lab, account, *what, here)] == []
    assert [what for what in MAY_NOT if can_i(lab, account, *what, here)] == []


def test_the_operators_lease_is_the_only_one_it_writes(lab: Lab, installed: None) -> None:
    """In its own namespace, by name."""
    account = "milkweed-operator"
    assert can_i(lab, account, "update", "leases/milkweed-operator", HOME)
    assert not can_i(lab, account, "update", "leases/another", HOME)
    assert not can_i(lab, account, "delete", "leases/milkweed-operator", HOME)
    assert not can_i(lab, account, "update", "leases/milkweed-operator", "default")


def test_what_the_endpoint_may_do(lab: Lab, meshes: Meshes) -> None:
    """Meshes, Secrets by name, a look at pods, and asking who somebody is."""
    account, here = "milkweed-provision", meshes.namespace
    may = [
        *((verb, "monarchmeshes") for verb in ("get", "list", "create", "patch", "delete")),
        *((verb, "secrets") for verb in ("get", "create", "update", "delete")),
        ("list", "pods"),
        ("create", "tokenreviews"),
    ]
    may_not = [
        ("update", "monarchmeshes"),
        ("patch", "monarchmeshes//status"),
        *((verb, "secrets") for verb in ("list", "watch", "patch", "deletecollection")),
        *((verb, "pods") for verb in ("get", "create", "delete")),
        ("create", "statefulsets"),
        ("create", "events"),
    ]
    assert [what for what in may if not can_i(lab, account, *what, here)] == []
    assert [what for what in may_not if can_i(lab, account, *what, here)] == []


Asked = list[tuple[str, ...]]


def try_all(lab: Lab, login: str, namespace: str, asked: Asked, text: str = "") -> list[Done]:
    """What the API server answers to somebody."""
    mine = (f"--kubeconfig={login}", "-n", namespace)
    return [lab.kubectl(*mine, *argv, check=False, text=text) for argv in asked]


def not_forbidden(done: list[Done]) -> list[Done]:
    """The requests that the API server did not refuse for want of rights."""
    return [one for one in done if not one.returncode or " forbidden: User" not in one.stderr]


def test_what_the_operator_is_not_granted_is_refused(
    lab: Lab, meshes: Meshes, tmp_path: Path
) -> None:
    """Not only by the book: its own login cannot delete a pod or read a secret."""
    login = make_login(lab, tmp_path, "milkweed-operator")
    asked = [
        ("delete", "pod", "trainers-0"),
        ("get", "secrets"),
        ("delete", "statefulset", "trainers"),
        ("create", "configmap", "x"),
        ("create", "rolebinding", "x", "--clusterrole=cluster-admin", "--user=x"),
    ]
    assert not_forbidden(try_all(lab, login, meshes.namespace, asked)) == []


def test_what_the_endpoint_is_not_granted_is_refused(
    lab: Lab, meshes: Meshes, tmp_path: Path
) -> None:
    """Whoever breaks into it can make and delete meshes, and reads no Secret whose name they do not know."""
    login = make_login(lab, tmp_path, "milkweed-provision")
    asked: Asked = [("get", "secrets"), ("get", "pod", "x"), ("create", "configmap", "x")]
    assert not_forbidden(try_all(lab, login, meshes.namespace, asked)) == []


# Some namespaces only: the operator, clients and workers


@pytest.fixture
def granted(lab: Lab, meshes: Meshes) -> str:
    """A namespace with the accounts and roles that the manifests have for one."""
    home = meshes.namespace
    objects = make_install(Install(namespace=home, only=(home,)))
    kept = [one for one in objects if one["kind"] in {"ServiceAccount", "Role", "RoleBinding"}]
    lab.kubectl("apply", "-f", "-", text=render_yaml(kept))
    return home


def test_rights_in_one_namespace_are_none_in_another(lab: Lab, granted: str) -> None:
    """An operator of some namespaces cannot even list the others."""
    who = f"--as=system:serviceaccount:{granted}:milkweed-operator"
    for where, answer in ((granted, "yes"), ("default", "no")):
        argv = ("auth", "can-i", "list", "monarchmeshes", "-n", where, who)
        assert lab.kubectl(*argv, check=False).stdout.split()[:1] == [answer]


def test_what_a_client_is_granted(lab: Lab, meshes: Meshes, granted: str, tmp_path: Path) -> None:
    """Meshes, a look at their hosts, and the Secrets of its jobs by name, in its own namespace."""
    login = make_login(lab, tmp_path, "milkweed-client", granted)
    mine = (f"--kubeconfig={login}", "-n", granted)
    lab.kubectl(*mine, "create", "-f", "-", text=json.dumps(meshes.make(replicas=1)))
    asked = [
        ("get", "monarchmeshes"),
        ("patch", "monarchmesh", "trainers", "--type=merge", "-p", '{"spec": {"replicas": 2}}'),
        ("get", "pods"),
        ("get", "jobs"),
        ("get", "events"),
        ("create", "secret", "generic", "keys", "--from-literal=a=b"),
        ("get", "secret", "keys"),
        ("delete", "secret", "keys"),
        ("delete", "monarchmesh", "trainers"),
    ]
    assert [one.stderr for one in try_all(lab, login, granted, asked) if one.returncode] == []


def test_what_a_client_is_not_granted_is_refused(lab: Lab, granted: str, tmp_path: Path) -> None:
    """Pods are made by the operator alone, Secrets are not listed, and nothing is done in other namespaces."""
    lab.run_pod(granted, "x", *SLEEP, image=BUSYBOX)
    login = make_login(lab, tmp_path, "milkweed-client", granted)
    asked: Asked = [
        ("delete", "pod", "x"),
        ("exec", "x", "--", "sh"),
        ("get", "secrets"),
        ("get", "statefulsets"),
        ("get", "services"),
        ("scale", "statefulset", "x", "--replicas=2"),
        ("delete", "statefulset", "x"),
        ("create", "configmap", "x"),
        ("create", "token", "default"),
        ("create", "role", "x", "--verb=get", "--resource=secrets"),
        ("get", "leases"),
        ("get", "nodes"),
    ]
    assert not_forbidden(try_all(lab, login, granted, asked)) == []
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "y"},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }
    assert (
        not_forbidden(try_all(lab, login, granted, [("create", "-f", "-")], json.dumps(pod))) == []
    )
    elsewhere: Asked = [("get", "monarchmeshes"), ("get", "pods"), ("get", "secrets")]
    assert not_forbidden(try_all(lab, login, "default", elsewhere)) == []


def test_workers_may_do_nothing(lab: Lab, granted: str, tmp_path: Path) -> None:
    """Their pods have no token at all, and one that was made for them by hand opens nothing."""
    spec = {"serviceAccountName": "milkweed-worker"}
    lab.run_pod(granted, "worker", *SLEEP, image=BUSYBOX, spec=spec)
    found = lab.in_pod(granted, "worker", "ls", "/var/run/secrets", check=False)
    assert "No such file" in found.stderr
    login = make_login(lab, tmp_path, "milkweed-worker", granted)
    asked = [
        ("get", kind) for kind in ("pods", "secrets", "monarchmeshes", "services", "configmaps")
    ]
    assert not_forbidden(try_all(lab, login, granted, asked)) == []

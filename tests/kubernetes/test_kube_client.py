"""The client of the API server, on a real one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import BUSYBOX, CLIENT, Lab, wait
from milkweed.errors import AccessError
from milkweed.kube.api import Api, ApiError
from milkweed.kube.config import load_config
from milkweed.kube.resources import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    STATEFUL_SETS,
    Resource,
)

UNKNOWN = Resource("nobody.example", "v1", "things")


@pytest.fixture
def api() -> Iterator[Api]:
    """The API server, as its administrator."""
    made = Api(load_config())
    yield made
    made.close()


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"of": "test"}},
        "data": data,
    }


# Requests


def test_objects_are_made_read_changed_and_deleted(api: Api, namespace: str) -> None:
    """Create, list, get, replace, patch and delete do what they say, over one connection."""
    made = api.create(CONFIG_MAPS, namespace, config_map("a", key="1"))
    assert made["metadata"]["uid"]
    listed = api.get(CONFIG_MAPS, namespace, labelSelector="of=test")
    assert [each["metadata"]["name"] for each in listed["items"]] == ["a"]
    made["data"]["key"] = "2"
    assert api.replace(CONFIG_MAPS, namespace, "a", made)["data"] == {"key": "2"}
    patched = api.patch(CONFIG_MAPS, namespace, "a", {"data": {"more": "3", "key": None}})
    assert patched["data"] == {"more": "3"}
    assert api.get(CONFIG_MAPS, namespace, "a")["data"] == {"more": "3"}
    assert [api.delete(CONFIG_MAPS, namespace, "a") for _ in range(2)] == [True, False]
    with pytest.raises(ApiError, match="not found") as caught:
        api.get(CONFIG_MAPS, namespace, "a")
    assert (caught.value.missing, caught.value.reason, len(api._idle)) == (True, "NotFound", 1)


def test_apply_makes_and_changes(api: Api, namespace: str) -> None:
    """What is applied is made, changed, and taken away again where it is not said any more."""
    one = api.apply(CONFIG_MAPS, namespace, config_map("a", one="1", two="2"))
    again = api.apply(CONFIG_MAPS, namespace, config_map("a", one="1", two="2"))
    assert one["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    api.patch(CONFIG_MAPS, namespace, "a", {"data": {"theirs": "x"}})
    changed = api.apply(CONFIG_MAPS, namespace, config_map("a", one="7"))
    assert changed["data"] == {"one": "7", "theirs": "x"}
    dry = api.apply(CONFIG_MAPS, namespace, config_map("b"), dryRun="All")
    assert dry["metadata"]["name"] == "b"
    assert api.delete(CONFIG_MAPS, namespace, "b") is False


def test_refusals_have_reasons(api: Api, namespace: str) -> None:
    """Twice the same, an old version, nonsense and an unknown kind are told apart."""
    made = api.create(CONFIG_MAPS, namespace, config_map("a"))
    api.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "1"}})
    cases: list[tuple[Callable[[], Any], int, str]] = [
        (lambda: api.create(CONFIG_MAPS, namespace, config_map("a")), 409, "AlreadyExists"),
        (lambda: api.replace(CONFIG_MAPS, namespace, "a", made), 409, "Conflict"),
        (lambda: api.create(CONFIG_MAPS, namespace, config_map("A_")), 422, "Invalid"),
        (lambda: api.get(UNKNOWN, namespace), 404, ""),
        (lambda: api.create(CONFIG_MAPS, "nowhere", config_map("a")), 404, "NotFound"),
        (lambda: api.get(PODS, namespace, limit="x"), 400, "BadRequest"),
    ]
    for call, status, reason in cases:
        with pytest.raises(ApiError) as caught:
            call()
        assert caught.value.status == status
        assert caught.value.reason in {reason, "NotFound"}
        assert caught.value.seen


def test_an_unknown_namespace_is_empty_to_look_at(api: Api) -> None:
    """Listing where nothing is gives nothing; only making something there is refused."""
    assert api.get(PODS, "nowhere")["items"] == []
    with pytest.raises(ApiError, match='namespaces "nowhere" not found'):
        api.create(SECRETS, "nowhere", {"metadata": {"name": "a"}})


def test_deleting_takes_what_is_owned(lab: Lab, api: Api, namespace: str) -> None:
    """In the foreground an object goes when all that it owns has gone."""
    labels = {"app": "s"}
    pod = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": BUSYBOX, "command": ["sleep", "600"]}],
    }
    spec = {
        "replicas": 2,
        "serviceName": "s",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    api.create(STATEFUL_SETS, namespace, {"metadata": {"name": "s"}, "spec": spec})
    lab.wait_phase(namespace, "s-1", "Running")
    assert api.delete(STATEFUL_SETS, namespace, "s", policy="Foreground") is True
    lab.wait_empty(namespace)


def test_logs_are_bytes(lab: Lab, api: Api, namespace: str) -> None:
    """What a pod printed is read as it is; a pod that has not started has no log."""
    lab.start_pod(namespace, "p", "sh", "-c", "echo one; echo two", image=BUSYBOX)
    lab.wait_phase(namespace, "p", "Succeeded")
    path = PODS.path(namespace, "p", "log")
    assert (api.read(path), api.read(path, tailLines="1")) == (b"one\ntwo\n", b"two\n")
    with pytest.raises(ApiError, match="not found"):
        api.read(PODS.path(namespace, "q", "log"))


# Who asks


def test_a_client_certificate_logs_in(api: Api) -> None:
    """The administrator's kubeconfig has a certificate, and may do everything."""
    login = api.config.log_in()
    assert (login.token, bool(login.cert_pem), bool(login.key_pem)) == (None, True, True)
    review = {"spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}}
    assert api.create(ACCESS_REVIEWS, "", review)["status"]["allowed"] is True
    assert len(api.get(NODES)["items"]) >= 1
    assert api.get(NAMESPACES, "", "default")["metadata"]["name"] == "default"


def test_who_has_no_rights_is_told(lab: Lab, namespace: str, tmp_path: Path) -> None:
    """A service account without rights is forbidden everything, in the API server's words."""
    path = lab.make_login(tmp_path, namespace, "nobody")
    api = Api(load_config(None, path))
    assert api.config.namespace == namespace
    with pytest.raises(
        ApiError, match=f"serviceaccount:{namespace}:nobody.* cannot list"
    ) as caught:
        api.get(PODS, namespace)
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    api.close()


def test_rights_are_for_a_namespace(lab: Lab, namespace: str, tmp_path: Path) -> None:
    """A role opens one namespace and no other."""
    path = lab.make_login(tmp_path, namespace, "reader", "--verb=list", "--resource=pods")
    api = Api(load_config(None, path))
    wait(lambda: _allowed(api, namespace), 60, "the role is not seen")
    assert not _allowed(api, "default")
    api.close()


def _allowed(api: Api, namespace: str) -> bool:
    try:
        return api.get(PODS, namespace)["items"] is not None
    except ApiError as error:
        if error.status != 403:
            raise
        return False


def test_an_unknown_token_is_refused(lab: Lab, namespace: str, tmp_path: Path) -> None:
    """Who is not known hears 401."""
    path = lab.make_login(tmp_path, namespace, "somebody")
    data = json.loads(Path(path).read_text())
    data["users"][0]["user"] = {"token": "stale"}
    Path(path).write_text(json.dumps(data))
    with pytest.raises(ApiError, match="does not know who asks") as caught:
        Api(load_config(None, path)).get(PODS, namespace)
    assert (caught.value.status, caught.value.reason) == (401, "Unauthorized")


def test_a_stale_login_is_renewed(lab: Lab, namespace: str, tmp_path: Path) -> None:
    """A login program whose token is not taken is asked again, and the request goes through."""
    path = Path(lab.make_login(tmp_path, namespace, "me", "--verb=list", "--resource=pods"))
    data = json.loads(path.read_text())
    (tmp_path / "tokens").write_text("stale\n" + data["users"][0]["user"]["token"] + "\n")
    program = tmp_path / "log-in"
    program.write_text(
        f"""#!/bin/sh
        token=$(head -1 {tmp_path}/tokens); sed -i 1d {tmp_path}/tokens
        echo "{{'status': {{'token': '$token'}}}}"
        """
    )
    program.chmod(0o755)
    data["users"][0]["user"] = {"exec": {"command": "./log-in"}}
    path.write_text(json.dumps(data))
    api = Api(load_config(None, str(path)))
    wait(lambda: _allowed(api, namespace), 60, "the role is not seen")
    assert (tmp_path / "tokens").read_text() == ""
    api.close()


def test_another_authority_is_not_trusted(lab: Lab, tmp_path: Path) -> None:
    """A kubeconfig with the wrong authority reaches nobody."""
    data = json.loads(lab.kubectl("config", "view", "--raw", "-o", "json").stdout)
    other = base64.b64decode(data["users"][0]["user"]["client-certificate-data"])
    cluster = data["clusters"][0]["cluster"]
    cluster["certificate-authority-data"] = base64.b64encode(other).decode()
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(data))
    with pytest.raises(AccessError, match="not trusted"):
        Api(load_config(None, str(path))).get(PODS, "default")


def test_a_pod_knows_its_cluster(lab: Lab, namespace: str) -> None:
    """Milkweed in a pod, without root and without a kubeconfig, asks as the pod's service account."""
    code = """if True:
        from milkweed.kube.api import Api
        from milkweed.kube.config import load_config
        from milkweed.kube.resources import PODS
        config = load_config()
        found = Api(config).get(PODS, config.namespace)["items"]
        print(config.cluster.server, [each["metadata"]["name"] for each in found])
    """
    roles = ("create", "rolebinding", "all", "--clusterrole=view")
    lab.kubectl("-n", namespace, *roles, f"--serviceaccount={namespace}:default")
    who = {"securityContext": {"runAsUser": 1234}}
    lab.start_pod(namespace, "c", "python3", "-c", code, image=CLIENT, spec=who)
    lab.wait_phase(namespace, "c", "Succeeded")
    assert lab.logs(namespace, "c") == "https://10.96.0.1:443 ['c']\n"

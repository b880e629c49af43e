"""Kubeconfig files as kubectl understands them, and a pod's own service account."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import AccessError, MilkweedError, SpecError
from milkweed.kube.config import Config, Login, in_cluster, load_config

Where = pytest.MonkeyPatch


def make(
    server: str = "https://10.0.0.1:6443", *, name: str = "lab", user: Any = None, **more: Any
) -> dict[str, Any]:
    """The data of a kubeconfig with one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, **more}}],
        "users": [{"name": name, "user": {"token": "secret"} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def save(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def load(folder: Path, data: Any, context: str | None = None) -> Config:
    return load_config(context, str(save(folder / "kubeconfig", data)))


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: Where, tmp_path: Path) -> None:
    """No cluster of the machine that runs the tests is found."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_a_context_names_cluster_namespace_and_user(tmp_path: Path) -> None:
    """The current context counts, with its namespace."""
    data = make(**{"tls-server-name": "api", "proxy-url": "http://proxy:3128"})
    data["contexts"][0]["context"]["namespace"] = "research"
    found = load(tmp_path, data)
    assert (found.context, found.namespace, found.log_in()) == ("lab", "research", Login("secret"))
    cluster = found.cluster
    assert cluster.server == "https://10.0.0.1:6443"
    assert (cluster.server_name, cluster.proxy) == ("api", "http://proxy:3128")
    assert (cluster.ca_pem, cluster.insecure, found.warnings) == (None, False, [])


def test_yaml_is_read_as_well(tmp_path: Path) -> None:
    """Most kubeconfigs are YAML; numbers in it that are words stay words."""
    text = """
    clusters: [{name: 1, cluster: {server: "http://localhost:8001/"}}]
    users: [{name: 2, user: {token: 12345}}]
    contexts:
    - name: 3
      context: {cluster: 1, user: 2, namespace: 4}
    current-context: 3
    """
    found = load(tmp_path, text)
    assert (found.context, found.namespace, found.log_in().token) == ("3", "4", "12345")
    assert found.cluster.server == "http://localhost:8001"


def test_another_context_can_be_chosen(tmp_path: Path) -> None:
    """A context is chosen by its name; without a user nobody logs in, and `default` is the namespace."""
    data = make()
    data["contexts"].append({"name": "other", "context": {"cluster": "lab"}})
    found = load(tmp_path, data, "other")
    assert (found.context, found.namespace, found.log_in()) == ("other", "default", Login())


def test_files_are_merged_and_the_first_counts(tmp_path: Path, monkeypatch: Where) -> None:
    """Of several files in KUBECONFIG the first that says something is right; missing and empty ones are fine."""
    first = save(tmp_path / "1", {"contexts": [{"name": "a", "context": {"cluster": "lab"}}]})
    second, third = make("https://second"), make("https://third")
    third["clusters"][0]["name"] = "more"
    third["users"][0]["user"] = {"token": "another"}
    paths = [first, tmp_path / "none", save(tmp_path / "0", ""), save(tmp_path / "2", second)]
    paths.append(save(tmp_path / "3", third))
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, paths)))
    assert (load_config().context, load_config().cluster.server) == ("lab", "https://second")
    assert load_config().log_in() == Login("secret")
    assert load_config("a").cluster.server == "https://second"


def test_the_usual_place_is_looked_at(tmp_path: Path) -> None:
    """Without KUBECONFIG it is ~/.kube/config."""
    save(tmp_path / "home/.kube/config", make("https://usual"))
    assert load_config().cluster.server == "https://usual"
    assert load_config(None, "~/.kube/config").cluster.server == "https://usual"


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    """Files are named from where the kubeconfig is, not from where the program is."""
    for name in ("ca.crt", "me.crt", "me.key", "token"):
        save(tmp_path / "pki" / name, f"{name} text\n")
    user = {"client-certificate": "pki/me.crt", "client-key": "pki/me.key"}
    found = load(tmp_path, make(user=user, **{"certificate-authority": "pki/ca.crt"}))
    assert found.cluster.ca_pem == "ca.crt text\n"
    assert found.log_in() == Login(cert_pem="me.crt text\n", key_pem="me.key text\n")


def test_data_stands_before_files(tmp_path: Path) -> None:
    """Certificates in the kubeconfig itself count, also when they are wrapped."""
    text = encode("the authority")
    data = make(
        **{
            "certificate-authority-data": f"{text[:6]}\n  {text[6:]}\n",
            "certificate-authority": "/nowhere",
        }
    )
    data["users"][0]["user"] = {
        "client-certificate-data": encode("me"),
        "client-key-data": encode("key"),
    }
    found = load(tmp_path, data)
    assert found.cluster.ca_pem == "the authority"
    assert found.log_in() == Login(cert_pem="me", key_pem="key")


def test_files_of_a_user_are_read_anew(tmp_path: Path) -> None:
    """Tokens and certificates that a program renews on disk are seen at the next login."""
    paths = {name: save(tmp_path / name, "old") for name in ("token", "crt", "key")}
    user = {"tokenFile": "token", "client-certificate": "crt", "client-key": "key", "token": "t"}
    found = load(tmp_path, make(user=user))
    assert found.log_in() == Login("old", "old", "old")
    for path in paths.values():
        path.write_text("new\n")
    assert found.log_in() == Login("new", "new\n", "new\n")
    paths["token"].unlink()
    with pytest.raises(AccessError, match="token for the API server cannot be read"):
        found.log_in()


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ({"insecure-skip-tls-verify": True}, "not looked at"),
        ({"insecure-skip-tls-verify": "false"}, ""),
        ({"server": "http://10.0.0.1:8080"}, "without TLS"),
        ({"server": "http://127.0.0.1:8001"}, ""),
    ],
)
def test_what_is_not_safe_is_said(tmp_path: Path, more: dict[str, Any], warning: str) -> None:
    """Whoever asked not to look at certificates hears about it, and nobody else turns that on."""
    data = make()
    data["clusters"][0]["cluster"] |= more
    found = load(tmp_path, data)
    assert found.cluster.insecure == (more.get("insecure-skip-tls-verify") is True)
    assert [warning in each for each in found.warnings] == ([True] if warning else [])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("{", "cannot be read"),
        ("a: [", "cannot be read"),
        ("a: 1\na: 2", "cannot be read"),
        ("hello", "is not a kubeconfig"),
        ("[]", "is not a kubeconfig"),
        ("{}", "names no current context"),
        ({"clusters": {}}, "names no current context"),
        ({"clusters": "lab"}, "its clusters are no list"),
        ({"contexts": ["lab"]}, "one of its contexts has no name"),
        ({"users": [{"user": {}}]}, "one of its users has no name"),
        ({"users": [{"name": "me", "user": "me"}]}, "its user 'me' is no mapping"),
        ({**make(), "current-context": "lap"}, "there is no context 'lap'"),
        ({**make(), "clusters": []}, "names 'lab', which is not among its clusters"),
        ({**make(), "users": [{"name": "x"}]}, "names 'lab', which is not among its users"),
        (make(""), "server '' is not an address"),
        (make("10.0.0.1:6443"), "is not an address"),
        (make("ftp://10.0.0.1"), "is not an address"),
        (make("https://:6443"), "is not an address"),
        (make("https://host:port"), "is not an address"),
        (make(**{"certificate-authority": "nowhere"}), "certificate-authority cannot be read"),
        (make(**{"certificate-authority-data": "%"}), "certificate-authority-data is not base64"),
        (make(**{"certificate-authority-data": "/w=="}), "authority-data is not base64"),
        (make(user={"client-key": "nowhere"}), "client-key cannot be read"),
        (make(user={"client-key-data": encode("key")}), "needs both"),
        (make(user={"client-certificate-data": encode("me")}), "needs both"),
        (make(user={"auth-provider": {"name": "gcp"}}), "auth-provider, which Kubernetes has gi"),
        (make(user={"username": "me", "password": "p"}), "a name with a password"),
        (make(user={"token": "t", "as": "root"}), "the rights of somebody else"),
        (make(user={"exec": {"args": ["x"]}}), "exec is not understood"),
        (make(user={"exec": "aws"}), "exec is not understood"),
        (make(user={"exec": {"command": "aws", "env": [{"name": "x"}]}}), "exec is not under"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, data: Any, error: str) -> None:
    """A broken kubeconfig is an error of the declaration, whatever is broken in it."""
    with pytest.raises(SpecError, match=error):
        load(tmp_path, data)


def test_a_misspelled_context_is_suggested(tmp_path: Path) -> None:
    """The error shows all contexts, and the nearest one."""
    with pytest.raises(SpecError) as caught:
        load(tmp_path, make(), "lap")
    assert (caught.value.seen, caught.value.hint) == ("lab", "did you mean 'lab'?")


def test_a_damaged_key_is_never_shown(tmp_path: Path) -> None:
    """Errors about keys and tokens do not quote them, nor do values when they are printed."""
    user = {"client-certificate-data": encode("me"), "client-key-data": "c2VjcmV0!"}
    with pytest.raises(SpecError) as caught:
        load(tmp_path, make(user=user))
    assert "c2V" not in str(caught.value)
    with pytest.raises(AccessError, match="no token has") as refused:
        load(tmp_path, make(user={"token": "sec ret\n"})).log_in()
    assert "ret" not in str(refused.value).replace("secret", "")
    assert "secret" not in repr(Login("secret", "cert", "secret"))


def test_a_named_file_must_be_there(tmp_path: Path, monkeypatch: Where) -> None:
    """A file that was asked for is not replaced by another one."""
    save(tmp_path / "home/.kube/config", make())
    with pytest.raises(SpecError, match="there is no file 'nowhere'"):
        load_config(None, "nowhere")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(SpecError, match="there is no Kubernetes cluster") as caught:
        load_config()
    assert str(tmp_path / "none") in caught.value.seen


# In a pod


def make_account(folder: Path) -> Path:
    for name, text in {"ca.crt": "the authority", "token": "first\n", "namespace": "lab"}.items():
        save(folder / name, text)
    return folder


def test_a_pod_without_a_token_hears_of_the_endpoint(tmp_path: Path, monkeypatch: Where) -> None:
    """It is a pod of a cluster, which may do nothing there; outside of one nobody hears of that."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with pytest.raises(SpecError, match="there is no Kubernetes cluster") as caught:
        load_config(account=tmp_path / "none")
    assert f"this pod has no token of its own at {tmp_path / 'none'}" in caught.value.seen
    assert "provision=" in caught.value.hint
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(SpecError, match="this is not a pod of one") as caught:
        load_config(account=tmp_path / "none")
    assert "provision=" not in caught.value.hint


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: Where) -> None:
    """Without a kubeconfig a pod talks to its own cluster, and sees a renewed token at once."""
    folder = make_account(tmp_path / "account")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "8443")
    found = load_config(account=folder)
    assert (found.cluster.server, found.cluster.ca_pem) == (
        "https://10.96.0.1:8443",
        "the authority",
    )
    assert (found.namespace, found.context) == ("lab", "")
    assert found.log_in() == Login("first")
    save(folder / "token", "second\n")
    assert found.log_in() == Login("second")
    with pytest.raises(SpecError, match="there is no Kubernetes cluster") as caught:
        load_config("lab", account=folder)
    assert "a pod's own account has no context 'lab'" in caught.value.seen
    save(tmp_path / "home/.kube/config", make())
    assert load_config(account=folder).context == "lab"


def test_addresses_of_version_6_are_written_in_brackets(tmp_path: Path) -> None:
    """A pod in a cluster of IPv6 finds its API server; a missing namespace is `default`."""
    folder = make_account(tmp_path)
    (folder / "namespace").unlink()
    found = in_cluster(folder, {"KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert (found.cluster.server, found.namespace) == ("https://[fd00::1]:443", "default")


@pytest.mark.parametrize("missing", ["ca.crt", "token", "KUBERNETES_SERVICE_HOST"])
def test_half_a_service_account_is_none(tmp_path: Path, missing: str) -> None:
    """A pod without all of it is told what is missing."""
    folder, environ = make_account(tmp_path), {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    environ.pop(missing, None)
    (folder / missing).unlink(missing_ok=True)
    with pytest.raises(MilkweedError) as caught:
        in_cluster(folder, environ)
    assert missing in caught.value.seen

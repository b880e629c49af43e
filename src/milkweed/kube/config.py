"""Which API server, and who asks: kubeconfig files with their contexts, or the pod's own service account."""

from __future__ import annotations

import base64
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..errors import SpecError
from ..spec import suggest
from .login import Login, make_login, parse_yaml, read_pem, read_token

__all__ = ["Cluster", "Config", "Login", "in_cluster", "load_config"]

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KINDS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One API server."""

    server: str
    """Its address: `https://10.0.0.1:6443`."""
    ca_pem: str | None = None
    """The authority that signs its certificate; None: those of this machine."""
    insecure: bool = False
    """Whether its certificate is not looked at; somebody said so in the kubeconfig."""
    server_name: str | None = None
    """The name in its certificate, where that is not the one in its address."""
    proxy: str | None = None
    """What leads there: `http://proxy:3128`; None: what the environment says."""


@dataclass(slots=True)
class Config:
    """A cluster, a namespace, and a way to log in that is asked whenever it may have changed."""

    cluster: Cluster
    namespace: str
    context: str
    log_in: Callable[[], Login]
    forget: Callable[[], None] = lambda: None
    """Called when the API server did not take the login, before it is asked for once more."""
    warnings: list[str] = field(default_factory=list[str])


def load_config(
    context: str | None = None, kubeconfig: str | None = None, *, account: Path = IN_CLUSTER
) -> Config:
    """The configuration that kubectl would use; in a pod without a kubeconfig, that of the pod's own account."""
    paths = _find_files(kubeconfig)
    if paths:
        return _of_files(paths, context)
    if not context and "KUBERNETES_SERVICE_HOST" in os.environ and account.is_dir():
        return in_cluster(account)
    raise _make_nowhere(context, account)


def _make_nowhere(context: str | None, account: Path) -> SpecError:
    """Why there is nobody to ask; in a pod of a cluster that is said, and what such a pod can do."""
    looked = os.environ.get("KUBECONFIG") or "~/.kube/config"
    why, hint = "this is not a pod of one", "set KUBECONFIG, or give kubeconfig=…"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        why = f"this pod has no token of its own at {account}"
        hint = "ask the operator's endpoint with provision=…; or have a token mounted, or give kubeconfig=…"
        if context:
            why = f"a pod's own account has no context {context!r}"
            hint = "leave out context, or give kubeconfig=…"
    return SpecError(
        "there is no Kubernetes cluster to talk to",
        seen=f"no file at {looked}, and {why}",
        hint=hint,
    )


def in_cluster(folder: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration of a pod: its service account, whose token changes by and by."""
    folder, given = folder or IN_CLUSTER, os.environ if environ is None else environ
    host, port = given.get("KUBERNETES_SERVICE_HOST"), given.get("KUBERNETES_SERVICE_PORT")
    try:
        ca_pem = (folder / "ca.crt").read_text()
        read_token(folder / "token")
    except OSError as error:
        raise SpecError("this pod has no service account", seen=str(error)) from error
    if not host:
        raise SpecError("this is no pod of a cluster", seen="KUBERNETES_SERVICE_HOST is not set")
    shown = f"[{host}]" if ":" in host else host
    space = folder / "namespace"
    return Config(
        cluster=Cluster(server=f"https://{shown}:{port or 443}", ca_pem=ca_pem),
        namespace=space.read_text().strip() if space.is_file() else "default",
        context="",
        log_in=lambda: Login(token=read_token(folder / "token")),
    )


def _find_files(kubeconfig: str | None) -> list[Path]:
    """All files that are there; one that was named must be."""
    if kubeconfig:
        path = Path(os.path.expanduser(kubeconfig))
        if not path.is_file():
            raise SpecError(f"kubeconfig: there is no file {kubeconfig!r}")
        return [path]
    said = os.environ.get("KUBECONFIG") or ""
    names = [name for name in said.split(os.pathsep) if name] or ["~/.kube/config"]
    paths = [Path(os.path.expanduser(name)) for name in names]
    return [path for path in paths if path.is_file()]


# Kubeconfig files


def _of_files(paths: Sequence[Path], context: str | None) -> Config:
    merged = _merge([(path, _read(path)) for path in paths])
    name = context or merged["current-context"]
    chosen = _choose(merged["contexts"], name)
    data = _pick(merged, "clusters", chosen.get("cluster"), name)
    user = _pick(merged, "users", chosen["user"], name) if chosen.get("user") else {}
    cluster = _make_cluster(data)
    log_in, forget = make_login(user, _describe(cluster))
    return Config(
        cluster=cluster,
        namespace=str(chosen.get("namespace") or "default"),
        context=name,
        log_in=log_in,
        forget=forget,
        warnings=_warn(cluster),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = parse_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"the kubeconfig {path} cannot be read", seen=str(error)) from error
    if found is None:  # an empty one of several
        return {}
    if not isinstance(found, dict):
        raise SpecError(f"{path} is not a kubeconfig")
    return cast("dict[str, Any]", found)


def _merge(files: Sequence[tuple[Path, Mapping[str, Any]]]) -> dict[str, Any]:
    """As kubectl does it: for each name the first file counts; paths are relative to their file."""
    merged: dict[str, Any] = {"current-context": "", "clusters": {}, "users": {}, "contexts": {}}
    for path, data in files:
        merged["current-context"] = merged["current-context"] or str(
            data.get("current-context") or ""
        )
        for kind in _KINDS:
            for name, value in _entries(path, data, kind):
                merged[kind].setdefault(name, _absolute(value, path.parent))
    return merged


def _entries(
    path: Path, data: Mapping[str, Any], kind: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The named entries of one kind; SpecError says what is no such thing."""
    wrong = f"the kubeconfig {path} is wrong"
    listed: Any = data.get(kind) or ()
    if not isinstance(listed, (list, tuple)):
        raise SpecError(f"{wrong}: its {kind} are no list")
    for entry in cast("Sequence[Any]", listed):
        found = _mapping(entry)
        if not found or not found.get("name"):
            raise SpecError(f"{wrong}: one of its {kind} has no name")
        value = _mapping(found.get(_KINDS[kind]) or {})
        if value is None:
            raise SpecError(f"{wrong}: its {_KINDS[kind]} {found['name']!r} is no mapping")
        yield str(found["name"]), value


def _mapping(value: Any) -> dict[str, Any] | None:
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else None


def _absolute(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    for key in _PATHS:
        if value.get(key):
            value[key] = str(folder / str(value[key]))
    plugin = _mapping(value.get("exec"))
    if plugin and "/" in (command := str(plugin.get("command"))):
        value["exec"] = {**plugin, "command": str(folder / command)}
    return value


def _choose(contexts: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name in contexts:
        return contexts[name]
    seen = ", ".join(contexts) or "none"
    if not name:
        raise SpecError(
            "the kubeconfig names no current context",
            seen=f"contexts: {seen}",
            hint="say which: kubectl config use-context …",
        )
    raise SpecError(
        f"there is no context {name!r} in the kubeconfig", seen=seen, hint=suggest(name, contexts)
    )


def _pick(merged: Mapping[str, Any], kind: str, name: Any, context: str) -> dict[str, Any]:
    found = merged[kind].get(str(name))
    if found is None:
        raise SpecError(
            f"context {context!r} of the kubeconfig names {name!r}, which is not among its {kind}",
            seen=", ".join(merged[kind]) or "none",
        )
    return found


def _make_cluster(data: Mapping[str, Any]) -> Cluster:
    server = str(data.get("server") or "")
    try:
        url = urllib.parse.urlsplit(server)
        valid = url.scheme in {"https", "http"} and url.hostname and url.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise SpecError(f"the kubeconfig's server {server!r} is not an address")
    return Cluster(
        server=server.rstrip("/"),
        ca_pem=read_pem(data, "certificate-authority"),
        insecure=data.get("insecure-skip-tls-verify") is True,
        server_name=data.get("tls-server-name") or None,
        proxy=data.get("proxy-url") or None,
    )


def _describe(cluster: Cluster) -> dict[str, Any]:
    """The cluster as login programs are told of it."""
    told: dict[str, Any] = {"server": cluster.server}
    if cluster.ca_pem:
        told["certificate-authority-data"] = base64.b64encode(cluster.ca_pem.encode()).decode()
    if cluster.insecure:
        told["insecure-skip-tls-verify"] = True
    if cluster.server_name:
        told["tls-server-name"] = cluster.server_name
    if cluster.proxy:
        told["proxy-url"] = cluster.proxy
    return told


def _warn(cluster: Cluster) -> list[str]:
    if cluster.insecure:
        return ["the kubeconfig says that the API server's certificate is not looked at"]
    host = urllib.parse.urlsplit(cluster.server).hostname
    if cluster.server.startswith("http:") and host not in {"localhost", "127.0.0.1", "::1"}:
        return ["the API server is spoken to without TLS: anybody on the way can change it"]
    return []

"""Who asks: a token, a certificate, or a program that knows one; read again whenever they may have changed."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..errors import AccessError, SpecError

PLUGIN_TIMEOUT_S = 120.0
RENEW_BEFORE_S = 60.0
_REFUSED = {
    "auth-provider": "an auth-provider, which Kubernetes has given up",
    "username": "a name with a password, which Kubernetes has given up",
    "as": "the rights of somebody else ('as'), which milkweed does not do",
}


@dataclass(frozen=True, slots=True)
class Login:
    """What is shown to the API server, now."""

    token: str | None = field(default=None, repr=False)
    cert_pem: str | None = None
    key_pem: str | None = field(default=None, repr=False)


def make_login(
    user: Mapping[str, Any], cluster: Mapping[str, Any]
) -> tuple[Callable[[], Login], Callable[[], None]]:
    """How a user of a kubeconfig logs in, and how to forget what the last login gave."""
    for key, what in _REFUSED.items():
        if user.get(key):
            hint = "make a new kubeconfig: its tool will write an exec plugin or a certificate"
            raise SpecError(f"the kubeconfig's user logs in by {what}", hint=hint)
    if user.get("exec"):
        plugin = _Plugin(user["exec"], cluster)
        return plugin.log_in, plugin.forget
    if (read_pem(user, "client-certificate") is None) != (read_pem(user, "client-key") is None):
        raise SpecError("the kubeconfig's user has a client certificate or its key, and needs both")
    return lambda: _read_login(user), lambda: None


def _read_login(user: Mapping[str, Any]) -> Login:
    """Files are read every time: some programs renew what is in them."""
    path = user.get("tokenFile")
    return Login(
        token=read_token(Path(path)) if path else _check_token(user.get("token")),
        cert_pem=read_pem(user, "client-certificate"),
        key_pem=read_pem(user, "client-key"),
    )


def read_token(path: Path, *, of: str = "the API server") -> str | None:
    """The token in a file, as it is now."""
    try:
        text = path.read_text()
    except OSError as error:
        raise AccessError(f"the token for {of} cannot be read", seen=str(error)) from error
    except ValueError:  # whose words would quote the file
        raise AccessError(f"the token for {of} cannot be read", seen=f"{path} is no text") from None
    return _check_token(text, of)


def _check_token(token: Any, of: str = "the API server") -> str | None:
    """What becomes a header has no line ends; and an error never shows a token."""
    text = str(token or "").strip()
    if not all("!" <= character <= "~" for character in text):
        raise AccessError(f"the token for {of} has characters in it that no token has")
    return text or None


def read_pem(data: Mapping[str, Any], key: str) -> str | None:
    """A certificate or key: in the kubeconfig itself, or in another file."""
    if text := data.get(f"{key}-data"):
        try:
            return base64.b64decode("".join(str(text).split()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            # Without the parser's words, which could quote a key.
            raise SpecError(f"the kubeconfig's {key}-data is not base64 of a PEM") from None
    if path := data.get(key):
        try:
            return Path(path).read_text()
        except (OSError, ValueError) as error:
            raise SpecError(f"the kubeconfig's {key} cannot be read", seen=str(error)) from error
    return None


class _Plugin:
    """A program that tells who we are; asked again when what it told is about to expire."""

    def __init__(self, data: Any, cluster: Mapping[str, Any]) -> None:
        try:
            self._argv = [str(data["command"]), *map(str, data.get("args") or ())]
            self._env = {str(e["name"]): str(e["value"]) for e in data.get("env") or ()}
            self._hint = str(data.get("installHint") or "")
            self._needs_terminal = data.get("interactiveMode") == "Always"
            version = str(data.get("apiVersion") or "client.authentication.k8s.io/v1")
            spec: dict[str, Any] = {"interactive": False}
            if data.get("provideClusterInfo"):
                spec["cluster"] = cluster
        except (KeyError, TypeError, AttributeError):
            raise SpecError(
                "the kubeconfig's exec is not understood", hint="it needs a command"
            ) from None
        self._info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
        self._lock = threading.Lock()
        self._login: Login | None = None
        self._until: dt.datetime | None = None

    def log_in(self) -> Login:
        """What the program told, or tells now."""
        with self._lock:
            if self._login is None or self._is_old():
                self._login = self._parse(self._ask())
            return self._login

    def forget(self) -> None:
        """Ask it anew the next time."""
        with self._lock:
            self._login = None

    def _is_old(self) -> bool:
        soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=RENEW_BEFORE_S)
        return self._until is not None and self._until < soon

    def _ask(self) -> str:
        if self._needs_terminal:
            raise self._failed("wants a terminal, which it does not get here")
        env = {**os.environ, **self._env, "KUBERNETES_EXEC_INFO": self._info}
        try:
            done = subprocess.run(  # noqa: S603  the kubeconfig's own words
                self._argv,
                env=env,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=PLUGIN_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace").strip()
            raise self._failed(f"did not end within {PLUGIN_TIMEOUT_S:g} s", said) from error
        except OSError as error:
            raise self._failed("cannot be run", str(error), self._hint) from error
        if done.returncode:
            said = done.stderr.strip() or "it said nothing"
            raise self._failed(f"failed with code {done.returncode}", said)
        return done.stdout

    def _failed(self, what: str, seen: str = "", hint: str = "") -> AccessError:
        hint = hint or "kubectl uses the same program: does `kubectl get pods` work?"
        return AccessError(
            f"the kubeconfig's login program {self._argv[0]} {what}", seen=seen, hint=hint
        )

    def _parse(self, text: str) -> Login:
        """What it printed: JSON, or the YAML that some programs print instead."""
        try:
            status: Any = parse_yaml(text)["status"]
            self._until = _read_time(status.get("expirationTimestamp"))
            login = Login(
                token=_check_token(status.get("token")),
                cert_pem=status.get("clientCertificateData"),
                key_pem=status.get("clientKeyData"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._failed("printed no credentials") from None
        if not login.token and not (login.cert_pem and login.key_pem):
            raise self._failed("printed neither a token nor a certificate with its key")
        return login


def _read_time(said: Any) -> dt.datetime | None:
    """A time with its zone; YAML has read some into dates already."""
    if not said:
        return None
    when = said if isinstance(said, dt.datetime) else dt.datetime.fromisoformat(str(said))
    return when if when.tzinfo else when.replace(tzinfo=dt.UTC)


def parse_yaml(text: str) -> Any:
    """Plain data from YAML, or from JSON, which is quicker; ValueError when it is neither."""
    if text.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader: Any = YAML(typ="safe", pure=True)
    try:
        return cast("object", reader.load(text))
    except YAMLError as error:
        raise ValueError(str(error)) from error

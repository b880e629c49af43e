"""Programs that log in for us: what they are told, what they may print, and how often they are asked."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import AccessError
from milkweed.kube import login
from milkweed.kube.config import Config, Login, load_config

ABC = {"token": "abc"}
YEAR = dt.timedelta(days=365)


def make_program(folder: Path, script: str) -> Path:
    """A login program that counts how often it was run."""
    path = folder / "bin" / "log-in"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\necho >>"{folder}/count"\n{script}\n')
    path.chmod(0o755)
    return path


def runs(folder: Path) -> int:
    path = folder / "count"
    return len(path.read_text().splitlines()) if path.exists() else 0


def credential(**status: Any) -> str:
    return json.dumps({"kind": "ExecCredential", "status": status})


def expiring(after: dt.timedelta, **status: Any) -> str:
    when = dt.datetime.now(dt.UTC) + after
    return credential(expirationTimestamp=f"{when:%Y-%m-%dT%H:%M:%SZ}", **status)


def load(folder: Path, **plugin: Any) -> Config:
    """A configuration whose user logs in by that program."""
    data = {
        "clusters": [{"name": "lab", "cluster": {"server": "https://10.0.0.1"}}],
        "users": [{"name": "me", "user": {"exec": {"command": "./bin/log-in", **plugin}}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "current-context": "lab",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(data))
    return load_config(None, str(path))


def test_a_program_gives_a_token(tmp_path: Path) -> None:
    """It is found beside the kubeconfig, and asked once when its token does not expire."""
    make_program(tmp_path, f"echo '{credential(**ABC)}'")
    found = load(tmp_path)
    assert runs(tmp_path) == 0
    assert found.log_in() == found.log_in() == Login("abc")
    assert runs(tmp_path) == 1


def test_a_program_gives_a_certificate(tmp_path: Path) -> None:
    """A certificate with its key is as good as a token."""
    pair = credential(clientCertificateData="me", clientKeyData="key")
    make_program(tmp_path, f"echo '{pair}'")
    assert load(tmp_path).log_in() == Login(None, "me", "key")


@pytest.mark.parametrize(("after", "asked"), [(YEAR, 1), (-YEAR, 2), (dt.timedelta(seconds=30), 2)])
def test_what_expires_soon_is_renewed(tmp_path: Path, after: dt.timedelta, asked: int) -> None:
    """A token is asked for again a minute before its end, and not before."""
    make_program(tmp_path, f"echo '{expiring(after, **ABC)}'")
    found = load(tmp_path)
    assert found.log_in() == found.log_in()
    assert runs(tmp_path) == asked


def test_what_was_not_taken_is_forgotten(tmp_path: Path) -> None:
    """After a refusal the program is asked again, whatever it said about the end."""
    make_program(tmp_path, f"echo '{expiring(YEAR, **ABC)}'")
    found = load(tmp_path)
    found.log_in()
    found.forget()
    found.log_in()
    assert runs(tmp_path) == 2


@pytest.mark.parametrize(
    "when", ['"2999-01-01T00:00:00Z"', "2999-01-01T00:00:00Z", "2999-01-01T02:00:00+02:00", "null"]
)
def test_yaml_is_understood(tmp_path: Path, when: str) -> None:
    """Some programs print YAML, in which a time is no text."""
    make_program(tmp_path, f"cat <<'E'\nstatus:\n  token: abc\n  expirationTimestamp: {when}\nE")
    found = load(tmp_path)
    assert found.log_in() == found.log_in() == Login("abc")
    assert runs(tmp_path) == 1


def test_it_is_told_what_it_needs(tmp_path: Path) -> None:
    """Arguments, variables, and the cluster where it wants to know; nobody is there to answer questions."""
    make_program(
        tmp_path,
        f"""echo "$@ $COLOUR" >{tmp_path}/said; echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info
        read -r line; echo "line $line" >>{tmp_path}/said; echo '{credential(**ABC)}'""",
    )
    env = [{"name": "COLOUR", "value": "blue"}]
    load(tmp_path, args=["one", 2], env=env, provideClusterInfo=True).log_in()
    assert (tmp_path / "said").read_text() == "one 2 blue\nline \n"
    info = json.loads((tmp_path / "info").read_text())
    assert info == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://10.0.0.1"}},
    }
    load(tmp_path, apiVersion="client.authentication.k8s.io/v1beta1").log_in()
    info = json.loads((tmp_path / "info").read_text())
    assert (info["apiVersion"][-7:], info["spec"]) == ("v1beta1", {"interactive": False})


def test_a_missing_program_comes_with_its_hint(tmp_path: Path) -> None:
    """The kubeconfig knows how to install it."""
    with pytest.raises(AccessError, match="no-such-program cannot be run") as caught:
        load(tmp_path, command="no-such-program", installHint="apt install it").log_in()
    assert caught.value.hint == "apt install it"
    assert "No such file" in caught.value.seen


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    """What it said is shown, and the next login asks it again."""
    make_program(tmp_path, "echo 'your session has expired' >&2; exit 3")
    found = load(tmp_path)
    for _ in range(2):
        with pytest.raises(AccessError, match="failed with code 3") as caught:
            found.log_in()
        assert caught.value.seen == "your session has expired"
    assert runs(tmp_path) == 2
    make_program(tmp_path, "exit 1")
    with pytest.raises(AccessError, match="it said nothing"):
        found.log_in()


@pytest.mark.parametrize(
    "said",
    [
        "",
        "hello",
        "[]",
        "{}",
        '{"status": null}',
        '{"status": {"token": "a", "expirationTimestamp": "soon"}}',
        '{"status": {}}',
        '{"status": {"clientCertificateData": "only"}}',
        "a: [",
    ],
)
def test_nonsense_is_no_login(tmp_path: Path, said: str) -> None:
    """What is not a credential is an error that does not quote it: it may be a secret."""
    make_program(tmp_path, f"echo '{said}'")
    with pytest.raises(AccessError, match="printed n"):
        load(tmp_path).log_in()


def test_a_program_that_waits_for_somebody_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said until then may tell a person what to do."""

    def run(argv: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(argv, 120, stderr=b"open https://login and enter 1234")

    monkeypatch.setattr(login.subprocess, "run", run)
    with pytest.raises(AccessError, match="did not end within 120 s") as caught:
        load(tmp_path).log_in()
    assert "enter 1234" in caught.value.seen


def test_a_program_that_wants_a_terminal_is_not_run(tmp_path: Path) -> None:
    """It would wait for an answer that nobody gives."""
    make_program(tmp_path, f"echo '{credential(**ABC)}'")
    with pytest.raises(AccessError, match="wants a terminal"):
        load(tmp_path, interactiveMode="Always").log_in()
    assert runs(tmp_path) == 0

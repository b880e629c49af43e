"""How the operator's endpoint is asked: what is wrong on this side is told at once, and without secrets."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import AccessError, BackendError, SpecError, UnreachableError
from milkweed.kube.asking import (
    Endpoint,
    delete_mesh,
    look_up_mesh,
    look_up_secret,
    read_endpoint,
)
from milkweed.operator.asked import Answer
from unit.test_operator_door import Says, Serving

URL = "https://127.0.0.1:9"


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1", "127.0.0.1:8443", "https://", ""),
        *("https://host:99999", "https://host:x", "https://[::1"),
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    """They are refused when they are said, and a token is never sent in the clear."""
    with pytest.raises(SpecError, match="is no address of an endpoint"):
        read_endpoint(url, None, "/token")
    with pytest.raises(SpecError, match="is no address of an endpoint"):
        look_up_mesh(Endpoint(url, None, lambda: "good"), "team", "w")


@pytest.mark.parametrize("token", [b"two\nlines", b"n\xc3\xa4h", b"\xff\xfe", b"a b"])
def test_a_token_that_is_none_is_never_shown(tmp_path: Path, token: bytes) -> None:
    """Neither by us nor by whoever would have sent it."""
    file = tmp_path / "token"
    file.write_bytes(token)
    endpoint = read_endpoint(URL, None, str(file))
    with pytest.raises(AccessError, match="the token for the endpoint") as caught:
        look_up_mesh(endpoint, "team", "w")
    assert token.decode(errors="replace") not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_token_that_is_not_there_is_told_with_its_file(tmp_path: Path) -> None:
    """It is mounted into pods that ask for it."""
    endpoint = read_endpoint(URL, None, str(tmp_path / "token"))
    with pytest.raises(AccessError, match="the token for the endpoint cannot be read") as caught:
        look_up_mesh(endpoint, "team", "w")
    assert str(tmp_path) in caught.value.seen


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_an_authority_that_cannot_be_read_is_no_silence(tmp_path: Path, text: str | None) -> None:
    """The endpoint was not even asked: the file is named, and waiting does not help."""
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(AccessError, match="authority of the endpoint cannot be read") as caught:
        look_up_mesh(Endpoint(URL, str(file), lambda: "good"), "team", "w")
    assert str(file) in caught.value.what
    assert not caught.value.transient


@pytest.mark.parametrize("document", [{"kind": "Status", "code": 404}, ["not found"], None])
def test_who_knows_nothing_of_endpoints_does_not_tell_that_a_mesh_is_gone(
    tmp_path: Path, document: Any
) -> None:
    """A proxy before an endpoint that is away says 404 of anything: then nothing is known."""
    says = Says(lambda: Answer(404, document, {}))
    with contextlib.closing(Serving(tmp_path / "tls", says)) as serving:
        for ask in (look_up_mesh, delete_mesh, look_up_secret):
            with pytest.raises(UnreachableError, match="is no endpoint"):
                ask(serving.endpoint(), "team", "w")


def test_what_an_endpoint_does_not_understand_is_not_gone(tmp_path: Path) -> None:
    """One of another version may know other paths; it says so, and nothing of a mesh."""
    says = Says(lambda: Answer(404, {"error": "there is /v1"}, {}))
    with (
        contextlib.closing(Serving(tmp_path / "tls", says)) as serving,
        pytest.raises(BackendError, match="there is /v1"),
    ):
        look_up_mesh(serving.endpoint(), "team", "w")

"""The endpoint over the network: HTTPS, tokens, sizes and callers who misbehave."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed import pki
from milkweed.errors import AccessError, ChangedError, MilkweedError, SpecError, UnreachableError
from milkweed.kube.asking import (
    Endpoint,
    delete_mesh,
    delete_secret,
    look_up_mesh,
    look_up_secret,
    read_endpoint,
    request_mesh,
    resize_mesh,
    update_secret,
)
from milkweed.kube.resources import MESHES
from milkweed.operator.asked import LARGEST, Answer, Request
from milkweed.operator.door import Certificate, Door
from milkweed.operator.job_secrets import LARGEST_DATA
from milkweed.operator.provision import Provisioner
from unit.operator_asked import PATH, TRAINER, Reviewed
from unit.operator_runs import make_mesh
from unit.test_operator_job_secrets import AUTHORITY, HOSTS, JOB, job_mesh


@pytest.fixture
def cluster() -> Reviewed:
    return Reviewed()


class Serving:
    """A door on this machine, and what it wrote down."""

    def __init__(self, folder: Path, provisioner: Provisioner, **how: Any) -> None:
        authority = pki.make_authority("door")
        self.keys = pki.save_credentials(folder, authority.issue(["127.0.0.1"]), authority.cert_pem)
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(authority.cert_pem)
        self.lines: list[str] = []
        certificate = Certificate(Path(self.keys.cert), Path(self.keys.key))
        self.door = Door(("127.0.0.1", 0), provisioner, certificate, log=self.lines.append, **how)
        self.port = int(self.door.server_address[1])
        self.url = f"https://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.door.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def endpoint(self, token: str = "good") -> Endpoint:  # noqa: S107  no secret
        """The same as pods know it."""
        return Endpoint(self.url, self.ca, lambda: token)

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """One request, word by word."""
        context = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=10, context=context
        )
        try:
            connection.putrequest(method, path)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def close(self) -> None:
        """Take no more callers."""
        self.door.shutdown()
        self.door.server_close()
        self.thread.join(10)


class Says(Provisioner):
    """Something else in the endpoint's place."""

    def __init__(self, say: Callable[[], Answer]) -> None:
        self._say = say

    def answer(self, request: Request) -> Answer:
        """Whatever was asked."""
        del request
        return self._say()


@pytest.fixture
def serving(tmp_path: Path, provisioner: Provisioner) -> Iterator[Serving]:
    made = Serving(tmp_path / "tls", provisioner)
    yield made
    made.close()


def test_a_pod_asks_for_a_mesh(serving: Serving, cluster: Reviewed) -> None:
    """Asks, looks, and gives it back: all that a program needs."""
    place = serving.endpoint()
    made = request_mesh(place, make_mesh())
    assert made["metadata"]["name"] == "trainers"
    found = look_up_mesh(place, "team", "trainers")
    assert found["spec"]["replicas"] == 2
    assert look_up_mesh(place, "team", "another") is None
    assert delete_mesh(place, "team", "trainers")
    assert not delete_mesh(place, "team", "trainers")
    assert cluster.of_kind(MESHES.plural) == []
    assert [json.loads(line)["status"] for line in serving.lines] == [201, 200, 404, 200, 404]


def test_a_pod_asks_for_all_of_a_job(serving: Serving, cluster: Reviewed, tmp_path: Path) -> None:
    """A mesh with its Secrets, another size, another Secret; with a token that is read anew each time."""
    (tmp_path / "token").write_text("good\n")
    place = read_endpoint(serving.url, serving.ca, str(tmp_path / "token"))
    mesh = job_mesh()
    secrets = {one["name"]: one["data"] for one in mesh.pop("secrets")}
    request_mesh(place, mesh, secrets)
    assert look_up_secret(place, "team", HOSTS) == secrets[HOSTS]
    assert look_up_secret(place, "team", f"{HOSTS}x") is None
    notes = {"milkweed.dev/handle": "{}"}
    new = {HOSTS: {"key": "bmV3"}}
    made = resize_mesh(place, "team", "trainers", 3, job=JOB, secrets=new, annotations=notes)
    assert made["spec"]["replicas"] == 3
    update_secret(place, "team", AUTHORITY, {"key": "bmV3"})
    assert look_up_secret(place, "team", AUTHORITY) == look_up_secret(place, "team", HOSTS)
    assert look_up_mesh(place, "team", "trainers")["pods"] == []
    assert delete_secret(place, "team", HOSTS)
    assert not delete_secret(place, "team", HOSTS)
    assert "bmV3" not in "".join(serving.lines)
    (tmp_path / "token").unlink()
    with pytest.raises(AccessError, match="cannot be read"):
        look_up_mesh(place, "team", "trainers")


def test_a_secret_of_a_mebibyte_gets_through(serving: Serving) -> None:
    """And not a byte more."""
    mesh = job_mesh(secrets=[])
    for size, fits in ((LARGEST_DATA, True), (LARGEST_DATA + 1, False)):
        secrets = {HOSTS: {"key": base64.b64encode(bytes(size)).decode()}}
        with contextlib.nullcontext() if fits else pytest.raises(SpecError):
            request_mesh(serving.endpoint(), mesh, secrets)


@pytest.mark.parametrize(
    ("token", "mesh", "error"),
    [
        ("unknown", make_mesh(), (AccessError, "the token is not valid")),
        ("good", make_mesh(replicas=9), (AccessError, "rule research: spec.replicas 9 hosts")),
        ("good", make_mesh() | {"status": {}}, (SpecError, "status is not allowed")),
        ("good", make_mesh("taken"), (ChangedError, "another mesh 'taken'")),
    ],
)
def test_denials_are_errors_that_say_why(
    serving: Serving,
    cluster: Reviewed,
    token: str,
    mesh: Any,
    error: tuple[type[MilkweedError], str],
) -> None:
    """The rule, the field and by how much are in the text."""
    cluster.put(MESHES.plural, make_mesh("taken"))
    kind, words = error
    with pytest.raises(kind) as caught:
        request_mesh(serving.endpoint(token), mesh)
    assert words in str(caught.value)


def test_an_endpoint_that_is_not_trusted(serving: Serving) -> None:
    """Its certificate must be of the authority that was named."""
    with pytest.raises(AccessError, match="not trusted"):
        request_mesh(Endpoint(serving.url, None, lambda: "good"), make_mesh())


def test_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    """Nobody answers, which may pass."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(UnreachableError):
        request_mesh(Endpoint(f"https://127.0.0.1:{port}", None, lambda: "good"), make_mesh())


def test_a_cluster_that_is_away_is_told_as_such(serving: Serving, cluster: Reviewed) -> None:
    """Try again later."""
    cluster.down = True
    with pytest.raises(UnreachableError):
        request_mesh(serving.endpoint(), make_mesh())


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Length": str(LARGEST + 1)},
        {"Content_Length": "many"},
        {"Content_Length": "-1"},
        {"Content_Length": "\N{SUPERSCRIPT TWO}"},
        {"Transfer_Encoding": "chunked"},
    ],
)
def test_requests_that_are_too_large(serving: Serving, headers: dict[str, str]) -> None:
    """They are not even read."""
    status, document = serving.send("POST", PATH, **headers)
    assert (status, "at most" in document["error"]) == (413, True)
    assert json.loads(serving.lines[0])["status"] == 413


def test_what_is_written_down_has_an_address_and_a_time(serving: Serving) -> None:
    """One line of JSON for each request."""
    serving.send("GET", f"{PATH}/x", Authorization="Bearer good")
    (line,) = map(json.loads, serving.lines)
    assert line["from"] == "127.0.0.1"
    assert line["time"].endswith("Z")
    assert line["user"] == TRAINER


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer good", 404),
        ("bearer  good", 404),
        ("Basic good", 401),
        ("good", 401),
        ("Bearer", 401),
    ],
)
def test_how_a_token_is_given(serving: Serving, header: str, status: int) -> None:
    """As bearer, and in no other way."""
    assert serving.send("GET", f"{PATH}/x", Authorization=header)[0] == status


def test_probes_need_no_token(serving: Serving, policy: dict[str, Any]) -> None:
    """They say whether the endpoint lives, and whether it has a policy to go by."""
    assert serving.send("GET", "/healthz") == (200, {"ok": True})
    assert serving.send("GET", "/readyz") == (200, {"ok": True})
    policy["rules"] = "broken"
    assert serving.send("GET", "/readyz")[0] == 503
    assert serving.send("GET", "/healthz")[0] == 200
    assert serving.lines == []


def test_a_caller_who_says_nothing_holds_up_nobody(serving: Serving) -> None:
    """Neither before the handshake nor after it."""
    with socket.create_connection(("127.0.0.1", serving.port), 10):
        assert serving.send("GET", "/healthz")[0] == 200


def test_a_caller_who_speaks_no_tls_is_left_alone(serving: Serving) -> None:
    """The connection ends, and the next caller is served."""
    with socket.create_connection(("127.0.0.1", serving.port), 10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(1000).startswith(b"HTTP")
    assert serving.send("GET", "/healthz")[0] == 200


def test_a_caller_who_never_shakes_hands_is_sent_away(
    tmp_path: Path, provisioner: Provisioner
) -> None:
    """However often they say a byte of it: places are few."""
    with (
        contextlib.closing(Serving(tmp_path / "tls", provisioner, longest_s=0.2)) as serving,
        socket.create_connection(("127.0.0.1", serving.port), 10) as slow,
    ):
        slow.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""


def test_a_caller_who_stays_too_long_is_sent_away(tmp_path: Path, provisioner: Provisioner) -> None:
    """Though they say a word now and then."""
    serving = Serving(tmp_path / "tls", provisioner, longest_s=0.2)
    context = ssl.create_default_context(cafile=serving.ca)
    try:
        with (
            socket.create_connection(("127.0.0.1", serving.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as caller,
        ):
            caller.sendall(b"GET /healthz HTTP/1.1\r\n")
            assert caller.recv(1) == b""
    finally:
        serving.close()


def test_a_mistake_of_ours_is_told(tmp_path: Path) -> None:
    """With its kind and its place, and nothing of the request."""

    def fail() -> Answer:
        raise KeyError("hunter2")

    with (
        contextlib.closing(Serving(tmp_path / "tls", Says(fail))) as serving,
        pytest.raises(http.client.RemoteDisconnected),
    ):
        serving.send("GET", f"{PATH}/x", Authorization="Bearer good")
    [line] = serving.lines
    assert line.startswith("a request from 127.0.0.1 failed: KeyError at ")
    assert Path(__file__).name in line
    assert "hunter2" not in line


def test_a_certificate_that_is_gone_is_told_in_words(serving: Serving) -> None:
    """Callers get nothing, and whoever runs the endpoint learns what to mend."""
    Path(serving.keys.cert).unlink()
    with pytest.raises(OSError, match=r"."):
        serving.send("GET", "/healthz")
    serving.close()
    assert "the endpoint's certificate cannot be used" in serving.lines[0]
    assert str(serving.keys.cert) in serving.lines[0]


def test_too_many_callers_are_sent_away(tmp_path: Path, provisioner: Provisioner) -> None:
    """Those who are here are served."""
    serving = Serving(tmp_path / "tls", provisioner, callers=1)
    try:
        with socket.create_connection(("127.0.0.1", serving.port), 10) as first:
            wait_busy(serving)
            with socket.create_connection(("127.0.0.1", serving.port), 10) as second:
                assert second.recv(1) == b""
            first.shutdown(socket.SHUT_RDWR)
    finally:
        serving.close()


def wait_busy(serving: Serving) -> None:
    room = serving.door._room
    for _ in range(1000):
        if not room.acquire(blocking=False):
            return
        room.release()
        threading.Event().wait(0.005)
    raise AssertionError("the first caller was never let in")


def test_a_certificate_that_changes_is_shown(tmp_path: Path, provisioner: Provisioner) -> None:
    """Secrets are renewed while the program runs."""
    serving = Serving(tmp_path / "tls", provisioner)
    try:
        assert serving.send("GET", "/healthz")[0] == 200
        other = pki.make_authority("another")
        leaf = other.issue(["127.0.0.1"])
        Path(serving.keys.cert).write_bytes(leaf.cert_pem)
        Path(serving.keys.key).write_bytes(leaf.key_pem)
        Path(serving.ca).write_bytes(other.cert_pem)
        assert serving.send("GET", "/healthz")[0] == 200
    finally:
        serving.close()


def test_a_certificate_that_is_not_there(tmp_path: Path, provisioner: Provisioner) -> None:
    """Is told before anybody is let in."""
    certificate = Certificate(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AccessError, match="certificate cannot be used"):
        Door(("127.0.0.1", 0), provisioner, certificate)


@pytest.mark.parametrize(
    ("status", "document", "words"),
    [
        (200, None, "is no endpoint"),
        (200, ["x"], "is no endpoint"),
        (200, "hello", "is no endpoint"),
        (500, {}, "answered 500"),
    ],
)
def test_something_else_at_that_address(
    tmp_path: Path, status: int, document: Any, words: str
) -> None:
    """Whoever says yes and shows no mesh, or breaks down, is no endpoint."""
    says = Says(lambda: Answer(status, document))
    with (
        contextlib.closing(Serving(tmp_path / "tls", says)) as serving,
        pytest.raises(UnreachableError, match=words),
    ):
        request_mesh(serving.endpoint(), make_mesh())

"""The endpoint for pods without rights: who they are is asked of the cluster, and nothing leaks."""

from __future__ import annotations

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
from milkweed.errors import AccessError, BackendError, MilkweedError, SpecError, UnreachableError
from milkweed.kube.resources import MESHES, TOKEN_REVIEWS
from milkweed.operator import door as module
from milkweed.operator.admission import REQUESTED_BY, RULE_LABEL
from milkweed.operator.asking import delete_mesh, look_up_mesh, request_mesh
from milkweed.operator.door import Certificate, Door, find_port
from milkweed.operator.policy import Policy, parse_policy
from milkweed.operator.provision import AUDIENCE, LARGEST, Answer, PolicyFile, Provisioner, Request
from unit.operator_cluster import Cluster, refuse
from unit.operator_runs import make_mesh
from unit.test_operator_policy import RULE

TRAINER = "system:serviceaccount:team:trainer"
TOKENS = {
    "good": (TRAINER, [AUDIENCE]),
    "colleague": ("system:serviceaccount:team:other", [AUDIENCE]),
    "stranger": ("system:serviceaccount:elsewhere:x", [AUDIENCE]),
    "for the api server": (TRAINER, ["https://kubernetes.default.svc"]),
}
PATH = "/v1/namespaces/team/meshes"


class Reviewed(Cluster):
    """A cluster that knows some tokens."""

    def create(self, resource: Any, namespace: str, body: Any, **query: str) -> Any:
        """Make an object, or say whose token it is."""
        if resource is not TOKEN_REVIEWS:
            return super().create(resource, namespace, body, **query)
        self._arrive()
        user, audiences = TOKENS.get(body["spec"]["token"], ("", []))
        shared = sorted(set(audiences) & set(body["spec"]["audiences"]))
        status = {"authenticated": bool(user and shared), "audiences": shared}
        groups = ["system:serviceaccounts"]
        return {"status": status | {"user": {"username": user, "groups": groups}}}


@pytest.fixture
def cluster() -> Reviewed:
    return Reviewed()


@pytest.fixture
def policy() -> dict[str, Any]:
    """What the policy says; a test may change it."""
    return {"rules": [{**RULE, "maxTotalHosts": 6}]}


@pytest.fixture
def provisioner(cluster: Reviewed, policy: dict[str, Any]) -> Provisioner:
    return Provisioner(cluster, lambda: parse_policy(policy))  # type: ignore[arg-type]


def post(provisioner: Provisioner, mesh: Any, token: str = "good", path: str = PATH) -> Answer:  # noqa: S107  no secret
    return provisioner.answer(Request("POST", path, token, json.dumps(mesh).encode()))


def ask(provisioner: Provisioner, method: str, name: str, token: str = "good") -> Answer:  # noqa: S107  no secret
    return provisioner.answer(Request(method, f"{PATH}/{name}", token))


# Who asks


@pytest.mark.parametrize("token", ["", "unknown", "for the api server"])
def test_who_is_not_known_is_told_nothing(
    provisioner: Provisioner, cluster: Reviewed, token: str
) -> None:
    """No token, a wrong one, or one that was made for somebody else to read."""
    answer = post(provisioner, make_mesh(), token)
    assert answer.status == 401
    assert cluster.objects == {}
    assert "user" not in answer.audit


def test_an_api_server_that_knows_no_audiences(
    provisioner: Provisioner, cluster: Reviewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says yes to the token and nothing of whom it is for: that is no yes."""
    review = {"status": {"authenticated": True, "user": {"username": TRAINER}}}
    monkeypatch.setattr(cluster, "create", lambda *_args, **_query: review)
    assert post(provisioner, make_mesh()).status == 401


def test_whom_no_rule_is_for(provisioner: Provisioner) -> None:
    """They are known, and have nothing here."""
    answer = post(provisioner, make_mesh(), "stranger")
    assert answer.status == 403
    assert answer.audit["user"] == "system:serviceaccount:elsewhere:x"


# Making


def test_a_mesh_is_made(provisioner: Provisioner, cluster: Reviewed) -> None:
    """With who asked for it, and by which rule."""
    answer = post(provisioner, make_mesh(labels={"mine": "yes"}))
    assert answer.status == 201
    (mesh,) = cluster.of_kind(MESHES.plural)
    assert mesh["metadata"]["labels"] == {"mine": "yes", RULE_LABEL: "research"}
    assert mesh["metadata"]["annotations"] == {REQUESTED_BY: TRAINER}
    assert mesh["spec"] == make_mesh()["spec"]
    assert answer.document["metadata"]["name"] == "trainers"


def test_denials_name_the_rule_and_by_how_much(provisioner: Provisioner, cluster: Reviewed) -> None:
    """So that whoever asks can ask for less."""
    answer = post(provisioner, make_mesh(replicas=5, image="evil:1"))
    assert answer.status == 403
    assert answer.document["violations"] == [
        {
            "rule": "research",
            "field": "spec.replicas",
            "text": "5 hosts asked for, at most 4: 1 too many",
        },
        {
            "rule": "research",
            "field": "spec.podTemplate.spec.containers[0].image",
            "text": "'evil:1' is not among worker:*, registry.example.com/ml/*",
        },
    ]
    assert cluster.objects == {}


def test_totals_are_of_all_meshes_of_the_rule(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Whoever asked for them; what is given back can be had again."""
    assert post(provisioner, make_mesh("a", 4)).status == 201
    denied = post(provisioner, make_mesh("b", 3), "colleague")
    assert denied.document["violations"][0]["text"].endswith(
        "beside 4 in use, at most 6: 1 too many"
    )
    assert ask(provisioner, "DELETE", "a").status == 200
    assert post(provisioner, make_mesh("b", 3), "colleague").status == 201


def test_meshes_that_others_made_do_not_count(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Whoever has rights of their own is not held to the policy."""
    cluster.put(MESHES.plural, make_mesh("big", 100))
    assert post(provisioner, make_mesh("a", 4)).status == 201


def test_asking_twice_is_asking_once(provisioner: Provisioner, cluster: Reviewed) -> None:
    """The answer to the first may have been lost; it does not count against itself."""
    assert post(provisioner, make_mesh("a", 4)).status == 201
    assert post(provisioner, make_mesh("a", 4)).status == 200
    assert len(cluster.of_kind(MESHES.plural)) == 1


def test_a_name_that_is_taken(provisioner: Provisioner) -> None:
    """By somebody else, or by another mesh of one's own."""
    post(provisioner, make_mesh("a", 2))
    assert post(provisioner, make_mesh("a", 1)).status == 409
    assert post(provisioner, make_mesh("a", 2), "colleague").status == 409


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_mesh(provisioner: Provisioner, body: bytes) -> None:
    """They are refused, whatever they are."""
    assert provisioner.answer(Request("POST", PATH, "good", body)).status == 400


def test_a_mesh_out_of_shape(provisioner: Provisioner) -> None:
    """What is wrong is named."""
    mesh = make_mesh() | {"status": {}}
    answer = post(provisioner, mesh)
    assert answer.status == 400
    assert answer.document["violations"][0]["field"] == "status"


def test_what_the_cluster_refuses_is_passed_on(provisioner: Provisioner, cluster: Reviewed) -> None:
    """In its own words."""

    def forbid(_plural: str, _body: Any) -> None:
        raise refuse(422, "Invalid", "the name is too long")

    cluster.admit = forbid
    answer = post(provisioner, make_mesh())
    assert (answer.status, answer.document["seen"]) == (422, "the name is too long")


def test_rights_that_we_lack_are_not_the_callers_doing(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """They could do nothing about it."""

    def forbid(_plural: str, _body: Any) -> None:
        raise refuse(403, "Forbidden", "cannot create")

    cluster.admit = forbid
    assert post(provisioner, make_mesh()).status == 503


def test_a_cluster_that_is_away(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Try again later."""
    cluster.down = True
    assert post(provisioner, make_mesh()).status == 503


def test_two_requests_do_not_share_what_is_left(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """Counting and making is one step."""
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda name=name: answers.append(post(provisioner, make_mesh(name, 4)).status)
        )
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(answers) == [201, 403, 403, 403]


# Seeing and deleting


def test_ones_own_mesh_is_seen(provisioner: Provisioner, cluster: Reviewed) -> None:
    """What it is and how it is, without the notes of others on it."""
    post(provisioner, make_mesh())
    cluster.edit(
        MESHES.plural, "team", "trainers", lambda mesh: mesh.update(status={"replicas": 1})
    )
    answer = ask(provisioner, "GET", "trainers")
    assert answer.status == 200
    assert answer.document["status"] == {"replicas": 1}
    assert set(answer.document["metadata"]) == {"name", "namespace", "uid", "generation"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_meshes_of_others_are_not_there(
    provisioner: Provisioner, cluster: Reviewed, method: str
) -> None:
    """A colleague's, one that somebody made with rights of their own, and none: the answer is the same."""
    post(provisioner, make_mesh("hers"), "colleague")
    cluster.put(MESHES.plural, make_mesh("theirs"))
    texts = set()
    for name in ("hers", "theirs", "none"):
        answer = ask(provisioner, method, name)
        assert answer.status == 404
        texts.add(answer.document["error"].replace(name, ""))
    assert len(texts) == 1
    assert len(cluster.of_kind(MESHES.plural)) == 2


def test_deleting(provisioner: Provisioner, cluster: Reviewed) -> None:
    """One's own, and by somebody whom the policy has forgotten since, too."""
    post(provisioner, make_mesh())
    assert ask(provisioner, "DELETE", "trainers").document == {"deleted": "trainers"}
    assert cluster.of_kind(MESHES.plural) == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/namespaces/team/pods", 404),
        ("GET", "/v1/namespaces/../secrets", 404),
        ("POST", "/v1/namespaces/TEAM/meshes", 404),
        ("GET", "/v1/namespaces/team/meshes/a/status", 404),
        ("GET", PATH, 405),
        ("DELETE", PATH, 405),
        ("POST", f"{PATH}/a", 405),
        ("PUT", f"{PATH}/a", 405),
    ],
)
def test_paths_that_lead_nowhere(
    provisioner: Provisioner, cluster: Reviewed, method: str, path: str, status: int
) -> None:
    """They are answered before anybody is asked anything."""
    assert provisioner.answer(Request(method, path, "good")).status == status
    assert cluster.requests == 0


def test_namespaces_that_are_not_served(cluster: Reviewed, policy: dict[str, Any]) -> None:
    """Though a rule may name them."""
    some = Provisioner(cluster, lambda: parse_policy(policy), namespaces=("scratch-1",))  # type: ignore[arg-type]
    assert post(some, make_mesh()).status == 403
    mesh = make_mesh()
    mesh["metadata"]["namespace"] = "scratch-1"
    assert post(some, mesh, path="/v1/namespaces/scratch-1/meshes").status == 201


# What is written down


def test_every_request_is_written_down(provisioner: Provisioner) -> None:
    """Who, what, how much, by which rule and what came of it; no token and no variable of the pod."""
    mesh = make_mesh(replicas=3)
    variable = {"name": "PASSWORD", "value": "hunter2"}
    mesh["spec"]["podTemplate"]["spec"]["containers"][0]["env"] = [variable]
    made = post(provisioner, mesh)
    assert made.audit == {
        "verb": "POST",
        "path": PATH,
        "user": TRAINER,
        "namespace": "team",
        "name": "trainers",
        "hosts": 3,
        "gpus": 0,
        "rule": "research",
        "status": 201,
    }
    assert "hunter2" not in json.dumps(made.audit)
    assert "good" not in json.dumps(made.audit)


# The policy's file


def write_policy(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({"rules": [{**RULE, **changes}]}))


def test_a_policy_that_changes_is_read_again(tmp_path: Path) -> None:
    """Without a restart."""
    path = tmp_path / "policy.yaml"
    write_policy(path)
    file = PolicyFile(path)
    assert file.get().rules[0].max_hosts == 4
    replaced = tmp_path / "new"
    write_policy(replaced, maxHosts=9)
    replaced.replace(path)
    assert file.get().rules[0].max_hosts == 9


def test_a_policy_that_is_broken_allows_nothing(tmp_path: Path, cluster: Reviewed) -> None:
    """Not even what the one before allowed; what is wrong is told to those who run the endpoint."""
    path = tmp_path / "policy.yaml"
    write_policy(path)
    provisioner = Provisioner(cluster, PolicyFile(path).get)  # type: ignore[arg-type]
    assert provisioner.is_ready()
    other = tmp_path / "new"
    write_policy(other, maxHosts="many")
    other.replace(path)
    answer = post(provisioner, make_mesh())
    assert answer.status == 503
    assert "maxHosts" not in json.dumps(answer.document)
    assert "maxHosts" in answer.audit["trouble"]
    path.unlink()
    assert not provisioner.is_ready()


# Over the network


class Serving:
    """A door on this machine, and what it wrote down."""

    def __init__(self, folder: Path, provisioner: Provisioner) -> None:
        authority = pki.make_authority("door")
        self.keys = pki.save_credentials(folder, authority.issue(["127.0.0.1"]), authority.cert_pem)
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(authority.cert_pem)
        self.lines: list[str] = []
        certificate = Certificate(Path(self.keys.cert), Path(self.keys.key))
        self.door = Door(("127.0.0.1", 0), provisioner, certificate, log=self.lines.append)
        self.port = find_port(self.door)
        self.url = f"https://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.door.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

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


@pytest.fixture
def serving(tmp_path: Path, provisioner: Provisioner) -> Iterator[Serving]:
    made = Serving(tmp_path / "tls", provisioner)
    yield made
    made.close()


def test_a_pod_asks_for_a_mesh(serving: Serving, cluster: Reviewed) -> None:
    """Asks, looks, and gives it back: all that a program needs."""
    place = serving.url, serving.ca, "good"
    made = request_mesh(*place, make_mesh())
    assert made["metadata"]["name"] == "trainers"
    found = look_up_mesh(*place, "team", "trainers")
    assert found["spec"]["replicas"] == 2
    assert look_up_mesh(*place, "team", "another") is None
    assert delete_mesh(*place, "team", "trainers")
    assert not delete_mesh(*place, "team", "trainers")
    assert cluster.of_kind(MESHES.plural) == []
    assert [json.loads(line)["status"] for line in serving.lines] == [201, 200, 404, 200, 404]


@pytest.mark.parametrize(
    ("token", "mesh", "error"),
    [
        ("unknown", make_mesh(), (AccessError, "the token is not valid")),
        ("good", make_mesh(replicas=9), (AccessError, "rule research: spec.replicas 9 hosts")),
        ("good", make_mesh() | {"status": {}}, (SpecError, "status is not allowed")),
        ("good", make_mesh("taken"), (BackendError, "another mesh 'taken'")),
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
        request_mesh(serving.url, serving.ca, token, mesh)
    assert words in str(caught.value)


def test_an_endpoint_that_is_not_trusted(serving: Serving) -> None:
    """Its certificate must be of the authority that was named."""
    with pytest.raises(AccessError, match="not trusted"):
        request_mesh(serving.url, None, "good", make_mesh())


def test_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    """Nobody answers, which may pass."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(UnreachableError):
        request_mesh(f"https://127.0.0.1:{port}", None, "good", make_mesh())


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:8443", "https://"])
def test_addresses_that_are_none(url: str) -> None:
    """A token is never sent in the clear."""
    with pytest.raises(SpecError):
        request_mesh(url, None, "good", make_mesh())


def test_a_cluster_that_is_away_is_told_as_such(serving: Serving, cluster: Reviewed) -> None:
    """Try again later."""
    cluster.down = True
    with pytest.raises(UnreachableError):
        request_mesh(serving.url, serving.ca, "good", make_mesh())


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Length": str(LARGEST + 1)},
        {"Content_Length": "many"},
        {"Content_Length": "-1"},
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


def test_too_many_callers_are_sent_away(
    tmp_path: Path, provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who are here are served."""
    monkeypatch.setattr(module, "CALLERS", 1)
    serving = Serving(tmp_path / "tls", provisioner)
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


def test_an_answer_that_is_none(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else answers at that address."""
    answers: Callable[[Any], Answer] = lambda _request: Answer(500, {})  # noqa: E731
    monkeypatch.setattr(serving.door.provisioner, "answer", answers)
    with pytest.raises(UnreachableError, match="answered 500"):
        request_mesh(serving.url, serving.ca, "good", make_mesh())


def test_an_empty_policy_denies(cluster: Reviewed) -> None:
    """What nobody allowed is denied."""
    assert post(Provisioner(cluster, Policy), make_mesh()).status == 403  # type: ignore[arg-type]

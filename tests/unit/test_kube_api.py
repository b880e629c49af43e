"""Requests to an API server on loopback: what is sent, what is kept open, what is repeated, what errors say."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from milkweed.errors import AccessError, BackendError, UnreachableError
from milkweed.kube.api import Api, ApiError
from milkweed.kube.config import Login
from milkweed.kube.resources import DEFINITIONS, JOBS, NODES, PODS, SECRETS, Resource
from unit.kube_fake import FakeApi, Feed, Reply, drop

POD = {"metadata": {"name": "a"}}


def status(code: int, reason: str, message: str) -> Reply:
    return Reply(code, {"kind": "Status", "reason": reason, "message": message})


# What is sent


@pytest.mark.parametrize(
    ("resource", "place", "path"),
    [
        (PODS, (), "/api/v1/pods"),
        (PODS, ("lab",), "/api/v1/namespaces/lab/pods"),
        (PODS, ("lab", "a", "log"), "/api/v1/namespaces/lab/pods/a/log"),
        (JOBS, ("lab", "a"), "/apis/batch/v1/namespaces/lab/jobs/a"),
        (NODES, ("lab", "n1"), "/api/v1/nodes/n1"),
        (PODS, ("../x", "a/b"), "/api/v1/namespaces/..%2Fx/pods/a%2Fb"),
        (
            DEFINITIONS,
            ("", "a.b.c"),
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b.c",
        ),
    ],
)
def test_objects_have_paths(resource: Resource, place: tuple[str, ...], path: str) -> None:
    """Where an object is follows from its kind, its namespace and its name, which cannot lead elsewhere."""
    assert resource.path(*place) == path


def test_each_request_says_what_it_wants(fake: FakeApi, api: Api) -> None:
    """Methods, paths, queries, kinds of content and the token are those that Kubernetes asks for."""
    api.get(PODS, "lab", labelSelector="a=b,c", limit="5")
    api.create(PODS, "lab", POD, dryRun="All")
    api.replace(PODS, "lab", "a", POD)
    api.patch(PODS, "lab", "a", {"spec": None}, sub="status")
    api.apply(SECRETS, "lab", POD)
    api.apply(SECRETS, "lab", POD, force=False, dryRun="All")
    assert api.delete(PODS, "lab", "a", policy="Foreground") is True
    assert [(asked.method, asked.path) for asked in fake.asked] == [
        ("GET", "/api/v1/namespaces/lab/pods"),
        ("POST", "/api/v1/namespaces/lab/pods"),
        ("PUT", "/api/v1/namespaces/lab/pods/a"),
        ("PATCH", "/api/v1/namespaces/lab/pods/a/status"),
        ("PATCH", "/api/v1/namespaces/lab/secrets/a"),
        ("PATCH", "/api/v1/namespaces/lab/secrets/a"),
        ("DELETE", "/api/v1/namespaces/lab/pods/a"),
    ]
    assert [asked.query for asked in fake.asked] == [
        {"labelSelector": "a=b,c", "limit": "5"},
        {"dryRun": "All"},
        {},
        {},
        {"fieldManager": "milkweed", "force": "true"},
        {"fieldManager": "milkweed", "force": "false", "dryRun": "All"},
        {},
    ]
    kinds = [asked.headers.get("Content-Type") for asked in fake.asked]
    merge, apply = "application/merge-patch+json", "application/apply-patch+yaml"
    plain = "application/json"
    assert kinds == [None, plain, plain, merge, apply, apply, plain]
    assert {asked.headers["Authorization"] for asked in fake.asked} == {"Bearer secret"}
    assert fake.asked[3].json == {"spec": None}
    assert fake.asked[6].json["propagationPolicy"] == "Foreground"
    assert api.requests == 7


def test_an_api_server_may_be_below_a_path(fake: FakeApi) -> None:
    """Some clusters share one address; the path of the server's address comes first."""
    api = fake.api(server=f"{fake.url}/clusters/7")
    api.get(PODS, "lab")
    assert fake.asked[0].path == "/clusters/7/api/v1/namespaces/lab/pods"
    assert api.request_head("/x", {"a": [1, 2]})[0] == "/clusters/7/x?a=1&a=2"
    api.close()


def test_a_log_is_not_read_as_json(fake: FakeApi, api: Api) -> None:
    """Logs come as they are."""
    fake.script(Reply(200, b"one\n\xfftwo\n"))
    assert api.read(PODS.path("lab", "a", "log"), tailLines="2") == b"one\n\xfftwo\n"
    assert fake.asked[0].query == {"tailLines": "2"}


# What is kept, and what is repeated


def test_one_connection_is_enough(fake: FakeApi, api: Api) -> None:
    """Requests that follow each other use one connection, also from several threads; errors keep it open."""
    fake.script(Reply(), status(404, "NotFound", "no"))
    api.get(PODS, "lab")
    assert api.delete(PODS, "lab", "a") is False
    thread = threading.Thread(target=api.get, args=(PODS, "lab"))
    thread.start()
    thread.join()
    assert [asked.connection for asked in fake.asked] == [1, 1, 1]


def test_threads_do_not_wait_for_each_other(fake: FakeApi, api: Api) -> None:
    """Two requests at once have two connections, and both are kept."""
    meeting = threading.Barrier(2)

    def answer(handler: Any, _asked: Any) -> None:
        meeting.wait(10)
        handler.reply(Reply())

    fake.script(answer, answer)
    threads = [threading.Thread(target=api.get, args=(PODS, "lab")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    api.get(PODS, "lab")
    assert fake.connections == 2
    api.close()
    fake.wait_closed(2)


@pytest.mark.parametrize("said", [True, False])
def test_a_connection_that_was_closed_is_not_used(fake: FakeApi, api: Api, said: bool) -> None:
    """One that the server closed meanwhile, with or without a word, is noticed before anything is sent."""
    fake.script(Reply(headers={"Connection": "close"}) if said else Reply(hang_up=True))
    api.get(PODS, "lab")
    fake.wait_closed(1)
    api.create(PODS, "lab", POD)
    assert [(asked.method, asked.connection) for asked in fake.asked] == [("GET", 1), ("POST", 2)]
    assert api.requests == 2


@pytest.mark.parametrize(
    "again",
    [
        lambda api: api.get(PODS, "lab"),
        lambda api: api.replace(PODS, "lab", "a", POD),
        lambda api: api.patch(PODS, "lab", "a", POD),
        lambda api: api.apply(PODS, "lab", POD),
        lambda api: api.delete(PODS, "lab", "a"),
    ],
    ids=["get", "replace", "patch", "apply", "delete"],
)
def test_what_may_be_repeated_is(fake: FakeApi, api: Api, again: Any) -> None:
    """A kept connection that dies under a request is replaced, where doing it twice gives the same."""
    fake.script(Reply(), drop, Reply())
    api.get(PODS, "lab")
    again(api)
    assert [asked.connection for asked in fake.asked] == [1, 1, 2]


def test_a_create_is_not_repeated(fake: FakeApi, api: Api) -> None:
    """Whether an object was made by a POST that nobody answered is not known, and the error says so."""
    fake.script(Reply(), drop, Reply())
    api.get(PODS, "lab")
    with pytest.raises(UnreachableError, match=r"whether it carried out POST .*pods is not known"):
        api.create(PODS, "lab", POD)
    assert len(fake.asked) == 2


def test_a_create_that_could_not_be_sent_is_repeated(
    fake: FakeApi, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the connection breaks before all of the request has gone, nobody has carried it out."""
    api.get(PODS, "lab")
    kept = api._idle[0]

    def break_down(*_: object) -> None:
        raise BrokenPipeError("gone")

    monkeypatch.setattr(kept, "request", break_down)
    api.create(PODS, "lab", POD)
    assert [(asked.method, asked.connection) for asked in fake.asked] == [("GET", 1), ("POST", 2)]


def test_what_could_not_be_sent_was_not_done(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before all of a request has gone does not make anybody doubt."""

    def break_down(*_: object) -> None:
        raise BrokenPipeError("gone")

    monkeypatch.setattr("milkweed.kube.connect.Connection.request", break_down)
    with pytest.raises(UnreachableError) as caught:
        api.create(PODS, "lab", POD)
    assert caught.value.seen == "gone"


def test_a_new_connection_that_dies_is_an_error(fake: FakeApi, api: Api) -> None:
    """Only kept connections are given a second chance."""
    fake.script(drop)
    with pytest.raises(UnreachableError, match="does not answer"):
        api.get(PODS, "lab")
    assert len(fake.asked) == 1
    assert api.get(PODS, "lab") == {}


def test_nobody_there_is_unreachable() -> None:
    """Without a server nothing is known."""
    with FakeApi() as gone:
        api = gone.api()
    with pytest.raises(UnreachableError, match="refused") as caught:
        api.create(PODS, "lab", POD)
    assert (caught.value.transient, "not known" in caught.value.seen) == (True, False)


def test_half_an_answer_is_none(fake: FakeApi, api: Api) -> None:
    """An answer that is cut off, or is no JSON, is no answer."""
    fake.script(Reply(200, b"{}", {"Content-Length": "100"}, hang_up=True))
    with pytest.raises(UnreachableError, match="IncompleteRead"):
        api.get(PODS, "lab")
    fake.script(Reply(200, b"<html>log in to our network</html>"))
    with pytest.raises(UnreachableError, match="is no API server") as caught:
        api.get(PODS, "lab")
    assert "our network" in caught.value.seen


# Logging in


def test_a_login_that_expired_is_renewed_once(fake: FakeApi, api: Api) -> None:
    """After 401 the login is forgotten and made anew, and the request is sent once more."""
    tokens = ["old", "new"]
    api.config.log_in = lambda: Login(tokens[0])
    api.config.forget = lambda: tokens.remove("old")
    fake.script(status(401, "Unauthorized", "Unauthorized"), Reply(200, {"kind": "Pod"}))
    assert api.create(PODS, "lab", POD) == {"kind": "Pod"}
    assert [each.headers["Authorization"] for each in fake.asked] == ["Bearer old", "Bearer new"]


def test_a_login_that_stays_the_same_is_not_tried_again(fake: FakeApi, api: Api) -> None:
    """Where there is no other login, 401 is the answer."""
    fake.script(status(401, "Unauthorized", "who?"))
    with pytest.raises(ApiError, match="does not know who asks") as caught:
        api.read("/x")
    assert (caught.value.status, caught.value.seen, len(fake.asked)) == (401, "who?", 1)


def test_logs_and_streams_renew_the_login_as_well(fake: FakeApi, api: Api) -> None:
    """Whatever is asked for, an expired login is no reason to fail."""
    tokens = iter(["a", "b", "b", "c"])
    api.config.log_in = lambda: Login(next(tokens))
    refused, feed = status(401, "Unauthorized", "no"), Feed({"type": "ADDED"})
    feed.end()
    fake.script(refused, Reply(200, b"text"), refused, feed)
    assert api.read("/x") == b"text"
    with api.watch(PODS, "lab", {}, timeout_s=60) as stream:
        assert list(stream) == [{"type": "ADDED"}]
    shown = [each.headers["Authorization"][-1] for each in fake.asked]
    assert shown == ["a", "b", "b", "c"]


# Errors


@pytest.mark.parametrize(
    ("code", "reason", "what"),
    [
        (400, "BadRequest", r"refuses it \(400\)"),
        (403, "Forbidden", "forbids it"),
        (404, "NotFound", "no such thing"),
        (409, "AlreadyExists", "has another one already"),
        (410, "Expired", "has forgotten"),
        (422, "Invalid", "refuses it as wrong"),
        (302, "", r"refuses it \(302\)"),
    ],
)
def test_errors_have_the_words_of_the_api_server(
    fake: FakeApi, api: Api, code: int, reason: str, what: str
) -> None:
    """A refusal has its status, its reason and its message."""
    fake.script(status(code, reason, "pods is the word"))
    with pytest.raises(ApiError, match=what) as caught:
        api.get(PODS, "lab", "a")
    error = caught.value
    assert (error.status, error.reason, error.seen) == (code, reason, "pods is the word")
    assert (error.missing, error.transient) == (code == 404, False)


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_trouble_of_the_server_may_pass(fake: FakeApi, api: Api, code: int) -> None:
    """A server that cannot answer has not said no; what a proxy says instead is shown."""
    fake.script(Reply(code, b"bad gateway\n"))
    with pytest.raises(UnreachableError, match=f"cannot answer now .{code}.") as caught:
        api.create(PODS, "lab", POD)
    assert (caught.value.seen, len(fake.asked)) == ("bad gateway", 1)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'"x"'])
def test_errors_without_words_name_the_request(fake: FakeApi, api: Api, body: bytes) -> None:
    """An error that says nothing tells what was asked."""
    fake.script(Reply(403, body))
    with pytest.raises(BackendError) as caught:
        api.get(PODS, "lab", "a")
    assert caught.value.seen in {"GET /api/v1/namespaces/lab/pods/a", body.decode()}


def test_a_busy_server_is_asked_later(fake: FakeApi) -> None:
    """429 says that nothing was done, so everything is sent again after the pause that was asked for."""
    pauses: list[float] = []
    api = Api(fake.config(), pause=pauses.append)
    busy = Reply(429, {"message": "too many requests"}, {"Retry-After": "3"})
    fake.script(busy, Reply(429), Reply(429, headers={"Retry-After": "3600"}), Reply(200, POD))
    assert api.create(PODS, "lab", POD) == POD
    assert pauses == [3.0, 1.0, 5.0]
    fake.script(*[busy] * 9)
    with pytest.raises(UnreachableError, match="429") as caught:
        api.get(PODS, "lab")
    assert (caught.value.seen, len(fake.asked)) == ("too many requests", 9)
    api.close()


def test_deleting_twice_is_fine(fake: FakeApi, api: Api) -> None:
    """What is not there need not be deleted; other refusals are errors."""
    fake.script(status(404, "NotFound", "no"), status(403, "Forbidden", "no"))
    assert api.delete(PODS, "lab", "a") is False
    with pytest.raises(ApiError, match="forbids"):
        api.delete(PODS, "lab", "a")


def test_a_login_that_fails_is_told(fake: FakeApi, api: Api) -> None:
    """What keeps us from logging in is what the caller hears, and nothing is sent."""

    def fail() -> Login:
        raise AccessError("the login program failed")

    api.config.log_in = fail
    with pytest.raises(AccessError, match="login program"):
        api.get(PODS, "lab")
    assert fake.asked == []

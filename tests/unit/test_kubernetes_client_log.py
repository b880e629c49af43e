"""What a batch client prints: followed by one request, each line once, and none is lost where logs are rotated."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from milkweed import logs
from milkweed.backends.kubernetes import clients
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.batch import CLIENT_LABEL, client_name
from milkweed.backends.kubernetes.client_log import ClientLog, Waiting
from milkweed.backends.kubernetes.start import JOB_LABEL
from milkweed.errors import UnreachableError
from milkweed.kube import pod_logs
from milkweed.kube.resources import PODS
from unit.kubernetes_jobs import APPLY_ID, Space, make_spec, submit
from unit.node_logs import Node, at
from unit.operator_cluster import refuse

POD = f"{client_name(APPLY_ID)}-abcde"
LABELS = {JOB_LABEL: APPLY_ID, CLIENT_LABEL: "true"}
WAIT_S = 10.0
BROKEN = UnreachableError("the connection broke")


@pytest.fixture
def handle(space: Space, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job with a client; nobody waits before asking again."""
    monkeypatch.setattr(clients, "_told", {})
    monkeypatch.setattr(pod_logs, "PAUSE_S", 0.0)
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    return submit(make_spec({"w": 1}), client_script=("true",))


def start(space: Space, *visits: list[bytes | Exception]) -> Node:
    """The client runs on a node, whose log is this."""
    node = Node(*visits, path=PODS.path("lab", POD, "log"))
    space.follow = node.follow  # type: ignore[method-assign]
    space.add_pod(POD, labels=LABELS)
    return node


def end(space: Space, code: int = 0) -> None:
    """The client ends."""
    ended = {"name": "client", "state": {"terminated": {"exitCode": code}}}
    space.patch(PODS, "lab", POD, {"status": {"containerStatuses": [ended]}})
    space.wait_seen()


def follow(space: Space, handle: dict[str, Any]) -> ClientLog:
    return ClientLog(lambda: space, handle, follow=True)


def test_a_log_is_read_once_by_who_does_not_follow(space: Space, handle: dict[str, Any]) -> None:
    """One request, and the last line need not be whole."""
    node = start(space, [at(1, "a"), at(2, "b").rstrip()])
    found = [line.text for line in KubernetesBackend().logs(handle, "client", follow=False)]
    assert found == ["a", "b"]
    assert [each["follow"] for each in node.asked] == ["false"]
    assert node.asked[0]["container"] == "client"


def test_a_client_that_has_not_begun_has_printed_nothing(
    space: Space, handle: dict[str, Any]
) -> None:
    """It has no pod, or its container waits."""
    assert list(KubernetesBackend().logs(handle, "client", follow=False)) == []
    start(space, [refuse(400, "BadRequest", "waiting to start")])
    assert list(KubernetesBackend().logs(handle, "client", follow=False)) == []


def test_who_follows_asks_once(space: Space, handle: dict[str, Any]) -> None:
    """However often it looks; a connection that breaks is taken up where it was, in a new file of the log, too."""
    node = start(space, [at(1, "a"), at(2, "b"), BROKEN], [at(3, "after the log was rotated")])
    log = follow(space, handle)
    found = log.read()
    assert node.drained.wait(WAIT_S)
    log.note_end()
    while more := log.read():
        found += more
    log.close()
    assert found == b"a\nb\nafter the log was rotated\n"
    assert node.asked[1]["sinceTime"] == "2026-01-02T03:04:02.000000000Z"
    assert {each["follow"] for each in node.asked[:2]} == {"true"}


def test_the_last_lines_are_waited_for(space: Space, handle: dict[str, Any]) -> None:
    """Its end is known before the node has told all of it."""
    start(space, [BROKEN], [BROKEN], [at(1, "the end")])
    end(space, 3)
    found = [line.text for line in KubernetesBackend().logs(handle, "client", follow=True)]
    assert found == ["the end"]


def test_a_client_that_is_made_later_is_followed(space: Space, handle: dict[str, Any]) -> None:
    """Nothing of it is there when somebody begins to look."""
    log = follow(space, handle)
    assert log.read() == b""
    start(space, [at(1, "here")])
    space.wait_seen()
    log.note_end()
    assert log.read() == b"here\n"
    assert log.read() == b""
    log.close()


def test_who_reads_nothing_is_waited_for() -> None:
    """Lines do not pile up without end; after the end nobody waits for room."""
    waiting, done = Waiting(limit=2), threading.Event()

    def put() -> None:
        for line in (b"a\n", b"b\n", b"c"):
            waiting.put(line)
        done.set()

    threading.Thread(target=put, daemon=True).start()
    first = waiting.take(WAIT_S)
    rest = b""
    while not (first + rest).endswith(b"c\n"):
        rest += waiting.take(WAIT_S)
    assert first + rest == b"a\nb\nc\n"
    assert done.wait(WAIT_S)
    waiting.put(b"d")
    waiting.put(b"e")
    waiting.end()
    waiting.put(b"f")
    assert waiting.take(0.0) == b"d\ne\nf\n"

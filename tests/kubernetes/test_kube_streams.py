"""Watches and tunnels of the client, on a real API server that goes away and comes back."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import BUSYBOX, Lab, wait
from milkweed.errors import UnreachableError
from milkweed.kube.api import Api, ApiError
from milkweed.kube.config import load_config
from milkweed.kube.forward import Forward, Patience, dial
from milkweed.kube.resources import CONFIG_MAPS, NODES, PODS
from milkweed.kube.watch import Watch

MEGABYTES = 10
ECHO = """
import socket, threading
def serve(peer):
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data)
door = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def api() -> Iterator[Api]:
    """The API server, as its administrator."""
    made = Api(load_config())
    yield made
    made.close()


@pytest.fixture
def echo(lab: Lab, namespace: str) -> str:
    """A pod that sends back what it gets at port 7000."""
    lab.run_pod(namespace, "echo", "python3", "-c", ECHO)
    wait(lambda: "listening" in lab.logs(namespace, "echo"), 60, "it does not listen")
    return "echo"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"of": "test"}},
        "data": data,
    }


def names(looking: Watch) -> list[str]:
    return sorted(name for name in looking.objects() if not name.startswith("kube-root"))


def wait_names(looking: Watch, *wanted: str, timeout_s: float = 60) -> None:
    """Wait until exactly these objects are in the picture."""

    def seen() -> bool:
        try:
            return names(looking) == list(wanted)
        except UnreachableError:
            return False

    with looking.changed:
        assert looking.changed.wait_for(seen, timeout_s), names(looking)


# Watching


def test_a_watch_sees_every_change(api: Api, namespace: str) -> None:
    """Objects come and go in the picture within a moment."""
    with Watch(api, CONFIG_MAPS, namespace, labels="of=test") as looking:
        assert looking.wait_listed(60)
        assert names(looking) == []
        for name in "abc":
            api.create(CONFIG_MAPS, namespace, config_map(name))
        wait_names(looking, "a", "b", "c")
        api.delete(CONFIG_MAPS, namespace, "b")
        wait_names(looking, "a", "c")
        seen = looking.changes
        api.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "1"}})
        assert looking.wait_change(60, since=seen)
        assert looking.objects()["a"]["data"] == {"x": "1"}


def test_a_watch_outlives_the_api_server(lab: Lab, api: Api, namespace: str) -> None:
    """While the API server is away nothing is known; when it is back the picture is true again by itself."""
    api.create(CONFIG_MAPS, namespace, config_map("before"))
    with Watch(api, CONFIG_MAPS, namespace, labels="of=test") as looking:
        wait_names(looking, "before")
        lab.stop_api()
        wait(lambda: _is_unknown(looking), 60, "the picture is still taken for true")
        with pytest.raises(UnreachableError):
            api.get(CONFIG_MAPS, namespace)
        lab.start_api()
        lab.kubectl("-n", namespace, "delete", "configmap", "before")
        api.create(CONFIG_MAPS, namespace, config_map("after"))
        wait_names(looking, "after")


def test_a_watch_without_rights_tells_it(lab: Lab, namespace: str, tmp_path: Path) -> None:
    """Who may not look sees no empty picture, but why."""
    api = Api(load_config(None, lab.make_login(tmp_path, namespace, "nobody")))
    with Watch(api, PODS, namespace) as looking:
        assert looking.wait_listed(60)
        with pytest.raises(ApiError, match="forbids"):
            looking.objects()
    api.close()


def _is_unknown(looking: Watch) -> bool:
    try:
        looking.objects()
    except UnreachableError:
        return True
    return False


def test_a_forgotten_place_is_found_again(api: Api, namespace: str) -> None:
    """A watch that goes on from a place that the API server does not know any more lists again."""
    with Watch(api, CONFIG_MAPS, namespace, labels="of=test") as looking:
        assert looking.wait_listed(60)
        with looking.changed:
            looking._version = "1"
            looking._stream.end() if looking._stream else None
        api.create(CONFIG_MAPS, namespace, config_map("a"))
        wait_names(looking, "a")


def test_many_objects_come_in_pages(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list is complete, and what follows it is seen."""
    monkeypatch.setattr("milkweed.kube.watch.PAGE", 7)
    for number in range(20):
        api.create(CONFIG_MAPS, namespace, config_map(f"c{number:02}"))
    with Watch(api, CONFIG_MAPS, namespace, labels="of=test") as looking:
        wait_names(looking, *(f"c{number:02}" for number in range(20)))
        api.create(CONFIG_MAPS, namespace, config_map("c99"))
        wait_names(looking, *(f"c{number:02}" for number in range(20)), "c99")


def test_a_frozen_api_server_is_unreachable(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits forever for an API server that takes connections and says nothing."""
    monkeypatch.setattr("milkweed.kube.connect.CONNECT_S", 1.0)
    monkeypatch.setattr("milkweed.kube.api.TIMEOUT_S", 1.0)
    kept = Api(api.config)
    kept.get(NODES)
    lab.freeze_api()
    for each in (api, kept):
        with pytest.raises(UnreachableError, match="timed out"):
            each.get(NODES)
    lab.thaw_api()
    wait(lambda: _answers(api), 60, "it does not answer again")
    kept.close()


def _answers(api: Api) -> bool:
    try:
        return bool(api.get(NODES)["items"])
    except UnreachableError:
        return False


# Ports of pods


def exchange(peer: socket.socket, data: bytes) -> bytes:
    """Send all of it, and read as much."""
    peer.settimeout(60)
    sends = threading.Thread(target=peer.sendall, args=(data,))
    sends.start()
    got = bytearray()
    while len(got) < len(data):
        piece = peer.recv(1 << 20)
        assert piece, f"closed after {len(got)} of {len(data)} bytes"
        got += piece
    sends.join(60)
    return bytes(got)


def test_much_goes_through_a_tunnel(api: Api, namespace: str, echo: str) -> None:
    """Ten megabytes go to a pod and come back unchanged, through a socket and through a port."""
    data = hashlib.shake_128(b"x").digest(MEGABYTES << 20)
    with dial(api, namespace, echo, 7000) as peer:
        assert exchange(peer, data) == data
    with (
        Forward(api, namespace, echo, 7000) as tunnel,
        socket.create_connection(("127.0.0.1", tunnel.port)) as peer,
    ):
        assert exchange(peer, data) == data


def test_several_connections_do_not_mix(api: Api, namespace: str, echo: str) -> None:
    """A port serves several programs at once."""
    with Forward(api, namespace, echo, 7000) as tunnel:
        peers = [socket.create_connection(("127.0.0.1", tunnel.port)) for _ in range(5)]
        for number, peer in enumerate(peers):
            peer.sendall(f"number {number}".encode())
        for number, peer in enumerate(peers):
            peer.settimeout(60)
            assert peer.recv(100) == f"number {number}".encode()
            peer.close()
        assert tunnel.error == ""


def test_a_port_without_a_listener_is_explained(api: Api, namespace: str, echo: str) -> None:
    """Who dials a port at which nobody listens sees the end, and the reason is known."""
    reasons: list[str] = []
    with dial(api, namespace, echo, 7001, heard=reasons.append) as peer:
        peer.settimeout(60)
        assert peer.recv(1) == b""
    assert "refused" in reasons[0]


def test_a_pod_that_is_not_there_is_explained(lab: Lab, api: Api, namespace: str) -> None:
    """Dialling a pod that is unknown, or does not run yet, is an error at once."""
    with pytest.raises(ApiError, match='pods "nobody" not found'):
        dial(api, namespace, "nobody", 7000)
    lab.stop_api("kube-scheduler")
    lab.start_pod(namespace, "waits", "sleep", "600", image=BUSYBOX)
    with pytest.raises(ApiError, match=r"not have a host assigned|not running"):
        dial(api, namespace, "waits", 7000)


def test_a_pod_that_ends_closes_its_connections(
    lab: Lab, api: Api, namespace: str, echo: str
) -> None:
    """When the pod goes, so does the socket."""
    with dial(api, namespace, echo, 7000) as peer:
        assert exchange(peer, b"hello") == b"hello"
        lab.kubectl("-n", namespace, "delete", "pod", echo, "--wait=false")
        peer.settimeout(60)
        assert peer.recv(1) == b""


def test_pings_are_answered(api: Api, namespace: str, echo: str) -> None:
    """A quiet connection stays open much longer than its patience, since the cluster answers pings."""
    brief = Patience(ping_s=0.2, answer_s=5.0)
    with dial(api, namespace, echo, 7000, patience=brief) as peer:
        time.sleep(7)
        assert exchange(peer, b"still here") == b"still here"


def test_a_laptop_reaches_a_pod(lab: Lab, namespace: str, echo: str) -> None:
    """A program that reaches nothing but the API server talks to the pod through it."""
    code = f"""if True:
        from milkweed.kube.api import Api
        from milkweed.kube.config import load_config
        from milkweed.kube.forward import dial
        with dial(Api(load_config()), {namespace!r}, {echo!r}, 7000) as peer:
            peer.sendall(b"hello from afar")
            peer.settimeout(60)
            print(peer.recv(100).decode())
    """
    command = lab.outside(sys.executable, "-c", code)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("hello from afar\n", "")

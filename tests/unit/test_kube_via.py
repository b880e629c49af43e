"""Ways to pods as words: they stand in addresses, and lead there again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.control import Door, parse_door
from milkweed.kube.via import api_of, dial_via, forward_via, render_via

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: one, context: {cluster: c, user: u}}
- {name: "two|odd", context: {cluster: c, user: u, namespace: ns}}
"""
WORDS = [
    ("", None, "ns", "pod-0"),
    ("one", "/a b/kube.yaml", "ns", "pod-0"),
    ("arn:aws:eks:eu-1:123:cluster/x", None, "ns", "pod-0"),
    ("two|odd#%", "/odd|path#", "ns", "pod-0"),
]


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with two contexts, and none of what other tests have asked for."""
    path = tmp_path / "odd|kube"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    api_of.cache_clear()
    forward_via.cache_clear()
    yield str(path)
    api_of.cache_clear()
    forward_via.cache_clear()


@pytest.mark.parametrize("words", WORDS)
def test_a_way_can_stand_in_an_address(words: tuple[str, str | None, str, str]) -> None:
    """Whatever a context or a file is called."""
    door = Door(machine="m", port=1, host="w/0", credentials="/keys", via=render_via(*words))
    assert parse_door(str(door)) == door
    assert door.via.count("|") == 3


def test_one_api_server_for_a_program(kubeconfig: str) -> None:
    """Connections and watches are shared by all jobs."""
    assert api_of("one", kubeconfig) is api_of("one", kubeconfig)
    assert api_of(None, None).config.context == "one"


def test_a_way_leads_where_it_was_made_for(kubeconfig: str) -> None:
    """To the same API server, namespace, pod and port; a forward is opened once."""
    asked: list[tuple[object, ...]] = []

    class Forwarded:
        def __init__(self, *words: object) -> None:
            asked.append(words)
            self.port = 4711

    word = render_via("two|odd", kubeconfig, "ns", "pod-0")
    dial_via(word, 26601, lambda *words: asked.append(words))  # type: ignore[arg-type]
    assert [forward_via(word, 26600, Forwarded) for _ in range(2)] == [4711, 4711]
    api = api_of("two|odd", kubeconfig)
    assert asked == [(api, "ns", "pod-0", 26601), (api, "ns", "pod-0", 26600)]
    assert api.config.namespace == "ns"


def test_an_empty_word_is_the_current_context(kubeconfig: str) -> None:
    """As for a job that was found with nothing but the cluster, or for a client in a pod."""
    asked: list[tuple[object, ...]] = []
    word = render_via("", None, "ns", "pod-0")
    dial_via(word, 1, lambda *words: asked.append(words))  # type: ignore[arg-type]
    assert asked == [(api_of(None, None), "ns", "pod-0", 1)]

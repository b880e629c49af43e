"""What the operator sees: every change once, nothing old, and what is gone is gone."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.errors import MilkweedError, UnreachableError
from milkweed.kube.resources import MESHES, PODS
from milkweed.operator.follow import (
    FIRST_PAUSE_S,
    RELIST_S,
    REST_S,
    SLOWEST_PAUSE_S,
    Follower,
)
from milkweed.operator.picture import Picture, trim, trim_pod
from milkweed.operator.reading import key_of, text
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster, refuse
from unit.operator_runs import make_mesh

Change = tuple[tuple[str, str], str, str]


def make_object(
    name: str, version: int, namespace: str = "team", uid: str = "u", **more: Any
) -> Any:
    meta = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta | more}


class Seen:
    """A picture, and what it told."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.picture = Picture(self.mesh_of, self.note)

    @staticmethod
    def mesh_of(found: Any) -> tuple[str, str]:
        """What an object says, else itself."""
        return key_of(found)[0], text(found, "metadata", "mesh") or key_of(found)[1]

    def note(self, key: tuple[str, str], before: Any, after: Any) -> None:
        """Write a change down, by the versions before and after."""
        versions = [text(one or {}, "metadata", "resourceVersion") for one in (before, after)]
        self.changes.append((key, *versions))


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_every_change_is_told_once(seen: Seen) -> None:
    """A first look, a change, the same look again, and the end."""
    key = ("team", "a")
    for version in (1, 2, 2):
        seen.picture.put(make_object("a", version))
    seen.picture.remove(make_object("a", 3))
    assert seen.changes == [(key, "", "1"), (key, "1", "2"), (key, "2", "")]
    assert seen.picture.get(key) is None


def test_an_older_look_is_no_news(seen: Seen) -> None:
    """What the operator wrote itself is seen at once; the stream may still tell of before."""
    seen.picture.put(make_object("a", 10))
    seen.picture.put(make_object("a", 9))
    found = seen.picture.get(("team", "a"))
    assert text(found, "metadata", "resourceVersion") == "10"
    assert len(seen.changes) == 1


def test_another_object_of_the_same_name_is_news(seen: Seen) -> None:
    """Whatever its version, it is another one."""
    seen.picture.put(make_object("a", 10, uid="first"))
    seen.picture.put(make_object("a", 5, uid="second"))
    assert text(seen.picture.get(("team", "a")), "metadata", "uid") == "second"


def test_the_end_of_an_earlier_object_is_not_the_end_of_this_one(seen: Seen) -> None:
    """It was deleted and made anew before we heard of either."""
    seen.picture.put(make_object("a", 10, uid="second"))
    seen.picture.remove(make_object("a", 5, uid="first"))
    assert seen.picture.get(("team", "a")) is not None


def test_versions_that_are_no_numbers(seen: Seen) -> None:
    """Another one is another one, and which is newer is not guessed."""
    for version in ("x", "y"):
        found = make_object("a", 0)
        found["metadata"]["resourceVersion"] = version
        seen.picture.put(found)
    assert text(seen.picture.get(("team", "a")), "metadata", "resourceVersion") == "y"


def test_a_list_says_what_is_gone(seen: Seen) -> None:
    """What was seen and is not in the list was deleted meanwhile."""
    for name in "abc":
        seen.picture.put(make_object(name, 1))
    seen.changes.clear()
    seen.picture.load([make_object("a", 1), make_object("d", 2)])
    assert sorted(seen.picture.places()) == [("team", "a"), ("team", "d")]
    assert sorted(key for key, *_ in seen.changes) == [("team", "b"), ("team", "c"), ("team", "d")]


def test_a_list_of_one_namespace_says_nothing_of_others(seen: Seen) -> None:
    """Namespaces are listed one by one where not all are served."""
    seen.picture.put(make_object("a", 1, "one"))
    seen.picture.put(make_object("a", 1, "two"))
    seen.picture.load([], "one")
    assert seen.picture.places() == [("two", "a")]
    assert len(seen.picture) == 1


def test_objects_are_found_by_their_mesh(seen: Seen) -> None:
    """Pods are many, and each says whose it is."""
    seen.picture.put(make_object("a-1", 1, mesh="a"))
    seen.picture.put(make_object("a-0", 1, mesh="a"))
    seen.picture.put(make_object("b-0", 1, mesh="b"))
    names = [key_of(one)[1] for one in seen.picture.of_mesh(("team", "a"))]
    assert names == ["a-0", "a-1"]
    assert seen.picture.of_mesh(("team", "c")) == []
    assert len(seen.picture.all()) == 3


def test_an_object_may_change_hands(seen: Seen) -> None:
    """Both meshes are told."""
    seen.picture.put(make_object("x", 1, mesh="a"))
    seen.changes.clear()
    seen.picture.put(make_object("x", 2, mesh="b"))
    assert seen.changes == [(("team", "a"), "1", ""), (("team", "b"), "1", "2")]
    assert seen.picture.of_mesh(("team", "a")) == []


def test_trimming_keeps_what_is_needed() -> None:
    """Who wrote what is not kept; of pods, only what conditions tell of."""
    found = make_object("a", 1, managedFields=[{"manager": "x"}], labels={"a": "b"})
    assert "managedFields" not in trim(found)["metadata"]
    assert trim(found)["metadata"]["labels"] == {"a": "b"}
    pod = {
        **make_object("a-0", 1, labels={"a": "b"}, annotations={"big": "x"}),
        "spec": {"nodeName": "n1", "containers": [{"name": "worker", "env": ["much"]}]},
        "status": {"phase": "Running"},
    }
    assert trim_pod(pod)["spec"] == {"nodeName": "n1", "containers": [{"name": "worker"}]}
    assert "annotations" not in trim_pod(pod)["metadata"]
    assert "deletionTimestamp" not in trim_pod(pod)["metadata"]
    assert trim_pod(pod)["status"] == {"phase": "Running"}


# Following


class Followed:
    """A follower of meshes, its pauses, and what it logged."""

    def __init__(self, cluster: Cluster, clock: FakeClock, namespace: str = "") -> None:
        self.seen = Seen()
        self.lines: list[str] = []
        self.follower = Follower(
            cluster,  # type: ignore[arg-type]
            MESHES,
            namespace,
            self.seen.picture,
            clock=clock,
            pause=clock.sleep,
            log=self.lines.append,
        )

    def names(self) -> list[str]:
        """What is seen now, after one more look."""
        self.follower.step()
        return sorted(name for _namespace, name in self.seen.picture.places())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def followed(cluster: Cluster, clock: FakeClock) -> Followed:
    return Followed(cluster, clock)


def add(cluster: Cluster, name: str) -> None:
    cluster.create(MESHES, "team", make_mesh(name))


def test_a_list_then_changes(cluster: Cluster, followed: Followed) -> None:
    """Everything that is there, then everything that happens, and no second list."""
    add(cluster, "a")
    assert not followed.follower.listed
    assert followed.names() == ["a"]
    assert followed.follower.listed
    add(cluster, "b")
    cluster.remove(MESHES.plural, "team", "a")
    requests = cluster.requests
    assert followed.names() == ["b"]
    assert cluster.requests == requests + 1


def test_one_namespace(cluster: Cluster, clock: FakeClock) -> None:
    """Where not all namespaces are served, others are not even asked for."""
    followed = Followed(cluster, clock, "team")
    add(cluster, "a")
    elsewhere = make_mesh("b") | {"metadata": {"name": "b"}}
    cluster.create(MESHES, "elsewhere", elsewhere)
    assert followed.names() == ["a"]


def test_a_server_that_is_away_is_waited_for(
    cluster: Cluster, followed: Followed, clock: FakeClock
) -> None:
    """Each pause is longer, up to a limit; what was seen is kept, and the trouble is told once."""
    add(cluster, "a")
    followed.follower.step()
    cluster.down = True
    for _ in range(10):
        assert followed.names() == ["a"]
    assert isinstance(followed.follower.trouble, UnreachableError)
    assert len(followed.lines) == 1
    assert clock.slept[0] <= FIRST_PAUSE_S
    assert max(clock.slept) <= SLOWEST_PAUSE_S
    assert clock.slept[-1] > clock.slept[0]


def test_a_server_that_comes_back_is_followed_on(cluster: Cluster, followed: Followed) -> None:
    """Nothing is missed, though the server has forgotten what happened."""
    add(cluster, "a")
    followed.follower.step()
    cluster.down = True
    followed.follower.step()
    add_silently(cluster, "b")
    cluster.remove(MESHES.plural, "team", "a")
    cluster.restart()
    followed.follower.step()
    assert followed.names() == ["b"]
    assert followed.follower.trouble is None


def add_silently(cluster: Cluster, name: str) -> None:
    cluster.put(MESHES.plural, make_mesh(name))


def test_a_place_that_was_forgotten_needs_no_pause(
    cluster: Cluster, followed: Followed, clock: FakeClock
) -> None:
    """The server says so, and is listed anew at once."""
    followed.follower.step()
    add(cluster, "a")
    cluster.forgotten = cluster.version + 1
    followed.follower.step()
    cluster.forgotten = 0
    assert followed.names() == ["a"]
    assert clock.slept == []


def test_now_and_then_everything_is_listed(
    cluster: Cluster, followed: Followed, clock: FakeClock
) -> None:
    """A change that no stream ever told is seen in the end."""
    followed.follower.step()
    add(cluster, "a")
    cluster.history.clear()
    assert followed.names() == []
    clock.advance(RELIST_S)
    assert followed.names() == ["a"]


def test_a_stream_may_end_with_an_error(
    cluster: Cluster, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's word in the middle of a stream is taken as if it had been the answer."""
    followed.follower.step()
    status = {"code": 403, "message": "no longer", "metadata": {}}
    monkeypatch.setattr(cluster, "_events", lambda *_: [{"type": "ERROR", "object": status}])
    followed.follower.step()
    assert "no longer" in str(followed.follower.trouble)


def test_bookmarks_move_the_place_only(
    cluster: Cluster, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name a version and change nothing."""
    followed.follower.step()
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "500"}}}
    monkeypatch.setattr(cluster, "_events", lambda *_: [bookmark])
    followed.follower.step()
    assert followed.seen.changes == []
    assert followed.follower._version == "500"


def test_rights_that_are_missing_are_told(
    cluster: Cluster, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that may not list says so, and tries again."""

    def forbid(*_args: object, **_query: str) -> None:
        raise refuse(403, "Forbidden", "cannot list")

    monkeypatch.setattr(cluster, "get", forbid)
    followed.follower.step()
    assert "monarchmeshes" in followed.lines[0]
    assert "cannot list" in followed.lines[0]
    assert isinstance(followed.follower.trouble, MilkweedError)


def test_long_lists_come_in_pages(
    cluster: Cluster, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages are one list."""
    for name in "abc":
        add(cluster, name)
    whole = cluster.get(MESHES, "")
    asked: list[dict[str, str]] = []

    def get(*_args: object, **query: str) -> Any:
        asked.append(query)
        start = int(query.get("continue") or 0)
        after = str(start + 1) if start < 2 else ""
        meta = {"resourceVersion": str(cluster.version), "continue": after}
        return {"items": whole["items"][start : start + 1], "metadata": meta}

    monkeypatch.setattr(cluster, "get", get)
    assert followed.names() == ["a", "b", "c"]
    assert len(asked) == 3


def test_stopping_ends_a_stream(cluster: Cluster, clock: FakeClock) -> None:
    """No more is taken, and running comes to an end."""
    followed = Followed(cluster, clock)
    followed.follower.step()
    followed.follower.stop()
    add(cluster, "a")
    followed.follower.step()
    followed.follower.run()
    assert followed.seen.picture.places() == []


def test_streams_that_end_at_once_are_not_opened_in_a_rush(
    cluster: Cluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something between us and the server may end every stream as soon as it begins."""
    followed = Followed(cluster, clock)
    steps: list[float] = []

    def step() -> None:
        steps.append(clock())
        if len(steps) == 5:
            followed.follower.stop()

    monkeypatch.setattr(followed.follower, "step", step)
    followed.follower.run()
    assert steps[-1] - steps[0] == pytest.approx(4 * REST_S)


def test_pods_are_followed_by_label(cluster: Cluster, clock: FakeClock) -> None:
    """Pods of others are neither sent nor kept."""
    seen = Seen()
    follower = Follower(cluster, PODS, "", seen.picture, labels="app=x", clock=clock)  # type: ignore[arg-type]
    cluster.put(PODS.plural, {"metadata": {"name": "ours", "labels": {"app": "x"}}})
    cluster.put(PODS.plural, {"metadata": {"name": "theirs", "labels": {"app": "y"}}})
    follower.step()
    assert seen.picture.places() == [("team", "ours")]

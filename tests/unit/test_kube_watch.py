"""A picture of objects that stays true: streams end, servers go away, places are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from milkweed.errors import AccessError, BackendError, UnreachableError
from milkweed.kube import watch
from milkweed.kube.api import Api
from milkweed.kube.resources import NODES, PODS
from milkweed.kube.watch import Watch
from unit.kube_fake import (
    WAIT_S,
    Asked,
    FakeApi,
    Feed,
    Gate,
    Handler,
    Reply,
    drop,
    event,
    listed,
    pod,
)


def gone() -> dict[str, Any]:
    return event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})


class Recorder(Watch):
    """Remembers every picture that could be seen."""

    seen: list[list[str] | str]

    def _tell(self) -> None:
        found = sorted(self._objects) if self._trouble is None else str(self._trouble)
        self.seen = [*getattr(self, "seen", []), found]
        super()._tell()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def looking(api: Api, pauses: list[float]) -> Iterator[Recorder]:
    """A watch that never really pauses, not started yet."""
    made = Recorder(api, PODS, "lab", labels="app=x", pause=pauses.append)
    yield made
    made.stop()


def wait_for(looking: Watch, true: Callable[[], bool]) -> None:
    with looking.changed:
        assert looking.changed.wait_for(true, WAIT_S)


def names(looking: Watch) -> list[str]:
    return sorted(looking.objects())


def wait_names(looking: Watch, *wanted: str) -> None:
    wait_for(looking, lambda: sorted(looking._objects) == list(wanted))
    assert names(looking) == list(wanted)


def test_a_list_is_followed_by_its_changes(fake: FakeApi, looking: Watch) -> None:
    """Objects come, change and go in the picture as the stream tells."""
    feed = Feed()
    fake.script(listed(5, pod("a", 3), pod("b", 4)), feed)
    assert looking.start().wait_listed(WAIT_S)
    assert names(looking) == ["a", "b"]
    feed.send(event("ADDED", pod("c", 6)))
    wait_names(looking, "a", "b", "c")
    feed.send(event("DELETED", pod("a", 7)))
    wait_names(looking, "b", "c")
    feed.send(event("MODIFIED", pod("b", 8, spec="new")))
    wait_for(looking, lambda: "spec" in looking._objects["b"])
    first, second = fake.asked
    assert first.query == {"labelSelector": "app=x", "limit": "500"}
    assert second.query == {
        "labelSelector": "app=x",
        "resourceVersion": "5",
        "allowWatchBookmarks": "true",
        "watch": "true",
        "timeoutSeconds": "300",
    }
    feed.end()


def test_before_the_first_list_nothing_is_known(looking: Watch) -> None:
    """An empty picture is never taken for an empty cluster."""
    with pytest.raises(UnreachableError, match="not answered yet"):
        looking.objects()
    assert looking.wait_listed(0) is False


def test_a_stream_goes_on_where_it_ended(
    fake: FakeApi, looking: Watch, pauses: list[float]
) -> None:
    """After its time is over, or when it breaks, a stream is asked for from the last event or bookmark on."""
    ended, broken, last = Feed(), Feed(), Feed()
    fake.script(listed(5), ended, broken, last)
    looking.start()
    ended.send(event("ADDED", pod("a", 6)))
    ended.send(event("BOOKMARK", {"metadata": {"resourceVersion": "60"}}))
    ended.end()
    assert broken.opened.wait(WAIT_S)
    broken.send(event("ADDED", pod("b", 70)))
    wait_names(looking, "a", "b")
    fake.cut()
    assert last.opened.wait(WAIT_S)
    assert names(looking) == ["a", "b"]
    assert [each.query.get("resourceVersion") for each in fake.asked] == [None, "5", "60", "70"]
    assert all(0.1 <= pause <= 0.2 for pause in pauses)
    last.end()
    broken.end()


@pytest.mark.parametrize("in_stream", [True, False])
def test_a_lost_place_is_found_by_a_list(fake: FakeApi, looking: Recorder, in_stream: bool) -> None:
    """When the API server has forgotten our place, a new list takes over: no gap, and no trouble."""
    lost, last = Feed(), Feed()
    steps = [lost] if in_stream else [Reply(410, {"code": 410, "message": "too old"})]
    fake.script(listed(5, pod("a", 3), pod("b", 4)), *steps, listed(90, pod("b", 80)), last)
    looking.start()
    lost.send(gone())
    assert last.opened.wait(WAIT_S)
    assert looking.seen == [["a", "b"], ["b"]]
    assert fake.asked[-1].query["resourceVersion"] == "90"
    last.end()
    lost.end()


def test_an_error_in_a_stream_asks_for_a_list(fake: FakeApi, looking: Watch) -> None:
    """Whatever ends a stream with an error, what is true is listed again."""
    first, last = Feed(event("ERROR", {"code": 500, "message": "etcd"})), Feed()
    fake.script(listed(5), first, listed(6, pod("a", 6)), last)
    looking.start()
    assert last.opened.wait(WAIT_S)
    assert names(looking) == ["a"]
    last.end()
    first.end()


def test_a_server_that_is_away_makes_the_picture_unknown(fake: FakeApi, api: Api) -> None:
    """What was seen is not told any more while nobody answers; a list makes it true again."""
    gate, first, last = Gate(), Feed(), Feed()
    fake.script(listed(5, pod("a", 3)), first, drop, Reply(503), listed(9, pod("b", 8)), last)
    with Watch(api, PODS, "lab", pause=gate) as looking:
        assert first.opened.wait(WAIT_S)
        fake.cut()
        gate.wait_reached()
        assert names(looking) == ["a"]  # only the stream is known to have ended
        gate.open()
        gate.wait_reached()
        with pytest.raises(UnreachableError, match="does not answer"):
            looking.objects()
        gate.open()
        gate.wait_reached()
        with pytest.raises(UnreachableError, match="503"):
            looking.objects()
        gate.open()
        assert last.opened.wait(WAIT_S)
        assert names(looking) == ["b"]
        gate.open(9)
    first.end()
    last.end()
    paths = [(each.query.get("watch"), each.query.get("resourceVersion")) for each in fake.asked]
    assert paths == [
        (None, None),
        ("true", "5"),
        ("true", "5"),
        (None, None),
        (None, None),
        ("true", "9"),
    ]


def test_streams_that_break_and_break_make_the_picture_unknown(fake: FakeApi, api: Api) -> None:
    """Once is what proxies do; twice without a word between is silence, and a list makes it true again."""
    gate, last = Gate(), Feed()
    first, second, third = make_broken(), make_broken(event("ADDED", pod("c", 6))), make_broken()
    fake.script(listed(5, pod("a", 3)), first, second, third, listed(9, pod("b", 8)), last)
    with Watch(api, PODS, "lab", pause=gate) as looking:
        gate.wait_reached()
        assert names(looking) == ["a"]
        gate.open()
        gate.wait_reached()
        assert names(looking) == ["a", "c"]
        gate.open()
        gate.wait_reached()
        with pytest.raises(UnreachableError, match="does not answer"):
            looking.objects()
        gate.open()
        assert last.opened.wait(WAIT_S)
        assert names(looking) == ["b"]
        gate.open(9)
    last.end()


def make_broken(*events: dict[str, Any]) -> Feed:
    """A stream that breaks in the middle of an event, after some others."""
    made = Feed(*events)
    made.send_bytes(b'{"type": "ADD')
    made.end()
    return made


def test_pauses_grow_and_end(fake: FakeApi, looking: Watch, pauses: list[float]) -> None:
    """A server that is away is tried less and less often, but at least every ten seconds."""
    last = Feed()
    fake.script(*[Reply(503)] * 9, listed(5), last)
    looking.start()
    assert last.opened.wait(WAIT_S)
    longest = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    last.end()


def test_a_failed_login_is_tried_seldom(api: Api) -> None:
    """A login program may open a browser window each time it is asked."""
    pauses: list[float] = []
    enough = threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            enough.set()
            looking._over.set()

    def fail() -> Any:
        raise AccessError("the login program failed")

    api.config.log_in = fail
    looking = Watch(api, PODS, "lab", pause=pause)
    with looking:
        assert enough.wait(WAIT_S)
        with pytest.raises(AccessError, match="login program"):
            looking.objects()
    assert pauses[-1] >= watch.LOGIN_PAUSE_S / 2


@pytest.mark.parametrize(
    "strange",
    [
        {"kind": "PodList"},
        {"items": [{}], "metadata": {"resourceVersion": "1"}},
        [],
        {"items": None},
    ],
)
def test_a_strange_answer_is_trouble(fake: FakeApi, api: Api, strange: Any) -> None:
    """What is no list is told, and does not end the watch."""
    gate, feed = Gate(), Feed()
    fake.script(Reply(200, strange), listed(5), feed)
    with Watch(api, PODS, "lab", pause=gate) as looking:
        gate.wait_reached()
        with pytest.raises(BackendError, match="something unexpected"):
            looking.objects()
        gate.open(9)
        assert feed.opened.wait(WAIT_S)
        assert names(looking) == []
    feed.end()


def test_half_an_event_is_none(fake: FakeApi, looking: Watch) -> None:
    """A stream that breaks in the middle of an event goes on before it."""
    last = Feed()
    fake.script(listed(5), make_broken(event("ADDED", pod("a", 6))), last)
    looking.start()
    assert last.opened.wait(WAIT_S)
    assert (names(looking), fake.asked[-1].query["resourceVersion"]) == (["a"], "6")
    last.end()


def test_lists_come_in_pages(fake: FakeApi, looking: Recorder) -> None:
    """A long list is read page by page, and shown when all of it is there."""
    feed = Feed()
    fake.script(listed(5, pod("a", 1), more="x"), listed(5, pod("b", 2)), feed)
    looking.start()
    assert feed.opened.wait(WAIT_S)
    assert (fake.asked[1].query["continue"], looking.seen) == ("x", [["a", "b"]])
    feed.end()


def test_objects_are_cut_to_what_is_kept(fake: FakeApi, api: Api) -> None:
    """`keep` decides what stays in memory, of lists and of events."""
    feed = Feed(event("ADDED", pod("b", 6, spec={"phase": "Pending", "long": "x" * 100_000})))
    fake.script(listed(5, pod("a", 3, spec={"phase": "Running", "long": "x" * 100_000})), feed)
    with Watch(api, PODS, "lab", keep=lambda found: {"phase": found["spec"]["phase"]}) as looking:
        wait_for(looking, lambda: len(looking._objects) == 2)
        assert looking.objects() == {"a": {"phase": "Running"}, "b": {"phase": "Pending"}}
        feed.end()


def test_objects_of_all_namespaces_do_not_hide_each_other(fake: FakeApi, api: Api) -> None:
    """Names are unique in a namespace only; nodes have none."""
    feed = Feed()
    fake.script(listed(5, pod("a", 3), {"metadata": {"name": "a", "namespace": "other"}}), feed)
    with Watch(api, PODS, "") as looking:
        assert looking.wait_listed(WAIT_S)
        assert names(looking) == ["lab/a", "other/a"]
        feed.end()
    fake.script(listed(5, {"metadata": {"name": "n1"}}), more := Feed())
    with Watch(api, NODES, "") as looking:
        assert looking.wait_listed(WAIT_S)
        assert names(looking) == ["n1"]
        more.end()


def test_waiting_misses_no_change(fake: FakeApi, looking: Watch) -> None:
    """What changed between a look and the wait ends the wait at once; nothing ends it early."""
    feed = Feed()
    fake.script(listed(5), feed)
    looking.start()
    assert feed.opened.wait(WAIT_S)
    seen = looking.changes
    assert looking.wait_change(0, since=seen) is False
    feed.send(event("ADDED", pod("a", 6)))
    assert looking.wait_change(WAIT_S, since=seen) is True
    assert looking.wait_change(WAIT_S, since=seen) is True
    feed.send(event("BOOKMARK", {"metadata": {"resourceVersion": "60"}}))
    assert looking.wait_change(0) is False
    feed.end()


def test_a_silent_stream_can_be_stopped(fake: FakeApi, api: Api) -> None:
    """Stopping ends a stream that says nothing at once, and whoever waits for a change."""
    feed = Feed()
    fake.script(listed(5), feed)
    looking = Watch(api, PODS, "lab").start()
    assert feed.opened.wait(WAIT_S)
    waits = threading.Thread(target=looking.wait_change, args=(WAIT_S,))
    waits.start()
    looking.stop(WAIT_S)
    assert not looking._thread.is_alive()
    waits.join(WAIT_S)
    assert not waits.is_alive()
    feed.end()


def test_a_pause_can_be_stopped(fake: FakeApi, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping does not wait for the pause between two tries."""
    monkeypatch.setattr(watch, "FIRST_PAUSE_S", 1000.0)
    fake.script(Reply(503))
    looking = Watch(api, PODS, "lab").start()
    assert looking.wait_listed(WAIT_S)
    looking.stop(WAIT_S)
    assert not looking._thread.is_alive()


def test_a_stop_while_the_stream_opens_is_heard(fake: FakeApi, api: Api) -> None:
    """A stream that opens just after the stop is ended, too."""
    looking = Watch(api, PODS, "lab")
    feed = Feed()

    def stop_first(handler: Handler, asked: Asked) -> None:
        looking._over.set()
        feed(handler, asked)

    fake.script(listed(5), stop_first)
    looking.start()._thread.join(WAIT_S)
    assert not looking._thread.is_alive()
    feed.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_is_no_picture(fake: FakeApi, api: Api) -> None:
    """When the thread ends by a mistake, nobody takes what was seen last for true."""
    fake.script(listed(5, pod("a", 1)))

    def fail(_found: Any) -> Any:
        raise ZeroDivisionError

    looking = Watch(api, PODS, "lab", keep=fail).start()
    looking._thread.join(WAIT_S)
    with pytest.raises(BackendError, match="ended by mistake"):
        looking.objects()

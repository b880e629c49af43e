"""A watch that may not look: a refusal is told, and one that comes after a permission passes."""

from __future__ import annotations

import pytest

from milkweed.errors import AccessError, UnreachableError
from milkweed.kube.api import Api, ApiError
from milkweed.kube.config import Login
from milkweed.kube.resources import PODS
from milkweed.kube.watch import LOGIN_PAUSE_S, SLOWEST_PAUSE_S, Watch
from unit.kube_fake import WAIT_S, FakeApi, Feed, Gate, Reply, listed, pod


def test_a_refusal_is_told_until_it_is_lifted(fake: FakeApi, api: Api) -> None:
    """Whoever may not look hears that, and sees as soon as it is allowed."""
    gate, feed = Gate(), Feed()
    fake.script(Reply(403, {"message": "pods is forbidden"}), listed(5, pod("a", 1)), feed)
    with Watch(api, PODS, "lab", pause=gate) as looking:
        assert looking.wait_listed(WAIT_S)
        gate.wait_reached()
        with pytest.raises(ApiError, match="pods is forbidden"):
            looking.objects()
        gate.open(9)
        assert feed.opened.wait(WAIT_S)
        assert sorted(looking.objects()) == ["a"]
    feed.end()


def test_a_server_that_has_just_started_may_know_no_rights_yet(fake: FakeApi, api: Api) -> None:
    """What it has allowed before is unknown for a moment, and no refusal that would end a wait."""
    gate, feed = Gate(), Feed()
    gone, refusal = Reply(410, {"message": "too old"}), Reply(403, {"message": "pods is forbidden"})
    fake.script(listed(5, pod("a", 1)), gone, refusal, listed(7, pod("b", 2)), feed)
    with Watch(api, PODS, "lab", pause=gate) as looking:
        gate.wait_reached()
        gate.open(1)
        gate.wait_reached()
        with pytest.raises(UnreachableError, match="allowed before"):
            looking.objects()
        gate.open(9)
        assert feed.opened.wait(WAIT_S)
        assert sorted(looking.objects()) == ["b"]
    feed.end()


def test_a_login_that_is_not_known_for_a_moment_is_no_refusal(fake: FakeApi, api: Api) -> None:
    """A server that forgets who asks, and remembers, ends no wait; before the first list it is told."""
    gate, feed = Gate(), Feed()
    gone, stranger = Reply(410, {"message": "too old"}), Reply(401, {"message": "Unauthorized"})
    fake.script(stranger, listed(5, pod("a", 1)), gone, stranger, listed(7, pod("b", 2)), feed)
    with Watch(api, PODS, "lab", pause=gate) as looking:
        gate.wait_reached()
        with pytest.raises(ApiError, match="does not know who asks"):
            looking.objects()
        gate.open(1)
        gate.wait_reached()
        gate.open(1)
        gate.wait_reached()
        with pytest.raises(UnreachableError, match="worked before") as caught:
            looking.objects()
        assert caught.value.seen == "the API server does not know who asks: Unauthorized"
        gate.open(9)
        assert feed.opened.wait(WAIT_S)
        assert sorted(looking.objects()) == ["b"]
    feed.end()


def test_a_login_program_that_fails_for_a_while_is_no_refusal(fake: FakeApi, api: Api) -> None:
    """Without a network it fails as the server does: nothing is known, and why is told; it is asked seldom."""
    gate, feed, failing = Gate(), Feed(), [False]

    def log_in() -> Login:
        if failing[0]:
            raise AccessError("the login program failed", seen="no route to host", hint="run it")
        return Login(token="t")  # noqa: S106  no secret

    api.config.log_in = log_in
    fake.script(listed(5, pod("a", 1)), Reply(410, {"message": "too old"}))
    with Watch(api, PODS, "lab", pause=gate) as looking:
        gate.wait_reached()
        failing[0] = True
        for _ in range(12):
            gate.open(1)
            gate.wait_reached()
        with pytest.raises(UnreachableError, match="worked before") as caught:
            looking.objects()
        assert caught.value.seen == "the login program failed: no route to host"
        assert caught.value.hint == "run it"
        assert SLOWEST_PAUSE_S < gate.pauses[-1] <= LOGIN_PAUSE_S
        fake.script(listed(7, pod("b", 2)), feed)
        failing[0] = False
        gate.open(9)
        assert feed.opened.wait(WAIT_S)
        assert sorted(looking.objects()) == ["b"]
    feed.end()

"""A watch that may not look: a refusal is told, and one that comes after a permission passes."""

from __future__ import annotations

import pytest

from milkweed.errors import UnreachableError
from milkweed.kube.api import Api, ApiError
from milkweed.kube.resources import PODS
from milkweed.kube.watch import Watch
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

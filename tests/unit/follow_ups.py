"""A backend in memory whose allocation has a follow-up: how both are, a test says."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milkweed import backends
from milkweed.backends.base import Handle, LogLine, Look
from milkweed.backends.fake import FakeBackend
from milkweed.plan import Renewal
from milkweed.spec import JobSpec
from milkweed.status import HostState, HostStatus, Liveness, Status

if TYPE_CHECKING:
    import pytest

NAME = "followed"
PENDING = Status(liveness=Liveness.PENDING, reason="Priority")
ENDED = Status(liveness=Liveness.ENDED, reason="time limit")


def running(*states: HostState) -> Status:
    """An allocation whose mesh `a` has hosts in these states; where none is said, two that are ready."""
    hosts = [
        HostStatus(host=f"a/{rank}", state=state)
        for rank, state in enumerate(states or (HostState.READY, HostState.READY))
    ]
    return Status(liveness=Liveness.RUNNING, hosts=tuple(hosts))


@dataclass
class Story:
    """How an allocation and its follow-up are, and what is asked of which of them, in order."""

    says: list[list[Status]] = field(default_factory=lambda: [[running()], [PENDING]])
    """What each of them says, look by look; the last word stays."""
    renewal: Renewal = Renewal.NONE
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def ask(self, what: str, handle: Handle) -> int:
        """Note what is asked, and of which of them."""
        generation: int = handle.get("generation", 0)
        self.asked.append((what, generation))
        return generation

    def count(self, what: str, generation: int) -> int:
        """How often one of them was asked that."""
        return self.asked.count((what, generation))


def tell_story(monkeypatch: pytest.MonkeyPatch) -> Story:
    """A backend called `followed`, which goes by what is told."""
    story = Story()

    class Followed(FakeBackend):
        name = NAME

        def poll(self, handle: Handle) -> Status:
            super().poll(handle)  # brings it nearer to its hosts
            words = story.says[story.ask("poll", handle)]
            return words.pop(0) if len(words) > 1 else words[0]

        def renewal(self, handle: Handle, renew: str | None, look: Look | None = None) -> Renewal:
            del renew
            if story.ask("renewal", handle):
                return Renewal.NONE
            (look or self.poll)(self.move(handle))
            return story.renewal

        def renew(self, handle: Handle, spec: JobSpec) -> Handle:
            del spec
            story.ask("renew", handle)
            story.renewal = Renewal.WAITING
            return handle

        def move(self, handle: Handle) -> Handle:
            return {**handle, "generation": handle.get("generation", 0) + 1}

        def retire(self, handle: Handle) -> None:
            story.ask("retire", handle)

        def resize(self, handle: Handle, spec: JobSpec) -> Handle:
            return {**handle, **super().resize(handle, spec)}

        def admit(self, handle: Handle, hosts: Sequence[str]) -> None:
            del hosts
            story.ask("admit", handle)

        def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
            del host, follow
            yield LogLine(host="a/0", text=f"generation {story.ask('logs', handle)}")

    monkeypatch.setattr(backends, "_plugins", lambda: {NAME: f"{NAME}:Followed"})
    monkeypatch.setitem(sys.modules, NAME, type("M", (), {"Followed": Followed}))
    return story

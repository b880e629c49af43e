"""What happened to an allocation, one line each: what `status --why` reads, never parsed for control."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from .registry import folder_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    at: float
    what: str
    host: str = ""
    detail: str = ""

    def __str__(self) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(self.at))
        where = f" {self.host}:" if self.host else ""
        text = f"{moment}{where} {self.what}"
        return f"{text}: {self.detail}" if self.detail else text


class Events:
    """An allocation's list of events."""

    def __init__(self, apply_id: str, clock: Callable[[], float] = time.time) -> None:
        self.path: Path = folder_of(apply_id) / "events.jsonl"
        self._clock = clock

    def add(self, what: str, *, host: str = "", detail: str = "") -> None:
        """Append an event; telling the story must never stop it, so a full disk is passed over."""
        event = Event(at=self._clock(), what=what, host=host, detail=detail)
        line = json.dumps(asdict(event), separators=(",", ":")) + "\n"
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(fd, "a") as file:
                file.write(line)

    def load(self) -> list[Event]:
        """All events so far; a line cut short by a crash is passed over."""
        found: list[Event] = []
        with contextlib.suppress(OSError):
            for line in self.path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    found.append(Event(**json.loads(line)))
        return found

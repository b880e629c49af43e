"""Showing what work prints while it runs, from the files that it prints to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..logs import read_file

if TYPE_CHECKING:
    from .plan import Action

Show = Callable[[str, str], None]
"""Takes a label and a line that some work printed."""


@dataclass
class _Followed:
    label: str
    offset: int = 0
    rest: bytes = b""


class Tail:
    """Shows new lines of many files, whole ones only until a file is closed."""

    def __init__(self, show: Show | None, *, everything: bool = False) -> None:
        self._show = show
        self._everything = everything
        self._files: dict[str, _Followed] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to show soon."""
        return bool(self._files)

    def wants(self, action: Action) -> bool:
        """Whether what an action prints is followed: somebody waits for it, or looks on until the end of all."""
        return action.wait or action.watch or (self._everything and self._show is not None)

    def add(self, path: str, label: str) -> None:
        """Follow one more file."""
        if self._show is not None:
            self._files.setdefault(path, _Followed(label))

    def say(self, text: str) -> None:
        """Show a line of our own."""
        if self._show is not None:
            self._show("milkweed", text)

    def close(self, path: str) -> None:
        """Show what is left of a file, and follow it no longer."""
        if found := self._files.pop(path, None):
            self._read(path, found, last=True)

    def pump(self, *, last: bool = False) -> None:
        """Show what is new."""
        for path, found in list(self._files.items()):
            self._read(path, found, last=last)

    def _read(self, path: str, found: _Followed, *, last: bool) -> None:
        while data := read_file(path, found.offset):
            found.offset += len(data)
            *lines, found.rest = (found.rest + data).split(b"\n")
            for line in lines:
                self._emit(found.label, line)
        if last and found.rest:
            self._emit(found.label, found.rest)
            found.rest = b""

    def _emit(self, label: str, line: bytes) -> None:
        if self._show is not None:
            self._show(label, line.decode(errors="replace"))

"""Which files of a folder are not sent to hosts: the simple forms of .gitignore."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

ALWAYS = (".git/", ".milkweed/", "__pycache__/", ".venv/")
"""What nobody wants on a host: it is made there, or only of use here."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of such a file."""

    expression: re.Pattern[str]
    anchored: bool
    folders_only: bool
    kept: bool

    def fits(self, path: str, *, folder: bool) -> bool:
        """Whether a path below the folder is meant."""
        if self.folders_only and not folder:
            return False
        return bool(self.expression.fullmatch(path if self.anchored else path.rpartition("/")[2]))


def parse_patterns(lines: Iterable[str]) -> list[Pattern]:
    """Read patterns: names, `*.log`, `folder/`, `/only/here`, `**/deep`, and `!kept`."""
    return [_parse(line) for raw in lines if (line := raw.strip()) and not line.startswith("#")]


def _parse(line: str) -> Pattern:
    kept = line.startswith("!")
    text = line.removeprefix("!").removeprefix("\\")
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    return Pattern(
        expression=re.compile(_translate(text.removeprefix("/"))),
        anchored=anchored,
        folders_only=folders_only,
        kept=kept,
    )


def _translate(text: str) -> str:
    """A pattern in which a star stops at a slash, and two stars do not."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]*\])", text)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(part) or _literal(part) for part in parts)


def _literal(part: str) -> str:
    if part.startswith("[") and part.endswith("]") and len(part) > 2:
        return fnmatch.translate(part).removeprefix("(?s:").partition(")")[0]
    return re.escape(part)


def is_ignored(path: str, patterns: Iterable[Pattern], *, folder: bool) -> bool:
    """Whether a path is left out: the last pattern that fits decides."""
    ignored = False
    for pattern in patterns:
        if pattern.fits(path, folder=folder):
            ignored = not pattern.kept
    return ignored

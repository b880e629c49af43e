"""What of a local folder goes to hosts, and how it is sent."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.image import Image
from milkweed.job import sending
from milkweed.job.ignoring import ALWAYS, is_ignored, parse_patterns
from milkweed.job.sending import PIECE_BYTES, PIECES_AHEAD, Source, Talk, load_source, send_source


def paths(source: Source) -> list[str]:
    return [entry.path for entry in source.entries]


# Patterns


@pytest.mark.parametrize(
    ("pattern", "ignored", "kept"),
    [
        ("name", ["name", "a/name", "name/"], ["names", "a/namex"]),
        ("*.log", ["a.log", "b/a.log"], ["a.logs", "log"]),
        ("build/", ["build/", "a/build/"], ["build", "a/build"]),
        ("/only", ["only", "only/"], ["a/only"]),
        ("a/b", ["a/b"], ["c/a/b", "b"]),
        ("a/*.txt", ["a/x.txt"], ["a/b/x.txt", "x.txt"]),
        ("**/deep", ["deep", "a/deep", "a/b/deep"], ["deeper"]),
        ("a/**", ["a/b", "a/b/c"], ["a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["z"]),
        ("fil?", ["file", "fill"], ["fi", "files", "fil/"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("[!a]x", ["bx", "cx"], ["ax"]),
        (r"\#real", ["#real"], ["real"]),
        (r"\!real", ["!real"], ["real"]),
        ("# a comment", [], ["# a comment", "a"]),
        ("  ", [], ["  ", "a"]),
        ("a+b(c).d", ["a+b(c).d"], ["aab(c).d", "a+b(c)xd"]),
    ],
)
def test_patterns_are_those_of_git(pattern: str, ignored: list[str], kept: list[str]) -> None:
    """The simple forms mean what they mean in a .gitignore; a slash at the end stands for a folder here."""
    patterns = parse_patterns([pattern])

    def is_left_out(path: str) -> bool:
        return is_ignored(path.rstrip("/"), patterns, folder=path.endswith("/"))

    assert [path for path in ignored if not is_left_out(path)] == []
    assert [path for path in kept if is_left_out(path)] == []


def test_the_last_pattern_that_fits_decides() -> None:
    """So some can be taken in again."""
    patterns = parse_patterns(["*.log", "!keep.log", "keep.log.log"])
    assert is_ignored("a.log", patterns, folder=False)
    assert not is_ignored("keep.log", patterns, folder=False)
    assert not is_ignored("other", [], folder=False)


@pytest.mark.parametrize("text", ["[", "[]", "a[", "***", "\\", "!", "/", "a\\"])
def test_odd_patterns_are_harmless(text: str) -> None:
    """Whatever stands in somebody's file, nothing breaks."""
    for pattern in parse_patterns([text]):
        assert isinstance(pattern.expression, re.Pattern)
        assert not is_ignored("ordinary", [pattern], folder=False) or "*" in text


# Reading


def test_what_nobody_wants_on_a_host_stays_here(tmp_path: Path) -> None:
    """Of copies and mirrors alike; a .gitignore counts for mirrors only."""
    for name in (
        "a.py",
        ".git/x",
        ".milkweed/job.json",
        "__pycache__/a.pyc",
        "p/__pycache__/b",
        ".venv/x",
        "data/x",
        "l",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("data/\nl\n")
    assert paths(load_source(str(tmp_path))) == [".gitignore", "a.py", "data", "data/x", "l", "p"]
    assert paths(load_source(str(tmp_path), gitignore=True)) == [".gitignore", "a.py", "p"]
    assert len(parse_patterns(ALWAYS)) == len(ALWAYS)


def test_a_link_to_a_folder_is_not_entered(tmp_path: Path) -> None:
    """It may lead anywhere, and round in circles."""
    (tmp_path / "round").symlink_to(".")
    (tmp_path / "gone").symlink_to("nowhere")
    source = load_source(str(tmp_path))
    assert [(each.path, each.kind, each.content) for each in source.entries] == [
        ("gone", "link", "nowhere"),
        ("round", "link", "."),
    ]


def test_what_is_neither_file_nor_folder_is_left_out(tmp_path: Path) -> None:
    """A fifo would be waited for without an end."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    assert paths(load_source(str(tmp_path))) == ["file"]


@pytest.mark.parametrize("name", ["nowhere", "nowhere/at/all"])
def test_what_is_not_there_is_told_at_once(tmp_path: Path, name: str) -> None:
    """Before any host is asked."""
    with pytest.raises(SpecError, match="it cannot be copied to hosts") as caught:
        load_source(str(tmp_path / name))
    assert "No such file" in caught.value.seen


def test_home_may_be_written_as_people_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde is one's own home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").write_text("1")
    source = load_source("~/file")
    assert (source.root, source.single, paths(source)) == (str(tmp_path), "file", ["file"])


def test_digests_follow_contents_modes_and_links(tmp_path: Path) -> None:
    """A step that copies is another step when anything that it copies is another."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("1")
    image = Image().copy(str(folder), "/dest")

    def digest() -> str:
        return image.steps_with(lambda path: load_source(path).summary)[0].digest

    seen = [digest()]
    (folder / "a").write_text("2")
    seen.append(digest())
    (folder / "a").chmod(0o700)
    seen.append(digest())
    (folder / "b").symlink_to("a")
    seen.append(digest())
    (folder / "empty").mkdir()
    seen.append(digest())
    (folder / "__pycache__").mkdir()
    assert digest() == seen[-1]
    assert len(set(seen)) == 5


# Sending


class Host:
    """Takes everything, lacks everything, and answers when it is asked."""

    def __init__(self) -> None:
        self.got: list[Mapping[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        self.most = 0

    def send(self, message: Mapping[str, Any]) -> None:
        """Take a message."""
        self.got.append(message)
        lacks = [at for at, entry in enumerate(message.get("entries", ())) if entry[1] == "file"]
        self.waiting.append({"lacks": lacks})
        self.most = max(self.most, len(self.waiting))

    def wait(self) -> dict[str, Any]:
        """Answer the first that has no answer yet."""
        return self.waiting.pop(0)

    @property
    def talk(self) -> Talk:
        """How it is spoken to."""
        return Talk(send=self.send, wait=self.wait)


def test_only_some_pieces_are_on_their_way(tmp_path: Path) -> None:
    """However large a file is, neither end holds more than these."""
    pieces = 3 * PIECES_AHEAD
    with open(tmp_path / "large", "wb") as file:
        file.truncate(pieces * PIECE_BYTES)
    host = Host()
    assert send_source(load_source(str(tmp_path)), host.talk) == 1
    assert host.most == PIECES_AHEAD
    assert [message["do"] for message in host.got] == ["entries", *["piece"] * pieces, "end"]
    assert [message.get("end") for message in host.got[1:-1]] == [*[False] * (pieces - 1), True]
    assert host.waiting == []


def test_many_entries_are_told_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has an end, a folder may have none."""
    monkeypatch.setattr(sending, "ENTRIES_AT_ONCE", 3)
    for number in range(7):
        (tmp_path / str(number)).touch()
    host = Host()
    assert send_source(load_source(str(tmp_path)), host.talk) == 7
    assert [len(m["entries"]) for m in host.got if m["do"] == "entries"] == [3, 3, 1]
    assert [m["path"] for m in host.got if m["do"] == "piece"] == [str(n) for n in range(7)]


def test_a_file_that_shrinks_meanwhile_ends(tmp_path: Path) -> None:
    """The host sees that it is another one."""
    (tmp_path / "file").write_text("123")
    source = load_source(str(tmp_path))
    (tmp_path / "file").write_text("")
    host = Host()
    send_source(source, host.talk)
    assert [m["end"] for m in host.got if m["do"] == "piece"] == [True]


def test_an_empty_folder_needs_nothing(tmp_path: Path) -> None:
    """But the host hears that this is all."""
    host = Host()
    assert send_source(load_source(str(tmp_path)), host.talk) == 0
    assert host.got == [{"do": "end"}]

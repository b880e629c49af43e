"""Files that come to a host: only what it lacks, whole or not at all, and nowhere but where they belong."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed.job.sending import Source, Talk, load_source, send_source
from milkweed.worker import wire
from milkweed.worker.files import Entry, Receiver, check_path, receive


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty local folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    """A place on the host that is not there yet."""
    return tmp_path / "host" / "dest"


def put(folder: Path, **files: str) -> None:
    """Write some files; two underscores stand for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def bring(source: Source, dest: Path | str, *, mirror: bool = False) -> int:
    """Send files without a connection between; how many were sent."""
    answers: list[dict[str, Any]] = []
    begin = {"dest": str(dest), "mirror": mirror, "single": source.single}
    run = Path(dest).parent
    run.mkdir(parents=True, exist_ok=True)
    with Receiver(begin, run) as receiver:
        talk = Talk(
            send=lambda message: answers.append(receiver.take(wire.decode(wire.encode(message)))),
            wait=lambda: answers.pop(0),
        )
        return send_source(source, talk)


def seen(folder: Path) -> dict[str, str]:
    """Every file below a folder, and what is in it; links by where they lead."""
    found: dict[str, str] = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def entry_of(path: str, text: str = "x") -> list[Any]:
    """A file as a client tells of it."""
    content = hashlib.sha256(text.encode()).hexdigest()
    return [path, "file", 0o644, len(text), content]


def piece_of(path: str, text: str = "x", **more: Any) -> dict[str, Any]:
    """A piece of a file."""
    data = base64.b64encode(text.encode()).decode()
    return {"do": "piece", "path": path, "data": data, "end": True, **more}


def receiver_of(dest: Path, *entries: list[Any], mirror: bool = False) -> Receiver:
    """A host that was told what there should be."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    made = Receiver({"dest": str(dest), "mirror": mirror}, dest.parent)
    made.take({"do": "entries", "entries": entries})
    return made


# What comes


def test_a_folder_comes_as_it_is(source: Path, dest: Path) -> None:
    """Names, contents, modes, links and empty folders."""
    put(source, a="1", deep__er__b="2", empty="")
    (source / "a").chmod(0o750)
    (source / "nothing").mkdir(mode=0o711)
    (source / "link").symlink_to("deep/er/b")
    (source / "out").symlink_to("/etc/passwd")
    odd = "new\nline \udcff 'quote'"
    (source / odd).write_text("odd")
    assert bring(load_source(str(source)), dest) == 4
    assert seen(dest) == seen(source)
    assert stat.S_IMODE((dest / "a").stat().st_mode) == 0o750
    assert stat.S_IMODE((dest / "nothing").stat().st_mode) == 0o711
    assert os.readlink(dest / "out") == "/etc/passwd"


def test_only_what_is_lacking_is_sent(source: Path, dest: Path) -> None:
    """What is the same is not even touched; a mode alone changes without sending."""
    put(source, same="1", changed="2", grown="3")
    assert bring(load_source(str(source)), dest) == 3
    before = (dest / "same").stat().st_ino
    put(source, changed="x", grown="33", new="4")
    (source / "same").chmod(0o700)
    assert bring(load_source(str(source)), dest) == 3
    assert (dest / "same").stat().st_ino == before
    assert stat.S_IMODE((dest / "same").stat().st_mode) == 0o700
    assert seen(dest) == seen(source)
    assert bring(load_source(str(source)), dest) == 0


def test_large_files_come_in_pieces(source: Path, dest: Path) -> None:
    """Of any size: below, at and above the size of a piece."""
    sizes = [0, 1, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 5_000_000]
    for size in sizes:
        (source / str(size)).write_bytes(os.urandom(size))
    bring(load_source(str(source)), dest)
    for size in sizes:
        assert (dest / str(size)).read_bytes() == (source / str(size)).read_bytes()


@pytest.mark.parametrize(
    ("to", "there", "expected"),
    [
        ("host/new", False, "host/new"),
        ("host/new/", False, "host/new/file"),
        ("host/new", True, "host/new/file"),
        ("host/deep/er/new", False, "host/deep/er/new"),
    ],
)
def test_a_single_file_gets_a_place(
    source: Path, tmp_path: Path, to: str, there: bool, expected: str
) -> None:
    """Its own name in a folder that is there or that a slash names; else the name that was given."""
    put(source, file="1")
    if there:
        (tmp_path / to).mkdir(parents=True)
    for _ in range(2):
        bring(load_source(str(source / "file")), f"{tmp_path}/{to}")
        assert (tmp_path / expected).read_text() == "1"


def test_a_folder_under_its_own_name(source: Path, dest: Path) -> None:
    """Unless only its contents were meant."""
    put(source, a="1", deep__b="2")
    bring(load_source(str(source), contents=False), dest)
    assert seen(dest) == {"source/a": "1", "source/deep/b": "2"}


# Mirrors


def test_a_mirror_removes_what_is_gone(source: Path, dest: Path) -> None:
    """And only what an earlier mirror brought: what programs write there stays."""
    put(source, a="1", old__b="2", old__deep__c="3", part__d="4")
    bring(load_source(str(source)), dest, mirror=True)
    put(dest, output="o", old__checkpoint="o")
    put(dest / "part" / "__pycache__", d="o")
    for path in (source / "a", source / "part" / "d", source / "old/b", source / "old/deep/c"):
        path.unlink()
    for path in (source / "part", source / "old/deep", source / "old"):
        path.rmdir()
    bring(load_source(str(source)), dest, mirror=True)
    assert seen(dest) == {"output": "o", "old/checkpoint": "o"}
    assert sorted(os.listdir(dest)) == ["old", "output"]


def test_a_copy_removes_nothing(source: Path, dest: Path) -> None:
    """Only mirrors do."""
    put(source, a="1", b="2")
    bring(load_source(str(source)), dest)
    (source / "a").unlink()
    bring(load_source(str(source)), dest)
    assert seen(dest) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("kinds", [("file", "folder"), ("folder", "link"), ("link", "file")])
@pytest.mark.parametrize("turned", [False, True])
def test_a_mirror_follows_a_change_of_kind(
    source: Path, dest: Path, kinds: tuple[str, str], turned: bool
) -> None:
    """A file that became a folder, a folder that became a link, and the other way round."""
    path = source / "x"
    for kind in reversed(kinds) if turned else kinds:
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            (path / "y").unlink()
            path.rmdir()
        if kind == "folder":
            put(source, x__y="1")
        elif kind == "file":
            put(source, x="1")
        else:
            path.symlink_to("/nowhere")
        bring(load_source(str(source)), dest, mirror=True)
        assert seen(dest) == seen(source)


# What is refused


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "/etc/x", "../x", "a/../../x", "a/..", "a//b", "a/", "./a", "a\0b", "/", "//"],
)
def test_hostile_paths_are_refused(dest: Path, path: str) -> None:
    """Whatever is not a plain path below the folder."""
    with pytest.raises(SystemExit, match="is not a path below a folder"):
        receiver_of(dest, entry_of(path))
    with pytest.raises(SystemExit):
        check_path(path)


@pytest.mark.parametrize("path", ["out/x", "out/deep/x", "inner/out/x"])
def test_nothing_is_written_through_a_link_that_leads_out(
    dest: Path, tmp_path: Path, path: str
) -> None:
    """Neither a file nor a folder, however the link came there."""
    outside = tmp_path / "outside"
    for folder in (outside, dest / "inner"):
        folder.mkdir(parents=True)
    (dest / "out").symlink_to(outside)
    (dest / "inner" / "out").symlink_to("../../../outside")
    with pytest.raises(SystemExit, match="leads out of"):
        receiver_of(dest, entry_of(path)).take(piece_of(path))
    with pytest.raises(SystemExit, match="leads out of"):
        receiver_of(dest, [path, "folder", 0o755, 0, ""]).take({"do": "end"})
    with pytest.raises(SystemExit, match="leads out of"):
        receiver_of(dest, [path, "link", 0o777, 0, "/"]).take({"do": "end"})
    assert list(outside.iterdir()) == []


def test_a_link_that_came_is_not_written_through_later(dest: Path, tmp_path: Path) -> None:
    """Links are made last, and the next time they are seen as what they are."""
    entries = [["out", "link", 0o777, 0, str(tmp_path)], entry_of("out/x")]
    first = receiver_of(dest, *entries)
    first.take(piece_of("out/x"))
    with pytest.raises(SystemExit, match="there is a"):
        first.take({"do": "end"})
    for path in (dest / "out" / "x", dest / "out"):
        path.unlink() if path.is_file() else path.rmdir()
    receiver_of(dest, entries[0]).take({"do": "end"})
    second = receiver_of(dest, entries[1])
    with pytest.raises(SystemExit, match="leads out of"):
        second.take(piece_of("out/x"))
    assert not (tmp_path / "x").exists()


def test_links_that_stay_inside_are_followed(dest: Path) -> None:
    """On many machines /bin is a link to /usr/bin."""
    (dest / "usr" / "bin").mkdir(parents=True)
    (dest / "bin").symlink_to("usr/bin")
    made = receiver_of(dest, ["bin", "folder", 0o755, 0, ""], entry_of("bin/tool"))
    made.take(piece_of("bin/tool"))
    made.take({"do": "end"})
    assert (dest / "usr" / "bin" / "tool").read_text() == "x"
    assert (dest / "bin").is_symlink()


def test_a_file_takes_the_place_of_a_link(dest: Path, tmp_path: Path) -> None:
    """What the link led to stays as it was."""
    dest.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    (dest / "a").symlink_to(tmp_path / "precious")
    made = receiver_of(dest, entry_of("a"))
    made.take(piece_of("a"))
    assert (tmp_path / "precious").read_text() == "precious"
    assert (dest / "a").read_text() == "x"
    assert not (dest / "a").is_symlink()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (piece_of("b"), "was not asked for"),
        (piece_of("a", "y"), "changed while it was sent"),
        (piece_of("a", "xx"), "changed while it was sent"),
        (piece_of("a", data="%%%"), "is not what was sent"),
        ({"do": "end"}, "some files did not come"),
    ],
)
def test_what_was_not_told_before_is_refused(
    dest: Path, message: Mapping[str, Any], words: str
) -> None:
    """And nothing of it is left."""
    with pytest.raises(SystemExit, match=words), receiver_of(dest, entry_of("a")) as made:
        made.take(message)
    assert list(dest.iterdir()) == []


def test_files_do_not_mix(dest: Path) -> None:
    """A second file before the first is whole is refused."""
    made = receiver_of(dest, entry_of("a"), entry_of("b"))
    made.take(piece_of("a", end=False))
    with pytest.raises(SystemExit, match="came before 'a' was whole"), made:
        made.take(piece_of("b"))
    assert list(dest.iterdir()) == []


def test_kinds_that_are_not_known_are_refused(dest: Path) -> None:
    """A newer client may have more of them."""
    with pytest.raises(SystemExit, match="of kind 'device'"):
        receiver_of(dest, ["a", "device", 0, 0, ""])


@pytest.mark.parametrize(
    ("there", "path", "words"),
    [("a", "a/b", "a/b: there is a file"), ("a/b", "a", "a folder of that name")],
)
def test_what_is_in_the_way_is_told(dest: Path, there: str, path: str, words: str) -> None:
    """A file where a folder should be, and a folder where a file should be, stay."""
    put(dest, **{there.replace("/", "__"): "mine"})
    with pytest.raises(SystemExit, match=words), receiver_of(dest, entry_of(path)) as made:
        made.take(piece_of(path))
    assert seen(dest) == {there: "mine"}


def test_a_receiver_that_loses_its_client_leaves_no_part(dest: Path) -> None:
    """The pipe ends in the middle of a file."""
    near, far = socket.socketpair()
    near.sendall(wire.encode({"do": "entries", "entries": [entry_of("a", "xyz")]}))
    near.sendall(wire.encode(piece_of("a", "x", end=False)))
    near.shutdown(socket.SHUT_WR)
    with near, pytest.raises(SystemExit, match="the client went"):
        receive(far.detach(), {"dest": str(dest)}, dest.parent)
    assert list(dest.iterdir()) == []


def test_a_memory_that_cannot_be_read_removes_nothing(source: Path, dest: Path) -> None:
    """A mirror that forgot what it brought leaves it."""
    put(source, a="1", b="2")
    bring(load_source(str(source)), dest, mirror=True)
    [memory] = dest.parent.glob("mirror-*.json")
    assert json.loads(memory.read_text()) == {"a": "file", "b": "file"}
    memory.write_text("{")
    (source / "a").unlink()
    bring(load_source(str(source)), dest, mirror=True)
    assert seen(dest) == {"a": "1", "b": "2"}
    assert Entry("a", "file").mode == 0o644

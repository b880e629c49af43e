"""Lines of many hosts: followed, merged, and never drowning the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.logs import (
    MAX_LINES_PER_SECOND,
    MERGE_FROM,
    WINDOW_S,
    Merger,
    Printed,
    follow_files,
    read_tail,
)


def line(host: str, text: str, rank: str = "", stream: str = "out") -> Printed:
    return Printed(host=host, rank=rank, stream=stream, text=text)


@pytest.fixture
def printed() -> list[tuple[str, str]]:
    """What a merger has emitted."""
    return []


@pytest.fixture
def merger(printed: list[tuple[str, str]]) -> Merger:
    """A merger that emits into `printed`."""
    return Merger(emit=lambda stream, text: printed.append((stream, text)))


# Following files


def test_without_following_what_is_there_is_read(tmp_path: Path) -> None:
    """Every file is read to its end, the unfinished line included; files that are not there are passed over."""
    (tmp_path / "a").write_bytes(b"1\n\n2")
    (tmp_path / "b").write_bytes(b"\xff\r\n")
    files = {name: str(tmp_path / name) for name in ("a", "b", "c")}
    assert list(follow_files(files, follow=False)) == [
        ("a", "1"),
        ("a", ""),
        ("a", "2"),
        ("b", "�\r"),
    ]


def test_following_sees_what_is_added_until_the_end(tmp_path: Path) -> None:
    """Lines come as they are finished, and the last words of the dead are read, too."""
    path = tmp_path / "log"
    steps = [b"1\n2", b"2\n", b"", b"3"]

    def sleep(_seconds: float) -> None:
        with path.open("ab") as file:
            file.write(steps.pop(0))

    found = follow_files({"a": str(path)}, follow=True, alive=lambda: bool(steps), sleep=sleep)
    assert list(found) == [("a", "1"), ("a", "22"), ("a", "3")]


def test_what_is_written_at_the_end_is_not_missed(tmp_path: Path) -> None:
    """A host that writes and ends between two looks is read to its end."""
    path = tmp_path / "log"

    def alive() -> bool:
        path.write_text("last words\n")
        return False

    assert list(follow_files({"a": str(path)}, follow=True, alive=alive)) == [("a", "last words")]


@pytest.mark.parametrize(
    ("data", "lines", "expected"),
    [
        (b"", 5, ""),
        (b"1\n2\n3\n", 2, "2\n3"),
        (b"1\n2", 5, "1\n2"),
        (b"\xff", 5, "�"),
        (b"x" * 200_000 + b"\nend\n", 1, "end"),
    ],
)
def test_the_tail_is_the_last_lines(tmp_path: Path, data: bytes, lines: int, expected: str) -> None:
    """The last lines of a file of any size, readable whatever is in it."""
    (tmp_path / "log").write_bytes(data)
    assert read_tail(tmp_path / "log", lines) == expected


def test_the_tail_of_nothing_is_nothing(tmp_path: Path) -> None:
    """No file, no tail, no error."""
    assert read_tail(tmp_path / "log") == ""
    assert read_tail(tmp_path) == ""


def test_the_tail_of_a_huge_line_is_short(tmp_path: Path) -> None:
    """An error message never carries megabytes."""
    (tmp_path / "log").write_bytes(b"x" * 10**6)
    assert len(read_tail(tmp_path / "log", max_bytes=1000)) == 1000


# Printing


@pytest.mark.parametrize(
    ("host", "rank", "prefix", "mesh"),
    [
        ("trainers/1", "3", "[trainers/1 r3]", "trainers"),
        ("trainers/1", "", "[trainers/1]", "trainers"),
        ("client", "", "[client]", "client"),
    ],
)
def test_a_line_says_where_it_is_from(host: str, rank: str, prefix: str, mesh: str) -> None:
    """Mesh, host and rank stand before the line."""
    assert (line(host, "x", rank).prefix, line(host, "x", rank).mesh) == (prefix, mesh)


def test_lines_wait_for_their_window(merger: Merger, printed: list[tuple[str, str]]) -> None:
    """Nothing is printed before the window ends, and everything after, in order."""
    assert merger.due_s is None
    merger.add(line("a/0", "1"), 0.0)
    merger.add(line("a/1", "2", stream="err"), WINDOW_S / 2)
    assert (printed, merger.due_s) == ([], WINDOW_S)
    merger.add(line("a/0", "3"), WINDOW_S)
    assert printed == [("out", "[a/0] 1"), ("err", "[a/1] 2"), ("out", "[a/0] 3")]
    assert merger.due_s is None


@pytest.mark.parametrize(("hosts", "merged"), [(MERGE_FROM - 1, False), (MERGE_FROM, True)])
def test_the_same_line_of_many_hosts_is_printed_once(
    merger: Merger, printed: list[tuple[str, str]], hosts: int, merged: bool
) -> None:
    """From enough hosts of a mesh, the same line is one line that says how many said it."""
    for rank in range(hosts):
        merger.add(line(f"a/{rank}", "same"), 0.0)
    merger.flush(0.0)
    expected = [f"[a: {hosts} hosts] same"] if merged else [f"[a/{n}] same" for n in range(hosts)]
    assert [text for _stream, text in printed] == expected


def test_only_what_is_the_same_is_merged(merger: Merger, printed: list[tuple[str, str]]) -> None:
    """Another mesh, another stream, another text, or one host many times, is not the same."""
    for rank in range(MERGE_FROM):
        merger.add(line(f"{'ab'[rank % 2]}/{rank}", "mesh"), 0.0)
        merger.add(line(f"c/{rank}", "stream", stream=("out", "err")[rank % 2]), 0.0)
        merger.add(line(f"c/{rank}", f"text {rank}"), 0.0)
        merger.add(line("d/0", "again"), 0.0)
    merger.flush(0.0)
    assert len(printed) == 4 * MERGE_FROM
    assert not any("hosts]" in text for _stream, text in printed)


def test_a_flood_is_counted_and_told(merger: Merger, printed: list[tuple[str, str]]) -> None:
    """Above the rate lines are counted; what was left out is told within a second; other meshes go on."""
    for number in range(MAX_LINES_PER_SECOND + 5):
        merger.add(line("a/0", str(number)), 0.0)
    merger.add(line("b/0", "quiet"), 0.0)
    merger.flush(0.0)
    assert len(printed) == MAX_LINES_PER_SECOND + 1
    merger.add(line("a/0", "later"), 1.0)
    merger.flush(1.0)
    assert printed[-2:] == [
        ("err", "[a] … 5 more lines, all of them in `milkweed logs`"),
        ("out", "[a/0] later"),
    ]


def test_at_the_end_everything_is_told(merger: Merger, printed: list[tuple[str, str]]) -> None:
    """What waits is printed, and what was left out is told, once."""
    for number in range(MAX_LINES_PER_SECOND + 1):
        merger.add(line("a/0", str(number)), 0.0)
    merger.finish(0.0)
    merger.finish(0.0)
    assert len(printed) == MAX_LINES_PER_SECOND + 1
    assert printed[-1] == ("err", "[a] … 1 more lines, all of them in `milkweed logs`")

"""What pods print: every line once, however often a connection breaks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import UnreachableError
from milkweed.jobspec.transformers.kubernetes_logs import Follower, Lines, write_output
from milkweed.kube.api import ApiError
from unit.kube_fake import FakeApi, Handler, Reply
from unit.operator_cluster import refuse

POD = "/api/v1/namespaces/lab/pods/p/log"


def at(second: int, text: str) -> bytes:
    """A line as a node gives it."""
    return f"2026-01-02T03:04:{second:02d}.000000000Z {text}\n".encode()


class Node:
    """A node whose log grows, and whose connections break as a test says."""

    def __init__(self, *visits: list[bytes | Exception]) -> None:
        self.visits = list(visits)
        self.asked: list[dict[str, str]] = []
        self.drained = threading.Event()

    @contextlib.contextmanager
    def follow(self, path: str, **query: str) -> Generator[Any]:
        """One connection."""
        assert path == POD
        self.asked.append(query)
        if not self.visits:
            self.drained.set()
        visit = self.visits.pop(0) if self.visits else []
        if visit and isinstance(visit[0], ApiError):
            raise visit[0]
        yield Visit(visit)


class Visit:
    """What one connection tells."""

    def __init__(self, said: list[bytes | Exception]) -> None:
        self._said = said

    def lines(self) -> Iterator[bytes]:
        """Lines, until it breaks."""
        for each in self._said:
            if isinstance(each, Exception):
                raise each
            yield each

    def end(self) -> None:
        """Nobody waits here."""


def lines_of(node: Any) -> Lines:
    """The lines of its pod."""
    return Lines(node, "lab", "p")


def copy(node: Node, files: dict[str, str], *, labelled: bool = False) -> None:
    """Follow to the end."""
    follower = Follower(lines_of(node), files, labelled=labelled, pause=lambda _seconds: None)
    assert node.drained.wait(10)
    follower.finish()


BROKEN = UnreachableError("the connection broke")


def test_every_line_once(tmp_path: Path) -> None:
    """What came before a break is not taken twice, also of lines with the same time; nothing is left out."""
    node = Node(
        [at(1, "a"), at(2, "b"), at(2, "b"), BROKEN],
        [BROKEN],
        [at(2, "b"), at(2, "b"), at(2, "c"), at(3, "d")],
        [at(3, "d"), b"2026-01-02T03:04:04.000000000Z end"],
    )
    copy(node, {"x": str(tmp_path / "log")})
    assert (tmp_path / "log").read_text() == "a\nb\nb\nc\nd\nend"
    assert "sinceTime" not in node.asked[0]
    assert node.asked[1]["sinceTime"] == "2026-01-02T03:04:02.000000000Z"
    assert node.asked[0]["follow"] == "true"
    assert node.asked[-1]["follow"] == "false"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_lines_go_to_the_file_of_their_label(tmp_path: Path) -> None:
    """Those without one, such as a shell's complaint, to the first."""
    files = {"g/a": str(tmp_path / "a"), "g/b": str(tmp_path / "b")}
    node = Node([at(1, "g/b\tx\ty"), at(2, "g/a\t"), at(3, "cp: no"), at(4, "other\tz")])
    copy(node, files, labelled=True)
    assert (tmp_path / "a").read_text() == "\ncp: no\nother\tz\n"
    assert (tmp_path / "b").read_text() == "x\ty\n"


def test_an_earlier_copy_is_replaced_when_there_is_something_to_copy(tmp_path: Path) -> None:
    """A pod that is gone takes nothing away."""
    log = tmp_path / "log"
    log.write_text("kept\n")
    copy(Node([refuse(404, "NotFound")]), {"x": str(log)})
    assert log.read_text() == "kept\n"
    copy(Node([at(1, "new")]), {"x": str(log)})
    assert log.read_text() == "new\n"


def test_a_container_that_has_not_begun_is_asked_again(tmp_path: Path) -> None:
    """The first answer may be that there is no log yet."""
    node = Node([refuse(400, "BadRequest", "waiting to start")], [at(1, "here")])
    copy(node, {"x": str(tmp_path / "log")})
    assert (tmp_path / "log").read_text() == "here\n"


def test_stopping_does_not_wait(tmp_path: Path) -> None:
    """Whatever the node does."""
    node = Node()
    follower = Follower(lines_of(node), {"x": str(tmp_path / "log")}, labelled=False)
    follower.stop()
    follower.finish(0.0)
    assert not (tmp_path / "log").exists()


def test_output_of_all_tasks(tmp_path: Path) -> None:
    """One after the other; a task that printed nothing leaves nothing."""
    (tmp_path / "0").write_text("a\n")
    (tmp_path / "2").write_text("c\n")
    out = tmp_path / "out"
    write_output(str(out), {f"x.{number}": str(tmp_path / str(number)) for number in range(3)})
    assert out.read_text() == "a\nc\n"


# The client


def test_a_log_is_followed_line_by_line() -> None:
    """As it comes, byte for byte, from a real connection."""

    def chunks(handler: Handler, _asked: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for data in (b"a\nb", b"\xff\nlast"):
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    with FakeApi() as fake:
        fake.script(chunks)
        with fake.api().follow(POD, follow="true") as stream:
            assert list(stream.lines()) == [b"a\n", b"b\xff\n", b"last"]
        assert fake.asked[0].query == {"follow": "true"}


def test_a_log_that_is_not_there() -> None:
    """The API server's no is an error with words, and a connection that breaks is told as such."""

    def cut(handler: Handler, _asked: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"2\r\na\n\r\n")
        handler.close_connection = True

    with FakeApi() as fake:
        fake.script(Reply(404, {"message": "no pod", "reason": "NotFound"}), cut)
        api = fake.api()
        with pytest.raises(ApiError, match="no such thing"), api.follow(POD):
            pass
        with pytest.raises(UnreachableError), api.follow(POD) as stream:
            list(stream.lines())

"""What pods print: every line once, however often a connection breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import UnreachableError
from milkweed.jobspec.transformers import kubernetes_logs
from milkweed.jobspec.transformers.kubernetes_logs import follow_into, write_output
from milkweed.kube.api import ApiError
from milkweed.kube.pod_logs import Lines
from unit.kube_fake import FakeApi, Handler, Reply
from unit.node_logs import POD, Node, at
from unit.operator_cluster import refuse


def lines_of(node: Any) -> Lines:
    """The lines of its pod."""
    return kubernetes_logs.lines_of(node, "lab", "p")


def copy(node: Node, files: dict[str, str], *, labelled: bool = False) -> None:
    """Follow to the end."""
    follower = follow_into(lines_of(node), files, labelled=labelled, pause=lambda _seconds: None)
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
    follower = follow_into(lines_of(node), {"x": str(tmp_path / "log")}, labelled=False)
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

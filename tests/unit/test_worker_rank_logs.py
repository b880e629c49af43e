"""Where the output of ranks goes: the client, files in torchrun's layout, filtered files, and tails."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.worker.rank_logs import (
    ERROR_FILE_BYTES,
    TAIL_BYTES,
    TAIL_LINES,
    RankLogs,
    Stream,
    Tee,
    read_streams,
    read_tail,
)
from unit.gangs import BOTH, NEITHER, Machine

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SPEAK = "echo out $RANK; echo err $RANK >&2; exit 3"


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def make_logs(folder: Path, **filters: list[str]) -> RankLogs:
    logs = RankLogs(folder / "run", 2, filters)
    logs.make([0, 1])
    return logs


# The files


def test_the_layout_is_torchrun_s(tmp_path: Path) -> None:
    """A folder for each attempt, in it one for each local rank."""
    logs = make_logs(tmp_path)
    assert logs.folder == tmp_path / "run/attempt_2"
    assert sorted(path.name for path in logs.folder.iterdir()) == ["0", "1"]
    assert logs.path(1, "out") == logs.folder / "1/stdout.log"
    assert logs.path(1, "err") == logs.folder / "1/stderr.log"
    assert logs.error_path(1) == logs.folder / "1/error.json"
    logs.close()


def test_an_attempt_of_the_same_number_begins_anew(tmp_path: Path) -> None:
    """As torchrun does: files of an attempt that was no restart are replaced; other attempts stay."""
    other = RankLogs(tmp_path / "run", 1)
    other.make([0])
    (other.folder / "0/stdout.log").touch()
    logs = make_logs(tmp_path)
    (logs.folder / "1/stdout.log").touch()
    make_logs(tmp_path)
    assert not (logs.folder / "1/stdout.log").exists()
    assert (other.folder / "0/stdout.log").exists()


def test_filters(tmp_path: Path) -> None:
    """Lines with one of the words, of all ranks, each with its prefix; other streams have their own."""
    logs = make_logs(tmp_path, out=["loss", "step"], err=[])
    logs.filter("out", "[0]:", ["loss 3", "nothing", "a step"])
    logs.filter("out", "[1]:", ["the loss"])
    logs.filter("err", "[1]:", ["loss"])
    found = logs.folder / "filtered_stdout.log"
    assert found.read_text() == "[0]:loss 3\n[0]:a step\n[1]:the loss\n"
    assert not (logs.folder / "filtered_stderr.log").exists()
    logs.close()
    logs.filter("out", "[1]:", ["loss, too late"])
    assert "late" not in found.read_text()


def test_error_files(tmp_path: Path) -> None:
    """What a rank told of its own exception, as far as it is there and of a sane size."""
    logs = make_logs(tmp_path)
    assert logs.error(0) == ""
    logs.error_path(0).write_bytes(b'{"message": "\xff"}')
    assert logs.error(0) == '{"message": "\ufffd"}'
    logs.error_path(1).write_text("x" * (ERROR_FILE_BYTES + 5))
    assert len(logs.error(1)) == ERROR_FILE_BYTES
    assert logs.error(7) == ""


# One stream


def test_a_tee_keeps_bytes_and_tells_lines(tmp_path: Path) -> None:
    """The file has what was written, byte for byte; whoever is told gets whole lines."""
    seen: list[str] = []
    tee = Tee(tmp_path / "f", seen.extend)
    for portion in (b"on", b"e\r\n\xff", b"\n\nlast"):
        tee.feed(portion)
    assert (tmp_path / "f").read_bytes() == b"one\r\n\xff\n\nlast"
    assert seen == ["one\r", "\ufffd", ""]
    tee.end()
    assert seen[-1] == "last"
    tee.end()


@given(st.lists(st.text(alphabet="ab\n", max_size=9)), st.integers(1, 4))
def test_a_tail_is_the_end(portions: list[str], size: int) -> None:
    """In whatever portions it came."""
    text = "".join(portions) * size * 5
    tee = Tee(None, lambda _lines: None)
    for portion in portions * size * 5:
        tee.feed(portion.encode())
    tee.end()
    lines = text.split("\n")
    expected = lines if lines[-1] else lines[:-1]
    assert list(tee.tail) == expected[-TAIL_LINES:]


def test_tails_of_files(tmp_path: Path) -> None:
    """The last lines of a file, also of one that is long or has no lines; none of one that is not there."""
    path = tmp_path / "f"
    assert read_tail(path) == []
    path.write_text("".join(f"line {number}\n" for number in range(50)))
    assert read_tail(path) == [f"line {number}" for number in range(50 - TAIL_LINES, 50)]
    path.write_text("x" * (TAIL_BYTES + 100))
    assert read_tail(path) == ["x" * TAIL_BYTES]
    path.write_bytes(b"\xff\nend")
    assert read_tail(path) == ["\ufffd", "end"]
    assert read_tail(tmp_path) == []


def test_streams_of_an_order() -> None:
    """What is only written, or neither written nor shown, is left to the kernel."""
    found = read_streams({"files": {"out": True}, "shown": {"err": True}})
    assert found == {"out": Stream(file=True, shown=False), "err": Stream(file=False, shown=True)}
    assert [found[name].piped for name in ("out", "err")] == [False, True]


# Ranks


def run(machine: Machine, code: str = SPEAK, ranks: int = 1, **more: Any) -> list[Any]:
    """Let ranks run to their end; what is told of it, by rank."""
    machine.launch(code, ranks, **more)
    return sorted(machine.exits(ranks), key=lambda message: message["rank"])


def written(machine: Machine) -> dict[str, str]:
    """All files of ranks, and what is in them."""
    base = machine.folder / "ranks/run_w_0/attempt_0"
    return {str(path.relative_to(base)): path.read_text() for path in base.rglob("*.log")}


def test_nothing_said(machine: Machine) -> None:
    """All is shown and in the log of the host, and there are no files of ranks."""
    run(machine, ranks=2)
    assert sorted(machine.lines("out")) == [("0", "out 0"), ("1", "out 1")]
    assert sorted(machine.lines("err")) == [("0", "err 0"), ("1", "err 1")]
    log = (machine.folder / "w.0.log").read_text().splitlines()
    assert sorted(log) == ["[0] err 0", "[0] out 0", "[1] err 1", "[1] out 1"]
    assert written(machine) == {}
    [message] = [
        message
        for _, message in machine.told
        if message["ev"] == "out" and message["lines"] == ["out 1"]
    ]
    head = {"ev": "out", "kind": "rank", "host": "w/0", "rank": "1", "stream": "out", "id": "T.0"}
    assert message == {**head, "lines": ["out 1"], "number": message["number"]}


def test_redirected(machine: Machine) -> None:
    """Only the file has it; the tail is read from there."""
    [exit_] = run(machine, files=BOTH, shown=NEITHER)
    assert machine.lines("out") + machine.lines("err") == []
    assert written(machine) == {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n"}
    assert exit_["tail"] == ["err 0"]


def test_teed(machine: Machine) -> None:
    """Both have it."""
    [exit_] = run(machine, files=BOTH, shown=BOTH)
    assert (machine.lines("out"), machine.lines("err")) == ([("0", "out 0")], [("0", "err 0")])
    assert written(machine) == {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n"}
    assert exit_["tail"] == ["err 0"]


def test_each_stream_by_itself(machine: Machine) -> None:
    """One redirected, the other shown."""
    run(machine, files={"out": True, "err": False}, shown={"out": False, "err": True})
    assert (machine.lines("out"), machine.lines("err")) == ([], [("0", "err 0")])
    assert written(machine) == {"0/stdout.log": "out 0\n"}


def test_neither_shown_nor_written(machine: Machine) -> None:
    """`--local-ranks-filter` leaves ranks out: what they print is nowhere, and they do not wait for a reader."""
    code = "head -c 1000000 /dev/zero; exit 3"
    [exit_] = run(machine, code, files=NEITHER, shown=NEITHER)
    assert (exit_["code"], exit_["tail"]) == (3, [])
    assert machine.lines() == []
    assert written(machine) == {}


def test_much_output_is_all_there(machine: Machine) -> None:
    """More than a pipe holds, and the last line without its end: shown, written, and before the end is told."""
    code = "seq 30000; printf last; exit 1"
    [exit_] = run(machine, code, files=BOTH)
    expected = [*map(str, range(1, 30001)), "last"]
    assert [line for _, line in machine.lines()] == expected
    assert written(machine)["0/stdout.log"] == "\n".join(expected)
    assert exit_["tail"] == expected[-TAIL_LINES:]
    assert machine.told[-1][1]["ev"] == "rank-exit"


def test_standard_error_tells_more(machine: Machine) -> None:
    """The last lines of errors, or of output where there are none."""
    [exit_] = run(machine, "echo only; exit 1")
    assert exit_["tail"] == ["only"]


def test_a_mixed_tail(machine: Machine) -> None:
    """Errors went to a file, output to the terminal: the file is looked into."""
    streams = {"files": {"out": False, "err": True}, "shown": {"out": True, "err": False}}
    [exit_] = run(machine, **streams)
    assert exit_["tail"] == ["err 0"]


def test_filtered_lines_are_those_of_files(machine: Machine) -> None:
    """Of all ranks on the host, in one file; only of streams that are teed."""
    filters = {"out": ["out"], "err": ["err"]}
    run(machine, ranks=2, filters=filters, files={"out": True, "err": False})
    found = written(machine)
    assert sorted(found["filtered_stdout.log"].splitlines()) == ["[0]:out 0", "[1]:out 1"]
    assert found["filtered_stderr.log"] == ""


def test_a_folder_of_the_person_s(machine: Machine) -> None:
    """`--log-dir` names where; attempts and local ranks are below."""
    folder = machine.folder / "mine"
    answer = machine.launch(SPEAK, log_dir=str(folder), folder="id_T_w_0", attempt=3, files=BOTH)
    machine.exits()
    assert answer["logs"] == str(folder / "id_T_w_0/attempt_3")
    assert (folder / "id_T_w_0/attempt_3/0/stdout.log").read_text() == "out 0\n"


def test_a_folder_that_is_seen_from_where_ranks_start(machine: Machine) -> None:
    """A relative `--log-dir` is the person's, and not the keeper's."""
    (machine.folder / "there").mkdir()
    machine.launch(SPEAK, log_dir="logs", cwd=str(machine.folder / "there"), files=BOTH)
    machine.exits()
    found = machine.folder / "there/logs/run_w_0/attempt_0/0/stdout.log"
    assert found.read_text() == "out 0\n"


def test_an_exception_that_was_recorded(machine: Machine) -> None:
    """What a program writes to its error file is told with its end, if it failed."""
    code = 'echo "{\\"message\\": \\"rank $RANK\\"}" >$TORCHELASTIC_ERROR_FILE; exit $RANK'
    first, second = run(machine, code, ranks=2)
    assert first["error"] == ""
    assert json.loads(second["error"]) == {"message": "rank 1"}


def test_local_ranks_name_folders(machine: Machine) -> None:
    """Not ranks: as on every host of torchrun."""
    run(machine, first=6, files=BOTH)
    assert sorted(written(machine)) == ["0/stderr.log", "0/stdout.log"]

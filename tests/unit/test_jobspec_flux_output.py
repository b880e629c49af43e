"""What jobs of Flux print: pieces become lines, lines find their logs, and nothing is printed twice."""

from __future__ import annotations

import ast
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import UnreachableError
from milkweed.jobspec.transformers import flux_inside
from milkweed.jobspec.transformers.flux_inside import BEGIN, MIDDLE, Lines, judge, split_frame
from milkweed.jobspec.transformers.flux_output import (
    MAX_FOLLOWED,
    Follower,
    Keeper,
    Log,
    Source,
    fetch_output,
    read_output,
)
from unit.jobspec_flux_runs import FakeFlux, data, flux

__all__ = ["flux"]

PAIR = {"name": "header", "context": {"count": {"stdout": 2}}}


def render(*events: dict[str, Any]) -> list[bytes]:
    """Events as Flux prints them."""
    return [json.dumps(event).encode() for event in events]


def lines_of(*events: dict[str, Any], labels: bool = True) -> list[bytes]:
    """The lines that events make."""
    lines = Lines(labels=labels)
    found = [line for text in render(*events) for line in lines.add(text)]
    return [*found, *lines.end()]


ALONE = {"name": "header", "context": {"count": {"stdout": 1}}}


def test_pieces_become_lines() -> None:
    """Of each task and stream apart, with whatever bytes; the last one without an end, too."""
    snowman = "☃".encode()
    found = lines_of(
        ALONE,
        data("one\ntw"),
        data("err\n", stream="stderr"),
        data(base64.b64encode(b"o " + snowman[:2]).decode(), encoding="base64"),
        data(base64.b64encode(snowman[2:] + b"\nend").decode(), encoding="base64"),
        {"name": "data", "context": {"stream": "stdout", "rank": "0", "eof": True}},
    )
    assert found == [b"one", b"err", "two ☃".encode(), b"end"]


def test_several_tasks_are_told_apart() -> None:
    """By their rank, as elsewhere; brokers of an instance are no tasks."""
    assert lines_of(PAIR, data("a\n"), data("b", rank="1")) == [b"0: a", b"1: b"]
    assert lines_of(PAIR, data("a\n"), labels=False) == [b"a"]


def test_what_the_shell_says() -> None:
    """Its errors are shown, its chatter is not; what is no event is left out."""
    error = {"name": "log", "context": {"level": 3, "message": "no such folder"}}
    chatter = {"name": "log", "context": {"level": 6, "message": "hello"}}
    assert lines_of(ALONE, error, chatter) == [b"flux-shell: no such folder"]
    assert list(Lines().add(b"{")) == []
    assert list(Lines().add(b"[]")) == []


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([{"name": "finish", "context": {"status": 0}}], 0),
        ([{"name": "finish", "context": {"status": 9 << 8}}], 9),
        ([{"name": "finish", "context": {"status": 15}}], 143),
        ([{"name": "exception", "context": {"severity": 0, "type": "alloc"}}], 1),
        (
            [
                {"name": "exception", "context": {"severity": 0, "type": "timeout"}},
                {"name": "finish", "context": {"status": 142 << 8}},
            ],
            124,
        ),
        ([{"name": "exception", "context": {"severity": 0, "type": "cancel"}}], 143),
        (
            [
                {"name": "exception", "context": {"severity": 1, "type": "warn"}},
                {"name": "finish", "context": {"status": 0}},
            ],
            0,
        ),
    ],
)
def test_exit_codes_inside_a_group(events: list[dict[str, Any]], code: int) -> None:
    """They are what a shell would say."""
    assert judge(render(*events)) == code


def frame(label: str, text: bytes) -> bytes:
    """A line of a step inside a group."""
    return BEGIN + label.encode() + MIDDLE + text


def test_lines_of_a_group_find_their_logs(tmp_path: Path) -> None:
    """Each step inside has its own; a name that nobody there has is just a line."""
    source = Source(label="g", job_id=1, uri="", is_nested=True, inner=frozenset({"g/a"}))
    log = Log(tmp_path, source)
    log.add([b"own", frame("g/a", b"in"), frame("../../etc/passwd", b"x")])
    log.add([frame("g/a", b"more")])
    assert (tmp_path / "g+a.log").read_bytes() == b"in\nmore\n"
    assert (tmp_path / "g.log").read_bytes() == b"own\n" + frame("../../etc/passwd", b"x") + b"\n"
    assert split_frame(b"plain") == ("", b"plain")
    assert not log.is_saved
    log.close()
    assert Log(tmp_path, source).is_saved


def test_a_log_of_an_earlier_driver_is_written_anew(tmp_path: Path) -> None:
    """It holds a part of the same."""
    source = Source(label="a", job_id=1, uri="")
    Log(tmp_path, source).add([b"one"])
    Log(tmp_path, source).add([b"one", b"two"])
    assert (tmp_path / "a.log").read_bytes() == b"one\ntwo\n"


def test_following_misses_nothing_and_repeats_nothing(flux: FakeFlux, tmp_path: Path) -> None:
    """What came while it was followed, and then what is left."""
    flux.output(1, ALONE, data("one\n"), data("tw"))
    source = Source(label="a", job_id=1, uri=flux.uri)
    follower = Follower(source)
    found: list[bytes] = []
    while found != [b"one"]:
        found += follower.read()
    flux.output(1, ALONE, data("one\n"), data("tw"), data("o\nthree"))
    assert follower.finish() == [b"two", b"three"]
    assert fetch_output(source) == [b"one", b"two", b"three"]


def test_following_goes_on_where_flux_breaks_down(flux: FakeFlux) -> None:
    """Some versions of Flux end with a fault over the usual words: nothing is lost or repeated for that."""
    flux.then(
        'case "$*" in "job eventlog"*--follow*) head -n 2 "$home/outputs/1"; kill -SEGV $$ ;;\n'
        '"job wait-event"*) cat "$home/outputs/1"; exec sleep 60 ;; esac\n'
    )
    flux.output(1, ALONE, data("one\n"), data("two\n"))
    follower = Follower(Source(label="a", job_id=1, uri=flux.uri))
    found: list[bytes] = []
    while len(found) < 2:
        found += follower.read()
    assert found == [b"one", b"two"]
    flux.output(1, ALONE, data("one\n"), data("two\n"), data("three\n"))
    assert follower.finish() == [b"three"]


def test_a_job_inside_a_group_where_flux_breaks_down(flux: FakeFlux, tmp_path: Path) -> None:
    """So it is inside a group."""
    flux.then(
        'case "$*" in "job eventlog"*--follow*) head -n 2 "$home/outputs/1"; kill -SEGV $$ ;;\n'
        '*--path=eventlog*) echo \'{"name": "finish", "context": {"status": 0}}\'; exit 0 ;;\n'
        '"job wait-event"*--path=output*) cat "$home/outputs/1"; touch "$home/told"; exit 1 ;;\n'
        '"job wait-event"*) until [ -e "$home/told" ]; do sleep 0.05; done; exit 0 ;; esac\n'
    )
    flux.output(1, ALONE, data("one\n"), data("two\n"))
    (tmp_path / "job.json").write_text(json.dumps({"attributes": {"system": {}}}))
    done = run_inside(tmp_path, "g/a", "job.json")
    assert done.stdout.splitlines() == [frame("g/a", b"one"), frame("g/a", b"two")]
    assert done.returncode == 0


def test_a_job_without_output(flux: FakeFlux) -> None:
    """One that never started printed nothing; silence is another thing."""
    source = Source(label="a", job_id=9, uri=flux.uri)
    assert fetch_output(source) == []
    flux.be_away()
    with pytest.raises(UnreachableError):
        fetch_output(source)


def test_what_is_kept(flux: FakeFlux, tmp_path: Path) -> None:
    """Whether it was followed or not, and once; what cannot be asked for is kept later."""
    flux.output(1, ALONE, data("one\n"))
    flux.output(2, ALONE, data("two\n"))
    followed = Source(label="a", job_id=1, uri=flux.uri)
    other = Source(label="b", job_id=2, uri=flux.uri)
    keeper = Keeper()
    keeper.follow(followed, tmp_path)
    keeper.follow(followed, tmp_path)
    keeper.save(followed, tmp_path)
    flux.be_away()
    keeper.save(other, tmp_path)
    assert not Log(tmp_path, other).is_saved
    flux.come_back()
    keeper.save(other, tmp_path)
    keeper.save(other, tmp_path)
    keeper.close()
    assert (tmp_path / "a.log").read_bytes() == b"one\n"
    assert (tmp_path / "b.log").read_bytes() == b"two\n"


def test_not_all_are_followed_at_once(flux: FakeFlux, tmp_path: Path) -> None:
    """A process for each of a thousand jobs would be too many."""
    keeper = Keeper()
    for number in range(MAX_FOLLOWED + 5):
        keeper.follow(Source(label=str(number), job_id=number, uri=flux.uri), tmp_path)
    started = 0
    while started < MAX_FOLLOWED:
        started = len([call for call in flux.calls if "--follow" in call])
    keeper.close()
    assert len([call for call in flux.calls if "--follow" in call]) == MAX_FOLLOWED


def test_looking_on_from_elsewhere(flux: FakeFlux) -> None:
    """Lines come as they are printed, until the job is over."""
    flux.output(1, ALONE, data("one\n"))
    source = Source(label="a", job_id=1, uri=flux.uri)
    looks = iter([True, True, False])
    found = list(
        read_output([source], follow=True, alive=lambda: next(looks), sleep=lambda _s: None)
    )
    assert found == [("a", "one")]
    assert list(read_output([source], follow=False, alive=lambda: True)) == [("a", "one")]


def run_inside(folder: Path, *argv: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program that travels in a group."""
    (folder / ".mw").mkdir(exist_ok=True)
    command = [sys.executable, str(flux_inside.__file__), *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False)


def test_a_process_inside_a_group(tmp_path: Path) -> None:
    """Its lines carry its name, and its code is that of the process."""
    done = run_inside(tmp_path, "--run", "g/a", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == [frame("g/a", b"err"), frame("g/a", b"out")]
    assert run_inside(tmp_path, "--run", "g/a", "sh", "-c", "kill -9 $$").returncode == 137
    apart = run_inside(tmp_path, "--run-output", "g/a", "sh", "-c", "echo out; echo err >&2")
    assert (apart.stdout, apart.stderr) == (frame("g/a", b"out\n"), b"err\n")


def test_a_job_inside_a_group(
    flux: FakeFlux, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is submitted with the variables of the group, and followed to its end."""
    monkeypatch.setenv("COLOUR", "red")
    flux.output(1, ALONE, data("one\n"))
    flux.then(
        'case "$*" in *--path=eventlog*)\n'
        'echo \'{"name": "exception", "context": {"severity": 0, "type": "exec", "note": "gone"}}\'\n'
        'echo \'{"name": "finish", "context": {"status": 1280}}\'; exit 0 ;;\n'
        '"job wait-event"*) sleep 0.2; exit 0 ;; esac\n'
    )
    own = {"environment": {"JOBSPEC_REPLICA": "1"}}
    (tmp_path / "job.json").write_text(json.dumps({"attributes": {"system": own}}))
    done = run_inside(tmp_path, "g/a", "job.json")
    assert done.stdout.splitlines() == [frame("g/a", b"one"), frame("g/a", b"flux: exec: gone")]
    assert done.returncode == 5
    environment = flux.submitted[0]["attributes"]["system"]["environment"]
    assert (environment["COLOUR"], environment["JOBSPEC_REPLICA"]) == ("red", "1")
    assert "FLUX_URI" not in environment


def test_what_travels_is_read_by_old_pythons() -> None:
    """Nodes may have no newer Python than 3.7."""
    ast.parse(Path(str(flux_inside.__file__)).read_text(), feature_version=(3, 7))

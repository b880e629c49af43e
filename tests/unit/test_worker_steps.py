"""What steps do on a host, apart from running: variables, paths, shells and installers, and lines to a child."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.worker import installing, serve, wire
from milkweed.worker.clients import MAX_BACKLOG_BYTES, Client
from milkweed.worker.fleet import Fleet
from milkweed.worker.pipe import Pipe
from milkweed.worker.procs import renew
from milkweed.worker.steps import Steps

# Variables and paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$A", "1"),
        ("${A}", "1"),
        ("$A$B", "12"),
        ("${A}x$B/y", "1x2/y"),
        (r"\$A", "$A"),
        (r"\${A}", "${A}"),
        (r"\\$A", r"\$A"),
        ("$UNSET", ""),
        ("$", "$"),
        ("$1 ${} $-", "$1 ${} $-"),
        ("${A:-x}", "${A:-x}"),
        ("$A_B", ""),
        ("a=$A=b", "a=1=b"),
    ],
)
def test_variables_are_put_in(text: str, expected: str) -> None:
    """Those that have a name; everything else stays as it is."""
    assert installing.expand(text, {"A": "1", "B": "2"}) == expected


def test_a_step_sets_one_variable() -> None:
    """A value may have any character in it, and may name what was set before."""
    assert installing.read_env("A=b=c $X", {"X": "x"}) == {"A": "b=c x"}
    assert installing.read_env("PATH=/new:$PATH", {"PATH": "/old"}) == {"PATH": "/new:/old"}
    assert installing.read_env("EMPTY=", {}) == {"EMPTY": ""}


@pytest.mark.parametrize("text", ["A", "=a", "", "A=\0"])
def test_what_sets_no_variable_is_refused(text: str) -> None:
    """A client of another version may send anything."""
    with pytest.raises(ValueError, match="is not NAME=value"):
        installing.read_env(text, {})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", "/here/a"),
        ("./a/", "/here/./a/"),
        ("/a", "/a"),
        ("~", "/home/me"),
        ("~/a", "/home/me/a"),
        ("~you/a", "/here/~you/a"),
        ("$D/a", "/data/a"),
        ("", "/here/"),
    ],
)
def test_paths_are_those_of_the_host(path: str, expected: str) -> None:
    """Below the working folder, in the home there, or absolute."""
    env = {"HOME": "/home/me", "D": "/data"}
    assert installing.resolve(path, env, "/here") == expected


# Programs


def test_the_keepers_own_pip_installs() -> None:
    """Whatever `python` would be on PATH."""
    words = ["--pre", "torch"]
    assert installing.find_pip(words, {}) == [sys.executable, "-m", "pip", "install", *words]


def test_without_pip_uv_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the keeper's own Python; without both, the error says what to do."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    env = {"PATH": str(tmp_path)}
    with pytest.raises(SystemExit, match="choose an image that has one of them"):
        installing.find_pip(["torch"], env)
    (tmp_path / "uv").touch(mode=0o755)
    made = installing.find_pip(["torch"], env)
    assert made == [str(tmp_path / "uv"), "pip", "install", "--python", sys.executable, "torch"]


def test_bash_runs_steps_where_it_is(tmp_path: Path) -> None:
    """Else the shell that every machine has."""
    assert installing.find_shell({"PATH": str(tmp_path)}) == ["/bin/sh", "-c"]
    (tmp_path / "bash").touch(mode=0o755)
    assert installing.find_shell({"PATH": str(tmp_path)}) == [str(tmp_path / "bash"), "-c"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("run", "python -m pip install x", ["/bin/sh", "-c", "python -m pip install x"]),
        ("pip", "uv pip install 'x>1'", ["/bin/sh", "-c", "uv pip install 'x>1'"]),
        ("pip", "/opt/python -m pip install x", ["/bin/sh", "-c", "/opt/python -m pip install x"]),
        ("pip", "python -m pip install 'x>1'", [sys.executable, "-m", "pip", "install", "x>1"]),
    ],
)
def test_only_a_plain_pip_step_is_the_keepers_own(
    monkeypatch: pytest.MonkeyPatch, kind: str, text: str, expected: list[str]
) -> None:
    """An installer or a Python that somebody chose is run as it was written, by a shell."""
    executed: list[list[str]] = []

    def execute(argv: list[str], _env: dict[str, str]) -> int:
        executed.append(argv)
        return 0

    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(installing.children, "execute", execute)
    installing.run(kind, text, {"PATH": "/nowhere"})
    assert executed == [expected]


def test_new_packages_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a path file that came after the start."""
    packages, elsewhere = tmp_path / "site-packages", tmp_path / "elsewhere"
    packages.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), str(tmp_path)])
    (packages / "new.pth").write_text(f"{elsewhere}\n")
    installing.notice_packages()
    assert str(elsewhere) in sys.path


def test_a_proc_reads_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After what its client can import and its own folder, before all else; a fork would not do it by itself."""
    own, lib = tmp_path / "own", tmp_path / "lib"
    own.mkdir()
    monkeypatch.setattr(sys, "path", ["", "/last"])
    monkeypatch.setenv("PYTHONPATH", f"{lib}::/last")
    monkeypatch.chdir(tmp_path)
    serve.extend_path(str(own))
    assert sys.path == [str(own), str(tmp_path), str(lib), "/last"]


# Procs of hosts that serve


@pytest.mark.parametrize(
    ("env", "before", "now", "expected"),
    [
        ({"A": "1", "C": "c"}, {"A": "1"}, {"A": "1"}, {"A": "1", "C": "c"}),
        ({"A": "1"}, {"A": "1"}, {"A": "2"}, {"A": "2"}),
        ({"A": "client's"}, {"A": "1"}, {"A": "2"}, {"A": "client's"}),
        ({}, {}, {"A": "2"}, {"A": "2"}),
        ({"A": "client's"}, {}, {"A": "2"}, {"A": "client's"}),
        ({"A": "1"}, {"A": "1"}, {}, {}),
        ({"A": "client's"}, {"A": "1"}, {}, {"A": "client's"}),
        ({}, {"A": "1"}, {"A": "2"}, {}),
    ],
)
def test_what_is_old_in_a_procs_environment_is_renewed(
    env: dict[str, str], before: dict[str, str], now: dict[str, str], expected: dict[str, str]
) -> None:
    """What it has from its host's server is old; what its client set, or took away, is meant."""
    assert renew(env, before, now) == expected


# What is remembered


def make_fleet(run: Path) -> Fleet:
    start = {"cwd": "/start", "hosts": []}
    return Fleet(run, start, lambda _message: None)


def test_what_was_done_is_remembered_in_the_run_folder(tmp_path: Path) -> None:
    """With what it set; a file that cannot be read is nothing."""
    done = [{"digest": "a", "env": {"A": "1"}, "cwd": ""}, {"digest": "b", "env": {}, "cwd": "/b"}]
    (tmp_path / wire.STEPS_FILE).write_text(json.dumps(done))
    fleet = make_fleet(tmp_path)
    Steps(tmp_path, fleet, lambda: True)
    assert (fleet.image_env, fleet.cwd) == ({"A": "1"}, "/b")
    for text in ("{", "[1]", '[{"other": 1}]'):
        (tmp_path / wire.STEPS_FILE).write_text(text)
        fleet = make_fleet(tmp_path)
        Steps(tmp_path, fleet, lambda: True)
        assert (fleet.image_env, fleet.cwd) == ({}, "/start")


def test_a_keeper_without_steps_leaves_no_file(tmp_path: Path) -> None:
    """Most have none."""
    Steps(tmp_path, make_fleet(tmp_path), lambda: False)
    assert list(tmp_path.iterdir()) == []


# Lines


def test_bytes_are_sent_as_base64() -> None:
    """Whatever else is in the message, and wherever they stand in it."""
    for data in (b"", b"x", bytes(range(256))):
        for message in (
            {"data": data, "end": True},
            {"path": '"data":""', "data": data, "more": '"data":""'},
        ):
            read = wire.decode(wire.encode(message))
            assert read == {**message, "data": read["data"]}
            assert wire.decode(wire.encode({**message, "data": read["data"]})) == read
            assert base64.b64decode(read["data"]) == data


async def talk(lines: list[bytes], limit: int) -> tuple[bytes, list[dict[str, Any]]]:
    """What a child reads that begins late, and what the keeper reads of its answers."""
    answers: list[dict[str, Any]] = []
    pipe = Pipe(answers.append)
    child = socket.socket(fileno=os.dup(pipe.far_fd))
    pipe.close_far()
    for line in lines:
        pipe.write(line)
    got = b""
    while len(got) < limit:
        await asyncio.sleep(0)
        child.settimeout(0)
        try:
            got += child.recv(65536)
        except BlockingIOError:
            continue
    child.settimeout(None)
    child.sendall(b'{"a": 1}\n{"b"')
    await asyncio.sleep(0)
    child.sendall(b": 2}\n")
    pipe.drain()
    child.close()
    pipe.drain()
    pipe.write(b"nobody reads this\n")
    pipe.close()
    return got, answers


def test_a_slow_child_does_not_stall_the_keeper() -> None:
    """What it has no room for waits, in order; answers that come in pieces are whole."""
    lines = [bytes([65 + number % 26]) * 50_000 + b"\n" for number in range(40)]
    got, answers = asyncio.run(talk(lines, 40 * 50_001))
    assert got == b"".join(lines)
    assert answers == [{"a": 1}, {"b": 2}]


class Writer:
    """A connection that takes nothing off."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.waiting = 0
        self.transport = self

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def get_write_buffer_size(self) -> int:
        """What nobody has read yet."""
        return self.waiting

    def write(self, data: bytes) -> None:
        """Note what is sent."""
        self.written.append(wire.decode(data))


def test_a_client_too_slow_for_a_steps_output_misses_some() -> None:
    """How much is told; how a step ended is never missed."""
    writer = Writer()
    client = Client(writer)  # pyright: ignore[reportArgumentType]
    message = {"ev": "step-out", "id": 1, "stream": "out", "lines": ["a", "b"]}
    writer.waiting = MAX_BACKLOG_BYTES + 1
    client.send(message)
    client.send({"ev": "step-exit", "id": 1, "code": 0, "tail": []})
    writer.waiting = 0
    client.send(message)
    told = [(each["ev"], each.get("dropped")) for each in writer.written]
    assert told == [("step-out", 2), ("step-exit", None), ("step-out", None)]

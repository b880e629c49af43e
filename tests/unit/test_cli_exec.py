"""`exec`: every host's output in order, every exit code true."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.cli import everywhere
from milkweed.cli.app import app
from milkweed.cli.everywhere import LOST, pick_hosts, run_everywhere, shell_code
from milkweed.errors import AllocationError, UnreachableError, UnsupportedError
from milkweed.hosts import Host

pytestmark = pytest.mark.usefixtures("folder")

Said = tuple[str, bytes] | int | Exception


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def make_hosts(count: int) -> list[Host]:
    return [
        Host(name=f"n{rank}", mesh="workers", rank=rank, control=f"unix:///n{rank}")
        for rank in range(count)
    ]


class Hosts:
    """Hosts that say what they were told to, whatever is run on them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says: dict[str, list[Said]] = {}
        self.ran: list[tuple[str, str, tuple[str, ...]]] = []
        monkeypatch.setattr(everywhere, "run_command", self._run)
        monkeypatch.setattr(FakeBackend, "hosts", lambda *_: make_hosts(2))

    def _run(
        self, address: str, host: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Iterator[tuple[str, bytes] | int]:
        self.ran.append((address, host, tuple(argv)))
        for said in self.says.get(host, [0]):
            if isinstance(said, Exception):
                raise said
            yield said


@pytest.fixture
def hosts(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """A job of two hosts that take commands."""
    Path("milkweed.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 2}\n")
    assert milkweed("apply").exit_code == 0
    return Hosts(monkeypatch)


def test_one_hosts_output_passes_as_it_is(hosts: Hosts) -> None:
    """With one host bytes pass unchanged, each stream to its own."""
    hosts.says["workers/1"] = [("out", b"\xff\x00 no end"), ("err", b"oops"), 3]
    done = milkweed("exec", "--host", "workers/1", "--", "x")
    assert done.stdout_bytes == b"\xff\x00 no end"
    assert done.stderr == "oops"
    assert done.exit_code == 3


def test_several_hosts_lines_have_their_host(hosts: Hosts) -> None:
    """With several hosts every line has its host before it, however it was cut on the way."""
    hosts.says["workers/0"] = [("out", b"a"), ("out", b"b\nc\nrest"), 0]
    hosts.says["workers/1"] = [("err", b"e1\n\n"), 0]
    done = milkweed("exec", "--", "x")
    assert done.stdout == "[workers/0] ab\n[workers/0] c\n[workers/0] rest\n"
    assert done.stderr == "[workers/1] e1\n[workers/1] \n"
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("first", "second", "code"), [(0, 0, 0), (0, 7, 7), (3, 2, 3), (1, -9, 137), (-15, 0, 143)]
)
def test_the_exit_code_is_the_largest(hosts: Hosts, first: int, second: int, code: int) -> None:
    """Of several exit codes the largest counts, and a signal is 128+N."""
    hosts.says = {"workers/0": [first], "workers/1": [second]}
    assert milkweed("exec", "--", "x").exit_code == code


def test_failed_hosts_are_named(hosts: Hosts) -> None:
    """One number cannot tell which hosts failed, so stderr does."""
    hosts.says = {"workers/0": [0], "workers/1": [7]}
    assert milkweed("exec", "--", "x").stderr == (
        "milkweed: exit codes: workers/1=7; the others 0\n"
    )


def test_a_lost_host_is_not_hidden(hosts: Hosts) -> None:
    """A host whose command's end nobody saw is named, what it said is printed, and the code is 255."""
    lost = UnreachableError("the connection to host workers/1 was lost")
    hosts.says["workers/1"] = [("out", b"half"), lost]
    done = milkweed("exec", "--", "x")
    assert done.exit_code == LOST
    assert done.stdout == "[workers/1] half\n"
    assert "workers/1: the connection to host workers/1 was lost" in done.stderr


def test_a_thread_that_breaks_is_not_waited_for(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even an error nobody foresaw ends the command, with 255."""
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _args: told.set())
    hosts.says["workers/1"] = [ValueError("what?")]
    assert milkweed("exec", "--", "x").exit_code == LOST
    assert told.wait(10)


def test_the_command_passes_unread(hosts: Hosts) -> None:
    """Everything after the first `--` is the command, options and further dashes included."""
    done = milkweed("exec", "demo", "--host", "workers/0", "--", "sh", "--host", "--", "-h")
    assert done.exit_code == 0, done.output
    assert hosts.ran == [("unix:///n0", "workers/0", ("sh", "--host", "--", "-h"))]


@pytest.mark.parametrize("words", [["exec"], ["exec", "--"], ["exec", "hostname"]])
def test_without_a_command_nothing_runs(hosts: Hosts, words: list[str]) -> None:
    """A command must stand after `--`; anything else is a usage error that shows how."""
    done = milkweed(*words)
    assert done.exit_code == 2
    assert "milkweed exec -- hostname" in done.stderr
    assert hosts.ran == []


def test_hosts_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host waits for another one."""
    together = threading.Barrier(8, timeout=20)

    def run(*_args: object) -> Iterator[int]:
        together.wait()
        yield 0

    monkeypatch.setattr(everywhere, "run_command", run)
    assert set(run_everywhere(make_hosts(8), ["x"]).values()) == {0}


def test_an_unknown_host_is_answered_with_a_near_one() -> None:
    """A slip in a host's name is answered with the host that was probably meant."""
    with pytest.raises(AllocationError) as caught:
        pick_hosts(make_hosts(3), "worker/2", job="demo")
    assert "workers/2" in caught.value.hint


def test_hosts_that_take_no_commands() -> None:
    """Where a backend's hosts take no commands, or there are none, that is told."""
    with pytest.raises(UnsupportedError, match="takes no commands"):
        pick_hosts([Host(name="n0", mesh="workers", rank=0)], None, job="demo")
    with pytest.raises(UnsupportedError, match="no hosts of its own"):
        pick_hosts([], None, job="demo")


@pytest.mark.parametrize(("code", "shown"), [(0, 0), (255, 255), (-1, 129), (-9, 137)])
def test_codes_are_those_of_a_shell(code: int, shown: int) -> None:
    """Signals are 128+N, as a shell tells them."""
    assert shell_code(code) == shown


def test_a_job_without_hosts_runs_nothing(world: FakeScheduler) -> None:
    """A job that was not applied runs no command."""
    Path("milkweed.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 2}\n")
    done = milkweed("exec", "--", "x")
    assert done.exit_code == 1
    assert "milkweed apply" in done.stderr

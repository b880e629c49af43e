"""Proof that a process is the one that is meant."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from milkweed import identity


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input to end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_more_than_its_number() -> None:
    """Number, start time and start of the machine, as plain data."""
    me = identity.process(os.getpid())
    assert me is not None
    assert json.loads(json.dumps(me)) == me
    assert (me["pid"], me["boot_id"]) == (os.getpid(), identity.boot_id())
    assert identity.is_running(me)


@pytest.mark.parametrize("change", [{"started": 1}, {"boot_id": "another"}, {"pid": 2**22 + 1}])
def test_another_process_with_its_number_does_not_count(change: dict[str, object]) -> None:
    """A number that was taken over by another process, or survived a restart, proves nothing."""
    me = identity.process(os.getpid())
    assert not identity.is_running({**(me or {}), **change})


def test_a_process_that_is_gone_is_nobody(sleeper: subprocess.Popen[bytes]) -> None:
    """Ended counts as gone at once, though its parent has not looked yet."""
    known = identity.process(sleeper.pid) or {}
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_running(known)
    assert identity.process(sleeper.pid) is None
    sleeper.wait()
    assert identity.process(sleeper.pid) is None


def test_a_signal_reaches_the_right_process(sleeper: subprocess.Popen[bytes]) -> None:
    """The very process that was meant gets the signal."""
    identity.send_signal(identity.process(sleeper.pid) or {}, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_a_signal_reaches_no_other_process(sleeper: subprocess.Popen[bytes]) -> None:
    """A process that took over the number is left alone, and one that is gone is no error."""
    known = identity.process(sleeper.pid) or {}
    identity.send_signal({**known, "started": known["started"] + 1}, signal.SIGKILL)
    assert sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()
    identity.send_signal(known, signal.SIGKILL)


def test_a_name_with_brackets_and_spaces_confuses_nobody() -> None:
    """Names of programs may look like the kernel's own text."""
    name = "cat) Z 1 2 (x"
    with subprocess.Popen(
        ["bash", "-c", f"exec -a '{name}' cat"], stdin=subprocess.PIPE
    ) as process:
        assert identity.is_running(identity.process(process.pid) or {})
        process.kill()


def test_a_machine_has_a_name() -> None:
    """A machine is told by its name and its id, as plain data."""
    assert identity.machine()["hostname"] == socket.gethostname()
    assert set(identity.machine()) == {"hostname", "machine_id"}

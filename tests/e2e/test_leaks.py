"""Nothing outlives its owner: not after SIGKILL, not after Ctrl-C, not after a crash at any point."""

from __future__ import annotations

import os
import signal

import pytest

from milkweed._checkpoint import POINTS
from milkweed.worker.lease import OWNER_GRACE_S
from programs import Client, read_number, session_members, wait_until

pytestmark = pytest.mark.e2e

SIXTEEN = """
    job = ProcessJob({"workers": 16})
    state = job.state(cached_path=None)
    state.workers.spawn("a", Probe).pid.call().get()
    print("keeper", job.status() and job._held.record.handle["keeper"]["pid"], flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_is_left(client: Client, number: signal.Signals) -> None:
    """However a client of 16 hosts ends, its workers and procs end too, and no file is left."""
    program = client.start(SIXTEEN)
    keeper = read_number(program, "keeper")
    assert len(session_members(keeper)) >= 33
    program.send_signal(number)
    program.communicate(timeout=20)
    wait_until(lambda: not session_members(keeper))
    wait_until(lambda: not client.home.exists())


def test_procs_of_a_vanished_client_are_reaped(client: Client) -> None:
    """Recorded hosts stay when their client is killed; its procs, and what they started, do not."""
    program = client.start(
        """
        import subprocess
        class Nested(Probe):
            @endpoint
            def child(self): return subprocess.Popen(["sleep", "100"], start_new_session=True).pid
        job = ProcessJob({"workers": 2})
        state = job.state()
        children = values(state.workers.spawn("a", Nested).child.call().get())
        print("child", children[0], flush=True)
        print("keeper", job._held.record.handle["keeper"]["pid"], flush=True)
        time.sleep(60)
        """
    )
    child = read_number(program, "child")
    keeper = read_number(program, "keeper")
    program.kill()
    program.communicate(timeout=20)
    wait_until(lambda: not os.path.exists(f"/proc/{child}"))
    wait_until(lambda: len(session_members(keeper)) == 3)
    client.run("job = job_load(); assert job.active; job.kill(); assert not job.active")
    assert not session_members(keeper)


def test_recorded_hosts_end_when_idle(client: Client) -> None:
    """Hosts that were recorded end themselves after their idle time-out, and the next plan says so."""
    out = client.run(
        """
        job = ProcessJob({"workers": 1}, idle_timeout_s=0.3)
        job.state()
        print("keeper", job._held.record.handle["keeper"]["pid"])
        """
    )
    keeper = int(out.split("keeper ")[1].split()[0])
    wait_until(lambda: not session_members(keeper))
    out = client.run('print(ProcessJob({"workers": 1}).plan().render()); job_load().kill()')
    assert "create" in out
    assert "idle time-out" in out


@pytest.mark.parametrize("point", [p for p in POINTS if p not in {"cancel", "forget", "remove"}])
def test_a_kill_at_any_point_of_starting_is_recovered(client: Client, point: str) -> None:
    """SIGKILL between any two steps of starting: the next call finds or makes one allocation, never two."""
    client.run(
        f"""
        from milkweed.testing import crash_at
        with crash_at({point!r}, kill=True):
            ProcessJob({{"workers": 2}}).state()
        """,
        code_expected=-9,
    )
    out = client.run(
        """
        from milkweed import registry
        job = ProcessJob({"workers": 2})
        assert len(values(job.state().workers.spawn("a", Probe).pid.call().get())) == 2
        print("entries", len([e for e in registry.load_entries()]))
        job.kill()
        print("left", os.path.exists(".milkweed"))
        """
    )
    assert "entries 1" in out
    assert "left False" in out


@pytest.mark.parametrize("point", ["submit", "record"])
def test_an_owner_that_never_connects_takes_its_hosts_along(client: Client, point: str) -> None:
    """SIGKILL between starting hosts and connecting to them: without a record they do not wait for anybody."""
    client.run(
        f"""
        from milkweed.testing import crash_at
        with crash_at({point!r}, kill=True):
            ProcessJob({{"workers": 2}}).state(cached_path=None)
        """,
        code_expected=-9,
    )
    wait_until(lambda: not client.home.exists(), timeout_s=OWNER_GRACE_S / 2)


@pytest.mark.parametrize("point", ["cancel", "forget", "remove"])
def test_a_kill_at_any_point_of_ending_is_recovered(client: Client, point: str) -> None:
    """SIGKILL between any two steps of ending: killing again ends the rest."""
    client.run('ProcessJob({"workers": 1}).state()')
    client.run(
        f"""
        from milkweed.testing import crash_at
        job = job_load()
        with crash_at({point!r}, kill=True):
            job.kill()
        """,
        code_expected=-9,
    )
    client.run(
        """
        try:
            job_load().kill()
        except FileNotFoundError:
            pass
        assert not os.path.exists(".milkweed/job.json")
        """
    )

"""Faults are reported by name and soon: a host that dies, a worker that cannot start, a proc that ends."""

from __future__ import annotations

import sys
import time

import pytest

from programs import Client

pytestmark = pytest.mark.e2e


def test_a_host_killed_during_a_call_is_named(client: Client) -> None:
    """The call fails within 10 s, and the terminal, the status and the events name the host."""
    out = client.run(
        """
        import threading
        job = ProcessJob({"trainers": 2})
        actors = job.state(cached_path=None).trainers.spawn("a", Probe)
        actors.pid.call().get()
        keeper = job._held.record.handle["keeper"]["pid"]
        workers = [int(p) for p in open(f"/proc/{keeper}/task/{keeper}/children").read().split()]
        threading.Timer(0.5, lambda: os.kill(workers[1], 9)).start()
        began = time.monotonic()
        try:
            actors.slow.call(30).get()
        except RuntimeError:
            print("failed in time", time.monotonic() - began < 10)
        print("status", [host.host for host in job.status().failed_hosts])
        print("event", [event.host for event in job.events() if event.what == "host lost"])
        """
    )
    assert "milkweed: host trainers/1 is lost: its worker ended: it was ended by SIGKILL" in out
    assert "failed in time True" in out
    assert "status ['trainers/1']" in out
    assert "event ['trainers/1']" in out


def test_what_is_called_on_a_lost_host_says_so(client: Client) -> None:
    """However a result is waited for, the error itself names the host, once; an actor's own error does not."""
    out = client.run(
        """
        import asyncio, threading
        class Faulty(Probe):
            @endpoint
            def fail(self): raise ValueError("mine")
        job = ProcessJob({"trainers": 2})
        actors = job.state(cached_path=None).trainers.spawn("a", Faulty)
        actors.pid.call().get()
        keeper = job._held.record.handle["keeper"]["pid"]
        workers = [int(p) for p in open(f"/proc/{keeper}/task/{keeper}/children").read().split()]
        async def wait(): return await actors.pid.call()
        async def gather(): return await asyncio.gather(actors.pid.call(), actors.pid.call())
        async def chain(): return await actors.pid.call().as_asyncio()
        async def stream(): return [await each for each in actors.pid.stream()]
        ways = {
            "get": lambda: actors.slow.call(3).get(),
            "timeout": lambda: actors.pid.call().get(timeout=20),
            "result": lambda: actors.pid.call().result(),
            "stream": lambda: [each.get() for each in actors.pid.stream()],
            "slice": lambda: actors.slice(hosts=1).pid.call_one().get(),
            "await": lambda: asyncio.run(wait()),
            "gather": lambda: asyncio.run(gather()),
            "as_asyncio": lambda: asyncio.run(chain()),
            "async stream": lambda: asyncio.run(stream()),
            "mine": lambda: actors.slice(hosts=0).fail.call_one().get(),
        }
        threading.Timer(0.5, lambda: os.kill(workers[1], 9)).start()
        for way, call in ways.items():
            try:
                print(way, "went well", call())
            except Exception as error:
                print(f"{way}: {type(error).__name__}", getattr(error, "__notes__", []))
        """
    )
    words = (
        "SupervisionError ['host trainers/1 is lost: its worker ended: it was ended by SIGKILL']"
    )
    lines = out.splitlines()
    ways = ("get", "timeout", "result", "stream", "slice", "await", "gather", "as_asyncio")
    for way in (*ways, "async stream"):
        assert f"{way}: {words}" in lines
    assert "mine: ActorError []" in lines


def test_a_lost_host_is_replaced_by_the_next_state(client: Client) -> None:
    """Recorded local hosts of which one died are replaced, with the reason in the plan."""
    client.run(
        """
        job = ProcessJob({"trainers": 2})
        job.state()
        keeper = job._held.record.handle["keeper"]["pid"]
        worker = int(open(f"/proc/{keeper}/task/{keeper}/children").read().split()[0])
        os.kill(worker, 9)
        while not job.status().failed_hosts: time.sleep(0.02)
        """
    )
    out = client.run(
        """
        job = ProcessJob({"trainers": 2})
        print(job.plan().render())
        print(len(values(job.state().trainers.spawn("a", Probe).pid.call().get())), "answer")
        job.kill()
        """
    )
    assert "replace" in out
    assert "hosts were lost: trainers/0 (its worker ended: it was ended by SIGKILL)" in out
    assert "2 answer" in out


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs an interpreter without the engine")
def test_a_worker_that_cannot_start_is_reported_at_once(client: Client) -> None:
    """An interpreter without the engine: exit code, reason and advice within 2 s, and nothing is left."""
    out = client.run(
        f"""
        base = {getattr(sys, "_base_executable", sys.executable)!r}
        began = time.monotonic()
        try:
            ProcessJob({{"trainers": 2}}, python_exe=base).state()
        except Exception as error:
            print(type(error).__name__, error)
        print("in time", time.monotonic() - began < 2)
        """
    )
    assert (
        "HostFailedError host trainers/0 did not start: its worker ended: it exited with code 1"
        in out
    )
    assert "pip install torchmonarch" in out
    assert "in time True" in out
    assert not (client.folder / ".milkweed").exists()


def test_a_proc_that_exits_is_reported(client: Client) -> None:
    """A proc that ends by itself is named on the terminal with its exit code."""
    began = time.monotonic()
    out = client.run(
        """
        class Quitter(Actor):
            @endpoint
            def quit(self): os._exit(3)
        job = ProcessJob({"trainers": 1})
        try:
            job.state(cached_path=None).trainers.spawn("q", Quitter).quit.call().get()
        except BaseException as error:
            print("call failed", type(error).__name__)
        """
    )
    assert "a proc of host trainers/0 ended: rank 0: it exited with code 3" in out
    assert "call failed" in out
    assert time.monotonic() - began < 30


def test_bad_input_starts_nothing(client: Client) -> None:
    """Every kind of bad input is a SpecError with nothing started and no file written."""
    client.run(
        """
        from milkweed.errors import SpecError, UnknownBackendError
        for meshes in ({}, {"a": 0}, {"a": -1}, {"a b": 1}, {"a\\nb": 1}, {"a/b": 1}, {"a" * 100: 1},
                       {"class": 1}, {"admin_url": 1}, {"keys": 1}, {"": 1}, {"a": True}, {"a": 1.5}):
            try:
                ProcessJob(meshes).state()
            except SpecError as error:
                print(error)
            else:
                raise SystemExit(f"accepted {meshes}")
        try:
            ProcessJob({"a": 1}).apply(client_script="missing.py")
        except SpecError as error:
            print(error)
        """
    )
    assert not (client.folder / ".milkweed").exists()
    assert not client.home.exists()

"""The programs that are timed, each once for milkweed and once for the engine's own job layer.

Run as `python startup.py WHO WHAT HOSTS`; prints one JSON object. Imports are inside, because they are part
of what is timed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN_S = time.monotonic()


def load(who: str) -> tuple[Any, Any]:
    """The job class and an actor class, as either side's user would import them."""
    if who == "milkweed":
        from milkweed.actor import Actor, endpoint
        from milkweed.job import ProcessJob
    else:
        from monarch.actor import Actor, endpoint
        from monarch.job import ProcessJob

    class Probe(Actor):
        @endpoint
        def pid(self) -> int:
            return os.getpid()

        @endpoint
        def slow(self) -> None:
            time.sleep(300)

    return ProcessJob, Probe


def first_reply(who: str, hosts: int, path: str | None) -> dict[str, float]:
    """From the start of the program, and from asking for hosts, to a reply from all of them."""
    job_class, probe = load(who)
    imported_s = time.monotonic()
    job = job_class({"hosts": hosts})
    state = job.state(cached_path=path)
    replies = list(state.hosts.spawn_procs().spawn("probe", probe).pid.call().get())
    replied_s = time.monotonic()
    if len(replies) != hosts:
        raise SystemExit(f"{len(replies)} replies from {hosts} hosts")
    result = {"program": replied_s - BEGAN_S, "asked": replied_s - imported_s}
    if path is None:
        began_s = time.monotonic()
        job.kill()
        result["kill"] = time.monotonic() - began_s
    return result


def connect(who: str, hosts: int) -> dict[str, float]:
    """Connect to hosts that another program started."""
    return first_reply(who, hosts, "job.state")


def end(who: str) -> dict[str, float]:
    """End the recorded hosts."""
    if who == "milkweed":
        from milkweed.job import job_load
    else:
        from monarch.job import job_load
    job_load("job.state").kill()
    return {}


def lost_host(who: str, hosts: int) -> dict[str, float]:
    """From the death of a host during a call to the call's failure."""
    job_class, probe = load(who)
    job = job_class({"hosts": hosts})
    actors = job.state(cached_path=None).hosts.spawn_procs().spawn("probe", probe)
    list(actors.pid.call().get())
    victim = _worker(who, job)
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)

    threading.Timer(1.0, kill).start()
    try:
        actors.slow.call().get()
    except BaseException:  # noqa: BLE001  the peer raises KeyboardInterrupt
        return {"reported": time.monotonic() - killed[0]}
    raise SystemExit("the call survived its host")


def _worker(who: str, job: Any) -> int:
    if who != "milkweed":
        return next(iter(job._host_to_pid.values())).pid
    keeper = job._held.record.handle["keeper"]["pid"]
    return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])


def bad_worker(who: str, hosts: int) -> dict[str, float]:
    """From asking for hosts to learning that their workers cannot start."""
    job_class, _probe = load(who)
    if who == "milkweed":
        job = job_class({"hosts": hosts}, python_exe=sys._base_executable)
    else:
        broken = Path("broken/monarch/__init__.py").absolute()
        broken.parent.mkdir(parents=True)
        broken.write_text("raise ImportError('the engine is not here')\n")
        job = job_class({"hosts": hosts}, env={"PYTHONPATH": str(broken.parents[1])})
    began_s = time.monotonic()
    try:
        job.state(cached_path=None).hosts.initialized.get()
    except BaseException:  # noqa: BLE001  each side has its own
        return {"reported": time.monotonic() - began_s}
    raise SystemExit("the workers started")


PROGRAMS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "start": lambda who, hosts: first_reply(who, hosts, None),
    "connect": connect,
    "end": lambda who, _hosts: end(who),
    "lost": lost_host,
    "bad": bad_worker,
}

if __name__ == "__main__":
    print("RESULT " + json.dumps(PROGRAMS[sys.argv[2]](sys.argv[1], int(sys.argv[3]))), flush=True)
    os._exit(0) if sys.argv[2] in {"lost", "bad"} else None

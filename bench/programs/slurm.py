"""The programs that are timed on a Slurm cluster, each once for milkweed and once for the engine's own job layer.

Run on the login node as `python slurm.py WHO WHAT COUNT`; moments are of the clock that all programs of a
machine share. Imports are inside, because they are part of what is timed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BEGAN_S = time.monotonic()
STATE = "job.state"
CALL_LIMIT_S = 90.0
"""How long a call to hosts that are gone is waited for."""
FOREVER_S = 3600.0


def make_meshes(hosts: int) -> dict[str, int]:
    """The reference example for three hosts, one mesh for any other number."""
    return {"trainers": 2, "dataloaders": 1} if hosts == 3 else {"hosts": hosts}


def load_job(who: str, meshes: dict[str, int], **options: Any) -> Any:
    """A declared job; the peer is told which Python to start, and milkweed knows."""
    if who == "milkweed":
        from milkweed.job import SlurmJob

        return SlurmJob(meshes, **options)
    from monarch.job import SlurmJob

    return SlurmJob(meshes, python_exe=sys.executable, **options)


def load_probe(who: str) -> Any:
    """An actor class, as either side's user would import it."""
    if who == "milkweed":
        from milkweed.actor import Actor, endpoint
    else:
        from monarch.actor import Actor, endpoint

    class Probe(Actor):
        @endpoint
        def pid(self) -> int:
            return os.getpid()

        @endpoint
        def slow(self) -> None:
            time.sleep(FOREVER_S)

    return Probe


def spawn(who: str, hosts: int) -> tuple[float, list[Any]]:
    """When hosts were asked for, and an actor on each of them, which has replied."""
    meshes = make_meshes(hosts)
    probe, job = load_probe(who), load_job(who, meshes)
    asked_s = time.monotonic()
    state = job.state(cached_path=STATE)
    actors = [getattr(state, mesh).spawn_procs().spawn("probe", probe) for mesh in meshes]
    calls = [each.pid.call() for each in actors]
    count = sum(len(list(call.get())) for call in calls)
    if count != hosts:
        raise SystemExit(f"{count} replies from {hosts} hosts")
    return asked_s, actors


def first_reply(who: str, hosts: int) -> None:
    """From the start of the program, and from asking for hosts, to a reply from all of them; they stay."""
    asked_s, _actors = spawn(who, hosts)
    replied_s = time.monotonic()
    report({"program": replied_s - BEGAN_S, "asked": replied_s - asked_s})


def call(who: str, hosts: int) -> None:
    """When a call failed; something befalls its hosts meanwhile."""
    _asked_s, actors = spawn(who, hosts)
    limit = threading.Timer(CALL_LIMIT_S, give_up)
    limit.daemon = True
    calls = [each.slow.call() for each in actors]
    print("CALLING", flush=True)
    limit.start()
    try:
        calls[0].get()
    except BaseException:  # noqa: BLE001  the peer raises KeyboardInterrupt
        give_up()
    raise SystemExit("the call survived its hosts")


def give_up() -> None:
    """Say when, and end at once: the hosts are gone."""
    report({"failed_at": time.monotonic()})
    os._exit(0)


def pend(who: str, jobs: int) -> None:
    """Wait with some jobs for a partition that is down, each with a thread and a record of its own."""
    for number in range(jobs):
        job = load_job(who, {"hosts": 1}, partition="down", job_name=f"pending{number}")
        wait = threading.Thread(target=job.state, args=(f"{number}.state",), daemon=True)
        wait.start()
    time.sleep(FOREVER_S)


def report(result: dict[str, float]) -> None:
    """One line for the one who measures."""
    print("RESULT " + json.dumps(result), flush=True)


PROGRAMS: dict[str, Callable[[str, int], None]] = {
    "start": first_reply,
    "connect": first_reply,
    "call": call,
    "pend": pend,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[2]](sys.argv[1], int(sys.argv[3]))

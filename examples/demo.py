"""Two meshes of local hosts, actors on each, and a reply from every one of them.

    python examples/demo.py

Estimates π: `samplers` throw darts, the one `judge` adds up. Change `ProcessJob` to run it elsewhere.
"""

from __future__ import annotations

import os
import random
import time

from milkweed.actor import Actor, endpoint
from milkweed.job import ProcessJob


class Sampler(Actor):
    """Throws darts at a square and counts those inside the circle."""

    @endpoint
    def throw(self, darts: int) -> tuple[int, int]:
        """Throw, and say so: what an actor prints appears on your terminal."""
        inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(darts))
        print(f"process {os.getpid()}: {inside} of {darts} darts inside")
        return inside, darts


class Judge(Actor):
    """Adds up."""

    @endpoint
    def estimate(self, throws: list[tuple[int, int]]) -> float:
        """The share inside, times four, is about π."""
        return 4 * sum(inside for inside, _ in throws) / sum(darts for _, darts in throws)


def main() -> None:
    """Declare, connect, run, end."""
    began_s = time.monotonic()
    with ProcessJob({"samplers": 3, "judge": 1}, name="demo") as job:
        print(job.plan(cached_path=None).render())
        state = job.state(cached_path=None)
        samplers = state.samplers.spawn("sampler", Sampler)
        throws = [throw for _, throw in samplers.throw.call(300_000).get()]
        judge = state.judge.spawn("judge", Judge)
        (estimate,) = [value for _, value in judge.estimate.call(throws).get()]
        print(f"π is about {estimate:.4f}, from {len(throws)} hosts", end=" ")
        print(f"in {time.monotonic() - began_s:.1f} s, hosts started and all")
    print("the hosts have ended:", job.active is False)


if __name__ == "__main__":
    main()

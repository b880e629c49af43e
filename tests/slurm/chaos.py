"""Random faults on a real cluster: what is done, by whom, and what Slurm itself says of it.

Everything random comes from one generator, so a seed gives the same steps; when they hit is up to the machine.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from milkweed.backends.slurm.text import Mark, parse_mark
from programs import PREAMBLE
from slurm.deeds import BY_CANCEL, BY_CRASH, BY_RESIZE, Declared, Deed, Program, Tracked
from slurm.lab import SEPARATOR, Lab, expand

MOST_PROGRAMS, MOST_BROKEN_NODES = 4, 2
PROGRAM_LIMIT_S = 240.0
"""Longer than every time-out of milkweed and the engine together: who is not done by then hangs."""
SIGNAL_LIMIT_S = 90.0
HELD_BACK = frozenset({"BeginTime", "JobHeldUser", "launch failed requeued held"})
REST_S = 3.0
"""A job that starts in the second in which it was requeued is killed by Slurm: «credential revoked»."""
NODES = range(1, 5)
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
WORDS = {"RUNNING": "running", "PENDING": "pending", "COMPLETING": "unknown"}

USE = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1)
until = time.monotonic() + {life_s}
job = SlurmJob(meshes={{"w": {size}}}, job_name={name!r}, exclusive=False, log_dir={log_dir!r},
               idle_timeout_s=3600, job_start_timeout=60, on_change={on_change!r})
seen = actors = None
while True:
    state = job.state({path!r})
    if state is not seen:
        print("allocation", job.apply_id, flush=True)
        seen, actors = state, state.w.spawn_procs().spawn("p", Probe)
    print("pids", len(values(actors.pid.call().get())), flush=True)
    print("status", job.status().describe(), flush=True)
    if time.monotonic() > until:
        break
    time.sleep(0.5)
print("done", flush=True)
"""
RESIZE = "job = job_load({path!r})\njob.resize('w', {size})\nprint(job.status().describe())\n"
KILL = "job_load({path!r}).kill()\n"


class Row(NamedTuple):
    """One Slurm job of ours, alive or not."""

    id: int
    state: str
    reason: str
    nodes: tuple[str, ...]
    mark: Mark | None

    @property
    def word(self) -> str:
        """What milkweed should call it: `unknown` while Slurm ends its processes."""
        return WORDS.get(self.state, "ended")


@dataclass
class World:
    """The cluster, the jobs on it, who did what, and what was seen to be wrong."""

    lab: Lab
    random: random.Random
    jobs: list[Declared]
    logs: Path
    env: dict[str, str]
    programs: list[Program] = field(default_factory=list)
    started: int = 0
    deeds: list[Deed] = field(default_factory=list)
    tracked: dict[int, Tracked] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    closed: bool = False  # the queue lets nobody in
    hit: set[int] = field(default_factory=set)
    """Nodes on which something was ended the hard way."""
    held_back: dict[int, float] = field(default_factory=dict)
    """Since when Slurm lets jobs wait after a requeue."""
    worst_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    @property
    def away(self) -> bool:
        """Whether there is no controller."""
        return self.lab._stopped

    @property
    def broken(self) -> list[int]:
        """The nodes that are down or out of reach."""
        return sorted(self.lab._down | self.lab._cut)

    def count(self, table: str, what: str) -> None:
        """Count something for the summary."""
        self.counts.setdefault(table, Counter())[what] += 1

    def say(self, text: str) -> None:
        """Tell what happens, with its time."""
        print(f"{time.monotonic() - self.began_s:7.2f} {text}", flush=True)  # noqa: T201

    def blame(self, text: str) -> None:
        """Something is wrong; the test goes on, and fails in the end."""
        self.say(f"WRONG {text}")
        self.wrong.append(f"at {time.monotonic() - self.began_s:.1f} s: {text}")

    def rows(self) -> list[Row]:
        """Every job that Slurm knows, also those that ended lately."""
        form = SEPARATOR.join(("%A", "%T", "%N", "%r", "%k"))
        deadline_s = time.monotonic() + 30
        while True:
            done = self.lab.run("squeue", "-h", "-a", "-t", "all", "-o", form, check=False)
            if done.returncode == 0 and "error" not in done.stderr:
                break
            assert time.monotonic() < deadline_s, f"squeue: {done.stderr}"
            time.sleep(0.2)
        found = (line.split(SEPARATOR) for line in done.stdout.splitlines())
        return [Row(int(i), s, r, expand(nodes), parse_mark(c)) for i, s, nodes, r, c in found]

    def start(
        self, job: Declared, kind: str, code: str, life_s: float = 0, on_change: str | None = None
    ) -> Program:
        """Start a program in a job's folder."""
        self.started += 1
        script = self.logs / f"{self.started:03}-{kind}-{job.name}.py"
        values = {**vars(job), "life_s": life_s, "on_change": on_change}
        script.write_text(PREAMBLE + code.format(**values))
        log = script.with_suffix(".log")
        with log.open("wb") as out:
            argv = [sys.executable, str(script)]
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(argv, cwd=job.folder, env=self.env, **files)
        program = Program(kind, job.name, process, log, time.monotonic() + PROGRAM_LIMIT_S)
        self.programs.append(program)
        if kind != "kill" and job.differs:
            self.deeds.append(Deed("resize", BY_RESIZE, job=job.name, programs=[program]))
        self.say(f"start {script.stem} with {job.size} hosts")
        return program

    def running(self, job: str = "") -> list[Program]:
        """The programs that run, of all jobs or of one."""
        return [p for p in self.programs if p.alive and job in {"", p.job}]

    def hurry(self) -> None:
        """Slurm holds jobs back for two minutes after a requeue, or for good: spare the test that."""
        now_s = time.monotonic()
        held = [row.id for row in self.rows() if row.reason in HELD_BACK and row.word == "pending"]
        self.held_back = {number: self.held_back.get(number, now_s) for number in held}
        for number, since_s in self.held_back.items():
            for words in (("update", f"jobid={number}", "starttime=now"), ("release", str(number))):
                if now_s - since_s > REST_S:
                    self.lab.run("scontrol", *words, check=False)
        if not self.broken:
            self.lab._resume_nodes()


# Steps: each returns whether it could be done now.
def use(world: World, kind: str) -> bool:
    """A program asks for a job or connects to it, and makes calls; a `brief` one is ended while it starts."""
    if len(world.running()) >= MOST_PROGRAMS:
        return False
    chance, job = world.random, world.random.choice(world.jobs)
    if kind == "unrecorded":
        job = Declared(f"u{world.started}", job.folder, None, chance.choice((1, 2)))
        world.deeds.append(Deed("owner", BY_CANCEL | BY_CRASH, job=job.name))
    on_change = "replace" if kind == "replacer" else None
    program = world.start(job, kind, USE, life_s=chance.uniform(0, 12), on_change=on_change)
    if kind == "replacer":
        world.deeds.append(Deed("replace", BY_CANCEL, job=job.name, programs=[program]))
    if kind == "brief":
        time.sleep(chance.uniform(0.1, 3.0))
        interrupt(world, [program])
    return True


def meddle(world: World, kind: str, code: str) -> bool:
    """Another program ends a job, or changes its size while others may want the old one."""
    job = world.random.choice(world.jobs)
    job.size = 3 - job.size if kind == "resize" else job.size
    program = world.start(job, kind, code)
    programs = world.running(job.name) if kind == "resize" else [program]
    ends_as = BY_RESIZE if kind == "resize" else BY_CANCEL
    world.deeds.append(Deed(kind, ends_as, job=job.name, programs=programs))
    return True


def interrupt(world: World, programs: Sequence[Program] = ()) -> bool:
    """A program gets a signal: one of these, or of all."""
    chosen = programs or [program for program in world.running() if not program.signalled]
    if chosen:
        program, number = world.random.choice(chosen), world.random.choice(SIGNALS)
        world.say(f"{number.name} to {program.log.stem}")
        program.signalled.append(number)
        program.limit_s = min(program.limit_s, time.monotonic() + SIGNAL_LIMIT_S)
        program.process.send_signal(number)
    return bool(chosen)


def administer(world: World, kind: str, *command: str) -> bool:
    """An administrator cancels a job, or puts one that runs back into the queue."""
    words = {"running"} | ({"pending"} if kind == "admin" else set())
    ends_as = BY_CANCEL if kind == "admin" else frozenset[str]()
    rows = [] if world.away else [row for row in world.rows() if row.word in words]
    if rows:
        row = world.random.choice(rows)
        world.deeds.append(Deed(kind, ends_as, id=row.id, until_s=time.monotonic()))
        world.lab.run(*command, str(row.id), check=False)
        world.say(f"{' '.join(command)} {row.id} ({row.mark.name if row.mark else '?'})")
    return bool(rows)


def break_node(world: World) -> bool:
    """A node dies, loses power, or its cable is cut."""
    if len(world.broken) >= MOST_BROKEN_NODES:
        return False
    i = world.random.choice([i for i in NODES if i not in world.broken])
    how = world.random.choice(("kill", "poweroff", "cut", "cut"))
    world.say(f"{how} n{i}")
    world.deeds.append(Deed("node", BY_CRASH, node=f"n{i}"))
    getattr(world.lab, f"{how}_node")(i)
    world.hit.add(i)
    return True


def mend_node(world: World) -> bool:
    """A node comes back."""
    if not world.broken:
        return False
    i = world.random.choice(world.broken)
    world.say(f"mend n{i}")
    world.lab.start_node(i) if i in world.lab._down else world.lab.mend_node(i)
    for deed in world.deeds:
        if deed.node == f"n{i}" and deed.until_s is None:
            deed.until_s = time.monotonic()
    return True


def kill_keeper(world: World) -> bool:
    """The parent of a host is ended by SIGKILL: a child of Slurm's step on a node."""
    i = world.random.choice([i for i in NODES if i not in world.lab._down])
    listed = world.lab.on_node(i, "ps", "-eo", "pid=,ppid=,comm=", check=False).stdout
    found = [line.split(None, 2) for line in listed.splitlines()]
    steps = {words[0] for words in found if words[2] == "slurmstepd"}
    keepers = [words[0] for words in found if words[1] in steps and "python" in words[2]]
    if keepers:
        victim = world.random.choice(keepers)
        world.say(f"kill the keeper {victim} on n{i}")
        world.deeds.append(Deed("keeper", BY_CRASH, node=f"n{i}", until_s=time.monotonic()))
        world.hit.add(i)
        world.lab.on_node(i, "kill", "-KILL", victim, check=False)
    return bool(keepers)


def stop_controller(world: World) -> bool:
    """The controller goes away for some steps, or is only restarted."""
    if world.away:
        return False
    world.say("the controller stops")
    insist(world.lab.stop_controller)
    return world.random.random() < 0.5 or start_controller(world)


def start_controller(world: World) -> bool:
    """The controller comes back."""
    if was_away := world.away:
        world.say("the controller starts")
        world.lab.start_controller()
    return was_away


def insist(act: Callable[[], None]) -> None:
    """Try again: the script that looks for the controller is cut off by its own pipe now and then."""
    for _ in range(4):
        with contextlib.suppress(AssertionError):
            return act()
    return act()


def turn_queue(world: World) -> bool:
    """Jobs that are asked for from now on wait, or may start again."""
    if not world.away:
        world.closed = not world.closed
        state = f"state={'down' if world.closed else 'up'}"
        world.say(f"the queue has {state}")
        world.lab.run("scontrol", "update", "partitionname=debug", state)
    return not world.away


STEPS: list[tuple[int, str, Callable[[World], bool]]] = [
    (9, "client", lambda world: use(world, "client")),
    (4, "replacer", lambda world: use(world, "replacer")),
    (4, "brief", lambda world: use(world, "brief")),
    (2, "unrecorded", lambda world: use(world, "unrecorded")),
    (2, "kill", lambda world: meddle(world, "kill", KILL)),
    (2, "resize", lambda world: meddle(world, "resize", RESIZE)),
    (4, "signal", interrupt),
    (2, "cancel", lambda world: administer(world, "admin", "scancel")),
    (2, "requeue", lambda world: administer(world, "requeue", "scontrol", "requeue")),
    (2, "break a node", break_node),
    (4, "mend a node", mend_node),
    (2, "kill a keeper", kill_keeper),
    (2, "stop the controller", stop_controller),
    (6, "start the controller", start_controller),
    (2, "turn the queue", turn_queue),
    (4, "wait", lambda world: not time.sleep(world.random.uniform(0.2, 2.0))),
]

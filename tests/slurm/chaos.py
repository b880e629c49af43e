"""Random faults on a real cluster: what is done, by whom, and what Slurm itself says of it.

Everything random comes from one generator, so a seed gives the same steps; when they hit is up to the machine.
"""

from __future__ import annotations

import contextlib
import json
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
from slurm.lab import SEPARATOR, Lab, expand

MOST_PROGRAMS = 4
MOST_BROKEN_NODES = 2
PROGRAM_LIMIT_S = 240.0
"""Longer than every time-out of milkweed and the engine together: who is not done by then hangs."""
SIGNAL_LIMIT_S = 90.0
WAITS = frozenset({"BeginTime", "JobHeldUser", "launch failed requeued held"})
REST_S = 3.0
"""A job that starts in the second in which it was requeued is killed by Slurm: «credential revoked»."""
SLACK_S = 40.0
"""How long after a deed its consequences may show: Slurm notices nodes late."""
NODES = range(1, 5)
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)

DECLARE = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1)
until = time.monotonic() + {life_s}
job = SlurmJob(meshes={{"w": {size}}}, job_name={name!r}, exclusive=False, log_dir={log_dir!r},
               idle_timeout_s=3600, job_start_timeout=60, on_change={on_change!r})
"""
CLIENT = """
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
RESIZE = """
job = job_load({path!r})
job.resize("w", {size})
print("resized", job.status().describe(), flush=True)
"""
KILL = """
job_load({path!r}).kill()
"""


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
        if self.state in {"RUNNING", "RESIZING", "SUSPENDED", "STOPPED", "SIGNALING"}:
            return "running"
        if self.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}:
            return "pending"
        return "unknown" if self.state in {"COMPLETING", "STAGE_OUT"} else "ended"


def word_of(rows: Sequence[Row], apply_id: str) -> str:
    """What an allocation is, with all its jobs."""
    words = {row.word for row in rows if row.mark and row.mark.apply_id == apply_id}
    return next((word for word in ("running", "pending", "unknown") if word in words), "ended")


@dataclass
class Declared:
    """One job of the test: a folder with a state file, and how many hosts it wants now."""

    name: str
    folder: Path
    path: str
    log_dir: str | None
    size: int

    @property
    def file(self) -> Path:
        """Its state file."""
        return self.folder / self.path

    def recorded_id(self) -> str | None:
        """The allocation that its state file records."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.file.read_bytes())["apply_id"]
        return None


@dataclass
class Program:
    """A client program that was started; what it prints goes to a file."""

    kind: str
    job: str
    size: int
    process: subprocess.Popen[bytes]
    log: Path
    limit_s: float
    signalled: list[signal.Signals] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; from now on it may take a while to end, and not longer."""
        self.signalled.append(number)
        self.limit_s = min(self.limit_s, time.monotonic() + SIGNAL_LIMIT_S)
        self.process.send_signal(number)


@dataclass
class Deed:
    """Something that may end Slurm jobs: of a name, with a number, or on a node."""

    kind: str
    ends_as: frozenset[str]
    since_s: float
    job: str = ""
    id: int = 0
    node: str = ""
    programs: Sequence[Program] = ()
    until_s: float | None = None
    """When it was over; None: with its programs, or never."""

    def explains(self, tracked: Tracked) -> bool:
        """Whether it can be the cause of what happened to a job."""
        hit = tracked.id == self.id or tracked.job == self.job or self.node in tracked.nodes
        if self.until_s is None and self.programs and not any(p.alive for p in self.programs):
            self.until_s = time.monotonic()
        return hit and (self.until_s is None or self.until_s + SLACK_S >= tracked.alive_s)


@dataclass
class Tracked:
    """A Slurm job from its first sight to its end."""

    id: int
    apply_id: str
    job: str
    alive_s: float
    nodes: set[str] = field(default_factory=set)
    ended: str = ""


BY_CANCEL = frozenset({"CANCELLED"})
BY_CRASH = frozenset({"FAILED", "COMPLETED", "NODE_FAIL", "BOOT_FAIL"})
NEVER: frozenset[str] = frozenset()
HARM = frozenset({"node", "keeper", "admin", "requeue", "slurm"})
"""What may cost an allocation hosts, so that a client may replace it."""


@dataclass
class World:
    """The cluster, the jobs on it, who did what, and what was seen to be wrong."""

    lab: Lab
    random: random.Random
    jobs: list[Declared]
    logs: Path
    env: dict[str, str]
    programs: list[Program] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    tracked: dict[int, Tracked] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    away: bool = False
    closed: bool = False
    down: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    hit: set[int] = field(default_factory=set)
    """Nodes on which something was ended the hard way."""
    waits: dict[int, float] = field(default_factory=dict)
    """Since when jobs are held back."""
    began_s: float = field(default_factory=time.monotonic)
    started: int = 0
    worst_s: float = 0.0

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

    # Slurm's own word

    def rows(self) -> list[Row]:
        """Every job that Slurm knows, also those that ended lately."""
        form = SEPARATOR.join(("%A", "%T", "%N", "%r", "%k"))
        deadline_s = time.monotonic() + 30
        while True:
            done = self.lab.run("squeue", "-h", "-a", "-t", "all", "-o", form, check=False)
            if done.returncode == 0 and "error" not in done.stderr:
                return [_read_row(line) for line in done.stdout.splitlines()]
            assert time.monotonic() < deadline_s, f"squeue: {done.stderr}"
            time.sleep(0.2)

    def alive(self) -> list[Row]:
        """The jobs that live."""
        return [row for row in self.rows() if row.word in {"running", "pending"}]

    # Programs

    def start(self, job: Declared, kind: str, code: str, **said: object) -> Program:
        """Start a program in a job's folder."""
        self.started += 1
        values = {"path": job.path, "size": job.size, "name": job.name, "log_dir": job.log_dir}
        values |= {"on_change": None, "life_s": 0, **said}
        script = self.logs / f"{self.started:03}-{kind}-{job.name}.py"
        script.write_text(PREAMBLE + code.format(**values))
        log = script.with_suffix(".log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(script)],
                cwd=job.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        limit_s = time.monotonic() + PROGRAM_LIMIT_S
        program = Program(kind, str(values["name"]), job.size, process, log, limit_s)
        self.programs.append(program)
        self.say(f"start {script.stem} size {job.size} pid {process.pid}")
        return program

    def running(self, job: str = "") -> list[Program]:
        """The programs that run, of all jobs or of one."""
        return [p for p in self.programs if p.alive and job in {"", p.job}]

    def do(self, kind: str, ends_as: frozenset[str], **what: object) -> Deed:
        """Remember something that may end jobs."""
        deed = Deed(kind, ends_as, time.monotonic(), **what)  # type: ignore[arg-type]
        self.deeds.append(deed)
        return deed

    # Healing

    def hurry(self) -> None:
        """Slurm holds jobs back for two minutes after a requeue, or for good: spare the test that."""
        now_s = time.monotonic()
        waiting = {row.id: row for row in self.rows() if row.reason in WAITS}
        self.waits = {number: self.waits.get(number, now_s) for number in waiting}
        for number, since_s in self.waits.items():
            if now_s - since_s > REST_S:
                self._scontrol("update", f"jobid={number}", "starttime=now")
                self._scontrol("release", str(number))
        for name, state in self.lab.node_states().items():
            if state in {"drain", "down", "fail"} and int(name[1:]) not in self.down | self.cut:
                self._scontrol("update", f"nodename={name}", "state=resume")

    def _scontrol(self, *words: str) -> None:
        self.lab.run("scontrol", *words, check=False)

    def mend(self, i: int) -> None:
        """Bring a node back."""
        self.say(f"mend n{i}")
        self.lab.start_node(i) if i in self.down else self.lab.mend_node(i)
        self.down.discard(i)
        self.cut.discard(i)
        for deed in self.deeds:
            if deed.node == f"n{i}" and deed.kind == "node" and deed.until_s is None:
                deed.until_s = time.monotonic()

    def heal(self) -> None:
        """Undo every fault, and leave all jobs as they are."""
        if self.away:
            self.lab.start_controller()
            self.away = False
        if self.closed:
            turn_queue(self)
        for i in sorted(self.down | self.cut):
            self.mend(i)


def _read_row(line: str) -> Row:
    number, state, nodes, reason, comment = line.split(SEPARATOR)
    return Row(int(number), state, reason, expand(nodes), parse_mark(comment))


# Steps: each returns whether it could be done now.


def use(world: World, kind: str) -> bool:
    """A program connects to a job, asking for it if need be, and makes calls for a while.

    A `replacer` may replace what has lost hosts, a `brief` one is ended while it starts, and the hosts of an
    `unrecorded` one end with it.
    """
    if len(world.running()) >= MOST_PROGRAMS:
        return False
    chance, job, code = world.random, world.random.choice(world.jobs), DECLARE + CLIENT
    if kind == "unrecorded":
        job = Declared(f"u{world.started}", job.folder, "", None, chance.choice((1, 2)))
        code = code.replace("{path!r}", "None")
    on_change = "replace" if kind == "replacer" else None
    program = world.start(job, kind, code, life_s=chance.uniform(0, 12), on_change=on_change)
    if kind == "replacer":
        world.do("replace", BY_CANCEL, job=job.name, programs=[program])
    elif kind == "unrecorded":
        world.do("owner", BY_CANCEL | BY_CRASH, job=job.name)
    elif kind == "brief":
        time.sleep(chance.uniform(0.1, 3.0))
        send_signal(world, program)
    return True


def end(world: World) -> bool:
    """Another program ends a job."""
    job = world.random.choice(world.jobs)
    program = world.start(job, "kill", KILL)
    world.do("kill", BY_CANCEL, job=job.name, programs=[program])
    return True


def resize(world: World) -> bool:
    """Another program changes the size of a job, while others may want the old one."""
    job = world.random.choice(world.jobs)
    job.size = 3 - job.size
    world.start(job, "resize", RESIZE)
    world.do("resize", BY_CANCEL, job=job.name, programs=world.running(job.name))
    return True


def interrupt(world: World) -> bool:
    """A program gets a signal."""
    running = [program for program in world.running() if not program.signalled]
    if running:
        send_signal(world, world.random.choice(running))
    return bool(running)


def send_signal(world: World, program: Program) -> None:
    """Choose a signal, and send it."""
    number = world.random.choice(SIGNALS)
    world.say(f"{number.name} to {program.log.stem}")
    program.signal(number)


def tell_slurm(world: World, kind: str, ends_as: frozenset[str], *command: str) -> bool:
    """An administrator cancels a job, or puts one that runs back into the queue."""
    if world.away:
        return False
    rows = [row for row in world.alive() if row.word == "running" or kind == "admin"]
    if rows:
        row = world.random.choice(rows)
        world.do(kind, ends_as, id=row.id).until_s = time.monotonic()
        world.lab.run(*command, str(row.id), check=False)
        world.say(f"{' '.join(command)} {row.id} ({row.mark.name if row.mark else '?'})")
    return bool(rows)


def break_node(world: World) -> bool:
    """A node dies, loses power, or its cable is cut."""
    if len(world.down | world.cut) >= MOST_BROKEN_NODES:
        return False
    i = world.random.choice([i for i in NODES if i not in world.down | world.cut])
    how = world.random.choice(("kill", "poweroff", "cut", "cut"))
    world.say(f"{how} n{i}")
    world.do("node", BY_CRASH, node=f"n{i}")
    getattr(world.lab, f"{how}_node")(i)
    (world.cut if how == "cut" else world.down).add(i)
    world.hit.add(i)
    return True


def mend_node(world: World) -> bool:
    """A node comes back."""
    broken = sorted(world.down | world.cut)
    if broken:
        world.mend(world.random.choice(broken))
    return bool(broken)


def kill_keeper(world: World) -> bool:
    """The parent of a host is ended by SIGKILL."""
    i = world.random.choice([i for i in NODES if i not in world.down])
    keepers = keepers_on(world.lab, i)
    if keepers:
        victim = world.random.choice(keepers)
        world.say(f"kill the keeper {victim} on n{i}")
        world.do("keeper", BY_CRASH, node=f"n{i}").until_s = time.monotonic()
        world.hit.add(i)
        world.lab.on_node(i, "kill", "-KILL", str(victim), check=False)
    return bool(keepers)


def keepers_on(lab: Lab, i: int) -> list[int]:
    """The keepers on a node: children of Slurm's step."""
    lines = lab.on_node(i, "ps", "-eo", "pid,ppid,comm,args", check=False).stdout.splitlines()
    found = [line.split(None, 3) for line in lines]
    steps = {words[0] for words in found if "slurmstepd" in words[2]}
    return [int(w[0]) for w in found if w[1] in steps and "milkweed.worker" in w[-1]]


def lose_controller(world: World) -> bool:
    """The controller goes away for some steps, or is only restarted."""
    if world.away:
        return False
    world.say("the controller stops")
    insist(world.lab.stop_controller)
    time.sleep(0.3)  # what was read before is a fifth of a second old at most
    world.away = True
    return world.random.random() < 0.5 or start_controller(world)


def start_controller(world: World) -> bool:
    """The controller comes back."""
    if world.away:
        world.say("the controller starts")
        world.lab.start_controller()
        world.away = False
        return True
    return False


def insist(act: Callable[[], None]) -> None:
    """Try again: the script that looks for the controller is cut off by its own pipe now and then."""
    for _ in range(4):
        try:
            return act()
        except AssertionError as error:
            if "exit 141" not in str(error):
                raise
    return act()


def turn_queue(world: World) -> bool:
    """Jobs that are asked for from now on wait, or may start again."""
    if not world.away:
        world.closed = not world.closed
        word = "down" if world.closed else "up"
        world.lab.run("scontrol", "update", "partitionname=debug", f"state={word}")
        world.say(f"the queue is {word}")
    return not world.away


def wait(world: World) -> bool:
    """Nothing, for a moment."""
    time.sleep(world.random.uniform(0.2, 2.0))
    return True


Step = Callable[[World], bool]
STEPS: list[tuple[int, str, Step]] = [
    (9, "client", lambda world: use(world, "client")),
    (4, "replacer", lambda world: use(world, "replacer")),
    (4, "brief", lambda world: use(world, "brief")),
    (2, "unrecorded", lambda world: use(world, "unrecorded")),
    (2, "kill", end),
    (2, "resize", resize),
    (4, "signal", interrupt),
    (2, "cancel", lambda world: tell_slurm(world, "admin", BY_CANCEL, "scancel")),
    (2, "requeue", lambda world: tell_slurm(world, "requeue", NEVER, "scontrol", "requeue")),
    (2, "break a node", break_node),
    (4, "mend a node", mend_node),
    (2, "kill a keeper", kill_keeper),
    (2, "lose the controller", lose_controller),
    (6, "start the controller", start_controller),
    (2, "turn the queue", turn_queue),
    (4, "wait", wait),
]
"""How often each is chosen, what it is called, and what it does."""

"""Random faults, and after each of them: nothing lost, nothing leaked, no wrong word, nobody hangs."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.errors import MilkweedError
from milkweed.job import SlurmJob, job_load
from programs import Client
from slurm import chaos
from slurm.chaos import WORDS, World
from slurm.deeds import BY_CANCEL, HARM, Declared, Deed, Program, Tracked
from slurm.lab import Lab

DURATION_S = float(os.environ.get("MILKWEED_CHAOS_S", "60"))
SEED = int(os.environ.get("MILKWEED_CHAOS_SEED", "0")) or random.randrange(1, 1_000_000)
AGREE_S = 15.0
"""How long milkweed and Slurm may differ while things change."""
READ_LIMIT_S = 90.0
READS_SHARE = 0.3
SETTLE_S = 180.0
"""How long Slurm may take to end what ran on nodes that were lost."""
LEAK_S = 30.0
NODES_OWN = frozenset({"tini", "slurmd", "ps"})
_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)


# 1. Nothing leaked


def check_leaks(world: World) -> None:
    """Every live job is on somebody's list, and no state file has two."""
    if any("leaked" in text for text in world.wrong):
        return  # said once; what is left in the end is looked for anyway
    deadline_s = time.monotonic() + LEAK_S
    while True:
        known = recorded(world)
        rows = [row for row in world.rows() if row.word in {"running", "pending"}]
        known |= recorded(world)
        strange = [row for row in rows if row.mark is None or row.mark.apply_id not in known]
        ids = {(row.mark.name, row.mark.apply_id) for row in rows if row.mark}
        names = [name for name, _ in ids]
        twice = [row for row in rows if row.mark and names.count(row.mark.name) > 1]
        if not strange and not twice:
            return
        if time.monotonic() > deadline_s:
            told = told_by({row.mark.name for row in strange + twice if row.mark}, world.logs)
            world.blame(f"leaked: listed by nobody {strange}, two of one name {twice}\n{told}")
            return
        time.sleep(1)


def told_by(names: set[str], logs: Path) -> str:
    """The ends of what the programs of some jobs have printed."""
    found = [(path, name) for name in names for path in sorted(logs.glob(f"*-{name}.log"))]
    return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path, _name in found)


def recorded(world: World) -> set[str]:
    """The allocations that are in a state file or in the registry."""
    ids = {entry.apply_id for entry in registry.load_entries()}
    return ids | {job.apply_id for job in world.jobs}


# 2. Nothing lost


def check_losses(world: World) -> None:
    """A job that has ended was ended by somebody."""
    rows = {row.id: row for row in world.rows()}
    for row in rows.values():
        if row.word != "ended" and row.mark:
            if (tracked := world.tracked.get(row.id)) is None:
                world.count("allocations", "made" if row.mark.component == 0 else "grown")
                tracked = world.tracked[row.id] = Tracked(row.id, row.mark.name, time.monotonic())
            if row.word != "unknown":  # what was ended is COMPLETING for as long as a node is away
                tracked.alive_s = time.monotonic()
            tracked.nodes |= set(row.nodes)
    for tracked in world.tracked.values():
        row = rows.get(tracked.id)
        if not tracked.ended and (row is None or row.word == "ended"):
            tracked.ended = row.state if row else "GONE"
            check_end(world, tracked)


def check_end(world: World, tracked: Tracked) -> None:
    """Find who ended a job; a client replaces one only when it was harmed before."""
    deeds = [deed for deed in world.deeds if deed.explains(tracked)]
    harmed = any(deed.kind in HARM for deed in deeds)
    kinds = [
        deed.kind
        for deed in deeds
        if tracked.ended in deed.ends_as | {"GONE"} and (deed.kind != "replace" or harmed)
    ]
    if not kinds and tracked.ended == "NODE_FAIL":
        kinds = ["slurm"]  # on a slow machine nodes seem to be dead that are not
        world.deeds.append(Deed("slurm", id=tracked.id))
    kind = kinds[-1] if kinds else "nobody"
    world.say(f"job {tracked.id} ({tracked.job}) is {tracked.ended}, by {kind}")
    world.count("allocations", f"ended by {kind}")
    if not kinds:
        shown = world.lab.run("scontrol", "show", "job", str(tracked.id), check=False).stdout
        world.blame(f"lost: {tracked} was ended by nobody; deeds {deeds}\n{shown}")


# 3. No wrong status


def check_statuses(world: World) -> None:
    """What milkweed says is what Slurm says; when Slurm says nothing, it is unknown."""
    if not world.away:
        for job in world.jobs:
            check_status(world, job)
        return
    job = world.random.choice(world.jobs)  # one: it takes seconds to see that nobody answers
    time.sleep(0.3)  # what was read before is a fifth of a second old at most
    world.count("status", "asked while nobody answers")
    if (word := ask(world, job)) not in {"unknown", ""}:
        world.blame(f"status: {job.name} is {word} while the controller is away")


def check_status(world: World, job: Declared) -> None:
    """Ask both until they agree."""
    began_s = time.monotonic()
    world.count("status", "checked")
    while True:
        apply_id = job.apply_id
        before = word_of(world, apply_id)
        word = ask(world, job)
        after = word_of(world, apply_id)
        took_s = time.monotonic() - began_s
        if word == "" or job.apply_id != apply_id or word in {before, after}:
            world.count("status", "agreed")
            world.worst_s = max(world.worst_s, took_s)
            return
        if word == "ended" or took_s > AGREE_S:
            world.blame(f"status: {job.name} is {word}, and Slurm says {before}, then {after}")
            return


def word_of(world: World, apply_id: str) -> str:
    """What Slurm says of an allocation, with all its jobs."""
    marked = [row for row in world.rows() if row.mark and row.mark.apply_id == apply_id]
    words = {row.word for row in marked}
    return next((word for word in WORDS.values() if word in words), "ended")


def ask(world: World, job: Declared) -> str:
    """What milkweed says of a recorded job; empty when there is none on record."""
    began_s = time.monotonic()
    try:
        return job_load(job.file).status().liveness.value
    except Exception as error:  # noqa: BLE001  every one of them is wrong, but one
        if "there is no job recorded" not in str(error):
            world.blame(f"status of {job.name} failed:\n{traceback.format_exc()}")
        return ""
    finally:
        if (took_s := time.monotonic() - began_s) > READ_LIMIT_S:
            world.blame(f"status of {job.name} took {took_s:.0f} s")


def freeze(world: World) -> bool:
    """The controller falls silent while somebody asks."""
    if world.away:
        return False
    job = world.random.choice(world.jobs)
    heard: list[str] = []
    before = word_of(world, job.apply_id)
    world.say("the controller freezes")
    chaos.insist(world.lab.freeze_controller)
    asking = threading.Thread(target=lambda: heard.append(ask(world, job)))
    asking.start()
    time.sleep(world.random.uniform(1, 5))
    chaos.insist(world.lab.thaw_controller)
    world.say("the controller thaws")
    asking.join(READ_LIMIT_S)
    after = word_of(world, job.apply_id)
    if not heard or heard[0] == "ended" not in {before, after}:
        world.blame(f"status: {job.name} is {heard} while Slurm is frozen: {before}, {after}")
    world.count("status", "asked while nobody answers")
    return True


def check_reads(world: World) -> None:
    """Looking changes nothing; while programs run, they do."""
    if world.running() or world.random.random() > READS_SHARE:
        return
    job = world.random.choice(world.jobs)
    before = files(world)
    ask(world, job)
    with contextlib.suppress(MilkweedError):
        SlurmJob(meshes={"w": job.size}, job_name=job.name, exclusive=False).plan(job.file)
    world.lab.run(sys.executable, "-m", "milkweed", "ls", check=False)
    after = files(world)
    if changed := {key for key in {*before, *after} if before.get(key) != after.get(key)}:
        world.blame(f"reading {job.name} changed {sorted(changed)}")
    world.count("status", "reads that changed nothing")


def files(world: World) -> dict[str, bytes]:
    """Records and lists; what keepers write by themselves is left out."""
    roots = [registry.home(), *(job.file.parent for job in world.jobs)]
    found = (path for root in roots for path in sorted(root.rglob("*")) if path.suffix == ".json")
    return {str(path): path.read_bytes() for path in found if not path.name.startswith("ended-")}


# 4. Programs


def check_programs(world: World) -> None:
    """Programs end with a word of their own, and in time; one that hangs shows where, and is ended."""
    for program in list(world.programs):
        if program.alive and time.monotonic() > program.limit_s:
            program.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            program.process.kill()
            program.process.wait()
            world.blame(f"hung: {program.log.stem} {program.signalled}:\n{program.tail(120)}")
            program.signalled.append(signal.SIGKILL)
        if not program.alive:
            world.programs.remove(program)
            outcome = judge(world, program)
            world.count(f"{program.kind} programs", outcome)
            world.say(f"ended {program.log.stem}: {outcome}")


def judge(world: World, program: Program) -> str:
    """How a program ended; a bare traceback is wrong."""
    code, text = program.process.returncode, program.tail(1000)
    if -code in program.signalled:  # an interrupt, too, once Python has let go of it at its end
        return signal.Signals(-code).name
    if "Exception in thread" in text and "milkweed/" in text and not program.signalled:
        world.blame(f"a thread of {program.log.stem} failed:\n{program.tail()}")
    if code == 0:
        return "done"
    stack = text.rpartition("Traceback (most recent call last):")[2]
    error = match[1] if (match := _ERROR.search(stack)) else ""
    if error == "KeyboardInterrupt" and signal.SIGINT in program.signalled:
        return "interrupted"
    if error == "FileNotFoundError" and "there is no job recorded" in text:
        return "no record"
    if error.startswith("milkweed.errors."):
        return error.removeprefix("milkweed.errors.")
    frames = re.findall(r'^  File "(.+?)"', stack, re.MULTILINE)
    if error.startswith("monarch.") or (frames and "/monarch/" in frames[-1]):
        return f"engine: {error.rpartition('.')[2]}"
    world.blame(f"{program.log.stem} ended with {code}, {error}:\n{program.tail()}")
    return f"bare {error or code}"


# The test


def check(world: World) -> None:
    """All that must hold after a step."""
    if not world.away:
        world.hurry()
        check_losses(world)
        check_leaks(world)
    check_statuses(world)
    check_reads(world)
    check_programs(world)


def run_steps(world: World, until_s: float) -> None:
    """Random steps, with checks after each."""
    steps = [*chaos.STEPS, (1, "freeze the controller", freeze)]
    while time.monotonic() < until_s:
        [(_, name, step)] = world.random.choices(steps, [weight for weight, _, _ in steps])
        if step(world):
            world.count("steps", name)
            check(world)


def heal(world: World) -> None:
    """Undo every fault, and leave all jobs as they are."""
    world.say("everything is mended")
    chaos.start_controller(world)
    if world.closed:
        chaos.turn_queue(world)
    while chaos.mend_node(world):
        pass


def settle(world: World) -> None:
    """Let every program end, each with a limit of its own, and Slurm with what it is about to end."""
    deadline_s = time.monotonic() + SETTLE_S
    while world.running() or (
        any(row.word == "unknown" for row in world.rows()) and time.monotonic() < deadline_s
    ):
        check(world)
        time.sleep(0.5)
    check(world)


def use_once_more(world: World) -> None:
    """With everything whole again, every job can be used."""
    for job in world.jobs:
        program = world.start(job, "last", chaos.USE, on_change="replace")
        world.deeds.append(Deed("replace", BY_CANCEL, job=job.name, programs=[program]))
        settle(world)
        if program.process.returncode != 0:
            world.blame(f"{job.name} cannot be used any more:\n{program.tail()}")


def end_everything(world: World) -> None:
    """Kill what is on record, and then what only the list has: hosts whose owner was killed while it waited."""
    for job in world.jobs:
        program = world.start(job, "kill", chaos.KILL)
        world.deeds.append(Deed("kill", BY_CANCEL, job=job.name, programs=[program]))
    settle(world)
    for entry in registry.load_entries():
        if not entry.name.startswith("u"):
            left = [path.name for path in entry.folder.iterdir()]
            world.blame(f"leaked: {entry} is still listed, with {left}")
    done = world.lab.run(sys.executable, "-m", "milkweed", "kill", "--all", check=False)
    world.say(f"kill --all: {done.stdout}{done.stderr}".strip())


def check_empty(world: World) -> None:
    """Nothing is left: no job, no file, no process."""
    deadline_s = time.monotonic() + 30
    while (left := what_is_left(world)) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    for text in left:
        world.blame(f"left: {text}")


def what_is_left(world: World) -> list[str]:
    """Jobs, files, processes and run folders that should be gone."""
    found = [f"job {row}" for row in world.rows() if row.word != "ended"]
    home = registry.home()
    found += [f"file {path}" for path in ([home, *home.rglob("*")] if home.exists() else [])]
    for job in world.jobs:
        found += [f"file {path}" for path in job.folder.rglob("*") if path.is_file()]
    for i in chaos.NODES:
        lines = world.lab.on_node(i, "ps", "-eo", "pid=,comm=,args=").stdout.splitlines()
        found += [f"process on n{i}: {x[:200]}" for x in lines if x.split()[1] not in NODES_OWN]
        runs = world.lab.on_node(i, "sh", "-c", "ls -d /tmp/milkweed-*/* || true").stdout.split()
        # Who is ended the hard way cannot tidy up.
        found += [] if i in world.hit else [f"folder on n{i}: {path}" for path in runs]
    return found


def summary(world: World) -> str:
    """What was done and seen, as a table."""
    lines = [f"chaos: seed {SEED}, {time.monotonic() - world.began_s:.0f} s"]
    for table, counter in world.counts.items():
        shown = ", ".join(f"{what} {number}" for what, number in counter.most_common())
        lines.append(f"  {table:20} {shown}")
    lines.append(f"  {'agreement':20} at the latest after {world.worst_s:.1f} s")
    return "\n".join([*lines, f"  {'wrong':20} {len(world.wrong)}"])


def make_world(lab: Lab, client: Client, folder: Path) -> World:
    """Three jobs, each in a folder of its own."""
    chance = random.Random(SEED)
    logs = lab.log_folder / "chaos"
    logs.mkdir()
    jobs: list[Declared] = []
    for name, path in (("a", ".milkweed/job.json"), ("b", "state.json"), ("c", "x/y.json")):
        (folder / name).mkdir()
        jobs.append(Declared(name, folder / name, path, chance.choice((1, 2))))
    jobs[1].log_dir = str(folder / "logs")
    return World(lab, chance, jobs, logs, client.env)


@pytest.mark.slow
@pytest.mark.timeout(DURATION_S + 900)
@pytest.mark.leaves_jobs
def test_chaos(lab: Lab, client: Client, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever happens, and whenever: jobs end only when somebody ends them, and then leave nothing."""
    world = make_world(lab, client, folder)
    world.say(f"seed {SEED}")
    try:
        run_steps(world, world.began_s + DURATION_S)
        heal(world)
        settle(world)
        use_once_more(world)
        end_everything(world)
        check_empty(world)
    finally:
        for program in world.running():
            program.process.kill()
            program.process.wait()
        with capsys.disabled():
            print(f"\n{summary(world)}")  # noqa: T201
    assert not world.wrong, "\n\n".join(world.wrong)

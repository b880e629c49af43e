"""Random faults, and after each of them: nothing lost, nothing leaked, no wrong word, nobody hangs."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.errors import MilkweedError
from milkweed.job import SlurmJob, job_load
from programs import Client
from slurm.chaos import (
    CLIENT,
    DECLARE,
    HARM,
    KILL,
    STEPS,
    Declared,
    Program,
    Tracked,
    World,
    insist,
    word_of,
)
from slurm.lab import Lab

DURATION_S = float(os.environ.get("MILKWEED_CHAOS_S", "60"))
SEED = int(os.environ.get("MILKWEED_CHAOS_SEED", "0")) or random.randrange(1, 1_000_000)
AGREE_S = 15.0
"""How long milkweed and Slurm may differ while things change."""
READ_LIMIT_S = 90.0
READS_SHARE = 0.3
SETTLE_S = 180.0
LEAK_S = 30.0
"""How long a job that nobody lists may live: its hosts see that their folder is gone, and end."""
NODES_OWN = frozenset({"tini", "slurmd", "ps"})
_ENDED_BY = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


# 1. Nothing leaked


def check_leaks(world: World) -> None:
    """Every live job is on somebody's list, and no state file has two."""
    for _ in range(int(LEAK_S)):
        before = recorded(world)
        rows = world.alive()
        known = before | recorded(world)
        strange = [row for row in rows if row.mark is None or row.mark.apply_id not in known]
        names = {(row.mark.name, row.mark.apply_id) for row in rows if row.mark}
        twice = sorted(
            name for name in {n for n, _ in names} if sum(n == name for n, _ in names) > 1
        )
        if not strange and not twice:
            return
        time.sleep(1)
    if strange:
        world.blame(f"leaked: nobody lists {strange}; listed are {sorted(known)}")
    if twice:
        world.blame(f"leaked: two allocations of {twice}: {rows}")


def recorded(world: World) -> set[str]:
    """The allocations that are in a state file or in the registry."""
    ids = {entry.apply_id for entry in registry.load_entries()}
    return ids | {found for job in world.jobs if (found := job.recorded_id())}


# 2. Nothing lost


def check_losses(world: World) -> None:
    """A job that has ended was ended by somebody."""
    rows = {row.id: row for row in world.rows()}
    now_s = time.monotonic()
    for row in rows.values():
        if row.word != "ended" and row.mark:
            if row.id not in world.tracked:
                world.count("allocations", "made" if row.mark.component == 0 else "grown")
                world.tracked[row.id] = Tracked(row.id, row.mark.apply_id, row.mark.name, now_s)
            world.tracked[row.id].alive_s = now_s
            world.tracked[row.id].nodes |= set(row.nodes)
    for tracked in world.tracked.values():
        row = rows.get(tracked.id)
        if not tracked.ended and (row is None or row.word == "ended"):
            tracked.ended = row.state if row else "GONE"
            check_end(world, tracked)


def check_end(world: World, tracked: Tracked) -> None:
    """Find who ended a job."""
    deeds = [deed for deed in world.deeds if deed.explains(tracked)]
    harmed = any(deed.kind in HARM for deed in deeds)
    fitting = [
        deed
        for deed in deeds
        if tracked.ended in deed.ends_as | {"GONE"} and (deed.kind != "replace" or harmed)
    ]
    kind = fitting[-1].kind if fitting else ""
    if not kind and tracked.ended == "NODE_FAIL":
        kind = "slurm"
        world.do("slurm", frozenset(), id=tracked.id)
    world.say(f"job {tracked.id} ({tracked.job}) is {tracked.ended}, by {kind or 'nobody'}")
    world.count("allocations", f"ended by {kind or 'nobody'}")
    if not kind:
        shown = world.lab.run("scontrol", "show", "job", str(tracked.id), check=False).stdout
        world.blame(f"lost: {tracked} was ended by nobody; deeds {deeds}\n{shown}")


# 3. No wrong status


def check_statuses(world: World) -> None:
    """What milkweed says is what Slurm says; when Slurm says nothing, it is unknown."""
    if not world.away:
        for job in world.jobs:
            check_status(world, job)
        return
    job = world.random.choice(world.jobs)  # it takes seconds to see that nobody answers
    word = ask(world, job)
    world.count("status", "asked while nobody answers")
    if word not in {"unknown", ""}:
        world.blame(f"status: {job.name} is {word} while the controller is away")


def check_status(world: World, job: Declared) -> None:
    """Ask both until they agree."""
    began_s = time.monotonic()
    world.count("status", "checked")
    while True:
        apply_id = job.recorded_id()
        before = word_of(world.rows(), apply_id or "")
        word = ask(world, job)
        after = word_of(world.rows(), apply_id or "")
        took_s = time.monotonic() - began_s
        if word == "" or job.recorded_id() != apply_id or word in {before, after}:
            world.count("status", "agreed")
            world.worst_s = max(world.worst_s, took_s)
            return
        if word == "ended" or took_s > AGREE_S:
            world.blame(f"status: {job.name} is {word}, and Slurm says {before}, then {after}")
            return


def ask(world: World, job: Declared) -> str:
    """What milkweed says of a recorded job; empty when there is none on record."""
    began_s = time.monotonic()
    try:
        return job_load(job.file).status().liveness.value
    except FileNotFoundError as error:
        if "there is no job recorded" not in str(error):
            world.blame(f"status of {job.name} failed:\n{traceback.format_exc()}")
        return ""
    except MilkweedError as error:
        world.count("status", f"refused: {type(error).__name__}")
        world.blame(f"status of {job.name} failed:\n{traceback.format_exc()}")
        return ""
    except Exception:
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
    before = word_of(world.rows(), job.recorded_id() or "")
    world.say("the controller freezes")
    insist(world.lab.freeze_controller)
    try:
        asking = threading.Thread(target=lambda: heard.append(ask(world, job)))
        asking.start()
        time.sleep(world.random.uniform(1, 5))
    finally:
        insist(world.lab.thaw_controller)
    world.say("the controller thaws")
    asking.join(READ_LIMIT_S)
    after = word_of(world.rows(), job.recorded_id() or "")
    if not heard or heard[0] == "ended" not in {before, after}:
        world.blame(f"status: {job.name} is {heard} while Slurm is frozen: {before}, {after}")
    world.count("status", "asked while nobody answers")
    return True


def check_reads(world: World) -> None:
    """Looking changes nothing."""
    quiet = [job for job in world.jobs if not world.running()]
    if not quiet or world.random.random() > READS_SHARE:
        return
    for job in [world.random.choice(quiet)]:
        before = files(world)
        ask(world, job)
        try:
            SlurmJob(meshes={"w": job.size}, job_name=job.name, exclusive=False).plan(job.file)
        except MilkweedError as error:
            world.count("status", f"plan refused: {type(error).__name__}")
        if (after := files(world)) != before:
            changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
            world.blame(f"reading {job.name} changed {sorted(changed)}")
        world.count("status", "reads that changed nothing")


def files(world: World) -> dict[str, bytes]:
    """Records and lists; what keepers write by themselves is left out."""
    roots = [registry.home(), *(job.file.parent for job in world.jobs)]
    found = (path for root in roots for path in sorted(root.rglob("*")) if path.suffix == ".json")
    return {str(path): path.read_bytes() for path in found if not path.name.startswith("ended-")}


# 4. Programs


def check_programs(world: World) -> None:
    """Programs end with a word of their own, and in time."""
    for program in list(world.programs):
        if program.alive:
            check_hang(world, program)
            continue
        world.programs.remove(program)
        outcome = judge(world, program)
        world.count(f"{program.kind} programs", outcome)
        world.say(f"ended {program.log.stem}: {outcome}")


def check_hang(world: World, program: Program) -> None:
    """A program past its limit shows where it is, and is ended."""
    if time.monotonic() < program.limit_s:
        return
    program.process.send_signal(signal.SIGUSR1)
    time.sleep(1)
    program.process.kill()
    program.process.wait()
    program.signalled.append(signal.SIGKILL)
    world.blame(f"hung: {program.log.stem}, signals {program.signalled}:\n{tail(program, 120)}")


def judge(world: World, program: Program) -> str:
    """How a program ended; a bare traceback is wrong."""
    code, text = program.process.returncode, program.text
    if -code in program.signalled and code != -signal.SIGINT:
        return signal.Signals(-code).name
    last = last_error(text)
    if "Exception in thread" in text and "milkweed/" in text and not program.signalled:
        world.blame(f"a thread of {program.log.stem} failed:\n{tail(program, 60)}")
    if code == 0:
        return "done"
    if last == "KeyboardInterrupt" and signal.SIGINT in program.signalled:
        return "interrupted"
    if last.startswith("milkweed.errors."):
        return last.removeprefix("milkweed.errors.")
    if "there is no job recorded" in text and last == "FileNotFoundError":
        return "no record"
    if last.startswith("monarch.") or in_engine(text):
        return f"engine: {last.rpartition('.')[2]}"
    world.blame(f"{program.log.stem} ended with {code}, {last}:\n{tail(program, 60)}")
    return f"bare {last or code}"


def last_error(text: str) -> str:
    """The name of the error that ended a program: the first line after the last stack."""
    lines = text.rpartition("Traceback (most recent call last):")[2].splitlines()
    found = [match[1] for line in lines if (match := _ENDED_BY.match(line))]
    return found[0] if found else ""


def in_engine(text: str) -> bool:
    """Whether the last stack ends in the engine."""
    files_ = re.findall(r'^  File "(.+?)"', text.rpartition("Traceback (most")[2], re.MULTILINE)
    return bool(files_) and "/monarch/" in files_[-1]


def tail(program: Program, lines: int) -> str:
    """The end of what a program printed."""
    return "\n".join(program.text.splitlines()[-lines:])


# The test

CHECKS: tuple[Callable[[World], None], ...] = (check_statuses, check_reads, check_programs)


def check(world: World) -> None:
    """All that must hold after a step."""
    if not world.away:
        world.hurry()
        check_losses(world)
        check_leaks(world)
    for one in CHECKS:
        one(world)


def run_steps(world: World, until_s: float) -> None:
    """Random steps, with checks after each."""
    steps = [*STEPS, (1, "freeze the controller", freeze)]
    while time.monotonic() < until_s:
        [(_, name, step)] = world.random.choices(steps, [weight for weight, _, _ in steps])
        if step(world):
            world.count("steps", name)
            check(world)


def wait_for_programs(world: World) -> None:
    """Let every program end; each has its own limit."""
    while world.running():
        check(world)
        time.sleep(0.5)
    check(world)


def wait_settled(world: World) -> None:
    """Slurm may take its time to end what ran on nodes that were lost."""
    deadline_s = time.monotonic() + SETTLE_S
    while any(row.state == "COMPLETING" for row in world.rows()) and time.monotonic() < deadline_s:
        check(world)
        time.sleep(1)


def use_once_more(world: World) -> None:
    """With everything whole again, every job can be used."""
    wait_settled(world)
    for job in world.jobs:
        code = DECLARE + CLIENT
        program = world.start(job, "last", code, on_change="replace")
        world.do("replace", frozenset({"CANCELLED"}), job=job.name, programs=[program])
        world.do("resize", frozenset({"CANCELLED"}), job=job.name, programs=[program])
        wait_for_programs(world)
        if program.process.returncode != 0:
            world.blame(f"{job.name} cannot be used any more:\n{tail(program, 40)}")


def end_everything(world: World) -> None:
    """Kill what is on record, and then what only the list has."""
    for job in world.jobs:
        program = world.start(job, "kill", KILL)
        world.do("kill", frozenset({"CANCELLED"}), job=job.name, programs=[program])
    wait_for_programs(world)
    names = {job.name for job in world.jobs}
    for entry in registry.load_entries():
        if entry.name in names or entry.name == registry.DAMAGED:
            left = [str(path.name) for path in entry.folder.iterdir()]
            world.blame(f"leaked: {entry} is still listed, with {left}")
    world.do("kill", frozenset({"CANCELLED"}), job="").job = ""
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
    for i in range(1, 5):
        lines = world.lab.on_node(i, "ps", "-eo", "pid=,comm=,args=").stdout.splitlines()
        found += [f"process on n{i}: {x[:200]}" for x in lines if x.split()[1] not in NODES_OWN]
        runs = world.lab.on_node(i, "sh", "-c", "ls -d /tmp/milkweed-*/* /tmp/milkweed-* || true")
        found += [f"folder on n{i} (hit: {i in world.hit}): {p}" for p in runs.stdout.split()]
    return found


def summary(world: World) -> str:
    """What was done and seen, as a table."""
    lines = [f"chaos: seed {SEED}, {time.monotonic() - world.began_s:.0f} s"]
    for table, counter in world.counts.items():
        shown = ", ".join(f"{what} {number}" for what, number in counter.most_common())
        lines.append(f"  {table:20} {shown}")
    lines.append(f"  {'agreement':20} at the latest after {world.worst_s:.1f} s")
    lines.append(f"  {'wrong':20} {len(world.wrong)}")
    return "\n".join(lines)


def make_world(lab: Lab, client: Client, folder: Path) -> World:
    """Three jobs, each in a folder of its own."""
    chance = random.Random(SEED)
    logs = lab.log_folder / "chaos"
    logs.mkdir()
    jobs: list[Declared] = []
    for name, path in (("a", ".milkweed/job.json"), ("b", "state.json"), ("c", "x/y.json")):
        (folder / name).mkdir()
        log_dir = str(folder / "logs") if name == "b" else None
        jobs.append(Declared(name, folder / name, path, log_dir, chance.choice((1, 2))))
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
        world.say("everything is mended")
        world.heal()
        wait_for_programs(world)
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

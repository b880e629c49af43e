"""What runs inside a pod that has more than one thing to do: it starts each as soon as what it needs is over.

This file travels to pods as it stands, so it needs nothing but Python 3.8 and its standard library. What is to be
done is in the JSON file that its first argument names. A line that some work prints is printed with the label of
that work and a tab before it. The exit code is that of the first step that failed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

GRACE_S = 2.0
LOOK_S = 1.0
"""A signal that comes just before a wait begins is heard after it only: so no wait is longer."""
TIMED_OUT, NOT_RUNNABLE, NOT_FOUND, STOPPED = 124, 126, 127, 143
OVER = ("done", "failed", "skipped")
if TYPE_CHECKING:  # older Pythons do not know such types, and never look at annotations
    Part = dict[str, Any]


class Crew:
    """The processes of one step."""

    def __init__(self, part: Part, cores: int, gpus: list[str], limit_s: float | None) -> None:
        self.part, self.cores, self.gpus = part, cores, gpus
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.code = 0
        self.ends_s = limit_s
        """When its time is over, by the clock that never goes back."""
        self.decided = False
        """Whether its code is known before its last task has ended."""

    def signal(self, number: int) -> None:
        """Signal whatever its tasks have started."""
        for process in self.processes.values():
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


class Control:
    """Carries out the parts of one pod."""

    def __init__(self, told: dict[str, Any], index: int, secrets: str) -> None:
        self.parts: list[Part] = told["parts"]
        self.pods, self.index, self.secrets = int(told["pods"]), index, secrets
        self.cores = int(told["cores"])
        self.gpus = [str(number) for number in range(int(told["gpus"]))]
        self.states: dict[str, str] = {part["id"]: "waiting" for part in self.parts}
        self.codes: dict[str, int] = {}
        self.failed: list[str] = []
        self.running: dict[str, Crew] = {}
        self.group_ends: dict[str, float] = {}
        self.ended: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self.readers: list[threading.Thread] = []
        self.lock = threading.Lock()
        self.stopped = False

    def run(self) -> int:
        """Go on until nothing is left; the exit code."""
        signal.signal(signal.SIGTERM, self.stop)
        while not self.stopped:
            while self.start_ready():
                pass
            if not self.running:
                break
            self.wait()
        self.end()
        if self.stopped:
            return STOPPED
        return next((self.codes[each] for each in self.failed), 0)

    def stop(self, *_: object) -> None:
        """End everything, soon."""
        self.stopped = True
        self.ended.put(("", 0, 0))

    # Who is next

    def start_ready(self) -> bool:
        """Start, add up or skip whatever can be; whether anything was different after that."""
        changed = False
        for part in self.parts:
            if self.states[part["id"]] == "waiting" and not self.stopped:
                verdicts = [self.judge(need["kind"], need["id"]) for need in part["needs"]]
                if False in verdicts:
                    self.set(part, "skipped", 0)
                    changed = True
                elif all(verdicts):
                    changed |= self.begin(part)
        return changed

    def judge(self, kind: str, needed: str) -> bool | None:
        """Whether a need has come true; None: not yet."""
        state = self.states.get(needed, "done")
        if state == "skipped":
            return kind == "afterany"
        if kind in ("submitted", "after"):
            return state != "waiting" or None
        if state not in OVER:
            return None
        return {"afterany": True, "afterok": state == "done"}.get(kind, state == "failed")

    def begin(self, part: Part) -> bool:
        """Do a part whose time has come; False when there is no room yet."""
        if part["kind"] == "join":
            self.add_up(part)
        elif part["kind"] == "work":
            return self.start(part)
        else:
            self.set(part, "done", 0)
        return True

    def add_up(self, part: Part) -> None:
        """What is over when all inside is; its code is that of the first inside that failed."""
        inside = part["steps"]
        codes = [self.codes[each] for each in inside if self.states[each] == "failed"]
        skipped = inside and all(self.states[each] == "skipped" for each in inside)
        self.set(part, "failed" if codes else "skipped" if skipped else "done", (codes or [0])[0])

    def set(self, part: Part, state: str, code: int) -> None:
        """Remember how a part is."""
        self.states[part["id"]], self.codes[part["id"]] = state, code
        if state == "failed" and part["kind"] == "work":
            self.failed.append(part["id"])

    # Starting

    def ranks(self, part: Part) -> list[int]:
        """The tasks of this pod."""
        tasks = part["tasks"]
        return [rank for rank in range(tasks) if rank * self.pods // tasks == self.index]

    def start(self, part: Part) -> bool:
        """Start the tasks of a part where its cores and GPUs are free."""
        slots = max(1, part.get("slots", 1) // self.pods)
        cores, gpus = slots * part.get("cores_per_slot", 1), slots * part.get("gpus_per_slot", 0)
        if self.running and (cores > self.cores or gpus > len(self.gpus)):
            return False
        crew = Crew(part, cores, self.gpus[:gpus], self.limit(part))
        self.cores, self.gpus = self.cores - cores, self.gpus[gpus:]
        self.states[part["id"]] = "running"
        self.running[part["id"]] = crew
        ranks = self.ranks(part)
        for position, rank in enumerate(ranks):
            own = self.share(crew, position * slots // len(ranks), slots)
            if not self.start_task(crew, rank, own):
                break
        self.settle(crew)
        return True

    @staticmethod
    def share(crew: Crew, slot: int, slots: int) -> list[str]:
        """The GPUs of one slot."""
        each = len(crew.gpus) // slots
        return crew.gpus[slot * each : (slot + 1) * each]

    def limit(self, part: Part) -> float | None:
        """When its time is over: its own limit, and those of the groups around it."""
        now_s = time.monotonic()
        ends = [now_s + part["duration_s"]] if part.get("duration_s") else []
        for group, duration_s in part.get("within", {}).items():
            ends.append(self.group_ends.setdefault(group, now_s + duration_s))
        return min(ends) if ends else None

    def start_task(self, crew: Crew, rank: int, gpus: list[str]) -> bool:
        """Start one task; False when it cannot be, which ends the others."""
        part = crew.part
        label = part["id"] if part["tasks"] == 1 else "{}.{}".format(part["id"], rank)
        try:
            process = subprocess.Popen(  # noqa: S603  the person's own command, word for word
                part["argv"],
                cwd=part.get("cwd"),
                env=self.environment(part, rank, gpus),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError) and error.filename != part.get("cwd")
            crew.code, crew.decided = NOT_FOUND if missing else NOT_RUNNABLE, True
            self.say(label, f"{error.strerror}: {error.filename}".encode())
            crew.signal(signal.SIGKILL)
            return False
        crew.processes[rank] = process
        self.follow(label, process)
        threading.Thread(target=self.watch, args=(part["id"], rank, process), daemon=True).start()
        return True

    def environment(self, part: Part, rank: int, gpus: list[str]) -> dict[str, str]:
        """The variables of one task."""
        found = dict(os.environ)
        for name, value in part.get("environment", {}).items():
            found.pop(name, None)
            if value is not None:
                found[name] = value
        found["JOBSPEC_STEP"], found["JOBSPEC_TASK_RANK"] = part["id"], str(rank)
        found["JOBSPEC_TASKS"] = str(part["tasks"])
        if "replica" in part:
            found["JOBSPEC_REPLICA"] = str(part["replica"])
        if gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        for name, export in part.get("secrets", {}).items():
            if export:
                with open(os.path.join(self.secrets, name), "rb") as file:
                    found[export] = os.fsdecode(file.read())
        return found

    # Following

    def follow(self, label: str, process: subprocess.Popen[bytes]) -> None:
        """Print what a task prints."""
        reader = threading.Thread(target=self.read, args=(label, process.stdout), daemon=True)
        self.readers.append(reader)
        reader.start()

    def read(self, label: str, pipe: Any) -> None:
        """Every line, with the label of its task."""
        for line in pipe:
            self.say(label, line.rstrip(b"\n"))

    def say(self, label: str, line: bytes) -> None:
        """One whole line."""
        with self.lock:
            sys.stdout.buffer.write(label.encode() + b"\t" + line + b"\n")
            sys.stdout.buffer.flush()

    def watch(self, part_id: str, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Tell when a task has ended."""
        code = process.wait()
        self.ended.put((part_id, rank, 128 - code if code < 0 else code))

    def wait(self) -> None:
        """Wait until a task has ended, or the time of one is over."""
        ends = [crew.ends_s for crew in self.running.values() if crew.ends_s is not None]
        left_s = [LOOK_S, *(end_s - time.monotonic() for end_s in ends)]
        try:
            part_id, rank, code = self.ended.get(timeout=max(0.0, min(left_s)))
        except queue.Empty:
            self.keep_limits()
            return
        crew = self.running.get(part_id)
        if crew is not None:
            del crew.processes[rank]
            crew.code = crew.code if crew.decided else max(crew.code, code)
            self.settle(crew)

    def keep_limits(self) -> None:
        """End what has had its time: asked first, made to after a while."""
        now_s = time.monotonic()
        for crew in self.running.values():
            if crew.ends_s is not None and crew.ends_s <= now_s:
                crew.signal(signal.SIGKILL if crew.decided else signal.SIGTERM)
                crew.code, crew.decided, crew.ends_s = TIMED_OUT, True, now_s + GRACE_S

    def settle(self, crew: Crew) -> None:
        """A part is over with its last task."""
        if not crew.processes:
            del self.running[crew.part["id"]]
            self.cores += crew.cores
            self.gpus = crew.gpus + self.gpus
            self.set(crew.part, "failed" if crew.code else "done", crew.code)

    def end(self) -> None:
        """End what is left, and print what was printed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for crew in self.running.values():
                crew.signal(number)
            until_s = time.monotonic() + GRACE_S
            while self.running and time.monotonic() < until_s:
                for crew in list(self.running.values()):
                    if all(each.poll() is not None for each in crew.processes.values()):
                        del self.running[crew.part["id"]]
                time.sleep(0.02)
        for reader in self.readers:
            reader.join(GRACE_S)


def main(path: str, secrets: str) -> int:
    """Do what a file says."""
    with open(path, "rb") as file:
        told = json.loads(file.read().decode())
    index = int(os.environ.get("JOB_COMPLETION_INDEX") or 0)
    return Control(told, index, secrets).run()


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2]))  # threads may still read from what a task left behind

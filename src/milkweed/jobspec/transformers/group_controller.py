"""Carries out the steps of a group inside its allocation: `python3 controller PLAN START LOGS`.

This file travels in the script of the job, so it needs nothing but Python 3.7 and its standard library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import IO, Any

TIMED_OUT = 124
NOT_RUNNABLE = 126
STOPPED = 143
GRACE_S = 5.0
_WAKING = frozenset({signal.SIGCHLD, signal.SIGTERM})


class Item:
    """One entry of the plan, and what became of it: a command, or what adds up others."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.id: str = said["id"]
        self.needs: list[list[str]] = said.get("needs", [])
        self.argv: list[str] = said.get("argv", [])
        """The words that start it; nothing for what has nothing to run."""
        self.inner: list[str] = said.get("inner", [])
        """The entries that it adds up."""
        self.cores: int = said.get("cores", 0)
        self.gpus: int = said.get("gpus", 0)
        self.alone: bool = said.get("alone", False)
        """Whether it takes whole nodes, so that nothing else runs meanwhile."""
        self.within: list[str] = said.get("within", [])
        """The groups that it takes cores and GPUs of."""
        self.limit_s: float | None = said.get("limit_s")
        self.label: str = said.get("label", "")
        self.output: str = said.get("output", "")
        self.error: str = said.get("error", "")
        self.state = "waiting"
        self.code = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.ends_s: float | None = None
        self.timed_out = False

    @property
    def over(self) -> bool:
        """Whether nothing follows."""
        return self.state in ("done", "failed", "skipped")


def judge(kind: str, item: Item) -> bool | None:
    """Whether a need has come true; None: not yet. False means never."""
    if kind in ("submitted", "after"):
        return True if item.state in ("running", "done", "failed") else False if item.over else None
    if not item.over:
        return None
    if kind == "afterany":
        return True
    return item.state == ("done" if kind == "afterok" else "failed")


class Group:
    """What a group has, and what of it is in use."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.cores: int | None = said.get("cores")
        """None: whole nodes, of which Slurm itself knows."""
        self.gpus: int = said.get("gpus", 0)
        self.limit_s: float | None = said.get("limit_s")
        self.ends_s: float | None = None
        self.used_cores = self.used_gpus = self.running = 0
        self.taken = False

    def has_room(self, item: Item) -> bool:
        """Whether one more can run now."""
        if self.taken or (item.alone and self.running):
            return False
        cores = self.cores is None or self.used_cores + item.cores <= self.cores
        return cores and self.used_gpus + item.gpus <= self.gpus

    def take(self, item: Item, sign: int) -> None:
        """Count it in, or out again."""
        self.used_cores += sign * item.cores
        self.used_gpus += sign * item.gpus
        self.running += sign
        self.taken = item.alone and sign > 0


class Controller:
    """Starts each command as soon as what it needs has come true and there is room."""

    def __init__(self, plan: dict[str, Any], start: str, logs: str) -> None:
        self.items = {said["id"]: Item(said) for said in plan["items"]}
        self.groups = {name: Group(said) for name, said in plan["groups"].items()}
        self.unset = frozenset(plan.get("unset", []))
        """Variables of the allocation that srun must not take for those of a step."""
        self.start = start
        self.logs = logs
        self.failed: list[Item] = []

    def run(self) -> int:
        """Carry out everything; the code of the first step that failed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
        while True:
            while self._advance():
                pass
            running = [item for item in self.items.values() if item.process is not None]
            if not running:
                return self.failed[0].code if self.failed else 0
            heard = signal.sigtimedwait(_WAKING, self._patience(running))
            if heard is not None and heard.si_signo == signal.SIGTERM:
                return self._stop(running)
            for item in running:
                self._look(item)

    def _advance(self) -> bool:
        """Settle or start whatever can be; whether anything changed."""
        changed = False
        for item in self.items.values():
            if item.state == "waiting":
                changed = self._consider(item) or changed
        return changed

    def _consider(self, item: Item) -> bool:
        verdicts = [judge(kind, self.items[needed]) for needed, kind in item.needs]
        if False in verdicts:
            self._settle(item, "skipped", 0)
        elif None in verdicts:
            return False
        elif item.inner:
            self._add_up(item)
        elif not item.argv:
            self._settle(item, "done", 0)
        elif all(self.groups[name].has_room(item) for name in item.within):
            self._start(item)
        else:
            return False
        return True

    def _add_up(self, item: Item) -> None:
        inner = [self.items[each] for each in item.inner]
        codes = [each.code for each in self.failed if each in inner]
        if codes:
            self._settle(item, "failed", codes[0])
        else:
            skipped = all(each.state == "skipped" for each in inner)
            self._settle(item, "skipped" if skipped else "done", 0)

    def _settle(self, item: Item, state: str, code: int) -> None:
        item.state, item.code = state, code
        if state == "failed":
            self.failed.append(item)
        if item.argv or state == "skipped":
            _say(f"{item.id}: {state}" + (f" ({code})" if code else ""))

    def _start(self, item: Item) -> None:
        now_s = time.monotonic()
        limits = [] if item.limit_s is None else [now_s + item.limit_s]
        for name in item.within:
            group = self.groups[name]
            if group.limit_s is not None:
                group.ends_s = group.ends_s or now_s + group.limit_s
                limits.append(group.ends_s)
        item.ends_s = min(limits) if limits else None
        try:
            item.process = self._spawn(item)
        except OSError as error:
            _say(f"{item.id}: {error}")
            self._settle(item, "failed", NOT_RUNNABLE)
            return
        item.state = "running"
        for name in item.within:
            self.groups[name].take(item, 1)

    def _spawn(self, item: Item) -> subprocess.Popen[bytes]:
        argv = [self.start if word == "" else word for word in item.argv]
        with self._open(item.output, item.label) as out:
            err = open(item.error, "ab") if item.error else out  # noqa: SIM115  closed below
            try:
                return subprocess.Popen(  # noqa: S603  words of the plan
                    argv,
                    env=self._environment(argv[0]),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=_unblock,  # noqa: PLW1509  there are no threads
                )
            finally:
                if err is not out:
                    err.close()

    def _environment(self, program: str) -> dict[str, str]:
        if program != "srun":
            return dict(os.environ)
        return {name: value for name, value in os.environ.items() if name not in self.unset}

    def _open(self, output: str, label: str) -> IO[bytes]:
        if not output and not self.logs:
            return os.fdopen(os.dup(1), "ab")  # what it starts tells itself whose words are whose
        return open(output or os.path.join(self.logs, f"{label}.log"), "ab")

    def _patience(self, running: list[Item]) -> float:
        ends = [item.ends_s for item in running if item.ends_s is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else 3600.0

    def _look(self, item: Item) -> None:
        if item.process is None:
            return
        if item.process.poll() is None:
            if item.ends_s is not None and time.monotonic() >= item.ends_s:
                self._time_out(item)
            return
        code = item.process.returncode
        item.process = None
        for name in item.within:
            self.groups[name].take(item, -1)
        code = TIMED_OUT if item.timed_out else 128 - code if code < 0 else code
        self._settle(item, "failed" if code else "done", code)

    def _time_out(self, item: Item) -> None:
        """Ask it to end, and make it after a while."""
        _signal_group(item, signal.SIGKILL if item.timed_out else signal.SIGTERM)
        item.ends_s = time.monotonic() + GRACE_S
        item.timed_out = True

    def _stop(self, running: list[Item]) -> int:
        """The allocation ends: so does everything in it."""
        for item in running:
            _signal_group(item, signal.SIGTERM)
        for item in running:
            if item.process is not None:
                item.process.wait()
        return STOPPED


def _say(text: str) -> None:
    sys.stdout.write(f"milkweed: {text}\n")
    sys.stdout.flush()


def _signal_group(item: Item, number: int) -> None:
    if item.process is not None and item.process.poll() is None:
        os.killpg(item.process.pid, number)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKING)


def main(argv: list[str]) -> int:
    """Read the plan, and carry it out."""
    with open(argv[0], encoding="utf-8") as file:
        plan = json.load(file)
    return Controller(plan, argv[1], argv[2]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Running many command lines under both launchers at once, and comparing what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from spmd.differences import Difference
from spmd.facts import Facts, compare, gather
from spmd.sides import Case, Ran, Sides

AT_ONCE = 3
WAITING_AT_ONCE = 8


class Compared:
    """Runs each command line once, whoever asks for it."""

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.seen: set[str] = set()
        """The names of the cases that were compared."""
        self.differences: set[str] = set()
        """The documented differences that occurred."""
        self._busy = ThreadPoolExecutor(AT_ONCE)
        self._waiting = ThreadPoolExecutor(WAITING_AT_ONCE)
        self._runs: dict[tuple[str, str], Future[Facts]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._busy, self._waiting):
            pool.shutdown(cancel_futures=True)

    def begin(self, cases: Sequence[Case]) -> None:
        """Start runs that will be asked for, those that mostly wait at first."""
        for case in sorted(cases, key=lambda case: not case.within_s):
            self.start("torchrun", case)
            self.start("milkweed", case)

    def start(self, side: str, case: Case) -> Future[Facts]:
        """Start a run, unless somebody has."""
        key = (side, case.name)
        if key not in self._runs:
            pool = self._waiting if case.within_s else self._busy
            self._runs[key] = pool.submit(self._run, side, case)
        return self._runs[key]

    def facts(self, side: str, case: Case) -> Facts:
        """What was seen of a run of `torchrun` or `milkweed`."""
        return self.start(side, case).result()

    def program_facts(self, side: str, case: Case) -> Facts:
        """What is seen of a run of the program that people start."""
        return self._gather(side, case, self.sides.run_program(side, case))

    def differing(self, case: Case) -> list[str]:
        """What is not the same and documented nowhere."""
        theirs, ours = self.facts("torchrun", case), self.facts("milkweed", case)
        assert case.code in {theirs["code"], -1}, "torchrun itself ended in another way"
        documented, others = compare(case, theirs, ours)
        self._note(case, documented)
        return others

    def _note(self, case: Case, documented: Sequence[Difference]) -> None:
        self.seen.add(case.name)
        self.differences.update(each.what for each in documented)

    def _run(self, side: str, case: Case) -> Facts:
        return self._gather(side, case, self.sides.run(side, case))

    def _gather(self, side: str, case: Case, ran: Ran) -> Facts:
        argv = self.sides.argv(case, ran.folder)
        return gather(case, argv, self.sides.environment(case), ran, ours=side == "milkweed")

"""Asking for a follow-up allocation in time, while a program runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import MilkweedError
from ..plan import Action, Plan, Renewal
from .watch import say

CHECK_S = 30.0
"""How often the time that is left is looked at."""


class Renewer:
    """A thread that carries out a plan to renew, and no other, as soon as there is one."""

    def __init__(
        self,
        name: str,
        plan: Callable[[], Plan],
        carry_out: Callable[[Plan], object],
        *,
        attend: Callable[[], None] = lambda: None,
        extends: bool = False,
    ) -> None:
        """`extends` says that the same hosts go on, and nothing else is asked for.

        `attend` is done as long as there is a follow-up that the program does not use yet.
        """
        self._name = name
        self._plan = plan
        self._carry_out = carry_out
        self._attend = attend
        self._done = (
            f"the hosts of job {name!r} were given more time"
            if extends
            else f"a follow-up of job {name!r} was asked for"
        )
        self._failed = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="milkweed-renewer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(CHECK_S):
            try:
                self._check()
            except MilkweedError as error:
                self._say_failed(error.what)
            except Exception as error:  # noqa: BLE001  whatever one look fails for, the next may succeed
                self._say_failed(f"{type(error).__name__}: {error}")

    def _say_failed(self, why: str) -> None:
        say(f"job {self._name!r} could not be renewed yet: {why}")

    def _check(self) -> None:
        plan = self._plan()
        if plan.action is Action.RENEW:
            self._carry_out(plan)
            say(f"{self._done}: {'; '.join(plan.reasons)}")
        elif plan.renewal in {Renewal.WAITING, Renewal.READY}:
            self._attend()
        elif plan.renewal is Renewal.FAILED and plan.reasons[-1] != self._failed:
            self._failed = plan.reasons[-1]
            say(
                f"job {self._name!r} is not followed yet: {self._failed}; another is asked for later"
            )

    def stop(self) -> None:
        """The program is done with the job."""
        self._stop.set()

    def finish(self, timeout_s: float) -> None:
        """The same, and wait until what is being done is done."""
        self.stop()
        self._thread.join(timeout_s)

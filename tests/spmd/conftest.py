"""Both launchers for the tests that compare runs: started once, with all selected runs under way at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from spmd.compared import Compared
from spmd.oracle import lack, why_missing
from spmd.sides import Case, open_sides


@pytest.fixture(scope="module")
def compared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compared]:
    """Runs of both launchers; every command line of the selected tests runs once."""
    with open_compared(tmp_path_factory) as made:
        made.begin(selected_cases(request))
        yield made


@pytest.fixture
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """The same, where launchers and hosts may run on one CPU only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with open_compared(tmp_path_factory) as made:
            yield made
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def open_compared(folders: pytest.TempPathFactory) -> Iterator[Compared]:
    """Both launchers, and a job for them."""
    if missing := why_missing():
        lack(missing)
    # Where pytest was started in the background, what it starts would not hear Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open_sides(folders.mktemp("runs")) as sides, Compared(sides) as made:
            yield made
    finally:
        signal.signal(signal.SIGINT, before)


def selected_cases(request: pytest.FixtureRequest) -> list[Case]:
    """What the selected tests of this module will ask for."""
    found: list[Case] = []
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            found += [params["case"]] if "case" in params else params.get("cases", [])
    return found


@pytest.fixture(scope="session", autouse=True)
def usual_signals() -> None:
    """What a shell in the background has told the tests to ignore, programs would ignore, too."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)

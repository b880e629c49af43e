"""Both launchers for the tests that compare runs: started once, with all selected runs under way at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from spmd.compared import Compared
from spmd.oracle import why_missing
from spmd.sides import Case, open_sides


@pytest.fixture(scope="module")
def compared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compared]:
    """Runs of both launchers; every command line of the selected tests runs once."""
    if missing := why_missing():
        pytest.skip(missing)
    # Where pytest was started in the background, what it starts would not hear Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open_sides(tmp_path_factory.mktemp("runs")) as sides, Compared(sides) as made:
            made.begin(selected_cases(request))
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

"""Every test has a home of its own: no test finds or leaves a user's jobs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

from milkweed.backends.fake import FakeScheduler, use_scheduler
from milkweed.job import leaving
from milkweed.testing import FakeClock

# A busy machine is slow, and that is no reason to call a property broken.
settings.register_profile("milkweed", deadline=None)
settings.load_profile("milkweed")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's records."""
    folder = tmp_path / "milkweed-home"
    monkeypatch.setenv("MILKWEED_HOME", str(folder))
    monkeypatch.delenv("MILKWEED_STATE", raising=False)
    return folder


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """What a worker's main function does with signals, which is for a process of its own, ends with the test."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    path = tmp_path / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def clock() -> FakeClock:
    """Time that passes only when somebody sleeps."""
    return FakeClock()


@pytest.fixture
def world() -> Iterator[FakeScheduler]:
    """The scheduler that `fake` jobs of this test talk to."""
    with use_scheduler() as scheduler, mock.patch.dict(leaving.last_deeds, clear=True):
        yield scheduler


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly that nothing was compared with torchrun, where that is so."""
    skipped = [
        each for each in terminalreporter.stats.get("skipped", ()) if "torch" in each.keywords
    ]
    lacking = [each for each in skipped if "no torch" in str(each.longrepr)]
    if lacking:
        terminalreporter.section("torch is not here", yellow=True)
        terminalreporter.line(
            f"{len(lacking)} tests that compare with the real torchrun were skipped"
        )

"""What people give to job classes: what is wrong is told when it is declared, not a queue later."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.job import FluxJob, ProcessJob, SlurmJob

CLASSES: list[Callable[..., Any]] = [FluxJob, ProcessJob, SlurmJob]


@pytest.mark.parametrize("value", [-1, 0, 0.0, "1h", "3600", None, True, math.nan])
@pytest.mark.parametrize("make", CLASSES)
def test_an_idle_timeout_is_a_number_of_seconds(make: Callable[..., Any], value: object) -> None:
    """Hosts with another one end at once when they have come, or cannot even start."""
    with pytest.raises(SpecError, match=r"idle_timeout_s: .* is not a number of seconds") as caught:
        make({"w": 1}, idle_timeout_s=value)
    assert "3600" in caught.value.hint


@pytest.mark.parametrize("value", [0.3, 60, 3600.0, math.inf])
@pytest.mark.parametrize("make", CLASSES)
def test_an_idle_timeout_that_is_one(make: Callable[..., Any], value: float) -> None:
    """Whole or not, it is what the hosts are told."""
    assert make({"w": 1}, idle_timeout_s=value).spec.lifetime.idle_timeout_s == value


@pytest.mark.parametrize(("said", "meant"), [("logs", "here/logs"), ("~/logs", "home/logs")])
@pytest.mark.parametrize("make", CLASSES)
def test_a_folder_for_logs_is_the_same_from_everywhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Any],
    said: str,
    meant: str,
) -> None:
    """`~` is one's home, and not the name of a folder; a relative one is where the job was declared."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert make({"w": 1}, log_dir=said).spec.options["log_dir"] == str(tmp_path / meant)


@pytest.mark.parametrize("make", CLASSES)
def test_a_folder_for_logs_below_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]
) -> None:
    """Nobody knows where that would be; a whole path needs no folder to start from."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SpecError, match="log_dir: 'logs' lies in the current folder") as caught:
        make({"w": 1}, log_dir="logs")
    assert "whole path" in caught.value.hint
    whole = str(tmp_path / "logs")
    assert make({"w": 1}, log_dir=whole).spec.options["log_dir"] == whole


@pytest.mark.parametrize("make", CLASSES)
def test_a_folder_for_logs_at_nobodys_home(make: Callable[..., Any]) -> None:
    """It is not taken for the name of a folder."""
    with pytest.raises(SpecError, match="home of somebody who is not known"):
        make({"w": 1}, log_dir="~no-such-user/logs")


@pytest.mark.parametrize("value", [7, "", ["logs"]])
@pytest.mark.parametrize("make", CLASSES)
def test_a_folder_for_logs_is_text(make: Callable[..., Any], value: object) -> None:
    """What is no path is refused by its name."""
    with pytest.raises(SpecError, match=r"\.log_dir: "):
        make({"w": 1}, log_dir=value)

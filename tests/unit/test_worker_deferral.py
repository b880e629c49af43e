"""Modules that the engine imports for functions that hosts seldom call."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Generator
from pathlib import Path

import pytest

from milkweed.worker import deferral

MODULE = """
loaded.append(1)
other = "other"

def twice(number, *, plus=0):
    return 2 * number + plus
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """How often the module `seldom` was loaded."""
    times = types.ModuleType("seldom_loaded")
    setattr(times, "loaded", [])  # noqa: B010  a module made here has no such name for a type checker
    monkeypatch.setitem(sys.modules, "seldom_loaded", times)
    (tmp_path / "seldom.py").write_text(f"from seldom_loaded import loaded\n{MODULE}")
    monkeypatch.syspath_prepend(tmp_path)
    yield vars(times)["loaded"]
    sys.modules.pop("seldom", None)


def seldom() -> types.ModuleType:
    return importlib.import_module("seldom")


def test_a_function_loads_its_module_when_it_is_called(loaded: list[int]) -> None:
    """Not before, and once."""
    with deferral.deferred({"seldom": "twice"}):
        twice = seldom().twice
    assert not loaded
    assert twice(3, plus=1) == 7
    assert twice(4) == 8
    assert loaded == [1]


def test_a_function_may_be_called_at_once(loaded: list[int]) -> None:
    """Then the module is there for everybody."""
    with deferral.deferred({"seldom": "twice"}):
        assert seldom().twice(1) == 2
        assert seldom().other == "other"
    assert loaded == [1]


def test_any_other_name_is_the_module_s_own(loaded: list[int]) -> None:
    """Whoever wants more than the function has the module loaded."""
    with deferral.deferred({"seldom": "twice"}):
        assert seldom().other == "other"
    assert loaded == [1]


def test_afterwards_everybody_gets_the_module_itself(loaded: list[int]) -> None:
    """What stood for it is known to those only who imported it meanwhile."""
    with deferral.deferred({"seldom": "twice"}):
        stand_in = seldom()
    assert seldom() is not stand_in
    assert seldom().other == "other"
    assert loaded == [1]


def test_what_is_there_is_left_alone(loaded: list[int]) -> None:
    """A module that somebody has imported stays the one."""
    before = seldom()
    with deferral.deferred({"seldom": "twice"}):
        assert seldom() is before
    assert seldom() is before
    assert loaded == [1]


def test_what_cannot_be_imported_cannot_be_imported_meanwhile() -> None:
    """A program that does without it is told so at once."""
    with (
        deferral.deferred({"seldom_of_nowhere": "twice"}),
        pytest.raises(ModuleNotFoundError, match="seldom_of_nowhere"),
    ):
        importlib.import_module("seldom_of_nowhere")


def test_an_error_leaves_nothing_behind(loaded: list[int]) -> None:
    """Also when importing fails, modules are themselves afterwards."""
    with pytest.raises(ValueError, match="x"), deferral.deferred({"seldom": "twice"}):
        raise ValueError("x")
    assert "seldom" not in sys.modules
    assert not loaded


@pytest.mark.parametrize(("module", "function"), sorted(deferral.DEFERRED.items()))
def test_what_is_deferred_is_there(module: str, function: str) -> None:
    """The names are the engine's: one that moves is only slower, and this tells."""
    assert callable(getattr(importlib.import_module(module), function))

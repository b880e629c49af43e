"""Errors explain themselves, and survive a trip between processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from milkweed import errors
from milkweed.errors import (
    DeadlineError,
    MilkweedError,
    SpecError,
    StateBusyError,
    UnknownBackendError,
    UnreachableError,
)

ALL = [
    found
    for _name, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, MilkweedError)
]


def test_an_error_says_what_was_seen_and_what_to_do() -> None:
    """The text has what happened, what was seen and what to do next, in this order."""
    error = MilkweedError("the job failed", seen="line 1\nline 2", hint="try again")
    assert str(error) == ("the job failed\n  seen: line 1\n        line 2\n  do:   try again")


@pytest.mark.parametrize("more", [{}, {"seen": ""}, {"hint": ""}])
def test_what_is_not_known_is_not_said(more: dict[str, str]) -> None:
    """Without anything seen or to do, an error is its first line."""
    assert str(MilkweedError("the job failed", **more)) == "the job failed"


def test_a_usual_hint_stands_in_for_one() -> None:
    """Where nobody knows better, an error says what always helps against its kind; who knows better is heard."""
    assert UnreachableError("x").hint == UnreachableError.usual_hint
    assert UnreachableError("x", hint="wait").hint == "wait"


def test_text_that_ends_in_newlines_leaves_no_empty_lines() -> None:
    """What programs print ends in newlines; an error does not repeat them."""
    assert str(MilkweedError("x", seen="a\n\n\n")) == "x\n  seen: a"
    assert str(MilkweedError("x", seen="\n")) == "x\n  seen: "


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickle_and_copy(kind: type[MilkweedError]) -> None:
    """An error that crosses a process boundary keeps its parts."""
    error = kind("what", seen="seen", hint="hint")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301  made in this test
        assert type(other) is kind
        assert (other.what, other.seen, other.hint) == ("what", "seen", "hint")
        assert str(other) == str(error)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_drawn_in_the_tree(kind: type[MilkweedError]) -> None:
    """The module's docstring draws every error there is, and each has a docstring."""
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


def test_the_drawn_tree_is_the_real_one() -> None:
    """The indentation in the drawing is the inheritance in the code."""
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = next((word for word in line.split() if word.endswith("Error")), None)
        if name is None or not hasattr(errors, name):
            continue
        depth = line.index(name) // 4
        parents[depth:] = [name]
        assert [kind.__name__ for kind in getattr(errors, name).__mro__ if kind in ALL] == [
            *reversed(parents)
        ]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(SpecError, ValueError), (UnknownBackendError, ValueError), (DeadlineError, TimeoutError)],
)
def test_errors_are_what_python_programs_expect(
    kind: type[MilkweedError], builtin: type[Exception]
) -> None:
    """Where Python has a word for it, an error is that, too."""
    assert issubclass(kind, builtin)


def test_transient_errors_are_those_that_may_go_away() -> None:
    """Only what may succeed later with nothing changed is transient."""
    found = {kind for kind in ALL if kind.transient}
    assert found == {StateBusyError, UnreachableError, DeadlineError}

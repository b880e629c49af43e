"""Which rank failed first, and how: the exact words that a person reads."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import RanksFailedError
from milkweed.spmd.attempt import Ending, Outcome
from milkweed.spmd.report import (
    MAX_LINES,
    describe_end,
    describe_exit,
    describe_rank,
    make_report,
    read_error,
)

AT_S = 1_700_000_000.0
CLOCK = time.strftime("%H:%M:%S", time.localtime(AT_S))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "extraInfo", "py_callstack", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def failure(rank: int, code: int, **more: Any) -> dict[str, Any]:
    """What a host says of a rank that failed."""
    said = {"rank": rank, "local": rank % 2, "host": f"w/{rank // 2}", "code": code, "at": AT_S}
    return {**said, "pid": 4000 + rank, "halted": False, "error": "", "tail": [], **more}


def report(*failures: dict[str, Any], restarts: int = 0) -> RanksFailedError:
    return make_report(Outcome(ending=Ending.FAILED, failures=failures), restarts=restarts)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-15, "was ended by SIGTERM"),
        (-9, "was ended by SIGKILL"),
        (-99, "was ended by signal 99"),
    ],
)
def test_exits(code: int, words: str) -> None:
    """Signals have names; those that have none have numbers."""
    assert describe_exit(code) == words


def test_ranks() -> None:
    """Which rank it is, and where to look for it."""
    assert describe_rank(failure(5, 1)) == "rank 5 (local rank 1 on host w/2)"
    assert describe_end(failure(5, 1)) == "rank 5 (local rank 1 on host w/2) exited with code 1"


# The whole text


def test_the_last_lines_are_shown() -> None:
    """One rank failed, three were ended for it: where, when, and what it printed last."""
    others = [failure(rank, -15, halted=True) for rank in (0, 1, 2)]
    error = report(failure(3, 7, tail=["about to fail", "", "ouch"]), *others)
    assert str(error) == (
        "rank 3 (local rank 1 on host w/1) exited with code 7\n"
        f"  seen: at {CLOCK}, process 4003\n"
        "        | about to fail\n"
        "        | \n"
        "        | ouch\n"
        "        3 other ranks were ended for it"
    )


def test_a_rank_that_printed_nothing() -> None:
    """Silence is said; a single rank that was ended for it is in the singular."""
    error = report(failure(0, 1), failure(1, -15, halted=True))
    assert str(error) == (
        "rank 0 (local rank 0 on host w/0) exited with code 1\n"
        f"  seen: at {CLOCK}, process 4000\n"
        "        it printed nothing\n"
        "        1 other rank was ended for it"
    )


def test_ranks_that_failed_too() -> None:
    """Five that failed after the first are named, more are counted, and so are those that were ended."""
    more = [failure(rank, 1) for rank in range(1, 8)]
    error = report(failure(0, 1), *more, failure(8, -15, halted=True))
    assert error.seen.splitlines()[2:] == [
        "then rank 1 (local rank 1 on host w/0) exited with code 1",
        "then rank 2 (local rank 0 on host w/1) exited with code 1",
        "then rank 3 (local rank 1 on host w/1) exited with code 1",
        "then rank 4 (local rank 0 on host w/2) exited with code 1",
        "then rank 5 (local rank 1 on host w/2) exited with code 1",
        "and 2 more ranks failed",
        "1 other rank was ended for it",
    ]


def test_five_are_not_counted() -> None:
    """Where all are named, nobody is counted."""
    error = report(failure(0, 1), *(failure(rank, 1) for rank in range(1, 6)))
    assert "more ranks" not in error.seen
    assert error.seen.count("then rank") == 5


def test_memory_that_ran_out() -> None:
    """SIGKILL comes with a guess, since nobody else tells."""
    error = report(failure(1, -9, tail=["step 7"]))
    assert str(error) == (
        "rank 1 (local rank 1 on host w/0) was ended by SIGKILL\n"
        f"  seen: at {CLOCK}, process 4001\n"
        "        | step 7\n"
        "  do:   SIGKILL often comes from the kernel when memory runs out: `dmesg` on that host tells"
    )


@pytest.mark.parametrize(
    ("restarts", "words"), [(0, ""), (1, ", after 1 restart"), (3, ", after 3 restarts")]
)
def test_restarts_that_were_used_up(restarts: int, words: str) -> None:
    """How often it was tried before is said."""
    error = report(failure(0, 2), restarts=restarts)
    assert error.what == f"rank 0 (local rank 0 on host w/0) exited with code 2{words}"


def test_the_error_has_the_facts() -> None:
    """A program need not read the text."""
    failures = (failure(3, -6), failure(0, -15, halted=True))
    error = report(*failures)
    assert (error.rank, error.local_rank, error.host, error.exit_code) == (3, 1, "w/1", -6)
    assert error.failures == failures


# What a program told of its own exception


def recorded(message: Any) -> str:
    """The text of an error file."""
    return json.dumps({"message": message})


def test_a_recorded_exception_is_better_than_lines() -> None:
    """What torch's `record` wrote is shown instead of the last lines."""
    told = {"message": "ValueError: wrong shape", "extraInfo": {"py_callstack": "Traceback:\n at"}}
    error = report(failure(0, 1, tail=["noise"], error=recorded(told)))
    assert error.seen.splitlines()[1:] == [
        "| ValueError: wrong shape",
        "| Traceback:",
        "|  at",
    ]


def test_only_the_end_of_a_long_story_is_shown() -> None:
    """Fifteen lines at most, whoever told them."""
    long = [f"line {number}" for number in range(40)]
    expected = [f"| {line}" for line in long[-MAX_LINES:]]
    assert report(failure(0, 1, tail=long)).seen.splitlines()[1:] == expected
    told = recorded("\n".join(long))
    assert report(failure(0, 1, error=told)).seen.splitlines()[1:] == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (recorded("plain words"), "plain words"),
        (recorded({"message": "E: x"}), "E: x"),
        (recorded({"message": "E: x", "extraInfo": None}), "E: x"),
        (recorded({"message": "E: x", "extraInfo": {"timestamp": 3}}), "E: x"),
        (recorded({"extraInfo": {"py_callstack": "trace"}}), "trace"),
        (recorded(None), "None"),
        ("  not JSON at all\n", "not JSON at all"),
        ('{"message": "cut of', '{"message": "cut of'),
        ("[1, 2]", "[1, 2]"),
        ('"words"', '"words"'),
        ("{}", "{}"),
        ("", ""),
    ],
)
def test_error_files(text: str, told: str) -> None:
    """Whatever a program wrote there, something is shown."""
    assert read_error(text) == told


def test_error_files_of_other_programs() -> None:
    """A program may write the file itself, and put a text where torch has a mapping."""
    assert read_error(recorded({"message": "E: x", "extraInfo": "at line 3"})).startswith("E: x")


def test_an_error_file_that_says_nothing() -> None:
    """A recorded exception without words is no better than what was printed."""
    error = report(failure(0, 1, tail=["the reason"], error=recorded({"message": ""})))
    assert error.seen.splitlines()[1:] == ["| the reason"]


@given(JSON | st.text())
def test_no_error_file_breaks_a_report(found: Any) -> None:
    """Any text and any JSON is told one way or another."""
    text = found if isinstance(found, str) else json.dumps({"message": found})
    assert isinstance(read_error(text), str)

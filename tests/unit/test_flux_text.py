"""What `flux` prints, read as values: what a real one printed, and what no Flux ever did."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.flux.text import (
    RESULTS,
    STATES,
    is_unreachable,
    liveness_of,
    make_jobs,
    parse_job_id,
    parse_jobs,
    parse_name,
    parse_version,
    render_job_id,
    render_name,
)
from milkweed.backends.marks import Mark
from milkweed.status import Liveness
from unit.flux_fake import APPLY_ID, CORPUS, name_of

JOBS = {row.job_id: row for row in parse_jobs((CORPUS / "jobs.json").read_text())}


def test_every_recorded_job_is_read() -> None:
    """Jobs of all kinds, as a real instance listed them, have known states and results."""
    assert len(JOBS) == 12
    assert {row.state for row in JOBS.values()} == {"DEPEND", "SCHED", "RUN", "INACTIVE"}
    assert {row.result for row in JOBS.values()} - {""} == set(RESULTS)
    assert all(row.state in STATES for row in JOBS.values())


def test_a_job_that_runs() -> None:
    """Its nodes are in the order of its tasks; brokers on one machine have one name."""
    [row] = [row for row in JOBS.values() if row.state == "RUN"]
    assert row.nodes == ("vm", "vm")
    assert row.liveness is Liveness.RUNNING
    assert row.start is not None
    assert row.end is not None
    assert 3599 < row.end - row.start < 3601
    assert parse_name(row.name) == Mark(APPLY_ID, 0, 0, "demo")
    assert row.exit_code is None


def test_one_job_that_was_asked_for() -> None:
    """It is printed without a list around it."""
    [row] = parse_jobs((CORPUS / "jobs-one.json").read_text())
    assert JOBS[row.job_id].name == row.name


@pytest.mark.parametrize(
    ("trouble", "note", "result", "code"),
    [
        ("cancel", "make room", "CANCELED", 143),
        ("timeout", "resource allocation expired", "TIMEOUT", 142),
        ("alloc", "unsatisfiable request: need 9", "FAILED", None),
        ("exec", "start failed: /does/not/exist", "FAILED", 127),
    ],
)
def test_what_was_raised_for_a_job(trouble: str, note: str, result: str, code: int | None) -> None:
    """The exception's type and note are read, and the exit code where tasks had one."""
    found = [row for row in JOBS.values() if row.trouble == trouble and note in row.note]
    assert [(row.result, row.exit_code) for row in found] == [(result, code)]


def test_jobs_that_wait() -> None:
    """When one may start, that it is held, and what it depends on."""
    waiting = [row for row in JOBS.values() if row.liveness is Liveness.PENDING]
    assert sorted(row.urgency for row in waiting) == [0, 16, 16]
    assert [row.expected is not None for row in waiting].count(True) == 1
    assert [row.dependencies for row in waiting if row.dependencies] == [("after-finish=ƒ2idxjV9",)]


def test_what_is_missing_is_not_known() -> None:
    """Flux leaves out what it cannot tell yet."""
    [row] = parse_jobs('{"jobs": [{"id": 3, "state": "NEW"}]}')
    assert (row.nodes, row.start, row.end, row.exit_code, row.result) == ((), None, None, None, "")
    assert parse_jobs("") == parse_jobs('{"jobs": []}') == []


@pytest.mark.parametrize(
    "text",
    ["null", "[]", "7", "{", '{"jobs": 3}', '{"jobs": [{}]}', '{"jobs": [{"id": "x", "state": 1}]}',
     '{"jobs": [{"id": 1, "state": "RUN", "nodelist": "n[1"}]}', '{"jobs": [null]}'],
)  # fmt: skip
def test_what_is_no_list_of_jobs(text: str) -> None:
    """It is refused with what was printed, and never read as an empty list."""
    with pytest.raises(ValueError, match="no list of jobs"):
        parse_jobs(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever was printed, nothing but ValueError comes of it."""
    try:
        parse_jobs(text)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("state", "liveness"),
    [
        ("NEW", Liveness.PENDING),
        ("DEPEND", Liveness.PENDING),
        ("PRIORITY", Liveness.PENDING),
        ("SCHED", Liveness.PENDING),
        ("RUN", Liveness.RUNNING),
        ("CLEANUP", Liveness.UNKNOWN),
        ("INACTIVE", Liveness.ENDED),
        ("SOMETHING", Liveness.UNKNOWN),
        ("", Liveness.UNKNOWN),
    ],
)
def test_states(state: str, liveness: Liveness) -> None:
    """Every state has its meaning, and a word that is not known is never an end."""
    assert liveness_of(state) is liveness


# Names and numbers


def test_a_name_says_whose_a_job_is() -> None:
    """The name that a person gave comes first: listings cut names off at the end."""
    assert name_of(2) == f"demo:milkweed:1:{APPLY_ID}:0:2"
    assert parse_name(name_of(2)) == Mark(APPLY_ID, 0, 2, "demo")


@pytest.mark.parametrize(
    "name",
    ["", "sleep", "milkweed", "demo:milkweed:2:x:0:0", "demo:milkweed:1:x:0", ":milkweed:1:x:0:0"],
)
def test_names_of_others(name: str) -> None:
    """A job without our mark is somebody else's."""
    assert parse_name(name) is None


@given(st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True), st.integers(0, 999))
def test_marks_come_back(name: str, component: int) -> None:
    """Whatever a job is called, its mark is read as it was written."""
    mark = Mark(APPLY_ID, 0, component, name)
    assert parse_name(render_name(mark)) == mark


@pytest.mark.parametrize("text", ["ƒ267QRnP\n", "f267QRnP", "41422946304\n", "a word\nƒ267QRnP"])
def test_job_ids(text: str) -> None:
    """Flux prints a number in its own digits, and older ones in ASCII or decimal."""
    assert parse_job_id(text) == 41422946304


@given(st.integers(0, 2**64 - 1))
def test_job_ids_come_back(number: int) -> None:
    """Every number that a job may have is read as it was written."""
    assert parse_job_id(render_job_id(number)) == number


@pytest.mark.parametrize("text", ["", "no job", "ƒ0OIl", "-5", "ƒ"])
def test_what_is_no_job_id(text: str) -> None:
    """It is refused, not guessed."""
    with pytest.raises(ValueError, match="has no job id"):
        parse_job_id(text)


def test_versions() -> None:
    """As a real Flux and an older one print it."""
    assert parse_version((CORPUS / "version.txt").read_text()) == (0, 88)
    assert parse_version("commands:    \t\t0.49.0-12-gabc\n") == (0, 49)
    with pytest.raises(ValueError, match="has no version of Flux"):
        parse_version("fluxbox is a window manager")


@pytest.mark.parametrize("path", sorted(CORPUS.glob("error-*.txt")), ids=lambda path: path.stem)
def test_errors_of_a_real_flux(path: object) -> None:
    """What is printed without an instance means that nobody answered; a refusal never does."""
    text = path.read_text()  # type: ignore[attr-defined]
    name = path.stem  # type: ignore[attr-defined]
    away = name.startswith("error-down") or name == "error-exec-gone"
    assert is_unreachable(text) is away


def test_listing_jobs() -> None:
    """Those that live or ended lately, without a limit; or those with some numbers."""
    assert make_jobs() == ["jobs", "--json", "--count=0", "--since=-1h"]
    assert make_jobs((7, 8)) == ["jobs", "--json", "7", "8"]
    assert json.loads((CORPUS / "jobs.json").read_text())["jobs"]

"""The small texts: marks, versions, ids, errors that mean that nobody answered, and variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm import text as slurm_text
from milkweed.backends.slurm.text import (
    MINIMUM_VERSION,
    Mark,
    is_unreachable,
    make_env,
    parse_job_id,
    parse_mark,
    parse_version,
    render_mark,
)

CORPUS = Path(__file__).parents[1] / "corpus" / "slurm"
VERSIONS = ["22.05", "24.11"]


def test_all_names_are_found_in_one_module() -> None:
    """Whoever talks to Slurm imports from one place."""
    assert all(hasattr(slurm_text, name) for name in slurm_text.__all__)


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_of_a_controller_that_does_not_answer(version: str) -> None:
    """A controller or a munge that is away is told from one that refuses."""
    for path in sorted((CORPUS / version).glob("error-*.txt")):
        away = path.stem.startswith(("error-down-", "error-munge-", "error-no-configuration"))
        assert is_unreachable(path.read_text("utf-8")) is away, path.name


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "slurm_load_jobs error: Slurm backup controller in standby mode",
        "squeue: error: slurm_persist_conn_open_without_init: failed to open: Connection refused",
        "fatal: Could not establish a configuration source",
        "scancel: error: Kill job error on job id 5: Message receive failure",
        "sbatch: error: Munge encode failed: Munged communication error",
    ],
)
def test_other_errors_of_a_controller_that_does_not_answer(text: str) -> None:
    """Errors that the lab cannot bring about, as Slurm's source and its users have them."""
    assert is_unreachable(text)


@pytest.mark.parametrize(
    "text", ["", "Invalid job id specified", "sbatch: error: Invalid qos specification"]
)
def test_refusals_are_answers(text: str) -> None:
    """A controller that says no can be reached."""
    assert not is_unreachable(text)


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (Mark("0b0c-f8", 1, 0, "train"), "milkweed:1:0b0c-f8:1:0:train"),
        (Mark("a", 12, 3, "my.job_1-x"), "milkweed:1:a:12:3:my.job_1-x"),
    ],
)
def test_marks(mark: Mark, text: str) -> None:
    """A mark is written as one word and read back as it was."""
    assert render_mark(mark) == text
    assert parse_mark(text) == mark


@pytest.mark.parametrize(
    "comment",
    [
        *("", "hello", "milkweed", "milkweed:1:a:1:0", "milkweed:1:a:1:0:", "milkweed:1::1:0:n"),
        *("milkweed:2:a:1:0:n", "xmilkweed:1:a:1:0:n", "milkweed:1:a:x:0:n", "milkweed:1:a:1:-1:n"),
        *(
            "milkweed:1:a:1:0:n|m",
            "milkweed:1:a:1:0:n\n",
            "milkweed:1:a/b:1:0:n",
            "milkweed:1:a:1:0:n:m",
        ),
    ],
)
def test_comments_of_others_are_no_marks(comment: str) -> None:
    """Only what milkweed wrote, all of it, is a mark."""
    assert parse_mark(comment) is None


@given(st.text(max_size=40))
def test_any_comment_can_be_looked_at(comment: str) -> None:
    """Looking for a mark never fails."""
    mark = parse_mark(comment)
    assert mark is None or parse_mark(render_mark(mark)) == mark


@pytest.mark.parametrize(
    "mark",
    [
        Mark("a|b", 1, 0, "n"),
        Mark("a", -1, 0, "n"),
        Mark("a", 1, 0, "x|y"),
        Mark("", 1, 0, "n"),
        Mark("a", 1, 0, "x:y"),
    ],
)
def test_marks_that_could_not_be_read_back_are_not_written(mark: Mark) -> None:
    """A mark that nobody would find again would leak a job."""
    with pytest.raises(ValueError, match="cannot be written as a mark"):
        render_mark(mark)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5)),
        ("slurm 20.11.0-0rc1", (20, 11)),
        ("slurm 23.11.10-1.el9", (23, 11)),
        ("slurm 25.05", (25, 5)),
    ],
)
def test_versions_are_read(text: str, expected: tuple[int, int]) -> None:
    """The two numbers that name a release."""
    assert parse_version(text) == expected
    assert parse_version(text) >= MINIMUM_VERSION


@pytest.mark.parametrize(("version", "expected"), [("22.05", (22, 5)), ("24.11", (24, 11))])
def test_real_versions_are_read(version: str, expected: tuple[int, int]) -> None:
    """What `sbatch --version` prints."""
    assert parse_version((CORPUS / version / "sbatch-version.txt").read_text("utf-8")) == expected


@pytest.mark.parametrize("text", ["", "slurm", "command not found", "slurm twenty"])
def test_what_has_no_version_is_refused(text: str) -> None:
    """An error shows what was said instead."""
    with pytest.raises(ValueError, match="no version of Slurm"):
        parse_version(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123\n", 123),
        ("123;cluster\n", 123),
        ("  7 ", 7),
        ("Welcome to the cluster!\n\n123;a\n", 123),
    ],
)
def test_job_ids_are_read(text: str, expected: int) -> None:
    """The id is the last word, with or without a cluster; sites print greetings before it."""
    assert parse_job_id(text) == expected


@pytest.mark.parametrize("text", ["", "Submitted batch job", "12x", "-5", "٣", ";c"])
def test_what_has_no_job_id_is_refused(text: str) -> None:
    """An error shows what was said instead."""
    with pytest.raises(ValueError, match="has no job id"):
        parse_job_id(text)


def test_settings_of_the_user_do_not_reach_the_commands() -> None:
    """Variables that filter or reshape the output are left out; those that find the cluster stay."""
    given = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "main",
        "SQUEUE_PARTITION": "debug",
        "SQUEUE_STATES": "running",
        "SINFO_FORMAT": "%n",
        "SACCT_FORMAT": "JobID",
        "SLURM_TIME_FORMAT": "relative",
    }
    assert make_env(given) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "main",
        "SLURM_TIME_FORMAT": "%s",
    }
    assert given["SLURM_TIME_FORMAT"] == "relative"

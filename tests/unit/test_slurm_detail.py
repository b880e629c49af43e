"""One job in full: what `scontrol show job` of real clusters prints."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings, strategies as st

from milkweed.backends.slurm.text import (
    JobDetail,
    liveness_of,
    make_scontrol_job,
    parse_mark,
    parse_scontrol_job,
    parse_squeue,
)
from milkweed.status import Liveness
from unit.slurm_corpus import VERSIONS, text_of

pytestmark = pytest.mark.usefixtures("in_utc")
ROUNDS = [
    *("waiting", "ended", "timeout", "completing", "requeued", "node-fail", "launch-failed"),
    *("configuring", "suspended"),
]


def read(version: str, name: str) -> dict[str, JobDetail]:
    return {job.name: job for job in parse_scontrol_job(text_of(version, f"scontrol-{name}"))}


def test_the_command_asks_for_one_job() -> None:
    """All components of a job are printed, one record each."""
    assert make_scontrol_job(12) == ["scontrol", "show", "job", "-o", "12"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ROUNDS)
def test_both_commands_tell_the_same(version: str, name: str) -> None:
    """What `squeue` and `scontrol` print about a job at one time agrees."""
    rows = {row.job_id: row for row in parse_squeue(text_of(version, f"squeue-{name}"))}
    jobs = {job.job_id: job for job in parse_scontrol_job(text_of(version, f"scontrol-{name}"))}
    assert rows.keys() == jobs.keys()
    for job_id, row in rows.items():
        job = jobs[job_id]
        assert (job.state, job.nodes, job.batch_host) == (row.state, row.nodes, row.batch_host)
        assert (job.reason, job.offset) == (row.reason, row.offset)
        assert (job.end is None) == (row.end is None)
        if row.offset is not None:
            assert job.leader == row.leader
        if "|" not in job.comment:
            assert (job.name, job.comment) == (row.name, row.comment)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_long_form_tells_the_same(version: str) -> None:
    """With and without `-o`, the same jobs are read."""
    long = parse_scontrol_job(text_of(version, "scontrol-ended-long"))
    assert long == parse_scontrol_job(text_of(version, "scontrol-ended"))
    (lost,) = parse_scontrol_job(text_of(version, "scontrol-node-fail-long"))
    assert lost == read(version, "node-fail")["node-fail"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_runs(version: str) -> None:
    """Everything that is known about a job."""
    job = read(version, "waiting")["running"]
    assert (job.state, job.reason, job.partition, job.stdout) == (
        "RUNNING",
        "",
        "debug",
        "/dev/null",
    )
    assert (job.exit_code, job.signal, job.restarts) == (0, 0, 0)
    assert (job.nodes, job.batch_host) == (("n1", "n2"), "n1")
    assert (job.leader, job.offset) == (job.job_id, None)
    assert job.time_limit_s == 7200.0
    assert job.start is not None
    assert job.end == job.start + 7200
    mark = parse_mark(job.comment)
    assert mark is not None
    assert mark.name == "running"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "state", "code", "signal"),
    [
        ("completed", "COMPLETED", 0, 0),
        ("exit-3", "FAILED", 3, 0),
        ("signal-9", "FAILED", 0, 9),
        ("step-signal", "FAILED", 139, 0),
        ("cancelled", "CANCELLED", 0, 15),
        ("cancelled-pending", "CANCELLED", 0, 0),
        ("preempted", "PREEMPTED", 0, 15),
    ],
)
def test_how_jobs_ended(version: str, name: str, state: str, code: int, signal: int) -> None:
    """The exit code is the script's; a signal stands beside it."""
    job = read(version, "ended")[name]
    assert (job.state, job.exit_code, job.signal) == (state, code, signal)
    assert liveness_of(job.state) is Liveness.ENDED
    assert job.end is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_paths_and_names_with_spaces(version: str) -> None:
    """What people wrote is read whole, and never taken for Slurm's own words."""
    assert read(version, "ended")["exit-3"].stdout.startswith("/srv/lab/my logs/")
    odd = read(version, "waiting")["odd | name = 1"]
    assert odd.state == "RUNNING"
    assert odd.comment == "JobState=FAILED | x"
    assert odd.stdout == "/srv/lab/my logs/odd | name = 1.out"
    two = read(version, "waiting")["two\nlines"]
    assert (two.comment, two.partition) == ("a\nb", "hidden")


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_that_went_back_into_the_queue(version: str) -> None:
    """The number of restarts is what tells a second run from the first."""
    job = read(version, "node-fail")["node-fail-requeued"]
    assert (job.state, job.reason, job.restarts) == ("PENDING", "BeginTime", 1)
    job = read(version, "requeued")["completing-requeued"]
    assert (job.state, job.restarts, job.nodes) == ("PENDING", 1, ())
    job = read(version, "launch-failed")["launch-failed"]
    assert (job.reason, job.restarts) == ("launch failed requeued held", 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_completes_does_not_say_what_follows(version: str) -> None:
    """One of the two ends and one goes back; only the restarts differ, and only for this way back."""
    jobs = read(version, "completing")
    ending, returning = jobs["completing-cancelled"], jobs["completing-requeued"]
    assert (ending.state, ending.reason) == (returning.state, returning.reason)
    assert (ending.restarts, returning.restarts) == (0, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_that_failed(version: str) -> None:
    """The state is the cause."""
    job = read(version, "node-fail")["node-fail"]
    assert (job.state, job.reason, job.restarts) == ("NODE_FAIL", "NodeDown", 0)


def test_versions_differ() -> None:
    """What only one version tells: a missing folder for output, and the signal in the reason."""
    old, new = (read(version, "ended") for version in VERSIONS)
    assert old["no-output-folder"].reason == old["signal-9"].reason == "JobLaunchFailure"
    assert new["no-output-folder"].state == "COMPLETED"
    assert new["signal-9"].reason == "RaisedSignal:9(Killed)"


def test_no_jobs() -> None:
    """A cluster without jobs is no error."""
    assert parse_scontrol_job("No jobs in the system\n") == []
    assert parse_scontrol_job("") == []


def changed(old: str, new: str) -> str:
    text = text_of("24.11", "scontrol-timeout")
    assert old in text
    return text.replace(old, new)


def test_keys_of_other_versions() -> None:
    """Keys that other versions and sites have are passed over, and people's words stay whole."""
    text = changed(" StdErr=", " AdminComment=no Comment=mine and yours Extra=e=1 x StdErr=")
    (job,) = parse_scontrol_job(text.replace("Dependency=", "FailedNode=n4 Dependency="))
    assert job.reason == "TimeLimit"
    assert job.comment == "mine and yours"
    text = changed("UserId=root(0) GroupId=root(0)", "UserId=EX\\a b(10) GroupId=domain users(11)")
    assert parse_scontrol_job(text)[0].name == "timeout"
    text = changed("StdOut=/dev/null", "StdOut=/a b/c Power= TresPerNode=gpu:8")
    assert parse_scontrol_job(text)[0].stdout == "/a b/c"


def test_a_job_without_a_script() -> None:
    """`salloc` has no output, and may have a comment."""
    text = changed(
        " StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null", " Comment=by hand TresPerNode=x"
    )
    (job,) = parse_scontrol_job(text)
    assert (job.stdout, job.comment) == ("", "by hand")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("JobId=", "Job="),
        ("JobName=", "Name="),
        ("JobState=", "State="),
        ("ExitCode=0:15", "ExitCode=x"),
        ("StartTime=2", "StartTime=x"),
        ("NodeList=n1", "NodeList=n["),
        (" Partition=", " Part="),
    ],
)
def test_what_is_not_a_job_is_refused(old: str, new: str) -> None:
    """An error shows what could not be read, and what is missing."""
    with pytest.raises(ValueError, match="job"):
        parse_scontrol_job(changed(old, new))


@given(st.text(max_size=30), st.text(max_size=30))
@example(" UserId=x Comment=y", "StdErr=/x StdOut=/y Extra=z")
@example("JobState=COMPLETED", "\nJobId")
@settings(max_examples=60)
def test_no_name_or_comment_changes_what_slurm_says(name: str, comment: str) -> None:
    """Whatever people write, the state is the one that Slurm told."""
    text = changed("JobName=timeout", f"JobName={name}x").replace(
        " StdErr", f" Comment=x{comment} StdErr"
    )
    (job,) = parse_scontrol_job(text)
    assert (job.state, job.partition, job.time_limit_s) == ("TIMEOUT", "debug", 60.0)
    assert job.stdout == "/dev/null"

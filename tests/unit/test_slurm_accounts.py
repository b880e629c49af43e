"""What `sacct` prints of real clusters and, where the lab cannot bring something about, would print."""

from __future__ import annotations

import pytest

from milkweed.backends.slurm.text import (
    JobDetail,
    is_unreachable,
    liveness_of,
    make_sacct,
    parse_mark,
    parse_sacct,
    parse_scontrol_job,
)
from milkweed.status import Liveness
from unit.slurm_corpus import CORPUS, VERSIONS, text_of

pytestmark = pytest.mark.usefixtures("in_utc")


def read(version: str, name: str) -> dict[str, list[JobDetail]]:
    """The accounts of each name: those of a heterogeneous job's components and of an array's tasks have one."""
    found: dict[str, list[JobDetail]] = {}
    for job in parse_sacct(text_of(version, f"sacct-{name}")):
        found.setdefault(job.name, []).append(job)
    return found


def test_the_accounting_is_asked_for_jobs_without_steps() -> None:
    """One call for any number of jobs; the name comes last, because it may have bars."""
    argv = make_sacct([12, 13])
    assert argv[:6] == ["sacct", "-n", "-P", "-X", "-j", "12,13"]
    assert argv[-1].startswith("JobID,JobIDRaw,State,")
    assert argv[-1].endswith(",JobName")


def test_the_recordings_are_of_what_is_asked() -> None:
    """The recorder asks `sacct` for the very fields that milkweed asks for, in their order."""
    recorder = (CORPUS / "record-accounting.sh").read_text("utf-8")
    assert f"FIELDS={make_sacct([1])[-1]} " in recorder
    assert 'sacct -n -P -X -j "$(seq -s, ' in recorder


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "state", "exit_", "nodes"),
    [
        ("completed", "COMPLETED", (0, 0), ("n1", "n2")),
        ("exit-3", "FAILED", (3, 0), ("n1",)),
        ("signal-9", "FAILED", (0, 9), ("n1",)),
        ("step-signal", "FAILED", (11, 0), ("n2",)),
        ("timeout", "TIMEOUT", (0, 0), ("n1",)),
        ("cancelled", "CANCELLED by 0", (0, 0), ("n4",)),
        ("cancelled-pending", "CANCELLED by 0", (0, 0), ()),
        ("never", "CANCELLED", (0, 0), ()),
        ("preempted", "PREEMPTED", (0, 0), ("n1", "n2", "n3", "n4")),
    ],
)
def test_how_jobs_ended(
    version: str, name: str, state: str, exit_: tuple[int, int], nodes: tuple[str, ...]
) -> None:
    """The state, exit code and signal, and nodes of each; why it once waited is no reason for its end."""
    (job,) = read(version, "ended")[name]
    assert (job.state, (job.exit_code, job.signal), job.nodes) == (state, exit_, nodes)
    assert liveness_of(job.state) is Liveness.ENDED
    assert (job.reason, job.batch_host, job.stdout, job.restarts) == ("", "", "", 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_components_and_tasks(version: str) -> None:
    """Components have their leader and their place; tasks have the array's number and none."""
    jobs = read(version, "ended")
    first, second = jobs["het"]
    assert [job.leader for job in (first, second)] == [first.job_id, first.job_id]
    assert [(job.offset, job.nodes) for job in (first, second)] == [
        (0, ("n1",)),
        (1, ("n2", "n3")),
    ]
    assert second.job_id == first.job_id + 1
    assert {job.state for job in jobs["het-cancelled"]} == {"CANCELLED by 0"}
    tasks = jobs["array"]
    assert len({job.leader for job in tasks}) == 1
    assert [(job.state, job.exit_code, job.offset) for job in tasks] == [
        ("COMPLETED", 0, None),
        ("FAILED", 1, None),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_names_and_comments_stay_whole(version: str) -> None:
    """Bars and line breaks in names, and lines that begin like a record, take nothing away from other jobs."""
    jobs = read(version, "ended")
    assert jobs["two\nlines"][0].comment == "a\nb"
    assert jobs["12|12|FAILED\n13|13|FAILED"][0].state == "COMPLETED"
    mark = parse_mark(jobs["exit-3"][0].comment)
    assert mark is not None
    assert (mark.generation, mark.name) == (2, "exit-3")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_accounting_need_not_know_the_comment(version: str) -> None:
    """It keeps comments only where the site says so (`AccountingStoreFlags=job_comment`)."""
    (job,) = read(version, "no-comment")["no-comment"]
    assert (job.comment, job.name, job.state) == ("", "no-comment", "COMPLETED")


@pytest.mark.parametrize("version", VERSIONS)
def test_limits_and_times(version: str) -> None:
    """Limits are whole minutes; with `SLURM_TIME_FORMAT=%s`, as milkweed asks, times are the same numbers."""
    jobs = read(version, "ended")
    limits = {name: jobs[name][0].time_limit_s for name in ("unlimited", "days", "partition-limit")}
    assert limits == {"unlimited": None, "days": 217860.0, "partition-limit": 1800.0}
    (job,) = jobs["timeout"]
    assert job.start is not None
    assert job.end is not None
    assert 60 <= job.end - job.start < 180
    assert read(version, "ended-epoch") == jobs
    assert read(version, "waiting-epoch") == read(version, "waiting")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_not_ended(version: str) -> None:
    """Jobs that wait have no nodes and no times, those that run no end; one that comes anew waits again."""
    jobs = read(version, "waiting")
    for name in ("requeued", "JobHeldUser", "Licenses", "BeginTime", "pending-array"):
        (job,) = jobs[name]
        assert (job.state, job.nodes, job.start, job.end) == ("PENDING", (), None, None)
    for name, state in (("running", "RUNNING"), ("suspended", "SUSPENDED")):
        (job,) = jobs[name]
        assert (job.state, job.nodes, job.end) == (state, ("n1",), None)
        assert job.start is not None
    assert [job.state for job in jobs["het-pending"]] == ["PENDING", "PENDING"]


@pytest.mark.parametrize("version", VERSIONS)
def test_why_a_job_waits(version: str) -> None:
    """It is Slurm's own word, once the accounting has noted it; it hears of it some time later."""
    for name in ("Licenses", "BeginTime", "JobHeldUser"):
        (job,) = read(version, "waiting")[name]
        assert job.reason in {"", name}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_accounting_ends_a_job_before_its_processes_have(version: str) -> None:
    """What `squeue` still calls COMPLETING has ended there: Slurm itself is asked first."""
    (job,) = read(version, "waiting")["completing"]
    assert job.state == "CANCELLED by 0"
    assert job.end is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_that_dies(version: str) -> None:
    """A job that lost it has ended, and one that may come anew waits."""
    jobs = read(version, "node-fail")
    (lost,), (back,) = jobs["node-fail"], jobs["node-fail-requeued"]
    assert (lost.state, lost.nodes, back.state) == ("NODE_FAIL", ("n3", "n4"), "PENDING")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_job_and_a_silent_accounting(version: str) -> None:
    """Of a job that it does not know it tells nothing; that it does not answer is known from its words."""
    assert parse_sacct(text_of(version, "sacct-unknown-job")) == []
    assert is_unreachable(text_of(version, "error-down-sacct"))
    assert not is_unreachable(text_of(version, "error-sacct"))


@pytest.mark.parametrize("version", VERSIONS)
def test_both_tell_the_same_end(version: str) -> None:
    """The controller and the accounting agree about jobs that were made alike, but for codes of 128 and more."""
    shown = {job.name: job for job in parse_scontrol_job(text_of(version, "scontrol-ended"))}
    for name in ("completed", "exit-3", "signal-9", "preempted"):
        (job,) = read(version, "ended")[name]
        assert (job.state, job.exit_code) == (shown[name].state, shown[name].exit_code)
    assert shown["step-signal"].exit_code == 139
    assert read(version, "ended")["step-signal"][0].exit_code == 139 - 128


def by_hand() -> dict[int, JobDetail]:
    return {job.job_id: job for job in parse_sacct(text_of("by-hand", "sacct"))}


def test_what_the_lab_cannot_bring_about() -> None:
    """Memory that ran out, a limit that is the partition's, another user's word, a wait for others."""
    jobs = by_hand()
    assert (jobs[109].state, jobs[109].signal, jobs[109].name) == (
        "OUT_OF_MEMORY",
        125,
        "two\nlines",
    )
    assert (jobs[109].leader, jobs[109].offset) == (106, None)
    assert [jobs[id_].time_limit_s for id_ in (103, 104)] == [None, None]
    assert (jobs[103].state, jobs[103].name) == ("CANCELLED by 1000", "name | with = odd signs")
    assert jobs[103].reason == "JobHeldUser"
    assert (jobs[112].start, jobs[112].reason, jobs[112].nodes) == (None, "Priority", ())


@pytest.mark.parametrize(
    "text",
    [
        "Slurm accounting storage is disabled",
        "12|12|FAILED|",
        "12|12|FAILED|x|||||||||n",
        "x|1|FAILED|0:0|||||||||",
    ],
)
def test_what_is_not_an_account_is_refused(text: str) -> None:
    """An error shows what could not be read."""
    with pytest.raises(ValueError, match="job"):
        parse_sacct(text)

"""What `squeue` of real clusters prints about jobs in every state."""

from __future__ import annotations

import pytest

from milkweed.backends.slurm.text import (
    SQUEUE_FORMAT,
    JobRow,
    Mark,
    explain_reason,
    liveness_of,
    make_squeue,
    parse_mark,
    parse_squeue,
)
from milkweed.status import Liveness
from unit.slurm_corpus import CORPUS, VERSIONS
from unit.slurm_fake import line

pytestmark = pytest.mark.usefixtures("in_utc")
PENDING, RUNNING, ENDED, UNKNOWN = Liveness


def read(version: str, name: str) -> dict[str, JobRow]:
    """The jobs of one record by name; of a job with several rows, the last."""
    return {row.name: row for row in rows_of(version, name)}


def rows_of(version: str, name: str) -> list[JobRow]:
    return parse_squeue((CORPUS / version / f"squeue-{name}.txt").read_text("utf-8"))


def test_the_command_asks_for_all_jobs_of_a_user() -> None:
    """Jobs that ended lately and jobs of hidden partitions are asked for too."""
    argv = make_squeue("1000")
    assert argv == ["squeue", "-a", "-t", "all", "-u", "1000", "-o", SQUEUE_FORMAT]
    assert not any(char.isdigit() for char in SQUEUE_FORMAT), "a width would cut what is longer"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_queue_is_a_heading(version: str) -> None:
    """Who has no jobs is told so: that is how it differs from no answer."""
    assert (CORPUS / version / "squeue-none.txt").read_text("utf-8")
    assert rows_of(version, "none") == []


def test_several_clusters_are_read_together() -> None:
    """Each has its name and a heading above its jobs."""
    heading = (CORPUS / "22.05" / "squeue-none.txt").read_text("utf-8")
    one, other = line(7), line(8)
    text = f"CLUSTER: a\n{heading}{one}\nCLUSTER: b\n{heading}{other}"
    assert [row.job_id for row in parse_squeue(text)] == [7, 8]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name", ["PartitionDown", "PartitionInactive", "PartitionTimeLimit", "PartitionNodeLimit"]
)
def test_jobs_that_their_partition_does_not_start(version: str, name: str) -> None:
    """A job that waits has no hosts and no start, and the reason is Slurm's word."""
    row = read(version, "waiting")[name]
    assert (row.state, row.reason) == ("PENDING", name)
    assert (row.nodes, row.batch_host, row.start, row.end) == ((), "", None, None)
    assert row.time_left_s == 3600.0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name",
    [
        *(
            "Priority",
            "Licenses",
            "BeginTime",
            "Dependency",
            "DependencyNeverSatisfied",
        ),
        *("Reservation", "JobHeldUser", "JobHeldAdmin", "ReqNodeNotAvail"),
    ],
)
def test_jobs_that_wait_for_other_reasons(version: str, name: str) -> None:
    """Every reason for waiting is told, some with more words behind it."""
    row = read(version, "waiting")[name]
    assert liveness_of(row.state) is PENDING
    assert row.reason.partition(",")[0] == name
    assert (row.nodes, row.batch_host) == ((), "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reason_may_be_a_sentence(version: str) -> None:
    """While a node is drained, a job that needs all of them waits for more than «Resources»."""
    rows = read(version, "waiting")
    assert rows["two\nlines"].reason == "Resources"
    assert rows["Resources"].reason == (
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    )
    assert explain_reason(rows["Resources"].reason) == explain_reason("ReqNodeNotAvail")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_that_is_expected(version: str) -> None:
    """For a job that waits, start and end are what Slurm expects."""
    row = read(version, "waiting")["Resources"]
    running = read(version, "waiting")["running"]
    assert row.start is not None
    assert row.end is not None
    assert running.end is not None
    assert row.start >= running.end
    assert row.end - row.start == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_runs(version: str) -> None:
    """Hosts, start, the time that is left, and the mark that milkweed wrote."""
    row = read(version, "waiting")["running"]
    assert (row.state, liveness_of(row.state)) == ("RUNNING", RUNNING)
    assert (row.nodes, row.batch_host, row.reason) == (("n1", "n2"), "n1", "")
    assert row.start is not None
    assert row.end == row.start + 7200
    assert row.time_left_s is not None
    assert 6900 < row.time_left_s < 7200
    assert (row.leader, row.offset) == (row.job_id, None)
    mark = parse_mark(row.comment)
    assert mark == Mark("0b0c5f8e-0000-4000-8000-000000000001", 1, 0, "running")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_heterogeneous_job(version: str) -> None:
    """Each component has a row, with the id of the first and its own number, comment and hosts."""
    first, second = [row for row in rows_of(version, "waiting") if row.name == "het"]
    assert (first.offset, second.offset) == (0, 1)
    assert first.leader == second.leader == first.job_id == second.job_id - 1
    assert (first.comment, second.comment) == ("first", "second")
    assert (len(first.nodes), len(second.nodes)) == (1, 2)
    assert not set(first.nodes) & set(second.nodes)
    assert first.state == second.state == "RUNNING"


@pytest.mark.parametrize("version", VERSIONS)
def test_components_come_in_any_order(version: str) -> None:
    """Components that wait are listed the other way round, so their numbers must be looked at."""
    rows = [row for row in rows_of(version, "waiting") if row.name == "het-pending"]
    assert [row.offset for row in rows] == [1, 0]
    assert len({row.leader for row in rows}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_arrays(version: str) -> None:
    """Tasks of an array have the array's id as their leader; tasks that wait share one row."""
    rows = rows_of(version, "waiting")
    tasks = [row for row in rows if row.name == "array"]
    assert len(tasks) == 2
    assert len({row.leader for row in tasks}) == 1
    assert len({row.job_id for row in tasks}) == 2
    (pending,) = [row for row in rows if row.name == "pending-array"]
    assert (pending.leader, pending.offset) == (pending.job_id, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_people_write_breaks_nothing(version: str) -> None:
    """Bars, equals signs and line breaks in names and comments stay where they are."""
    rows = read(version, "waiting")
    two = rows["two\nlines"]
    assert (two.comment, two.state) == ("a\nb", "PENDING")
    (odd,) = [row for row in rows.values() if row.name.endswith("odd | name = 1")]
    assert (odd.state, odd.nodes) == ("RUNNING", ("n1",))
    assert odd.comment.startswith("JobState=FAILED ")
    assert parse_mark(odd.comment) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_without_a_time_limit(version: str) -> None:
    """Unlimited is None, and so is its end."""
    row = read(version, "waiting")["unlimited"]
    assert (row.end, row.time_left_s) == (None, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_submission_that_was_refused_leaves_a_job(version: str) -> None:
    """What `sbatch` refuses for its shape is in the list, as a job that failed."""
    row = read(version, "waiting")["refused-gpus"]
    assert (row.state, row.reason, row.nodes) == ("FAILED", "BadConstraints", ())
    assert liveness_of(row.state) is ENDED


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("record", "name", "state", "expected"),
    [
        ("ended", "completed", "COMPLETED", ENDED),
        ("ended", "exit-3", "FAILED", ENDED),
        ("ended", "signal-9", "FAILED", ENDED),
        ("ended", "step-signal", "FAILED", ENDED),
        ("ended", "cancelled", "CANCELLED", ENDED),
        ("ended", "cancelled-pending", "CANCELLED", ENDED),
        ("ended", "het-cancelled", "CANCELLED", ENDED),
        ("ended", "preempted", "PREEMPTED", ENDED),
        ("timeout", "timeout", "TIMEOUT", ENDED),
        ("node-fail", "node-fail", "NODE_FAIL", ENDED),
        ("node-fail", "node-fail-requeued", "PENDING", PENDING),
        ("configuring", "configuring", "CONFIGURING", PENDING),
        ("suspended", "suspended", "SUSPENDED", RUNNING),
        ("completing", "completing-cancelled", "COMPLETING", UNKNOWN),
        ("completing", "completing-requeued", "COMPLETING", UNKNOWN),
        ("completing", "requeue-hold", "PENDING", PENDING),
        ("completing", "special-exit", "SPECIAL_EXIT", PENDING),
        ("requeued", "completing-cancelled", "CANCELLED", ENDED),
        ("requeued", "completing-requeued", "PENDING", PENDING),
        ("launch-failed", "launch-failed", "PENDING", PENDING),
    ],
)
def test_states_of_real_jobs(
    version: str, record: str, name: str, state: str, expected: Liveness
) -> None:
    """What can happen to a job is told in words that are known."""
    row = read(version, record)[name]
    assert row.state == state
    assert row.liveness is liveness_of(row.state) is expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_is_completing_loses_hosts_one_by_one(version: str) -> None:
    """Only hosts that are not done yet are told, so they are not the hosts of the job."""
    assert read(version, "completing")["completing-cancelled"].nodes == ("n1",)
    assert read(version, "requeued")["completing-cancelled"].nodes == ("n1", "n2")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_is_configuring_has_hosts_already(version: str) -> None:
    """The hosts are known before anything runs on them."""
    row = read(version, "configuring")["configuring"]
    assert (row.nodes, row.batch_host) == (("n1", "n2"), "n1")


@pytest.mark.parametrize("version", VERSIONS)
def test_times_as_numbers(version: str) -> None:
    """With `SLURM_TIME_FORMAT=%s` the same times come without a zone to guess."""
    assert rows_of(version, "suspended-epoch") == rows_of(version, "suspended")
    assert rows_of(version, "suspended")[0].start is not None


GOOD = "job|7|7|RUNNING|n1|n1|N/A|N/A|1:00|None|(null)|name|end\n"


@pytest.mark.parametrize(
    "text",
    [
        "JOBID PARTITION NAME",
        "slurm_load_jobs error: Unable to contact slurm controller",
        GOOD.removesuffix("|end\n"),
        GOOD + GOOD[:30],
        GOOD.replace("|7|7|", "|x|7|"),
        GOOD.replace("|7|7|", "|7|x|"),
        GOOD.replace("|7|7|", "|7+|7|"),
        GOOD.replace("|n1|n1|", "|n[1-|n1|"),
        GOOD.replace("N/A", "yesterday"),
        GOOD.replace("1:00", "a while"),
        "job|7|7|RUNNING|end\n",
    ],
)
def test_what_is_not_a_job_is_refused(text: str) -> None:
    """An error shows what could not be read; output that was cut off is never taken for all there is."""
    with pytest.raises(ValueError, match=r"job") as caught:
        parse_squeue(text)
    assert text.strip().splitlines()[-1][4:12] in str(caught.value)


def test_no_jobs() -> None:
    """A user without jobs is no error."""
    assert parse_squeue("") == []
    assert len(parse_squeue(GOOD * 3)) == 3

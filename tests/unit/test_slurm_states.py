"""What Slurm's words for states and reasons mean."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.text import (
    REASONS,
    STATES,
    explain_job,
    explain_reason,
    explain_state,
    liveness_of,
)
from milkweed.status import Liveness

PENDING, RUNNING, ENDED, UNKNOWN = Liveness

EXPECTED = {
    PENDING: (
        "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD"
        " EXPEDITING PD CF RQ RF RH SE RD"
    ),
    RUNNING: "RUNNING RESIZING SIGNALING STOPPED SUSPENDED R RS SI ST S",
    ENDED: (
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"
        " BF CA CD DL F NF OOM PR RV TO"
    ),
    UNKNOWN: "COMPLETING STAGE_OUT LAUNCH_FAILED RECONFIG_FAIL UPDATE_DB GETENV_FAILED CG SO",
}
CASES = [(word, liveness) for liveness, words in EXPECTED.items() for word in words.split()]


@pytest.mark.parametrize(("word", "expected"), CASES)
def test_every_state_has_a_meaning(word: str, expected: Liveness) -> None:
    """Each state and each short code of Slurm is known, and explained."""
    assert liveness_of(word) is expected
    assert explain_state(word)


def test_the_table_of_states_is_complete() -> None:
    """The table has the states that are tested, and no code twice."""
    assert set(STATES) == {word for word, _ in CASES if word in STATES}
    assert len({code for code, _, _ in STATES.values()}) == len(STATES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CANCELLED by 1000", ENDED),
        ("CANCELLED by 0", ENDED),
        ("cancelled by root", ENDED),
        ("CANCELLED+", ENDED),
        ("CANCELLE+", ENDED),
        ("OUT_OF_ME+", ENDED),
        ("NODE_FAIL ", ENDED),
        (" Running\n", RUNNING),
        ("SUSPEND+", RUNNING),
        ("COMPLETI+", UNKNOWN),
        ("COMPLETED+", ENDED),
        # cut so short that it may be either of two
        ("COMP+", UNKNOWN),
        ("REQUEUE+", UNKNOWN),
        ("C+", UNKNOWN),
        # a cut that nobody marked
        ("CANCELLE", UNKNOWN),
        # nobody knows
        ("", UNKNOWN),
        ("?", UNKNOWN),
        ("DANCING", UNKNOWN),
        ("CANCELLED because", UNKNOWN),
        ("RUNNING FAILED", UNKNOWN),
    ],
)
def test_states_are_known_with_what_stands_around_them(text: str, expected: Liveness) -> None:
    """Marks of truncation and names of users change nothing; what is not certain is UNKNOWN."""
    assert liveness_of(text) is expected


def test_a_job_that_is_completing_is_not_over() -> None:
    """It may go back into the queue, so it has neither ended nor does it run."""
    assert not liveness_of("COMPLETING").alive
    assert liveness_of("COMPLETING") is not ENDED


@given(st.text(max_size=30))
def test_any_text_has_a_meaning(text: str) -> None:
    """Whatever a future Slurm prints, nothing fails, and nothing ends by it."""
    if explain_state(text) == "":
        assert liveness_of(text) is UNKNOWN
    assert isinstance(explain_job(text, text), str)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("NODE_FAIL", "a node failed"),
        ("TIMEOUT", "its time limit was reached"),
        ("CANCELLED by 1000", "it was cancelled"),
        ("OOM", "it used more memory than it was given"),
        ("PR", "a job of higher priority took its nodes"),
        ("DANCING", ""),
    ],
)
def test_states_are_explained(state: str, words: str) -> None:
    """A person is told what happened, not a code."""
    assert explain_state(state) == words


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("Priority", "jobs of higher priority come first"),
        ("(Resources)", "until enough nodes are free"),
        ("PartitionDown", "choose another one"),
        ("PartitionInactive", "choose another one"),
        ("PartitionNodeLimit", "ask for fewer hosts"),
        ("PartitionTimeLimit", "shorter time limit"),
        ("ReqNodeNotAvail", "sinfo -R"),
        ("ReqNodeNotAvail, UnavailableNodes:n[3-4]", "sinfo -R"),
        ("ReqNodeNotAvail(Unavailable:n4)", "sinfo -R"),
        ("ReqNodeNotAvail, May be reserved for other job", "reserved"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "sinfo -R",
        ),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs", "sinfo -R"),
        ("JobHeldUser", "scontrol release"),
        ("JobHeldAdmin", "only an administrator"),
        ("Dependency", "another job to end"),
        ("DependencyNeverSatisfied", "will never start; cancel it"),
        ("BeginTime", "not start before"),
        ("Licenses", "licence"),
        ("Reservation", "reservation to begin"),
        ("BadConstraints", "no node has what was asked for"),
        ("NodeDown", "went down"),
        ("launch_failed_requeued_held", "scontrol release"),
        ("launch failed requeued held", "scontrol release"),
        ("job requeued in held state", "scontrol release"),
        ("NonZeroExitCode", "the end of its log"),
        ("RaisedSignal:9(Killed)", "ended by a signal"),
        ("TimeLimit", "ask for a longer one"),
        ("OutOfMemory", "ask for more"),
        ("QOSMaxCpuPerUserLimit", "you have reached a limit of your QOS"),
        ("QOSMaxGRESPerJob", "more than your QOS allows one job"),
        ("QOSMaxNodePerJobLimit", "more than your QOS allows one job"),
        ("QOSMaxWallDurationPerJobLimit", "more than your QOS allows one job"),
        ("QOSGrpNodeLimit", "all jobs of your QOS together"),
        ("QOSMinGRES", "less than its QOS requires"),
        ("QOSJobLimit", "a limit of your QOS is reached"),
        ("QOSUsageThreshold", "more than its QOS allows"),
        ("AssocGrpCPUMinutesLimit", "all jobs of your account together"),
        ("AssocMaxJobsLimit", "you have reached a limit of your account"),
        ("AssocMaxMemPerNode", "more than your account allows one job"),
        ("AssociationTimeLimit", "a limit of your account is reached"),
        ("MaxGRESPerAccount", "your account has reached a limit"),
        ("MaxCpuRunMinsPerUser", "you have reached a limit"),
        (
            "Job is at or exceeds association (acc=a/user=b/part=c) group wall limit 5 with 9",
            "a limit of your account or QOS is reached",
        ),
    ],
)
def test_reasons_are_explained(reason: str, part: str) -> None:
    """A person is told why the job waits or ended, and what to do about it."""
    assert part in explain_reason(reason)


@pytest.mark.parametrize(
    "reason", ["", "None", "(null)", "Whatever", "WaitingForGodot", "???", "n[1-4]"]
)
def test_an_unknown_reason_adds_nothing(reason: str) -> None:
    """Where nothing is known, nothing is made up."""
    assert explain_reason(reason) == ""


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_reads_as_part_of_a_sentence(reason: str) -> None:
    """An explanation starts small, ends without a stop, and fits behind a colon."""
    words = REASONS[reason]
    assert explain_reason(reason) == words
    assert not words.endswith(".")
    assert words[0].islower() or words.startswith("Slurm")


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("PENDING", "Priority", f"it waits in the queue: {REASONS['Priority']}"),
        ("PENDING", "", "it waits in the queue"),
        ("PENDING", "SomethingNew", "it waits in the queue"),
        ("FAILED", "NonZeroExitCode", f"it failed: {REASONS['NonZeroExitCode']}"),
        ("F", "NonZeroExitCode", f"it failed: {REASONS['NonZeroExitCode']}"),
        # the reason for waiting is still there when the waiting has ended
        ("CANCELLED", "JobHeldUser", "it was cancelled"),
        ("CANCELLED by 0", "BeginTime", "it was cancelled"),
        ("TIMEOUT", "TimeLimit", "its time limit was reached"),
        ("COMPLETING", "NodeDown", f"its processes are being ended: {REASONS['NodeDown']}"),
        ("SUSPENDED", "", "it is suspended and keeps its hosts"),
        ("DANCING", "Priority", REASONS["Priority"]),
        ("DANCING", "", ""),
    ],
)
def test_jobs_are_explained(state: str, reason: str, words: str) -> None:
    """State and reason make one sentence; a reason that outlived its waiting is left out."""
    assert explain_job(state, reason) == words

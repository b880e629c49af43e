"""Slurm's commands as they are run, and how seldom the queue is asked for."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest

from milkweed.backends.programs import SLOWEST_S
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.commands import (
    Queue,
    check_version,
    load_disks,
    load_nodes,
    run,
)
from milkweed.errors import BackendError, UnreachableError
from milkweed.testing import FakeClock
from unit.slurm_fake import FakeSlurm, line, render_nodes

CORPUS = Path(__file__).parents[1] / "corpus" / "slurm"
HOUR_S = 3600.0


# Running


def test_arguments_need_no_quoting(slurm: FakeSlurm) -> None:
    """Each word arrives as it is: there is no shell between."""
    words = ["update", "a b", "$(touch pwned)", "it's", "two\nlines", "*", ""]
    run(["scontrol", *words])
    assert slurm.calls == [["scontrol", *words]]


def test_text_is_read_by_the_command(slurm: FakeSlurm) -> None:
    """What sbatch reads is what was given, and what it prints is the answer."""
    slurm.answer("sbatch", "123\n")
    assert run(["sbatch", "--parsable"], text="#!/bin/sh\necho «hello»\n") == "123\n"
    assert slurm.script == "#!/bin/sh\necho «hello»\n"


def test_paths_that_are_no_text_arrive_as_they_are(slurm: FakeSlurm) -> None:
    """A working folder in another encoding is still the one that the script goes to."""
    run(["sbatch"], text=f"cd {os.fsdecode(b'/home/m' + bytes([0xFC]))}\n")
    assert (slurm.home / "sbatch.stdin").read_bytes() == b"cd /home/m\xfc\n"


def test_bytes_that_are_no_text_break_nothing(slurm: FakeSlurm) -> None:
    """A name in another encoding is shown with marks in it."""
    slurm.then("squeue", r"printf '\377'")
    assert run(["squeue"]).startswith("�job|")


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize("name", ["sbatch", "scancel", "scontrol", "sinfo", "squeue"])
def test_a_controller_that_is_away_is_unreachable(
    slurm: FakeSlurm, version: str, name: str
) -> None:
    """What real commands print without their controller is «nobody answered», with the words."""
    words = (CORPUS / version / f"error-down-{name}.txt").read_text()
    slurm.answer(name, err=words, code=1)
    with pytest.raises(UnreachableError, match="did not answer") as caught:
        run([name])
    assert caught.value.transient
    assert words.split(":")[-1].strip() in caught.value.seen


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_refusal_is_a_refusal(slurm: FakeSlurm, version: str) -> None:
    """Every refusal of a real sbatch is an error with Slurm's own words, and never «nobody answered»."""
    refusals = list((CORPUS / version).glob("error-sbatch-*.txt"))
    assert len(refusals) > 5
    for path in refusals:
        slurm.answer("sbatch", err=path.read_text(), code=1)
        with pytest.raises(BackendError) as caught:
            run(["sbatch"])
        assert not isinstance(caught.value, UnreachableError), path.name
        assert caught.value.seen == f"sbatch: {path.read_text().strip()}"


def test_a_failure_without_words_tells_its_code(slurm: FakeSlurm) -> None:
    """Something is said in any case."""
    slurm.answer("scancel", code=9)
    with pytest.raises(BackendError) as caught:
        run(["scancel", "1"])
    assert caught.value.seen == "scancel: exit code 9"


@pytest.mark.parametrize("name", ["squeue", "sinfo"])
def test_an_error_that_is_called_a_success_is_none(slurm: FakeSlurm, name: str) -> None:
    """A read that prints an error and nothing else, with exit code 0, knows nothing: it is no empty queue."""
    slurm.answer(name, err=f"{name}: error: something about a plugin\n")
    with pytest.raises(UnreachableError) as caught:
        run([name])
    assert "something about a plugin" in caught.value.seen


def test_warnings_of_other_commands_are_passed_over(slurm: FakeSlurm) -> None:
    """What sbatch says may be an error of the site's own, and still have taken the job."""
    slurm.answer("sbatch", "12\n", err="sbatch: error: lua: a word of the site\n")
    assert run(["sbatch"]) == "12\n"


def test_a_command_that_hangs_is_unreachable(slurm: FakeSlurm) -> None:
    """A frozen controller keeps its commands waiting: they are ended, and nothing is known."""
    slurm.then("squeue", 'mkfifo "$home/never"; read -r word <"$home/never"')
    with pytest.raises(UnreachableError) as caught:
        run(["squeue"], timeout_s=0.2)
    assert caught.value.seen == "squeue: nothing within 0.2 s"


def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm the error says where its commands are to be found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="there is no squeue here") as caught:
        run(["squeue"])
    assert "login node" in caught.value.hint


def test_the_place_of_a_program_in_a_job_is_not_inherited(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that runs in a job itself starts another job, not a part of its own."""
    lost = {
        *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURMD_NODENAME", "PMI_RANK", "PMIX_RANK"),
        *("SBATCH_ARRAY_INX", "SBATCH_WAIT", "MILKWEED_STATE", "MILKWEED_RUN"),
        "SBATCH_CLUSTERS",  # heard by sbatch alone: nobody would find the job again
        *("SRUN_CPUS_PER_TASK", "SRUN_EXPORT_ENV"),
        *("SQUEUE_FORMAT", "SINFO_FORMAT", "SACCT_FORMAT", "SCONTROL_X"),
    }
    kept = {
        *("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_ACCOUNT", "MILKWEED_HOME", "MINE"),
        "SBATCH_PARTITION",
    }
    for name in lost | kept:
        monkeypatch.setenv(name, "1")
    run(["sbatch"])
    seen = slurm.environment("sbatch")
    assert not lost & set(seen)
    assert kept <= set(seen)
    assert seen["SLURM_TIME_FORMAT"] == "%s"


# The version


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_versions_in_use_are_taken(slurm: FakeSlurm, version: str) -> None:
    """Real versions are new enough."""
    slurm.answer("sbatch", (CORPUS / version / "sbatch-version.txt").read_text())
    check_version()


def test_a_version_that_is_too_old_is_refused(slurm: FakeSlurm) -> None:
    """The error has both versions, as Slurm writes them."""
    slurm.answer("sbatch", "slurm 19.05.3\n")
    with pytest.raises(
        BackendError, match=r"this is Slurm 19\.05, and milkweed needs 20\.11"
    ) as old:
        check_version()
    assert "another cluster" in old.value.hint


def test_without_sbatch_there_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without Slurm is told so before anything else."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="there is no sbatch here") as caught:
        check_version()
    assert "Slurm module" in caught.value.hint


def test_a_version_that_is_none_is_explained(slurm: FakeSlurm) -> None:
    """A site's own wrapper may print anything: that is an error of milkweed's own kind."""
    slurm.answer("sbatch", "welcome to our cluster\n")
    with pytest.raises(BackendError):
        check_version()


# Nodes


def test_nodes_are_read_once_for_a_while(slurm: FakeSlurm) -> None:
    """Whoever is content with what was read lately asks nobody."""
    slurm.nodes("n1", "n2")
    assert [row.name for row in load_nodes()] == ["n1", "n2"]
    assert load_nodes(60.0) == load_nodes(60.0)
    assert len(slurm.called("sinfo")) == 1
    load_nodes()
    assert len(slurm.called("sinfo")) == 2


def test_nodes_that_cannot_be_read_are_not_known(slurm: FakeSlurm) -> None:
    """Output that was cut off, or of another shape, is no list of nodes; the next call asks again."""
    slurm.answer("sinfo", render_nodes("n1")[:-5])
    with pytest.raises(UnreachableError, match="sinfo printed cannot be read"):
        load_nodes()
    slurm.nodes("n1")
    assert len(load_nodes(60.0)) == 1


@pytest.mark.parametrize("command", ["slurm_load_partitions", "slurm_load_node"])
def test_nodes_that_are_not_shown_are_none(slurm: FakeSlurm, command: str) -> None:
    """A site may show nodes to nobody but its administrators: that is an answer."""
    slurm.answer("sinfo", err=f"{command}: Access/permission denied\n", code=1)
    assert load_nodes() == []
    assert load_disks([]) == []


# The queue


def ids(queue: Queue, max_age_s: float | None = None) -> list[int]:
    return [row.job_id for row in queue.rows(max_age_s)]


def test_the_queue_is_this_users_own(slurm: FakeSlurm, clock: FakeClock) -> None:
    """All jobs of the user, also those that ended lately, asked for by number."""
    slurm.jobs(line(7), line(8))
    assert ids(Queue(clock)) == [7, 8]
    [arguments] = slurm.called("squeue")
    assert arguments[:4] == ["-a", "-t", "all", "-u"]
    assert arguments[4].isdecimal()


def test_what_was_read_a_moment_ago_is_shared(slurm: FakeSlurm, clock: FakeClock) -> None:
    """Several waiters that look at the same moment cause one question."""
    queue = Queue(clock)
    slurm.jobs(line(7))
    for _ in range(100):
        assert ids(queue) == [7]
    assert queue.queries == 1


def test_threads_share_one_question(slurm: FakeSlurm, clock: FakeClock) -> None:
    """Also while the question is still on its way."""
    queue = Queue(clock)
    slurm.jobs(line(7))
    seen: list[list[int]] = []
    waiting = [threading.Thread(target=lambda: seen.append(ids(queue, 1.0))) for _ in range(8)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert (seen, queue.queries) == ([[7]] * 8, 1)


def test_whoever_needs_it_now_gets_it_now(slurm: FakeSlurm, clock: FakeClock) -> None:
    """An age of nothing asks again, whatever was read before."""
    queue = Queue(clock)
    assert ids(queue) == []
    slurm.jobs(line(7))
    assert ids(queue, 0.0) == [7]


def test_the_longer_nothing_happens_the_seldomer_it_is_asked(
    slurm: FakeSlurm, clock: FakeClock
) -> None:
    """At once after a change, and every ten seconds in the end."""
    queue = Queue(clock)
    slurm.jobs(line(7, state="PENDING"))
    queue.rows()
    asked: list[float] = []
    for _ in range(2000):
        clock.advance(0.1)
        before = queue.queries
        queue.rows()
        if queue.queries > before:
            asked.append(clock.now_s - 1000.0)
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert asked[0] < 0.2
    assert all(gap <= SLOWEST_S + 0.2 for gap in gaps)
    assert gaps[-1] > 9.0
    assert len(asked) < 100


def test_a_change_quickens_the_looks(slurm: FakeSlurm, clock: FakeClock) -> None:
    """When something moves, more may move soon; the time that is left is no change."""
    queue = Queue(clock)
    slurm.jobs(line(7, state="PENDING"))
    queue.rows()
    clock.advance(HOUR_S)
    slurm.jobs(line(7, state="RUNNING", nodes="n1"))
    queue.rows()
    clock.advance(0.1)
    slurm.jobs(line(7, state="RUNNING", nodes="n1", left="59:00"))
    before = queue.queries
    queue.rows()
    assert queue.queries == before + 1
    clock.advance(HOUR_S)
    queue.rows()
    clock.advance(5.0)
    before = queue.queries
    queue.rows()
    assert queue.queries == before


def test_a_word_from_elsewhere_makes_it_look(slurm: FakeSlurm, clock: FakeClock) -> None:
    """After a submission, or a ring, nobody waits for the next look."""
    queue = Queue(clock)
    queue.rows()
    clock.advance(HOUR_S)
    queue.rows()
    slurm.jobs(line(7))
    assert ids(queue) == []
    queue.wake()
    assert ids(queue) == [7]


def test_a_hundred_waiting_jobs_cost_what_one_costs(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One simulated hour of a hundred jobs that look every two seconds: 180000 looks, few questions."""
    queue = Queue(clock)
    text = "".join(line(number, state="PENDING") for number in range(1, 101))
    monkeypatch.setattr(commands, "run", lambda *_args, **_more: text)
    looks = 0
    while clock.now_s < 1000.0 + HOUR_S:
        for _ in range(100):
            queue.rows()
            looks += 1
        clock.advance(2.0)
    assert looks == 180_000
    assert queue.queries <= looks * 0.05
    assert queue.queries <= 450


def test_what_else_a_user_has_in_the_queue_costs_nothing(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes of a hundred waiters, while a job of another tool comes or goes each second."""
    queue = Queue(clock)
    began_s = clock.now_s

    def read(*_args: object, **_more: object) -> str:
        own = line(7, state="PENDING")
        return own + line(1000 + int(clock.now_s), comment="an array of another tool")

    monkeypatch.setattr(commands, "run", read)
    while clock.now_s < began_s + 600.0:
        queue.rows()
        clock.advance(0.02)  # a hundred that look every two seconds, one after the other
    assert queue.queries <= 150


def test_silence_is_shared_and_paced_too(slurm: FakeSlurm, clock: FakeClock) -> None:
    """A controller that is away is not asked by everybody at once, and is found when it is back."""
    queue = Queue(clock)
    slurm.jobs(line(7))
    queue.rows()
    clock.advance(HOUR_S)
    slurm.be_away()
    for _ in range(5):
        with pytest.raises(UnreachableError):
            queue.rows()
    assert queue.queries == 2
    clock.advance(SLOWEST_S)
    slurm.jobs(line(7))
    slurm.answer("squeue", line(7))
    assert ids(queue) == [7]


def test_a_look_that_failed_is_paced_like_silence(slurm: FakeSlurm, clock: FakeClock) -> None:
    """Whatever squeue fails for, even a user whom a directory service does not know now, tells nothing of jobs."""
    queue = Queue(clock)
    slurm.answer("squeue", err="squeue: error: Invalid user: 4711\n", code=1)
    for _ in range(5):
        with pytest.raises(UnreachableError, match="did not answer") as caught:
            queue.rows(1.0)
    assert "Invalid user: 4711" in caught.value.seen
    assert queue.queries == 1
    slurm.answer("squeue", line(7))
    assert ids(queue, 0.0) == [7]


def test_a_queue_that_was_cut_off_is_not_known(slurm: FakeSlurm, clock: FakeClock) -> None:
    """Half a record is no queue without the job: nothing is known."""
    queue = Queue(clock)
    slurm.answer("squeue", line(7) + line(8)[:20])
    with pytest.raises(UnreachableError, match="squeue printed cannot be read"):
        queue.rows()

"""Waiting for Slurm: the queue's own reasons, deadlines, interrupts, and a controller that goes away."""

from __future__ import annotations

import re
import signal
import subprocess

from milkweed.job import job_load
from programs import Client, finish, read_until
from slurm.hosts import make_hosts
from slurm.lab import Lab

TOLD_AT_ONCE = """
        from milkweed.job import progress
        progress.QUIET_S = 0.0
"""
PENDING = f"""{TOLD_AT_ONCE}
        job = SlurmJob(meshes={{"w": 1}}, partition="down", %s)
        try:
            job.state(%s)
        except KeyboardInterrupt:
            print("interrupted")
        else:
            print("ready")
"""


def start_waiting(client: Client, options: str = "", path: str = "") -> subprocess.Popen[str]:
    """A program that waits for a partition which is down; its job is in the queue, and it has said so."""
    program = client.start(PENDING % (options, path))
    read_until(program, "milkweed: waiting for job 'monarch_job': pending", err=True)
    return program


def test_a_wait_tells_why_and_keeps_its_deadline(client: Client, lab: Lab) -> None:
    """Weakness 1: Slurm's reason is shown while waiting and in the error; the job stays in the queue."""
    out = client.run(
        TOLD_AT_ONCE
        + """
        from milkweed.errors import DeadlineError
        job = SlurmJob(meshes={"w": 1}, partition="down", job_start_timeout=3)
        began = time.monotonic()
        try:
            job.state()
        except DeadlineError as error:
            print(error)
        print("took", time.monotonic() - began)
        print("then", job.status().describe())
        print("events", [event.what for event in job.events()])
    """
    )
    assert "waiting for job 'monarch_job': pending (Slurm job" in out
    assert out.count("PartitionDown") >= 2
    assert "nothing was cancelled" in out
    took = re.search(r"took ([\d.]+)\n", out)
    assert took
    assert float(took[1]) >= 3.0  # not earlier; how much later, the machine decides
    [job] = lab.jobs()
    assert job.state == "PENDING"
    client.kill()


def test_interrupted_and_killed_clients_leave_one_job(client: Client, lab: Lab) -> None:
    """Weakness 2: however often a waiting client is interrupted or killed, its one job stays on record."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        program = start_waiting(client)
        program.send_signal(number)
        finish(program)
        assert [job.state for job in lab.jobs()] == ["PENDING"]
    assert job_load().status().liveness == "pending"
    client.kill()
    assert not lab.jobs()


def test_an_interrupt_follows_the_persons_word(client: Client, lab: Lab) -> None:
    """on_interrupt: keep says where the job is on record, cancel ends it."""
    kept = start_waiting(client, "on_interrupt='keep'")
    kept.send_signal(signal.SIGINT)
    out, err = finish(kept)
    assert "interrupted" in out
    assert "it stays, on record in .milkweed/job.json" in err
    assert len(lab.jobs()) == 1
    cancelled = start_waiting(client, "on_interrupt='cancel'")
    cancelled.send_signal(signal.SIGINT)
    out, err = finish(cancelled)
    assert "interrupted" in out
    assert "it is being cancelled" in err
    assert not lab.jobs()
    assert not (client.folder / ".milkweed").exists()


def test_an_unrecorded_job_ends_with_its_interrupted_client(client: Client, lab: Lab) -> None:
    """Without a record nobody would look for the job: an interrupt ends it."""
    program = start_waiting(client, path="None")
    assert len(lab.jobs()) == 1
    program.send_signal(signal.SIGINT)
    finish(program)
    assert not lab.jobs()
    assert not client.home.exists()


def test_a_controller_that_is_away_cancels_nothing(client: Client, lab: Lab) -> None:
    """Weakness 3: while slurmctld is away nothing is known and nothing done; the wait goes on after it."""
    lab.run("scontrol", "update", "partitionname=debug", "state=down")
    program = client.start(
        TOLD_AT_ONCE
        + """
        job = SlurmJob(meshes={"w": 1})
        state = job.state()
        print("ready", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        job.kill()
    """
    )
    read_until(program, "waiting for job 'monarch_job': pending", err=True)
    lab.stop_controller()
    read_until(program, "unknown (squeue:", err=True)
    lab.start_controller()
    lab.run("scontrol", "update", "partitionname=debug", "state=up")
    out, err = finish(program)
    assert "ready 1" in out, err
    assert not lab.jobs()


def test_with_the_controller_away_a_running_job_is_left_alone(client: Client, lab: Lab) -> None:
    """Status and plan say unknown, kill() and a change are refused, and state() waits for the same hosts."""
    make_hosts(meshes={"w": 1})
    [before] = lab.jobs()
    lab.stop_controller()
    program = client.start(
        TOLD_AT_ONCE
        + """
        from milkweed.errors import DeadlineError, UnreachableError
        job = job_load()
        print(job.status().describe())
        print(SlurmJob(meshes={"w": 1}).plan().render())
        for act in (lambda: SlurmJob(meshes={"w": 2}, job_start_timeout=1).state(), job.kill):
            try:
                act()
            except (DeadlineError, UnreachableError) as error:
                print("refused:", error.what)
        print("it waits", flush=True)
        print("it waits", file=sys.stderr, flush=True)
        state = SlurmJob(meshes={"w": 1}).state()
        print(len(state.w.spawn("a", Probe).pid.call().get()), "reply")
    """
    )
    said = read_until(program, "it waits")
    assert "unknown (squeue:" in said
    assert "nothing: job 'monarch_job'" in said
    assert (
        "refused: the scheduler of job 'monarch_job' did not tell within 1 s what becomes of it"
        in said
    )
    assert said.count("refused:") == 2
    read_until(program, "it waits", err=True)
    read_until(program, "waiting for the scheduler of job 'monarch_job'", err=True)
    lab.start_controller()
    out, err = finish(program)
    assert "1 reply" in out, err
    assert [(job.id, job.state) for job in lab.jobs()] == [(before.id, "RUNNING")]
    client.kill()


def test_a_frozen_controller_is_waited_for(client: Client, lab: Lab) -> None:
    """A controller that hangs is like one that is away: whoever asks waits, and nothing is called ended."""
    make_hosts(meshes={"w": 1})
    lab.freeze_controller()
    program = client.start('print("found", job_load().status().liveness)')  # it knows nothing yet
    lab.wait_program("squeue")
    lab.thaw_controller()
    out, err = finish(program)
    assert "found running" in out or "found unknown" in out, err
    assert job_load().status().liveness == "running"
    client.kill()
    assert not lab.jobs()


def test_two_clients_that_start_together_share_one_job(client: Client, lab: Lab) -> None:
    """Weakness 10: all get the same hosts, and there is one job."""
    code = """
        job = SlurmJob(meshes={"w": 1})
        job.state()
        print("id", job.apply_id)
    """
    programs = [client.start(code) for _ in range(3)]
    outs = [finish(program) for program in programs]
    ids = {line for out, _err in outs for line in out.splitlines() if line.startswith("id")}
    assert len(ids) == 1, outs
    assert len(lab.jobs()) == 1
    client.kill()

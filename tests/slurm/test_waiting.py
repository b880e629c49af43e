"""Waiting for Slurm: the queue's own reasons, deadlines, interrupts, and a controller that goes away."""

from __future__ import annotations

import re
import signal
import subprocess
import time

from programs import Client, finish, wait_until
from slurm.lab import Lab

PENDING = """
    job = SlurmJob(meshes={"w": 1}, partition="down", %s)
    try:
        job.state()
    except KeyboardInterrupt:
        print("interrupted")
    else:
        print("ready")
"""


def start_pending(client: Client, lab: Lab, options: str = "") -> subprocess.Popen[str]:
    """A program that waits for a partition which is down."""
    before = len(lab.jobs())
    program = client.start(PENDING % options)
    wait_until(lambda: len(lab.jobs()) > before or program.poll() is not None)
    return program


def test_a_wait_tells_why_and_keeps_its_deadline(client: Client, lab: Lab) -> None:
    """Slurm's reason is shown while waiting and in the error; the job stays in the queue."""
    out = client.run("""
        from milkweed.errors import DeadlineError
        job = SlurmJob(meshes={"w": 1}, partition="down", job_start_timeout=4)
        began = time.monotonic()
        try:
            job.state()
        except DeadlineError as error:
            print(error)
        print("took", round(time.monotonic() - began))
        print("then", job.status().describe())
        print("events", [event.what for event in job.events()])
    """)
    assert "waiting for job 'monarch_job': pending (Slurm job" in out
    assert out.count("PartitionDown") >= 2
    assert "nothing was cancelled" in out
    assert re.search(r"took [4-9]\n", out)  # not earlier; how much later, the machine decides
    [job] = lab.jobs()
    assert job.state == "PENDING"
    client.run("job_load().kill()")


def test_interrupted_and_killed_clients_leave_one_job(client: Client, lab: Lab) -> None:
    """However often a waiting client is interrupted or killed, its job is on record, and the next one goes on."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        program = client.start(PENDING % "")
        wait_until(lambda: bool(lab.jobs()))
        time.sleep(0.7)
        program.send_signal(number)
        finish(program, 20)
    assert len(lab.jobs()) == 1
    assert "down" not in client.run("print(job_load().status().liveness)")
    client.run("job_load().kill()")
    assert not lab.jobs()


def test_an_interrupt_follows_the_persons_word(client: Client, lab: Lab) -> None:
    """on_interrupt: keep says where the job is on record, cancel ends it."""
    kept = start_pending(client, lab, "on_interrupt='keep'")
    time.sleep(0.5)
    kept.send_signal(signal.SIGINT)
    out, err = finish(kept, 20)
    assert "interrupted" in out
    assert "it stays, on record in .milkweed/job.json" in err
    cancelled = client.start(PENDING % "on_interrupt='cancel'")
    time.sleep(4)  # the job is there already, so nothing shows when the program waits
    cancelled.send_signal(signal.SIGINT)
    out, err = finish(cancelled, 20)
    assert "it is being cancelled" in err
    assert not lab.jobs()
    assert not (client.folder / ".milkweed").exists()


def test_an_unrecorded_job_ends_with_its_interrupted_client(client: Client, lab: Lab) -> None:
    """Without a record nobody would look for the job: an interrupt ends it."""
    program = client.start("""
        SlurmJob(meshes={"w": 1}, partition="down").state(cached_path=None)
    """)
    wait_until(lambda: bool(lab.jobs()))
    time.sleep(0.5)
    program.send_signal(signal.SIGINT)
    finish(program, 20)
    assert not lab.jobs()
    assert not client.home.exists()


def test_a_controller_that_is_away_cancels_nothing(client: Client, lab: Lab) -> None:
    """While slurmctld does not answer nothing is known and nothing is done; the wait goes on when it is back."""
    lab.run("scontrol", "update", "partitionname=debug", "state=down")
    program = client.start("""
        job = SlurmJob(meshes={"w": 1})
        state = job.state()
        print("ready", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        job.kill()
    """)
    wait_until(lambda: bool(lab.jobs()))
    lab.stop_controller()
    time.sleep(8)
    assert program.poll() is None
    lab.start_controller()
    lab.run("scontrol", "update", "partitionname=debug", "state=up")
    out, err = finish(program, 60)
    assert "ready 1" in out, err
    assert "unknown (squeue:" in err
    assert not lab.jobs()


def test_with_the_controller_away_reads_say_unknown(client: Client, lab: Lab) -> None:
    """Status and plan of a running job: unknown, nothing written, and all is as before afterwards."""
    client.run("SlurmJob(meshes={'w': 1}).state()")
    lab.stop_controller()
    out = client.run("""
        from milkweed.errors import DeadlineError, UnreachableError
        job = job_load()
        print(job.status().describe())
        print(SlurmJob(meshes={"w": 1}).plan().render())
        for act in (lambda: SlurmJob(meshes={"w": 2}, job_start_timeout=3).state(), job.kill):
            try:
                act()
            except (DeadlineError, UnreachableError) as error:
                print("refused:", error.what)
    """)
    lab.start_controller()
    assert "unknown (squeue:" in out
    assert "nothing: job 'monarch_job'" in out
    assert "refused: the scheduler of job 'monarch_job' did not answer within 3 s" in out
    assert out.count("refused:") == 2
    [job] = lab.jobs()
    assert job.state == "RUNNING"
    client.run("job_load().kill()")


def test_a_program_waits_for_the_controller_to_come_back(client: Client, lab: Lab) -> None:
    """state() of a running job, begun while nobody answers, says so, goes on, and has the same hosts."""
    client.run("SlurmJob(meshes={'w': 1}).state()")
    [before] = lab.jobs()
    lab.stop_controller()
    program = client.start("""
        state = SlurmJob(meshes={"w": 1}).state()
        print(len(state.w.spawn("a", Probe).pid.call().get()), "reply")
    """)
    time.sleep(4)
    assert program.poll() is None
    lab.start_controller()
    out, err = finish(program, 90)
    assert "1 reply" in out, err
    assert [job.id for job in lab.jobs()] == [before.id]
    client.run("job_load().kill()")


def test_a_frozen_controller_is_waited_for(client: Client, lab: Lab) -> None:
    """A controller that hangs is like one that is away."""
    client.run("SlurmJob(meshes={'w': 1}).state()")
    lab.freeze_controller()
    program = client.start("print(job_load().status().describe())")
    time.sleep(3)
    lab.thaw_controller()
    out, _err = finish(program, 60)
    assert "running" in out or "unknown" in out
    client.run("job_load().kill()")
    assert not lab.jobs()


def test_two_clients_that_start_together_share_one_job(client: Client, lab: Lab) -> None:
    """Both get the same hosts, and there is one job."""
    code = """
        job = SlurmJob(meshes={"w": 1})
        job.state()
        print("id", job.apply_id)
    """
    programs = [client.start(code) for _ in range(3)]
    outs = [finish(program, 60) for program in programs]
    ids = {line for out, _err in outs for line in out.splitlines() if line.startswith("id")}
    assert len(ids) == 1, outs
    assert len(lab.jobs()) == 1
    client.run("job_load().kill()")

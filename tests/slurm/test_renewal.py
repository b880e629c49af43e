"""Follow-up allocations: asked for before the time limit, and moved to."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import Client, finish, read_until
from slurm.lab import Lab

RENEWING = """
    from milkweed.job import renewing
    renewing.CHECK_S = 1.0
    job = SlurmJob(meshes={"w": 1}, time_limit="60", renew="2h")   # due at once
    def pids(state): return values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())
    def wait_ready():
        until_s = time.monotonic() + 60
        while job.plan().action != "move":
            assert time.monotonic() < until_s, job.plan().render()
            time.sleep(0.2)
"""


def test_a_follow_up_is_planned_asked_for_and_moved_to(client: Client, lab: Lab) -> None:
    """`plan` shows what will be done; then a second job of the same id waits, and the hosts move over."""
    out = client.run("""
        job = SlurmJob(meshes={"w": 1}, time_limit="60", renew="2h")   # due at once
        job.state()
        first = job.apply_id
        print(job.plan().render())
        job = SlurmJob(meshes={"w": 1}, time_limit="60", renew="2h")
        job.state()
        while job.plan().action != "move":
            print(job.plan().render(), flush=True)
            time.sleep(0.2)
        print(job.plan().render())
        state = job.state()
        print("moved", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        print("same id", job.apply_id == first)
        print("events", [event.what for event in job.events()])
    """)
    assert "renew: job 'monarch_job' on slurm (w=1)" in out
    assert "because its time limit is reached in" in out
    assert "move: job 'monarch_job' on slurm (w=1)" in out
    assert "moved 1" in out
    assert "same id True" in out
    lab_jobs = [job for job in lab.jobs() if job.state == "RUNNING"]
    assert len(lab_jobs) == 1
    assert ":1:0:" in lab_jobs[0].comment
    client.kill()
    assert not lab.jobs()


def test_other_sizes_are_the_follow_ups_too(client: Client, lab: Lab) -> None:
    """A mesh that grows and shrinks while a follow-up is there: that takes over with just the hosts declared."""
    out = client.run("""
        def declare(): return SlurmJob(meshes={"w": 1}, time_limit="60", renew="2h")   # due at once
        declare().state()
        job = declare()
        job.state()
        job.resize("w", 2)
        def move():
            until_s = time.monotonic() + 60
            while job.plan().action != "move":
                assert time.monotonic() < until_s, job.plan().render()
                time.sleep(0.2)
        move()
        job.resize("w", 1)
        move()
        probes = job.state().w.spawn_procs().spawn("p", Probe)
        print("moved", values(probes.variable.call("SLURM_JOB_ID").get()))
    """)
    [left] = [job for job in lab.jobs() if job.state == "RUNNING"]
    assert f"moved ['{left.id}']" in out
    assert ":1:0:" in left.comment
    client.kill()
    assert not lab.jobs()


def test_a_job_without_the_wish_is_not_renewed(client: Client, lab: Lab) -> None:
    """Without `renew` nothing is ever asked for, and a renewal that says no time is refused before sbatch."""
    out = client.run("""
        from milkweed.errors import SpecError
        job = SlurmJob(meshes={"w": 1}, time_limit="60")
        job.state()
        print(job.plan().action)
        try:
            SlurmJob(meshes={"w": 1}, renew="soon").state()
        except SpecError as error:
            print(error)
        job.kill()
    """)
    assert "nothing" in out
    assert "renew: 'soon' is not a duration" in out


def test_a_program_outlives_its_time_limit(client: Client, lab: Lab) -> None:
    """The limit is reached during a call: that is said, with Slurm's word, and the follow-up's hosts take over."""
    program = client.start("""
        from milkweed.job import renewing
        renewing.CHECK_S = 1.0
        job = SlurmJob(meshes={"w": 1}, time_limit="10", renew="595s")   # due after five seconds
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        print("before", values(actors.pid.call().get()), flush=True)
        while job.plan().action != "move": time.sleep(0.2)
        print("ready", flush=True)
        try:
            actors.slow.call(300).get()
        except Exception as error:
            print("failed", type(error).__name__, flush=True)
        print("status", job.status().describe(), flush=True)
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        print("after", values(actors.pid.call().get()), [event.what for event in job.events()])
        job.kill()
    """)
    read_until(program, "ready")
    first, second = sorted(lab.jobs())
    assert first.state == second.state == "RUNNING"
    # Slurm looks for limits that are reached twice a minute.
    lab.run("scontrol", "update", f"jobid={first.id}", "EndTime=now+1")
    out, err = finish(program, 200)
    assert program.returncode == 0, err
    assert f"Slurm job {first.id} is TIMEOUT: its time limit was reached" in err
    assert "failed" in out
    assert "after [" in out
    assert "'renewed'" in out
    assert "'moved'" in out
    assert not lab.jobs()


@pytest.mark.once
def test_hosts_that_end_with_their_program_are_renewed(client: Client, lab: Lab) -> None:
    """Without a record, too, the hosts move over; with the program all of them end, and nothing is left."""
    program = client.start(
        RENEWING
        + """
    print("before", len(pids(job.state(cached_path=None))), flush=True)
    wait_ready()
    print("after", len(pids(job.state(cached_path=None))), flush=True)
    print("moved", job.status().describe(), [event.what for event in job.events()], flush=True)
    time.sleep(3)
    print("still", len(pids(job.state(cached_path=None))), flush=True)
    """
    )
    out, err = finish(program, 200)
    assert program.returncode == 0, err
    assert "before 1" in out
    assert "after 1" in out
    assert "1/1 hosts ready" in out
    assert "'moved'" in out
    assert "still 1" in out
    lab.wait_jobs_gone()
    assert not client.home.exists()


@pytest.mark.once
def test_a_follow_up_that_sees_no_files_of_ours(folder: Path, private_home: Path, lab: Lab) -> None:
    """Its hosts are let in while the program goes on with the old ones."""
    client = Client(folder, private_home)
    out = client.run(
        RENEWING
        + """
    print("before", len(pids(job.state())))
    wait_ready()
    print("after", len(pids(job.state())))
    job.kill()
    """
    )
    assert "before 1" in out
    assert "after 1" in out
    assert not lab.jobs()


@pytest.mark.once
def test_hosts_that_end_with_their_program_outlive_a_loss(client: Client, lab: Lab) -> None:
    """Without a record, too, a program that lost a host goes on with the others, and with one in its place."""
    program = client.start("""
        job = SlurmJob(meshes={"w": 2})
        job.state(cached_path=None)
        print("up", flush=True)
        while not job.status().failed_hosts: time.sleep(0.2)
        job.resize("w", 3)
        probes = job.state(cached_path=None).w.spawn_procs().spawn("p", Probe)
        print("nodes", len(set(values(probes.variable.call("SLURMD_NODENAME").get()))))
        print("jobs", sorted(set(values(probes.variable.call("SLURM_JOB_ID").get()))))
    """)
    read_until(program, "up")
    [first] = lab.jobs()
    lab.lose_node(int(first.nodes[1].removeprefix("n")))
    out, err = finish(program, 120)
    assert program.returncode == 0, err
    assert "nodes 3" in out
    assert f"'{first.id}'" in out
    lab.wait_jobs_gone()

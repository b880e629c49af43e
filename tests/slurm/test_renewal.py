"""Follow-up allocations: asked for before the time limit, and moved to."""

from __future__ import annotations

import pytest

from programs import Client
from slurm.lab import Lab


def test_a_follow_up_is_planned_asked_for_and_moved_to(client: Client, lab: Lab) -> None:
    """`plan` shows what will be done; then a second job of the same id waits, and the hosts move over."""
    out = client.run("""
        job = SlurmJob(meshes={"w": 1}, time_limit="60", renew="2h")   # due at once
        job.state()
        first = job.apply_id
        print(job.plan().render())
        job = SlurmJob(meshes={"w": 1}, time_limit="60", renew="2h")
        job.state()
        deadline = time.monotonic() + 60
        while job.plan().action != "move":
            print(job.plan().render(), flush=True)
            assert time.monotonic() < deadline
            time.sleep(0.5)
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
    client.run("job_load().kill()")
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


@pytest.mark.slow
def test_a_program_outlives_its_time_limit(client: Client, lab: Lab) -> None:
    """A program that runs into its limit goes on with the hosts of the follow-up."""
    out = client.run("""
        from milkweed.job import renewing
        renewing.CHECK_S = 2.0
        import milkweed.job.held as held
        job = SlurmJob(meshes={"w": 1}, time_limit="1", renew="45s")
        state = job.state()
        began = time.monotonic()
        answers = 0
        while time.monotonic() - began < 80:
            try:
                actors = state.w.spawn_procs().spawn("p", Probe)
                while time.monotonic() - began < 80:
                    actors.pid.call().get(timeout=20)
                    answers += 1
                    time.sleep(0.5)
                    if job.plan().action == "move": raise RuntimeError("move")
            except Exception as error:
                print("again", type(error).__name__, flush=True)
                state = job.state()
        print("answers", answers > 50, [event.what for event in job.events()])
        job.kill()
    """)
    assert "answers True" in out
    assert "'renewed', 'moved'" in out
    assert not lab.jobs()

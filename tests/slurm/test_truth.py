"""Faults on a real cluster: each gives within seconds the right word, with Slurm's reason and the right log."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from programs import Client, finish, wait_until
from slurm.lab import Lab

CALL = """
    job = SlurmJob(meshes={"w": 3}, %s)
    state = job.state()
    actors = state.w.spawn_procs().spawn("p", Probe)
    actors.pid.call().get()
    print("calling", flush=True)
    began = time.monotonic()
    try:
        actors.slow.call(300).get()
    except BaseException as error:
        print("failed", type(error).__name__, round(time.monotonic() - began), flush=True)
    print("status", job.status().describe(), flush=True)
    print("events", [str(event) for event in job.events()], flush=True)
    os._exit(0)
"""


def read_until(program: object, word: str) -> None:
    """Read a program's output up to a line with that word."""
    for line in program.stdout:  # type: ignore[attr-defined]
        if word in line:
            return
    raise AssertionError(program.communicate())  # type: ignore[attr-defined]


def start_again(lab: Lab) -> None:
    """Slurm holds a job back for two minutes after it was put into the queue again: spare the test that."""
    wait_until(lambda: any(job.state == "PENDING" for job in lab.jobs()), 60)
    time.sleep(1)  # it must have been seen as pending by then
    for job in lab.jobs():
        lab.run("scontrol", "update", f"jobid={job.id}", "starttime=now", check=False)


def node_of(lab: Lab, rank: int) -> int:
    """The number of the node that the only job's host of a rank is on."""
    [job] = lab.jobs()
    return int(job.nodes[rank].removeprefix("n"))


def failed_after_s(out: str) -> int:
    """How long the call took to fail."""
    [line] = [line for line in out.splitlines() if line.startswith("failed")]
    return int(line.split()[-1])


def test_cancelled_during_a_call(client: Client, lab: Lab) -> None:
    """An administrator's scancel is named with Slurm's own word within seconds."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    lab.run("scancel", str(lab.jobs()[0].id))
    out, err = finish(program, 60)
    assert failed_after_s(out) <= 20
    assert "the hosts of job 'monarch_job' have ended: Slurm job" in err
    assert "CANCELLED" in err
    assert "status ended" in out
    client.run("job_load().kill()")


def test_a_node_that_dies_during_a_call(client: Client, lab: Lab) -> None:
    """The host is named with its machine and Slurm's word on it; the other hosts stay allocated."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    node = node_of(lab, 1)
    lab.poweroff_node(node)
    out, err = finish(program, 90)
    assert failed_after_s(out) <= 35
    assert f"host w/1 is lost: its machine n{node} does not answer" in err
    assert "host lost" in out
    assert "2/3 hosts ready" in out
    assert lab.jobs()[0].state == "RUNNING"
    client.run("job_load().kill()")


def test_a_worker_that_crashes(client: Client, lab: Lab) -> None:
    """A host whose worker dies is named with the last lines of its own log."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    lab.on_node(node_of(lab, 1), "pkill", "-KILL", "-x", "w/1", check=False)
    out, err = finish(program, 60)
    assert failed_after_s(out) <= 20
    assert "host w/1 is lost: its worker ended: it was ended by SIGKILL" in err
    client.run("job_load().kill()")


def test_a_keeper_that_crashes(client: Client, lab: Lab) -> None:
    """A host whose keeper dies is lost; Slurm's word on its task is in the reason."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    node = node_of(lab, 2)
    lab.on_node(node, "pkill", "-KILL", "-f", "milkweed.worker.remote", check=False)
    out, err = finish(program, 60)
    assert failed_after_s(out) <= 30
    assert "host w/2 is lost" in err
    assert f"its task on node n{node} ended" in err
    client.run("job_load().kill()")


def test_a_requeued_job_gets_new_hosts(client: Client, lab: Lab) -> None:
    """Put back into the queue and started on other nodes: the same client goes on with the new hosts."""
    program = client.start("""
        job = SlurmJob(meshes={"w": 2})
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("on", sorted(values(actors.variable.call("SLURMD_NODENAME").get())), flush=True)
        sys.stdin = None
        while job.status().liveness != "pending": time.sleep(0.1)
        print("pending", job.status().reason, flush=True)
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("again", sorted(values(actors.variable.call("SLURMD_NODENAME").get())), flush=True)
    """)
    read_until(program, "on [")
    [job] = lab.jobs()
    drained = job.nodes[0]
    lab.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    lab.run("scontrol", "requeue", str(job.id))
    start_again(lab)
    out, err = finish(program, 90)
    assert "pending Slurm job" in out, out + err
    [again] = [line for line in out.splitlines() if line.startswith("again")]
    assert again.count("'n") == 2
    assert drained not in again
    assert "it is back in the queue" in err
    after = client.run("""
        state = job_load().state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("third", sorted(values(actors.variable.call("SLURMD_NODENAME").get())))
        job_load().kill()
    """)
    assert again.replace("again", "third") in after
    lab.run("scontrol", "update", f"nodename={drained}", "state=resume")


def test_a_node_dies_and_slurm_requeues(client: Client, lab: Lab) -> None:
    """A job that is not to survive a node is queued again by Slurm, and the next program finds its new hosts."""
    client.run("SlurmJob(meshes={'w': 2}, survive_node_failure=False).state()")
    lab.poweroff_node(node_of(lab, 0))
    start_again(lab)
    out = client.run("""
        job = job_load()
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("again", sorted(values(actors.variable.call("SLURMD_NODENAME").get())))
        job.kill()
    """)
    assert "again ['n" in out


def test_hosts_without_their_first_node_end_when_idle(client: Client, lab: Lab) -> None:
    """The batch script is gone with its node: the hosts that are left still end the job when nobody wants them."""
    client.run("SlurmJob(meshes={'w': 2}, idle_timeout_s=12).state()")
    lab.poweroff_node(node_of(lab, 0))
    wait_until(lambda: not lab.jobs(), 40)
    assert "ended" in client.run("print(job_load().status().describe()); job_load().kill()")


def test_a_program_goes_on_after_its_job_was_cancelled(client: Client, lab: Lab) -> None:
    """The same program asks for another allocation, and uses it."""
    program = client.start("""
        job = SlurmJob(meshes={"w": 1})
        def use(): return values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())
        first = (use(), job.apply_id)
        print("calling", flush=True)
        while job.status().liveness != "ended": time.sleep(0.2)
        second = (use(), job.apply_id)
        print("went on", first[1] != second[1])
        job.kill()
    """)
    read_until(program, "calling")
    lab.run("scancel", str(lab.jobs()[0].id))
    out, err = finish(program, 60)
    assert "went on True" in out, err
    assert not lab.jobs()


def test_a_node_that_was_restarted(client: Client, lab: Lab) -> None:
    """A node that comes back without its host: the host is lost, though Slurm finds nothing wrong."""
    client.run("SlurmJob(meshes={'w': 2}).state()")
    node = node_of(lab, 1)
    lab.kill_node(node)
    lab.start_node(node)
    out = client.run("""
        job = SlurmJob(meshes={"w": 2}, on_change="replace")
        deadline = time.monotonic() + 40
        while not job_load().status().failed_hosts:
            assert time.monotonic() < deadline, job_load().status()
            time.sleep(0.5)
        print(job.plan().render())
        print("again", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
        job.kill()
    """)
    assert "hosts were lost: w/1" in out
    assert "again 2" in out


def test_cancelled_while_pending(client: Client, lab: Lab) -> None:
    """A job that an administrator cancels in the queue ends the wait, with Slurm's word."""
    program = client.start("""
        from milkweed.errors import AllocationEndedError
        try:
            SlurmJob(meshes={"w": 1}, partition="down").state()
        except AllocationEndedError as error:
            print(error)
    """)
    wait_until(lambda: bool(lab.jobs()))
    time.sleep(0.5)
    lab.run("scancel", str(lab.jobs()[0].id))
    out, _err = finish(program, 30)
    assert "the allocation of job 'monarch_job' has ended" in out
    assert "CANCELLED" in out
    client.run("job_load().kill()")


def test_a_python_that_is_not_there(client: Client, lab: Lab) -> None:
    """The error names the interpreter, as the node's own log has it."""
    out = client.run("""
        from milkweed.errors import AllocationError
        job = SlurmJob(meshes={"w": 2}, python_exe="/no/such/python")
        try:
            job.state()
        except AllocationError as error:
            print(error)
        job.kill()
    """)
    assert "/no/such/python" in out
    assert not lab.jobs()


def test_a_worker_that_cannot_start(client: Client, lab: Lab) -> None:
    """A Python without the engine: the host is named, and how to mend it."""
    broken = client.folder / "broken" / "monarch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('broken engine')")
    python = client.folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={broken.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    out = client.run(f"""
        from milkweed.errors import AllocationError
        job = SlurmJob(meshes={{"w": 1}}, python_exe={str(python)!r})
        began = time.monotonic()
        try:
            job.state()
        except AllocationError as error:
            print(error)
        print("took", time.monotonic() - began < 30)
        job.kill()
    """)
    assert "host w/0 did not start" in out
    assert "broken engine" in out
    assert "took True" in out
    assert not lab.jobs()


def test_a_failed_squeue_cancels_nothing(client: Client, lab: Lab) -> None:
    """One failing command is UNKNOWN: the job goes on, and the next look finds it."""
    client.run("SlurmJob(meshes={'w': 1}).state()")
    tools = client.folder / "bin"
    tools.mkdir()
    (tools / "squeue").write_text(
        "#!/bin/sh\necho 'squeue: error: Unable to contact slurm controller' >&2\nexit 1\n"
    )
    (tools / "squeue").chmod(0o755)
    out = client.run(
        f"""
        os.environ["PATH"] = {str(tools)!r} + ":" + os.environ["PATH"]
        from milkweed.errors import DeadlineError
        try:
            SlurmJob(meshes={{"w": 1}}, job_start_timeout=2).state()
        except DeadlineError as error:
            print("refused", error)
    """
    )
    assert "refused" in out
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    client.run("job_load().kill()")


def test_a_changed_time_limit_is_shown_not_done(client: Client, lab: Lab) -> None:
    """A declaration that differs is an error with the fields; the running job is left alone."""
    client.run("SlurmJob(meshes={'w': 1}, time_limit='01:00:00').state()")
    out = client.run("""
        from milkweed.errors import ChangedError
        try:
            SlurmJob(meshes={"w": 1}, time_limit="02:00:00").state()
        except ChangedError as error:
            print(error)
    """)
    assert "~ slurm.time_limit: 01:00:00 → 02:00:00" in out
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    client.run("job_load().kill()")


@pytest.mark.slow
def test_the_time_limit(client: Client, lab: Lab) -> None:
    """A job that reaches its time limit is said to have done so, during a call."""
    program = client.start(CALL % "time_limit='1'")
    out, err = finish(program, 150)
    assert "its time limit was reached" in err
    assert "TIMEOUT" in out
    client.run("job_load().kill()")


def test_a_client_that_is_killed_leaves_no_procs(client: Client, lab: Lab) -> None:
    """With the client gone its procs end; the hosts stay for the next one."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    program.send_signal(signal.SIGKILL)
    finish(program, 10)
    node = node_of(lab, 1)
    wait_until(lambda: "w/1 r" not in lab.on_node(node, "ps", "-eo", "comm").stdout)
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    client.run("job_load().kill()")

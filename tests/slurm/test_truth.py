"""Faults on a real cluster: each gives within seconds the right word, with Slurm's reason and the right log."""

from __future__ import annotations

import signal
import sys

from milkweed.job import job_load
from programs import Client, finish, read_until, wait_until
from slurm.hosts import (
    SPEAK,
    assert_last_words,
    command,
    make_hosts,
    node_of,
    start_again,
    take_nodes,
)
from slurm.lab import Lab

SOON_S = 25
"""How long a call on hosts that are gone may take to fail on a busy machine; the peer takes 60 to 70 s."""
QUEUED = "the hosts of job 'monarch_job' have ended: it is back in the queue: Slurm job "
CALL = """
    job = SlurmJob(meshes={"w": 2}, %s)
    state = job.state()
    actors = state.w.spawn_procs().spawn("p", Probe)
    SPEAK
    print("calling", flush=True)
    began = time.monotonic()
    try:
        actors.slow.call(300).get()
    except BaseException as error:
        print("failed", type(error).__name__, round(time.monotonic() - began), flush=True)
        print("notes", *getattr(error, "__notes__", ()), sep="; ", flush=True)
    print("status", job.status().describe(), flush=True)
    print("events", [str(event) for event in job.events()], flush=True)
    os._exit(0)
""".replace("    SPEAK\n", SPEAK)


def failed_after_s(out: str) -> int:
    """How long the call took to fail."""
    return int(find_line(out, "failed").split()[-1])


def find_line(out: str, word: str) -> str:
    """The one line that begins with this word."""
    [line] = [line for line in out.splitlines() if line.startswith(word)]
    return line


def test_cancelled_during_a_call(client: Client, lab: Lab) -> None:
    """Weakness 6: an administrator's scancel is named with Slurm's own word within seconds."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    lab.run("scancel", str(lab.jobs()[0].id))
    out, err = finish(program)
    assert failed_after_s(out) <= SOON_S
    assert "the hosts of job 'monarch_job' have ended: Slurm job" in err
    assert "CANCELLED" in err
    assert "CANCELLED" in find_line(out, "notes")
    assert "status ended" in out
    client.kill()


def test_a_node_that_dies_during_a_call(client: Client, lab: Lab) -> None:
    """Weakness 6: the host is named soon, with its machine and the end of its log; the other hosts stay allocated.

    Slurm learns of it later, and from then on its word on the node is told.
    """
    program = client.start(CALL % "")
    read_until(program, "calling")
    node = node_of(lab, 1)
    lab.poweroff_node(node)
    out, err = finish(program)
    assert failed_after_s(out) <= SOON_S
    assert f"host w/1 is lost: its machine n{node} does not answer" in err
    assert f"host w/1 is lost: its machine n{node} " in find_line(out, "notes")
    assert "host lost" in out
    assert "1/2 hosts ready" in out
    assert_last_words(err, "w/1")
    assert lab.jobs()[0].state == "RUNNING"
    wait_until(lambda: f"Slurm says that node n{node} is " in command("status", "--why"), 90)
    assert_last_words(command("status", "--why"), "w/1")
    client.kill()


def test_a_worker_that_crashes(client: Client, lab: Lab) -> None:
    """Weakness 5: a host whose worker dies is named with the last lines of its own log."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    lab.on_node(node_of(lab, 1), "pkill", "-KILL", "-x", "w/1", check=False)
    out, err = finish(program)
    assert failed_after_s(out) <= SOON_S
    assert "host w/1 is lost: its worker ended: it was ended by SIGKILL" in err
    assert_last_words(err, "w/1")
    client.kill()


def test_a_keeper_that_crashes(client: Client, lab: Lab) -> None:
    """Weakness 5: a host whose keeper dies is lost, with Slurm's word on its task and the end of its log."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    node = node_of(lab, 1)
    lab.on_node(node, "pkill", "-KILL", "-f", "milkweed.worker.remote", check=False)
    out, err = finish(program)
    assert failed_after_s(out) <= SOON_S
    assert f"host w/1 is lost: its task on node n{node} ended" in err
    assert_last_words(err, "w/1")
    client.kill()


def test_a_requeued_job_gets_new_hosts(client: Client, lab: Lab) -> None:
    """Weakness 8: requeued and started on other nodes, the same client goes on, and the next one too."""
    program = client.start("""
        job = SlurmJob(meshes={"w": 2})
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("on", sorted(values(actors.variable.call("SLURMD_NODENAME").get())), flush=True)
        sys.stdin = None
        while job.status().liveness != "pending": time.sleep(0.1)
        print("pending", job.status().reason, flush=True)
        began = time.monotonic()
        try:
            actors.pid.call().get()
        except Exception as error:
            print("failed", type(error).__name__, round(time.monotonic() - began), flush=True)
            print("notes", *getattr(error, "__notes__", ()), sep="; ", flush=True)
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("again", sorted(values(actors.variable.call("SLURMD_NODENAME").get())), flush=True)
    """)
    read_until(program, "on [")
    [job] = lab.jobs()
    drained = job.nodes[0]
    lab.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    lab.run("scontrol", "requeue", str(job.id))
    assert "pending Slurm job" in read_until(program, "pending")
    start_again(lab)
    out, err = finish(program)
    assert "again" in out, err
    assert failed_after_s(out) <= SOON_S
    assert QUEUED in find_line(out, "notes")
    again = find_line(out, "again")
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


def test_a_job_that_is_preempted_during_a_call(client: Client, lab: Lab) -> None:
    """Weakness 7: another job takes the nodes: the call fails soon and says that its job is back in the queue."""
    program = client.start(CALL % 'partition="spare", slurm_args=["--nodelist=n[1-2]"]')
    read_until(program, "calling")
    rival = take_nodes(lab, "-w", "n[1-2]")
    out, _err = finish(program)
    assert failed_after_s(out) <= SOON_S
    assert QUEUED in find_line(out, "notes")
    assert "status pending" in out
    client.kill()
    lab.run("scancel", str(rival))


def test_a_node_dies_and_slurm_requeues(client: Client, lab: Lab) -> None:
    """Weakness 7: Slurm requeues a job that lost a node: a call fails soon and says so; new hosts come later."""
    program = client.start(CALL % "survive_node_failure=False")
    read_until(program, "calling")
    lab.lose_node(node_of(lab, 0))
    out, _err = finish(program)
    assert failed_after_s(out) <= SOON_S
    assert QUEUED in find_line(out, "notes")
    wait_until(lambda: job_load().status().liveness == "pending", 60)
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
    program = client.start("""
        SlurmJob(meshes={"w": 2}, idle_timeout_s=4).state()
        print("connected", flush=True)
        while not os.path.exists("over"): time.sleep(0.05)
        os._exit(0)
    """)
    read_until(program, "connected")
    lab.lose_node(node_of(lab, 0))
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    (client.folder / "over").touch()
    finish(program)
    wait_until(lambda: not lab.jobs(), 60)
    assert job_load().status().liveness == "ended"
    client.kill()


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
    out, err = finish(program)
    assert "went on True" in out, err
    assert not lab.jobs()


def test_a_node_that_was_restarted(client: Client, lab: Lab) -> None:
    """A node that comes back without its host: the host is lost, though Slurm finds nothing wrong."""
    job = make_hosts(meshes={"w": 2})
    node = node_of(lab, 1)
    lab.kill_node(node)
    lab.start_node(node)
    wait_until(lambda: bool(job.status().failed_hosts), 90)
    out = client.run("""
        job = SlurmJob(meshes={"w": 2}, on_change="replace")
        print(job.plan().render())
        print("again", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
        job.kill()
    """)
    assert "hosts were lost: w/1" in out
    assert "again 2" in out


def test_cancelled_while_pending(client: Client, lab: Lab) -> None:
    """Weakness 4: a job that an administrator cancels in the queue ends the wait, with Slurm's word."""
    program = client.start("""
        from milkweed.errors import AllocationEndedError
        from milkweed.job import progress
        progress.QUIET_S = 0.0
        try:
            SlurmJob(meshes={"w": 1}, partition="down").state()
        except AllocationEndedError as error:
            print(error)
    """)
    read_until(program, "waiting for job 'monarch_job': pending", err=True)
    lab.run("scancel", str(lab.jobs()[0].id))
    out, _err = finish(program)
    assert "the allocation of job 'monarch_job' has ended" in out
    assert "CANCELLED" in out
    client.kill()


def test_a_python_that_is_not_there(client: Client, lab: Lab) -> None:
    """Weakness 4: the error names the missing interpreter, as the node's own log has it."""
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
    """Weakness 5: a Python without the engine: state() fails, the host is named, and how to mend it."""
    broken = client.folder / "broken" / "monarch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('broken engine')")
    python = client.folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={broken.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    out = client.run(f"""
        from milkweed.errors import AllocationError
        job = SlurmJob(meshes={{"w": 1}}, python_exe={str(python)!r})
        try:
            job.state()
        except AllocationError as error:
            print(error)
        job.kill()
    """)
    assert "host w/0 did not start" in out
    assert "broken engine" in out
    assert not lab.jobs()


def test_a_failed_squeue_cancels_nothing(client: Client, lab: Lab) -> None:
    """Weakness 9: one failing command is UNKNOWN: the job goes on, and the next look finds it."""
    make_hosts(meshes={"w": 1})
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
            SlurmJob(meshes={{"w": 1}}, job_start_timeout=1).state()
        except DeadlineError as error:
            print("refused", error)
    """
    )
    assert "refused" in out
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    client.kill()


def test_a_changed_time_limit_is_shown_not_done(client: Client, lab: Lab) -> None:
    """Weakness 9: a declaration that differs is an error with the fields; the running job is left alone."""
    make_hosts(meshes={"w": 1}, time_limit="01:00:00")
    out = client.run("""
        from milkweed.errors import ChangedError
        try:
            SlurmJob(meshes={"w": 1}, time_limit="02:00:00").state()
        except ChangedError as error:
            print(error)
    """)
    assert "~ slurm.time_limit: 01:00:00 → 02:00:00" in out
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    client.kill()


def test_a_client_that_is_killed_leaves_no_procs(client: Client, lab: Lab) -> None:
    """With the client gone its procs end; the hosts stay for the next one."""
    program = client.start(CALL % "")
    read_until(program, "calling")
    program.send_signal(signal.SIGKILL)
    finish(program)
    node = node_of(lab, 1)
    wait_until(lambda: "w/1.r" not in lab.on_node(node, "ps", "-eo", "comm").stdout, 60)
    assert [job.state for job in lab.jobs()] == ["RUNNING"]
    client.kill()

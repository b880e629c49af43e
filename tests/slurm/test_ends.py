"""Ends that take their time, jobs that stand still, and batch clients that begin anew, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from programs import Client, finish, wait_until
from slurm.hosts import start_again
from slurm.lab import Lab

CALL = """
    job = SlurmJob(meshes={"w": 2})
    state = job.state()
    actors = state.w.spawn_procs().spawn("p", Probe)
    actors.pid.call().get()
    print("calling", flush=True)
    try:
        actors.slow.call(300).get()
    except BaseException as error:
        print("failed", type(error).__name__, flush=True)
    print("events", [str(event) for event in job.events()], flush=True)
    os._exit(0)
"""


@pytest.fixture
def slow_end(lab: Lab) -> Iterator[Callable[[int], None]]:
    """Have the site do something after every job that takes so many seconds."""
    conf, epilog = lab.run_folder / "slurm.conf", lab.run_folder / "epilog.sh"
    before = conf.read_text()

    def set_up(seconds: int) -> None:
        epilog.write_text(f"#!/bin/sh\nsleep {seconds}\n")
        epilog.chmod(0o755)
        conf.write_text(f"{before}\nEpilog={epilog}\n")
        lab.run("scontrol", "reconfigure")

    yield set_up
    conf.write_text(before)
    lab.run("scontrol", "reconfigure")


def cancel_during_a_call(client: Client, lab: Lab) -> str:
    """What a program says whose job is cancelled while a call waits."""
    program = client.start(CALL)
    assert program.stdout is not None
    assert any("calling" in line for line in program.stdout)
    lab.run("scancel", str(lab.jobs()[0].id))
    out, err = finish(program)
    assert "failed" in out, err
    assert "host lost" not in out
    client.run("job_load().kill()")
    return err


def test_an_end_that_a_site_makes_slow_is_named(
    client: Client, lab: Lab, slow_end: Callable[[int], None]
) -> None:
    """While the nodes are being cleaned up Slurm does not say how a job ended: it is waited for."""
    slow_end(6)
    err = cancel_during_a_call(client, lab)
    assert "the hosts of job 'monarch_job' have ended: Slurm job" in err
    assert "is CANCELLED" in err


def test_an_end_that_takes_too_long_is_told_as_far_as_it_is_known(
    client: Client, lab: Lab, slow_end: Callable[[int], None]
) -> None:
    """A program does not hang for minutes: hosts have ended, in the words that this version of Slurm has."""
    slow_end(25)
    err = cancel_during_a_call(client, lab)
    assert "the hosts of job 'monarch_job' have ended: Slurm job" in err
    word = "is COMPLETING" if lab.version == "22.05" else "is CANCELLED"
    assert f"{word}: " in err
    assert "its processes are being ended" in err


def test_a_suspended_job_is_waited_for(client: Client, lab: Lab) -> None:
    """Its hosts are not lost: who connects is told that it is suspended, and goes on with the same hosts."""
    client.run("SlurmJob(meshes={'w': 2}).state()")
    [job] = lab.jobs()
    lab.run("scontrol", "suspend", str(job.id))
    looked = client.run("print(job_load().status().describe())")
    assert "running, 0/2 hosts ready (Slurm job" in looked
    assert "is SUSPENDED: it is suspended and keeps its hosts" in looked
    said = client.folder / "said"
    program = client.start(f"""
        sys.stderr = open({str(said)!r}, "w", buffering=1)
        job = SlurmJob(meshes={{"w": 2}})
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        print("answers", len(values(actors.pid.call().get())), job.status().describe())
        job.kill()
    """)
    wait_until(lambda: said.exists() and "is SUSPENDED" in said.read_text(), 60)
    lab.run("scontrol", "resume", str(job.id))
    out, err = finish(program)
    assert "answers 2 running, 2/2 hosts ready" in out, err + said.read_text()
    assert not lab.jobs()


def start_batch(client: Client, lab: Lab) -> int:
    """Start a job with a batch client that ends with code 7 when it begins for the second time; its number."""
    client.write(
        """
        from milkweed.job import load_current_job
        state = load_current_job().state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        nodes = sorted(values(actors.variable.call("SLURMD_NODENAME").get()))
        with open("runs", "a") as file: print(*nodes, file=file, flush=True)
        if len(open("runs").readlines()) == 2: sys.exit(7)
        time.sleep(600)
        """,
        "train.py",
    )
    client.run("""
        job = SlurmJob(meshes={"w": 2})
        job.apply(client_script="train.py")
        job.dump("batch.json")
    """)
    wait_until(lambda: len(runs(client)) == 1, 60)
    [job] = lab.jobs()
    return job.id


def runs(client: Client) -> list[list[str]]:
    """On which nodes the batch client has begun so far."""
    path = client.folder / "runs"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def see_the_second_run(client: Client, lab: Lab) -> str:
    """Let a job begin that Slurm would hold back for two minutes, and see how it ends."""
    wait_until(lambda: [job.state for job in lab.jobs()] == ["PENDING"], 60)
    assert "pending" in client.run("print(job_load('batch.json').status().describe())")
    start_again(lab)
    wait_until(lambda: len(runs(client)) == 2, 60)
    return client.run("job = job_load('batch.json'); print(job.wait(60).describe()); job.kill()")


def test_a_batch_job_that_is_put_back_into_the_queue(client: Client, lab: Lab) -> None:
    """Its client begins anew with its hosts, and the exit code is the one of its last run."""
    job_id = start_batch(client, lab)
    lab.run("scontrol", "requeue", str(job_id))
    assert "ended, exit code 7" in see_the_second_run(client, lab)


def test_a_batch_client_whose_node_dies(client: Client, lab: Lab) -> None:
    """The job does not go on without its client: Slurm starts it again, on nodes that work."""
    start_batch(client, lab)
    [[first, *_others]] = runs(client)
    lab.poweroff_node(int(first.removeprefix("n")))
    assert "ended, exit code 7" in see_the_second_run(client, lab)
    assert first not in runs(client)[1]


@pytest.mark.once
def test_what_a_batch_client_has_added_ends_with_it(client: Client, lab: Lab) -> None:
    """Added hosts are a job of their own: nobody comes to them any more, and the exit code is the client's."""
    client.write(
        """
        from milkweed.job import load_current_job
        job = load_current_job()
        job.state()
        job.resize("w", 3)
        print("hosts", len(values(job.state().w.spawn_procs().spawn("p", Probe).pid.call().get())))
        sys.exit(7)
        """,
        "train.py",
    )
    out = client.run("""
        job = SlurmJob(meshes={"w": 2})
        job.apply(client_script="train.py")
        job.dump("batch.json")
        print(job.wait(60, until="ended").describe())
    """)
    assert "ended, exit code 7" in out
    wait_until(lambda: not lab.jobs(), 20)
    assert "hosts 3" in client.run("""
        job = job_load("batch.json")
        print("\\n".join(line.text for line in job.logs("client")))
        job.kill()
    """)


@pytest.mark.once
def test_a_signal_for_programs_ends_no_host(client: Client, lab: Lab) -> None:
    """Slurm sends it to all processes of the job, as before a time limit; keeper, host and actor go on."""
    out = client.run("""
        import subprocess, time
        state = SlurmJob(meshes={"w": 1}).state(cached_path=None)
        probes = state.w.spawn_procs().spawn("p", Probe)
        before = values(probes.pid.call().get())
        job = subprocess.check_output(["squeue", "-h", "-o", "%A"], text=True).strip()
        for word in ("USR1", "USR2"):
            subprocess.run(["scancel", f"--signal={word}", "--full", job], check=True)
        time.sleep(2)
        print("went on", values(probes.pid.call().get()) == before)
    """)
    assert "went on True" in out
    lab.wait_jobs_gone()

"""Faults on clusters whose nodes do not see the client's files: told as soon, and survived as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import Client, finish, wait_until
from slurm.hosts import start_again
from slurm.lab import Lab

USE = """
state = job.state()
nodes = values(state.w.spawn_procs().spawn("p", Probe).variable.call("SLURMD_NODENAME").get())
print("on", *sorted(nodes), flush=True)
"""
TWICE = f"""
job = SlurmJob(meshes={{"w": 2}})
{USE}
while job.status().liveness != "pending": time.sleep(0.1)
print("pending", flush=True)
{USE.replace('"on"', '"again"')}
job.kill()
"""


@pytest.fixture
def client(folder: Path, private_home: Path) -> Client:
    """Client programs whose records no other node sees."""
    return Client(folder, private_home)


def nodes_of(out: str) -> list[str]:
    """The nodes that a program was on."""
    [line] = [line for line in out.splitlines() if line.startswith("on ")]
    return line.split()[1:]


def own_logs(lab: Lab, node: int) -> list[str]:
    """The folders for logs that a node has of its own."""
    return lab.on_node(node, "sh", "-c", "ls -d /tmp/milkweed-logs-* || :").stdout.split()


@pytest.mark.once
def test_a_keeper_that_crashes_is_gone(client: Client, lab: Lab) -> None:
    """Who was connected once knows that a host which refuses is lost, and not slow: the next plan replaces it."""
    client.run('job = SlurmJob(meshes={"w": 2})' + USE)
    [job] = lab.jobs()
    node = int(job.nodes[1].removeprefix("n"))
    lab.on_node(node, "pkill", "-KILL", "-f", "milkweed.worker.remote", check=False)
    out = client.run("""
        job = job_load()
        deadline = time.monotonic() + 60
        while not job.status().failed_hosts:
            assert time.monotonic() < deadline, job.status()
            time.sleep(0.5)
        print([host.reason for host in job.status().failed_hosts])
        from milkweed.errors import MilkweedError
        try:
            SlurmJob(meshes={"w": 2}).state()
        except MilkweedError as error:
            print(error)
        job.kill()
    """)
    assert f"its keeper on node n{node} is gone" in out
    assert "hosts were lost: w/1" in out
    assert not lab.jobs()


def test_a_requeued_job_lets_its_new_hosts_in(client: Client, lab: Lab) -> None:
    """The keepers of the next run make keys of their own, and the same client is with them again."""
    program = client.start(TWICE)
    assert program.stdout is not None
    first = next(line.split()[1:] for line in program.stdout if line.startswith("on "))
    [job] = lab.jobs()
    lab.run("scontrol", "update", f"nodename={first[0]}", "state=drain", "reason=test")
    lab.run("scontrol", "requeue", str(job.id))
    assert any("pending" in line for line in program.stdout)
    start_again(lab)
    out, err = finish(program)
    [again] = [line.split()[1:] for line in out.splitlines() if line.startswith("again")]
    assert len(again) == 2, err
    assert first[0] not in again
    lab.run("scontrol", "update", f"nodename={first[0]}", "state=resume")


@pytest.mark.once
def test_nothing_is_left_on_the_nodes(client: Client, lab: Lab) -> None:
    """The first node keeps what Slurm says of the tasks, as long as the job is there."""
    client.run('job = SlurmJob(meshes={"w": 2})' + USE)
    [job] = lab.jobs()
    numbers = [int(node.removeprefix("n")) for node in job.nodes]
    assert len(own_logs(lab, numbers[0])) == 1
    client.run("job_load().kill()")
    wait_until(lambda: not any(own_logs(lab, number) for number in numbers), 30)


@pytest.mark.once
def test_hosts_wait_for_a_client_that_comes_late(client: Client, lab: Lab) -> None:
    """A job that was asked for and left alone has its hosts, whenever somebody comes: none has given up."""
    client.run('job = SlurmJob(meshes={"w": 2}); job.apply(); job.dump("late.json")')
    wait_until(lambda: [job.state for job in lab.jobs()] == ["RUNNING"], 60)
    [job] = lab.jobs()
    for node in job.nodes:
        number = int(node.removeprefix("n"))
        wait_until(lambda n=number: bool(waiting(lab, n)), 60)
    assert nodes_of(client.run(f"job = job_load('late.json'){USE}job.kill()")) == list(job.nodes)


def waiting(lab: Lab, node: int) -> str:
    """The door of a keeper that waits to be let in."""
    return lab.on_node(node, "sh", "-c", "ls /tmp/milkweed-0/*/ctl || :").stdout

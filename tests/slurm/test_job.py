"""SlurmJob as people use it: programs on the login node, hosts on the nodes."""

from __future__ import annotations

import json

from milkweed.job import SlurmJob, job_load
from programs import Client, wait_until
from slurm.hosts import READY_S, make_hosts, node_of
from slurm.lab import Lab


def test_the_reference_example(client: Client, lab: Lab) -> None:
    """A declaration, its state, and actors on every host of both meshes."""
    out = client.run("""
        job = SlurmJob(meshes={"trainers": 2, "dataloaders": 1}, partition="debug", time_limit="01:00:00")
        state = job.state()
        trainers = state.trainers.spawn_procs(per_host={"gpus": 2}).spawn("t", Probe)
        loaders = state.dataloaders.spawn_procs().spawn("d", Probe)
        import socket
        print(len(set(values(trainers.pid.call().get()))), len(values(loaders.pid.call().get())))
        print(sorted(set(values(trainers.variable.call("SLURMD_NODENAME").get()))))
        job.kill()
    """)
    assert "4 1" in out
    assert out.count("'n") == 2
    assert not lab.jobs()


def test_a_second_program_uses_the_same_hosts(client: Client, lab: Lab) -> None:
    """The second run connects to the allocation of the first, and kill() ends it and its record."""
    code = """
        job = SlurmJob(meshes={"w": 2})
        state = job.state()
        print("pids", sorted(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        print("id", job.apply_id)
    """
    first = client.run(code)
    assert len(lab.jobs()) == 1
    second = client.run(code + "    job.kill()\n")
    ids = [line for line in (first + second).splitlines() if line.startswith("id ")]
    assert ids[0] == ids[1]
    assert not lab.jobs()
    assert not client.home.exists()


def test_meshes_of_two_shapes(client: Client, lab: Lab) -> None:
    """Dataloaders need not hold GPUs: another shape is another component of one job."""
    out = client.run("""
        from milkweed.spec import Resources
        job = SlurmJob(meshes={"trainers": 2, "loaders": 1}, gpus_per_node=2,
                       resources={"loaders": Resources(gpus=0, cpus=2)})
        state = job.state()
        t = state.trainers.spawn_procs().spawn("t", Probe)
        l = state.loaders.spawn_procs().spawn("l", Probe)
        print("gpus", values(t.variable.call("CUDA_VISIBLE_DEVICES").get()),
              values(l.variable.call("CUDA_VISIBLE_DEVICES").get()))
        import subprocess
        print(subprocess.run(["squeue", "-h", "-o", "%i %D"], capture_output=True, text=True).stdout)
        job.kill()
    """)
    assert "gpus ['0,1', '0,1'] [None]" in out
    assert "+0 2" in out
    assert "+1 1" in out


def test_growing_and_shrinking(client: Client, lab: Lab) -> None:
    """More hosts join, fewer stay, and those that stay go on with what they do."""
    out = client.run("""
        job = SlurmJob(meshes={"a": 1, "b": 1})
        state = job.state()
        first = state.a.spawn_procs().spawn("p", Probe)
        before = values(first.pid.call().get())
        job.resize("a", 3)
        state = job.state()
        grown = state.a.spawn_procs().spawn("p", Probe)
        print("grown", len(values(grown.pid.call().get())))
        print("same", values(first.pid.call().get()) == before)
        job.resize("a", 1)
        state = job.state()
        small = state.a.spawn_procs().spawn("p", Probe)
        print("small", len(values(small.pid.call().get())))
        print("same", values(first.pid.call().get()) == before)
        print("hosts", [str(s.host) for s in job.status().hosts])
        job.kill()
    """)
    assert "grown 3" in out
    assert "small 1" in out
    assert out.count("same True") == 2
    assert "['a/0', 'b/0']" in out
    assert not lab.jobs()


def test_a_host_whose_node_died_is_replaced(client: Client, lab: Lab) -> None:
    """Slurm goes on without a dead node: status says who is lost, and a job that grows is whole again."""
    client.run("SlurmJob(meshes={'w': 3}).state()")  # who connects notes which host is where
    lab.lose_node(node_of(lab, 1))
    job = job_load()
    wait_until(lambda: [str(host.host) for host in job.status().failed_hosts] == ["w/1"], 60)
    out = client.run("""
        job = job_load()
        job.resize("w", 4)
        state = job.state()
        probes = state.w.spawn_procs().spawn("p", Probe)
        print("hosts", sorted(set(values(probes.variable.call("SLURMD_NODENAME").get()))))
        print("lost", [host.host for host in job.status().failed_hosts])
        job.kill()
    """)
    assert out.count("'n") == 4
    assert "lost []" in out
    assert not lab.jobs()


def test_only_the_lost_hosts_are_replaced(client: Client, lab: Lab) -> None:
    """The next program is asked for its word; a repair leaves the Slurm job and its other hosts alone.

    It is for a worker that has died though its keeper lives, too.
    """
    client.run("SlurmJob(meshes={'w': 2}, exclusive=False).state()")
    [before] = lab.jobs()
    lab.on_node(node_of(lab, 1), "pkill", "-KILL", "-x", "w/1", check=False)
    out = client.run("""
        from milkweed.errors import ChangedError
        try:
            SlurmJob(meshes={"w": 2}, exclusive=False).state()
        except ChangedError as error:
            print(error)
        job = SlurmJob(meshes={"w": 2}, exclusive=False, on_change="repair")
        state = job.state()
        print("pids", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        print("lost", [host.host for host in job.status().failed_hosts])
    """)
    assert 'on_change="repair" asks for others in place of what was lost' in out
    assert "pids 2" in out
    assert "lost []" in out
    assert {job.id for job in lab.jobs()} > {before.id}
    client.kill()
    assert not lab.jobs()


def test_batch_mode(client: Client, lab: Lab) -> None:
    """The client runs in the allocation; its exit code is the job's, in Slurm too; its output is in the logs."""
    client.write(
        """
        from milkweed.job import load_current_job
        job = load_current_job()
        state = job.state()
        print("inside", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        sys.exit(7)
        """,
        "train.py",
    )
    job = SlurmJob(meshes={"w": 2})
    job.apply(client_script="train.py")
    [line] = lab.jobs()
    assert "exit code 7" in job.wait(READY_S).describe()
    assert " ExitCode=7:0 " in lab.run("scontrol", "show", "job", "-o", str(line.id)).stdout
    assert len(list(client.home.glob("jobs/*/logs/client.log"))) == 1
    assert "inside 2" in [line.text for line in job.logs("client")]
    job.kill()
    assert not lab.jobs()


def test_the_mark_finds_a_job_with_all_files_gone(client: Client, lab: Lab) -> None:
    """The comment carries the id; nothing secret is in what Slurm shows."""
    make_hosts(meshes={"w": 1}, env={"TOKEN": "s3cret"})
    [job] = lab.jobs()
    assert job.comment.startswith("milkweed:1:")
    shown = lab.run("scontrol", "show", "job", "-dd", str(job.id)).stdout
    script = lab.run("scontrol", "write", "batch_script", str(job.id), "-").stdout
    assert "s3cret" not in shown + script
    assert "PRIVATE KEY" not in shown + script
    record = json.loads((client.folder / ".milkweed" / "job.json").read_text())
    assert record["apply_id"] in job.comment
    client.kill()

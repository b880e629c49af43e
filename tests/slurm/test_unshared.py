"""Clusters whose nodes do not see the client's files: hosts are let in through Slurm itself."""

from __future__ import annotations

from pathlib import Path

from programs import Client
from slurm.lab import Lab


def test_hosts_that_see_no_files_of_ours(folder: Path, private_home: Path, lab: Lab) -> None:
    """State, calls, variables, logs, a second client and the end: all as with shared files."""
    client = Client(folder, private_home)
    out = client.run("""
        job = SlurmJob(meshes={"w": 2}, env={"TOKEN": "s3cret"})
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("nodes", sorted(values(actors.variable.call("SLURMD_NODENAME").get())))
        print("token", values(actors.variable.call("TOKEN").get()))
        actors.say.call("hello from a host").get()
    """)
    [job] = lab.jobs()
    assert f"nodes {list(job.nodes)}" in out
    assert "token ['s3cret', 's3cret']" in out
    for node in job.nodes:
        seen = lab.on_node(int(node[1:]), "ls", str(private_home), check=False)
        assert seen.returncode != 0
    again = client.run("""
        job = job_load()
        print(job.status().describe())
        state = job.state()
        print("again", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        print("logs", [line.text for line in job.logs("w/0")])
        job.kill()
    """)
    assert "2/2 hosts ready" in again
    assert "again 2" in again
    assert "hello from a host" in again
    assert not lab.jobs()

"""Processes of hosts, as Slurm sees them: what it does not see it neither counts nor ends."""

from __future__ import annotations

from programs import Client, finish, read_number
from slurm.lab import Lab


def test_slurm_knows_every_actor(client: Client, lab: Lab) -> None:
    """A process of an actor is one of its job's, whose memory counts and which signals of Slurm reach."""
    program = client.start("""
        job = SlurmJob(meshes={"w": 1})
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        [pid] = values(actors.pid.call().get())
        print("actor", pid, flush=True)
        while not os.path.exists("over"): time.sleep(0.05)
        job.kill()
    """)
    pid = read_number(program, "actor")
    [job] = lab.jobs()
    node = int(job.nodes[0].removeprefix("n"))
    lines = lab.on_node(node, "scontrol", "listpids", str(job.id)).stdout.splitlines()
    assert str(pid) in [line.split()[0] for line in lines[1:]]
    (client.folder / "over").touch()
    finish(program)
    assert not lab.jobs()

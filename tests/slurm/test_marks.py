"""Jobs of a real Slurm whose comment somebody has overwritten: they are found, used and ended all the same."""

from __future__ import annotations

import pytest

from programs import Client
from slurm.lab import Lab


@pytest.mark.parametrize("comment", ["project X", ""])
def test_a_job_whose_mark_was_overwritten(client: Client, lab: Lab, comment: str) -> None:
    """The next program connects to the same hosts, no second job is made, and its end is the job's."""
    client.run("SlurmJob(meshes={'w': 2}).state()")
    [job] = lab.jobs()
    lab.run("scontrol", "update", f"jobid={job.id}", f"comment={comment}")
    assert lab.jobs()[0].comment == comment
    out = client.run("""
        job = SlurmJob(meshes={"w": 2})
        state = job.state()
        print("hosts", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        print(job.status().describe())
    """)
    assert "hosts 2" in out
    assert "running, 2/2 hosts ready" in out
    assert [each.id for each in lab.jobs()] == [job.id]
    client.run("job_load().kill()")
    assert not lab.jobs()

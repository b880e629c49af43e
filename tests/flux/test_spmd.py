"""torchrun programs on the hosts of a real Flux."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from flux.instance import Instance
from programs import Client, finish, wait_until
from ranks import PEERS, ranks_of

WHERE = """
import os
keys = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "FLUX_TASK_RANK")
print(*(os.environ[key] for key in keys), flush=True)
"""

PLACES = [(local, group) for group in "012" for local in "01"]


def write(client: Client, code: str) -> Path:
    """Write the program of the ranks."""
    path = client.folder / "train.py"
    path.write_text(code)
    return path


def test_ranks_on_every_host(client: Client, instance: Instance) -> None:
    """Three brokers of two ranks: each knows its place, runs in its own task, and hosts are used again."""
    write(client, WHERE)
    out = client.run("""
        job = FluxJob({"w": 3})
        job.torchrun(["--nnodes", "3", "--nproc-per-node", "2", "train.py"])
        job.torchrun(["--nnodes", "2", "train.py"])
        job.kill()
    """)
    lines = re.findall(r"^\[default(\d)\]:(\d) (\d) (\d) (\d) (\d)$", out, re.MULTILINE)
    first = sorted(line for line in lines if line[4] == "6")
    assert [line[0] for line in first] == [line[1] for line in first] == list("012345")
    assert [(line[2], line[3]) for line in first] == PLACES
    assert len({(line[3], line[5]) for line in first}) == 3
    assert len([line for line in lines if line[4] == "2"]) == 2
    assert not instance.jobs()


def test_ranks_talk_to_each_other(client: Client, instance: Instance) -> None:
    """All meet where the first one listens; Ctrl-C ends them on all hosts, and the hosts stay."""
    write(client, PEERS)
    program = client.start('FluxJob({"w": 2}).torchrun(["--nnodes=2", "train.py"])')
    wait_until(lambda: all((client.folder / f"up{rank}.2").exists() for rank in range(2)), 60)
    program.send_signal(signal.SIGINT)
    _out, err = finish(program, 60)
    assert program.returncode != 0, err
    wait_until(lambda: not ranks_of(client))
    assert len(instance.jobs()) == 1
    client.run("job_load().kill()")


def test_a_failure_names_its_rank(client: Client, instance: Instance) -> None:
    """The first failure of all hosts is reported, with its lines; restarts are of all ranks."""
    write(
        client,
        "import os, sys, time\n"
        "print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "if os.environ['RANK'] == '1':\n"
        "    sys.exit('out of luck')\n"
        "time.sleep(60)\n",
    )
    out = client.run("""
        from milkweed.errors import RanksFailedError
        with FluxJob({"w": 2}) as job:
            try:
                job.torchrun(["--nnodes=2", "--max-restarts=1", "train.py"])
            except RanksFailedError as error:
                print(error)
    """)
    assert "rank 1 (local rank 0 on host w/1) exited with code 1, after 1 restart" in out
    assert "| out of luck" in out
    assert out.count("[default1]:attempt 1") == 1
    assert not instance.jobs()


def test_a_program_is_served(client: Client, instance: Instance) -> None:
    """serve() asks Flux for hosts, another program takes hold of them by the handle, and kill() ends them."""
    write(client, "import os\nprint('rank', os.environ['RANK'])\n")
    out = client.run("""
        from milkweed.job.spmd import serve
        job = serve(["torchrun", "--nproc-per-node=2", "train.py"], scheduler="flux")
        job.run_spmd()
        print("HANDLE", job.handle)
    """)
    handle = re.search(r"HANDLE (\S+)", out)
    assert handle
    assert sorted(re.findall(r"^\[default\d\]:rank \d", out, re.MULTILINE)) == [
        "[default0]:rank 0",
        "[default1]:rank 1",
    ]
    assert len(instance.jobs()) == 1
    again = client.run(f"""
        from milkweed.job.spmd import SPMDJob
        job = SPMDJob({handle[1]!r}, "flux")
        job.run_spmd()
        job.kill()
    """)
    assert again.count("]:rank") == 2
    assert not instance.jobs()

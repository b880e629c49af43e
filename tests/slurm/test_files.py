"""Files that programs write on hosts: as the person who runs them wants them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import Client
from slurm.lab import Lab


@pytest.fixture
def umask() -> Iterator[None]:
    """That of a person whose group reads along."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.usefixtures("umask")
def test_what_programs_write_has_the_modes_that_their_person_wants(
    client: Client, lab: Lab
) -> None:
    """Actors, ranks and commands have the umask of the program that asked for the hosts; logs are closed."""
    (client.folder / "rank.py").write_text("open('rank', 'w').close()\n")
    client.run("""
        import subprocess
        class Writer(Actor):
            @endpoint
            def write(self, name): open(name, "w").close()
        job = SlurmJob(meshes={"w": 1})
        job.state().w.spawn_procs().spawn("writer", Writer).write.call("actor").get()
        job.torchrun(["--nproc-per-node=1", "rank.py"])
        command = [sys.executable, "-m", "milkweed", "exec", "--host", "w/0", "--", "touch", "command"]
        subprocess.run(command, check=True)
        job.kill()
    """)
    modes = {name: mode_of(client.folder / name) for name in ("actor", "rank", "command")}
    assert modes == dict.fromkeys(modes, "0o644")
    assert not lab.jobs()


@pytest.mark.usefixtures("umask")
def test_a_batch_client_writes_as_its_person_wants(client: Client, lab: Lab) -> None:
    """Its own files are as open as at home, and its log is closed to others."""
    client.write("open('mine', 'w').close(); print('done')", "batch.py")
    client.run("""
        job = SlurmJob(meshes={"w": 1})
        job.apply(client_script="batch.py")
        print(job.wait(60).describe())
    """)
    assert mode_of(client.folder / "mine") == "0o644"
    [log] = client.home.rglob("client.log")
    assert mode_of(log) == "0o600"
    lab.wait_jobs_gone()

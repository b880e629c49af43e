"""Ctrl-C at a terminal while a job waits in the queue: a person is asked, and Slurm has what was answered."""

from __future__ import annotations

import os
import pty
import select
import shutil
from pathlib import Path

import pytest

from milkweed.job import job_load
from programs import Client, wait_until
from slurm.lab import Lab

pytestmark = pytest.mark.once

SHOW_S = 60.0
CTRL_C = "\x03"
WAITS = """
        from milkweed.job import progress
        progress.QUIET_S = 0.0
        job = SlurmJob(meshes={"w": 1}, partition="down")
        try:
            job.state()
        except KeyboardInterrupt:
            print("interrupted", job.apply_id)
"""
PENDING = "waiting for job 'monarch_job': pending"
QUESTION = "Keep it in the queue? [Y/n]"
HELD = """#!/bin/sh
trap 'touch {here}/interrupted' INT
hold() {{ [ ! -e {here}/hold ] || touch {here}/held; while [ -e {here}/hold ]; do sleep 0.02; done; }}
[ "$1" != --version ] || exec {real} "$@"
[ {name} = sbatch ] || hold
{real} "$@"
code=$?
[ {name} != sbatch ] || hold
exit $code
"""


class Terminal:
    """A person's terminal, and the program that runs on it."""

    def __init__(self, client: Client, code: str, **env: str) -> None:
        argv = client.command(client.write(code))
        self._pid, self._side = pty.fork()
        if self._pid == 0:  # pragma: no cover
            os.chdir(client.folder)
            os.execve(argv[0], argv, client.env | env)  # noqa: S606  the program's own words
        self._shown = b""

    def type(self, keys: str) -> None:
        """What a person types."""
        os.write(self._side, keys.encode())

    def read_until(self, words: str) -> str:
        """Wait until it shows these; all that it has shown."""
        while words not in self._shown.decode(errors="replace"):
            assert self._read(), self._shown
        return self._shown.decode()

    def finish(self) -> str:
        """All that it has shown at its end."""
        while self._read():
            pass
        os.waitpid(self._pid, 0)
        os.close(self._side)
        return self._shown.decode()

    def _read(self) -> bytes:
        """What it shows next; nothing when nobody can write there any more."""
        assert select.select([self._side], [], [], SHOW_S)[0], self._shown
        try:
            data = os.read(self._side, 1000)
        except OSError:  # a terminal whose last program has ended
            return b""
        self._shown += data
        return data


class Held:
    """A command of Slurm that can be held: squeue before it asks, sbatch after its job was taken."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / f"held-{name}"
        self.folder.mkdir()
        program = self.folder / name
        program.write_text(HELD.format(here=self.folder, name=name, real=shutil.which(name)))
        program.chmod(0o755)
        self.path = f"{self.folder}:{os.environ['PATH']}"

    def hold(self) -> None:
        """From now on it is held."""
        (self.folder / "hold").touch()

    def go(self) -> None:
        """It is held no longer."""
        (self.folder / "hold").unlink()

    def wait(self) -> None:
        """Until somebody waits for it."""
        wait_until((self.folder / "held").exists, SHOW_S)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has reached it."""
        return (self.folder / "interrupted").exists()


def test_a_person_who_says_no_has_the_job_cancelled(client: Client, lab: Lab) -> None:
    """Ctrl-C in the middle of a look at the queue: the question tells what Slurm says, and nothing is left."""
    squeue = Held(client.folder, "squeue")
    terminal = Terminal(client, WAITS, PATH=squeue.path)
    terminal.read_until(PENDING)
    squeue.hold()
    squeue.wait()
    terminal.type(CTRL_C)
    squeue.go()
    assert "is pending (Slurm job" in terminal.read_until(QUESTION).partition("^C")[2]
    terminal.type("n\n")
    shown = terminal.finish()
    assert "it is being cancelled" in shown
    assert "interrupted" in shown
    assert not squeue.interrupted
    assert not lab.jobs()
    assert not (client.folder / ".milkweed").exists()


def wait_and_agree(client: Client) -> str:
    """What a program shows that is interrupted while it waits, by a person who then presses Enter."""
    terminal = Terminal(client, WAITS)
    terminal.read_until(PENDING)
    terminal.type(CTRL_C)
    terminal.read_until(QUESTION)
    terminal.type("\n")
    return terminal.finish()


def test_a_person_who_just_agrees_keeps_the_job(client: Client, lab: Lab) -> None:
    """Enter: the job stays, the text says where it is on record, and the next program goes on waiting for it."""
    shown = wait_and_agree(client)
    assert "it stays, on record in .milkweed/job.json" in shown
    apply_id = str(job_load(client.folder / ".milkweed" / "job.json").apply_id)
    assert f"interrupted {apply_id}" in shown
    assert f"interrupted {apply_id}" in wait_and_agree(client)
    [job] = lab.jobs()
    assert job.state == "PENDING"
    assert apply_id in job.comment
    client.kill()


def test_what_slurm_took_is_cancelled_though_it_did_not_answer(client: Client, lab: Lab) -> None:
    """Ctrl-C between the moment in which sbatch hands over the job, and its answer: the job is found and ended."""
    sbatch = Held(client.folder, "sbatch")
    sbatch.hold()
    terminal = Terminal(client, WAITS, PATH=sbatch.path)
    sbatch.wait()
    assert len(lab.jobs()) == 1
    terminal.type(CTRL_C)
    shown = terminal.finish()
    assert "interrupted None" in shown
    assert QUESTION not in shown
    assert not sbatch.interrupted
    assert not lab.jobs()
    assert not (client.folder / ".milkweed").exists()

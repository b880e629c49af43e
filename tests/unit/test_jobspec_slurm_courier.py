"""Nodes that do not see the run's folder: what they need is brought, and what they print is taken."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from milkweed.jobspec.graph import Auth, Graph, Need, Stage, Step, Submit, Work
from milkweed.jobspec.runs import Run, create_run
from milkweed.jobspec.transformers.slurm import Transformer
from milkweed.jobspec.transformers.slurm_courier import PATIENCE_S, Courier, _unpack, make_visit
from milkweed.jobspec.transformers.slurm_jobs import save_parcel
from milkweed.testing import FakeClock
from programs import wait_until
from unit.slurm_script_runs import JOB_ID, Node

SECRET = "s3cret"
PARCELS = ["secrets/token", "parcels/big.tar.gz"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that is reached by srun, and does not see what this test sees."""
    made = Node(tmp_path / "node")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    script = (made.bin / "srun").read_text()
    (made.bin / "srun").write_text(script.replace("exec", f"SLURM_JOB_ID={JOB_ID} exec"))
    return made


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Run:
    """A run of work with a secret and a file that is too large for a script."""
    big = tmp_path / "big"
    big.write_bytes(os.urandom(600_000))
    script = 'echo "$TOKEN" | tr a-z A-Z; wc -c <big; sleep 0.5; echo end'
    found: tuple[Step, ...] = (
        Auth(id="auth", secret="token", variable="MY_TOKEN", export="TOKEN"),
        Stage(id="big", path=str(big)),
        Submit(id="job", needs=(Need("auth"), Need("big")), work=Work(argv=("sh", "-c", script))),
    )
    made = create_run(Transformer().render(Graph(steps=found)))
    (made.secrets / "token").write_text(SECRET)
    save_parcel(made, str(big), "big.tar.gz")
    return made


def start(run: Run, node: Node) -> subprocess.Popen[bytes]:
    """Start the job, on a node where the run's folder is not to be seen."""
    details = run.plan.actions[-1].details
    script = node.tmp.parent / "script"
    script.write_text(str(details["script"]).replace(str(run.folder), "/nowhere"))
    return subprocess.Popen(["sh", str(script)], env=node.environment(), stdin=subprocess.DEVNULL)


def test_everything_goes_through_slurm(run: Run, node: Node, clock: FakeClock) -> None:
    """The job gets its secret and its file, and its output and exit code come back before it leaves."""
    courier = Courier(clock)
    process = start(run, node)

    def attend() -> bool:
        clock.sleep(PATIENCE_S)
        courier.attend(JOB_ID, ["job"], run.folder, PARCELS)
        return process.poll() is not None

    wait_until(attend, 30)
    assert process.returncode == 0
    log = run.logs / "job.log"
    assert log.read_text() == f"{SECRET.upper()}\n600000\nend\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert (run.logs / f".job.{JOB_ID}.exit").read_text() == "0\n"
    assert not list(run.logs.glob(".job.*.began"))
    assert SECRET not in node.calls.read_text()
    assert node.left == []


def test_nobody_is_visited_too_soon(run: Run, node: Node, clock: FakeClock) -> None:
    """A job gets a moment to show that it sees the run's folder; one that does is left alone."""
    courier = Courier(clock)
    courier.attend(JOB_ID, ["job"], run.folder, PARCELS)
    assert node.calls.read_text() == ""
    clock.sleep(PATIENCE_S + 1)
    (run.logs / ".job.77.began").write_text("77\n")
    courier.attend(JOB_ID, ["job"], run.folder, PARCELS)
    assert node.calls.read_text() == ""
    (run.logs / ".job.77.began").unlink()
    courier.attend(JOB_ID, ["job"], run.folder, PARCELS)
    assert node.calls.read_text() != ""


def test_a_job_that_is_gone(run: Run, node: Node, clock: FakeClock) -> None:
    """Nobody there, an srun that fails, or none at all: all of it is fine."""
    courier = Courier(clock)
    for program in (
        "#!/bin/sh\nexit 0\n",
        "#!/bin/sh\nexit 1\n",
        "#!/bin/sh\nhead -c 700 /dev/zero\n",
        None,
    ):
        if program is None:
            (node.bin / "srun").unlink()
        else:
            (node.bin / "srun").write_text(program)
        courier.attend(JOB_ID, ["job"], run.folder, PARCELS)
        clock.sleep(PATIENCE_S + 1)
        courier.attend(JOB_ID, ["job"], run.folder, PARCELS)
    assert list(run.logs.iterdir()) == []


def archive(*names: str) -> io.BytesIO:
    """What a node answers."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 2
            made.addfile(entry, io.BytesIO(b"x\n"))
        link = tarfile.TarInfo("./link.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(link)
    target.seek(0)
    return target


def test_a_node_cannot_write_elsewhere(tmp_path: Path) -> None:
    """Only plain files with plain names are taken from it."""
    answer = archive(
        "./job.log",
        "../out",
        "/srv/out",
        "./a/b",
        "./.job.7.began",
        "./.job.7.exit",
        "./.delivered",
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    assert _unpack(answer, logs)
    assert sorted(path.name for path in logs.iterdir()) == [".job.7.exit", "job.log"]
    assert not (tmp_path / "out").exists()


def test_output_that_grows_is_replaced_whole(tmp_path: Path) -> None:
    """Whoever reads it sees all of an answer, or of the one before."""
    assert not _unpack(archive("./job.log"), tmp_path)
    assert (tmp_path / "job.log").read_bytes() == b"x\n"
    (tmp_path / "job.log").write_bytes(b"older and longer")
    assert not _unpack(archive("./job.log"), tmp_path)
    assert (tmp_path / "job.log").read_bytes() == b"x\n"
    assert not _unpack(io.BytesIO(b"\0" * 1024), tmp_path)


def test_the_command_has_no_secret() -> None:
    """It says only which job, and whether something is brought."""
    words = make_visit("7", deliver=True)
    assert words[:5] == ["srun", "--jobid=7", "--nodes=1", "--ntasks=1", "--relative=0"]
    assert words[-2:] == ["sh", "deliver"]
    assert make_visit("7", deliver=False)[-1] == "look"

"""What Flux is handed: a jobspec, word for word; and what its shell script does with a batch client.

`MILKWEED_GOLDEN=write` writes the expected files anew; look at the difference before you keep it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends import launch
from milkweed.backends.flux.render import (
    INVITATION,
    Submission,
    make_environment,
    make_invitation,
    render_jobspec,
    render_resources,
)
from milkweed.backends.flux.shape import Part, Shape
from milkweed.backends.packing import pack_worker
from unit.flux_fake import APPLY_ID, FakeFlux

GOLDEN = Path(__file__).parents[1] / "golden" / "flux"
SOURCE = str(Path(launch.__file__).parents[2])
PLAIN = Part(shape=Shape(), hosts=(("workers", 0), ("workers", 1)))
GPU = Part(
    shape=Shape(
        queue="gpu",
        bank="lab",
        properties=("a100", "^old"),
        time_limit_s=5400.0,
        cores=8,
        gpus=4,
        exclusive=False,
    ),
    hosts=(("trainers", 0), ("trainers", 1), ("trainers", 2)),
)
BATCH = {
    "client": ("/usr/bin/python3.11", "train.py", "--epochs", "3", "it's $HOME"),
    "state_path": "/home/ann/project/.milkweed/job.json",
    "cwd": "/home/ann/my project",
}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/home/ann"}


def submission(*parts: Part, **more: Any) -> Submission:
    said: dict[str, Any] = {
        "apply_id": APPLY_ID,
        "name": "demo",
        "parts": parts or (PLAIN,),
        "folder": f"/home/ann/.local/state/milkweed/jobs/{APPLY_ID}",
        "logs": f"/home/ann/logs/demo-{APPLY_ID[:8]}",
    }
    return Submission(**{**said, **more})


CASES = {
    "one": (submission(), 0, ()),
    "gpu": (submission(PLAIN, GPU, port=30000, python="/opt/py/bin/python"), 1, ()),
    "batch": (submission(PLAIN, GPU, **BATCH), 0, (123, 456)),
}


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same jobspec wherever this is run."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3.11")


def render(name: str) -> dict[str, Any]:
    made, number, others = CASES[name]
    return render_jobspec(made, number, environment=ENVIRONMENT, others=others)


def steady(jobspec: dict[str, Any]) -> str:
    """Readable; the worker's own source changes with every commit, and lies elsewhere on every machine."""
    file = jobspec["attributes"]["system"]["files"][INVITATION]
    invitation = json.loads(file["data"])
    assert invitation["worker"] == b64encode(pack_worker()).decode()
    invitation |= {"worker": "<worker>", "source": "<source>"}
    file["data"] = invitation
    [task] = jobspec["tasks"]
    task["command"] = [word.splitlines() for word in task["command"]]
    return json.dumps(jobspec, indent=2) + "\n"


@pytest.mark.usefixtures("_steady")
@pytest.mark.parametrize("name", CASES)
def test_the_jobspec_is_the_recorded_one(name: str) -> None:
    """One component, one with all that can be asked for, and one with a batch client."""
    path = GOLDEN / f"{name}.json"
    text = steady(render(name))
    if os.environ.get("MILKWEED_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_a_jobspec_is_what_flux_asks_for() -> None:
    """Version 1 has exactly these keys, integers for counts, one task, and a duration."""
    for name in CASES:
        jobspec = render(name)
        assert sorted(jobspec) == ["attributes", "resources", "tasks", "version"]
        assert isinstance(jobspec["attributes"]["system"]["duration"], int | float)
        [node] = jobspec["resources"]
        [slot] = node["with"]
        [task] = jobspec["tasks"]
        assert (task["slot"], task["count"]) == (slot["label"], {"per_slot": 1})


def test_resources() -> None:
    """A node for each host; no GPUs are asked for where none are wanted, which Flux could not give."""
    [node] = render_resources(Shape(gpus=0), 3)
    assert node["count"] == 3
    assert node["exclusive"] is True
    assert [inside["type"] for inside in node["with"][0]["with"]] == ["core"]
    [node] = render_resources(Shape(exclusive=False, cores=2, gpus=1), 1)
    assert "exclusive" not in node
    assert node["with"][0]["with"] == [{"type": "core", "count": 2}, {"type": "gpu", "count": 1}]


def test_the_invitation_names_the_part() -> None:
    """With what ends the job; where a keeper is, is its own word."""
    made = make_invitation(submission(PLAIN, GPU), 1)
    assert made["part"] == "0.1"
    assert made["index_env"] == "FLUX_TASK_RANK"
    assert made["end"][:2] == ["flux", "cancel"]
    assert made["tied"] is True
    assert made["source"] == SOURCE


@pytest.mark.parametrize(
    ("hosts", "survives", "tells"), [(2, True, True), (2, False, False), (1, True, False)]
)
def test_whether_others_survive_a_node(hosts: int, survives: bool, tells: bool) -> None:
    """The first task tells Flux that the others may fail, where there are others."""
    part = Part(shape=Shape(), hosts=tuple(("w", rank) for rank in range(hosts)))
    jobspec = render_jobspec(submission(part, survives=survives), 0, environment={})
    assert ("critical-ranks" in json.dumps(jobspec["tasks"])) is tells


def test_variables_that_a_job_takes_along() -> None:
    """Those of the shell, and where records are; not where this program itself runs, nor what is no text."""
    environ = {
        "PATH": "/bin",
        "FLUX_URI": "local:///x",
        "MILKWEED_HOME": "/x",
        "SLURM_JOB_ID": "7",
        "BAD": os.fsdecode(b"\xff"),
        "TERM": "vt100",
    }
    assert make_environment(environ) == {
        "PATH": "/bin",
        "MILKWEED_HOME": "/x",
        "TERM": "vt100",
    }


# The script of a batch client


class Task:
    """The first task of a batch job, run here: its Python is a script that waits to be ended."""

    def __init__(
        self,
        flux: FakeFlux,
        folder: Path,
        client: str,
        *,
        seen: bool = True,
        cwd: Path | None = None,
    ) -> None:
        self.flux = flux
        self.records = folder / "records"
        if seen:
            self.records.mkdir()
        keeper = folder / "python"
        keeper.write_text('#!/bin/sh\ntrap "exit 0" TERM\nsleep 60 & wait $!\n')
        keeper.chmod(0o755)
        (folder / INVITATION).write_text("{}")
        made = submission(
            python=str(keeper),
            folder=str(self.records),
            logs=str(folder),
            client=("/bin/sh", "-c", client),
            state_path="/state.json",
            cwd=str(cwd or folder),
        )
        jobspec = render_jobspec(made, 0, environment={}, others=[123])
        self.process = subprocess.Popen(
            jobspec["tasks"][0]["command"],
            env={
                "PATH": f"{flux.bin}:/usr/bin:/bin",
                "FLUX_JOB_TMPDIR": str(folder),
                "FLUX_TASK_RANK": "0",
                "FLUX_JOB_ID": "f9",
            },
            start_new_session=True,
        )

    @property
    def exit(self) -> str:
        """The exit code that was written down."""
        path = self.records / "exit"
        return path.read_text().strip() if path.exists() else ""


@pytest.mark.parametrize("code", [0, 7])
def test_a_batch_client_ends_its_job(flux: FakeFlux, tmp_path: Path, code: int) -> None:
    """Its code is written down and is the task's; the other jobs are cancelled, the other tasks told to end."""
    task = Task(flux, tmp_path, f'echo "state $MILKWEED_STATE"; exit {code}')
    assert task.process.wait(20) == code
    assert task.exit == str(code)
    calls = [words for words in flux.calls if words[0] != "python"]
    assert calls == [["cancel", "123"], ["job", "kill", "--signal=TERM", "f9"]]
    assert (tmp_path / "client.log").read_text() == "state /state.json\n"


def test_a_batch_job_that_is_cancelled(flux: FakeFlux, tmp_path: Path) -> None:
    """The client is told to end; nobody takes its end for an exit code of its own."""
    task = Task(flux, tmp_path, 'echo "$$" >up; exec sleep 60')
    while not (tmp_path / "up").exists():
        assert task.process.poll() is None
    task.process.terminate()
    assert task.process.wait(20) != 0
    assert task.exit == ""


def test_a_batch_client_without_its_folder(flux: FakeFlux, tmp_path: Path) -> None:
    """It is not run in another one, and its log says why."""
    task = Task(flux, tmp_path, "echo started", cwd=tmp_path / "gone")
    assert task.process.wait(20) == 1
    said = (tmp_path / "client.log").read_text()
    assert str(tmp_path / "gone") in said
    assert "cannot enter" in said
    assert "started" not in said


def test_a_batch_client_that_does_not_see_the_records(flux: FakeFlux, tmp_path: Path) -> None:
    """It is not started, and the code says why."""
    task = Task(flux, tmp_path, "echo started", seen=False)
    assert task.process.wait(20) == 78
    assert not (tmp_path / "client.log").exists()

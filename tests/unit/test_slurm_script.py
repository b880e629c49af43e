"""What sbatch is handed: arguments and a script, word for word.

`MILKWEED_GOLDEN=write` writes the expected files anew; look at the difference before you keep it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.packing import pack_worker
from milkweed.backends.slurm import script
from milkweed.backends.slurm.script import (
    Submission,
    make_invitation,
    part_log,
    render_arguments,
    render_script,
    render_shape,
)
from milkweed.backends.slurm.shape import Part, Shape, make_parts
from milkweed.backends.slurm.text import parse_mark
from milkweed.backends.traces import CLIENT_LOG
from milkweed.spec import JobSpec, MeshSpec, Resources, check_mesh_name
from unit.slurm_fake import APPLY_ID

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
SOURCE = str(Path(script.__file__).parents[3])
PLAIN = Part(shape=Shape(), hosts=(("workers", 0), ("workers", 1)))
GPU = Part(
    shape=Shape(
        partition="gpu",
        account="lab",
        qos="high",
        constraint="a100&ib",
        time_limit_s=5400.0,
        ntasks_per_node=2,
        cpus_per_task=8,
        gpus=4,
        gpu_type="a100",
        memory_mb=65536,
        disk_mb=1024,
        exclusive=False,
        arguments=("--reservation=mine", "--mail-type=END"),
    ),
    hosts=(("trainers", 0), ("trainers", 1), ("trainers", 2)),
)


def submission(*parts: Part, **more: Any) -> Submission:
    said: dict[str, Any] = {
        "apply_id": APPLY_ID,
        "name": "demo",
        "generation": 0,
        "first": 0,
        "parts": parts or (PLAIN,),
        "folder": f"/home/ann/.local/state/milkweed/jobs/{APPLY_ID}",
        "logs": f"/home/ann/logs/demo-{APPLY_ID[:8]}",
    }
    return Submission(**{**said, **more})


BATCH = {
    "client": ("/usr/bin/python3.11", "train.py", "--epochs", "3", "it's $HOME"),
    "state_path": "/home/ann/project/.milkweed/job.json",
    "cwd": "/home/ann/my project",
}


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same script wherever this is run."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3.11")


def steady(text: str) -> str:
    """The worker's own source changes with every commit, and lies elsewhere on every machine."""
    return text.replace(b64encode(pack_worker()).decode(), "<worker>").replace(SOURCE, "<source>")


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MILKWEED_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


CASES = {
    "one": submission(),
    "two": submission(PLAIN, GPU),
    "batch": submission(PLAIN, **BATCH),
    "added": submission(GPU, generation=2, first=3, survives=False, python="/opt/py/bin/python"),
}


@pytest.mark.usefixtures("_steady")
@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_recorded_one(name: str) -> None:
    """One component, two, batch mode, and a component that was added: each line as it is expected."""
    check_golden(f"{name}.sh", steady(render_script(CASES[name])))


@pytest.mark.parametrize("name", CASES)
def test_the_arguments_are_the_recorded_ones(name: str) -> None:
    """One argument a line: what Slurm is asked for each component."""
    check_golden(f"{name}.args", "\n".join(render_arguments(CASES[name])) + "\n")


def test_every_component_carries_its_own_mark() -> None:
    """An allocation is found by the comment of any of its jobs, and the comment tells which one it is."""
    found = [
        parse_mark(word.removeprefix("--comment="))
        for word in render_arguments(submission(PLAIN, GPU, generation=1, first=4))
        if word.startswith("--comment=")
    ]
    assert [(mark.apply_id, mark.generation, mark.component) for mark in found if mark] == [
        (APPLY_ID, 1, 4),
        (APPLY_ID, 1, 5),
    ]


@pytest.mark.parametrize("mesh", ["part", "part-0", "part-0-0", "client"])
def test_no_host_writes_where_slurm_does(mesh: str) -> None:
    """Whatever name a mesh may have, the log of a host is another file than the log of a component."""
    check_mesh_name(mesh)
    hosts = {f"{mesh}.{rank}.log" for rank in range(3)}
    assert not hosts & {part_log(f"{one}.{other}") for one in range(3) for other in range(3)}
    assert CLIENT_LOG not in hosts


def test_the_files_of_a_component_are_named_after_it() -> None:
    """What Slurm says of two components goes to two files, also of components that were added later."""
    made = submission(PLAIN, GPU, generation=1, first=4)
    assert [made.part_name(0), made.part_name(1)] == ["1.4", "1.5"]
    assert [made.part_name(0), part_log("1.4")] == ["1.4", "part.1.4.log"]
    for number in (0, 1):
        assert f'"$logs/part.1.{4 + number}.log"' in render_script(made)


def test_a_shape_asks_only_for_what_was_said() -> None:
    """Slurm's own defaults stay, but for the two that milkweed has always said."""
    assert render_shape(Shape()) == ["--ntasks-per-node=1", "--exclusive"]
    assert render_shape(Shape(exclusive=False)) == ["--ntasks-per-node=1"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(gpus=8), "--gpus-per-node=8"),
        (Shape(gpus=8, gpu_type="h100"), "--gpus-per-node=h100:8"),
        (Shape(memory_mb=0), "--mem=0M"),
        (Shape(disk_mb=5), "--tmp=5M"),
        (Shape(time_limit_s=1.0), "--time=00:00:01"),
        (Shape(time_limit_s=90061.0), "--time=1-01:01:01"),
        (Shape(partition="a,b"), "--partition=a,b"),
    ],
)
def test_what_was_said_is_an_argument(shape: Shape, expected: str) -> None:
    """Each word of a declaration becomes one argument in Slurm's own spelling."""
    assert expected in render_shape(shape)


def test_no_gpus_are_not_asked_for() -> None:
    """Zero GPUs is what Slurm gives anyway, and clusters without GPUs refuse the question."""
    assert not [word for word in render_shape(Shape(gpus=0)) if "gpu" in word]


def test_what_people_added_stands_last() -> None:
    """Extra arguments come after milkweed's own of the same component, as they are."""
    words = render_shape(GPU.shape)
    assert words[-2:] == ["--reservation=mine", "--mail-type=END"]


@pytest.mark.parametrize("survives", [True, False])
def test_surviving_a_node_is_said_to_both(survives: bool) -> None:
    """The job and its step both hear whether a lost node takes the others with it, in every component."""
    made = submission(PLAIN, GPU, survives=survives)
    assert render_arguments(made).count("--no-kill") == (2 if survives else 0)
    assert render_script(made).count("--no-kill") == (2 if survives else 0)


def test_the_jobs_own_output_goes_nowhere() -> None:
    """Everything that is worth keeping goes to files of our own; Slurm leaves none in the working folder."""
    words = render_arguments(submission(PLAIN, GPU))
    assert words.count("--output=/dev/null") == 1
    assert words.index("--output=/dev/null") < words.index(":")


# Secrets


def declared() -> JobSpec:
    return JobSpec(
        name="demo",
        backend="slurm",
        meshes=(MeshSpec(name="w", hosts=2, env={"TOKEN": "s3cret-of-the-mesh"}),),
        env={"KEY": "s3cret-of-the-job"},
    )


def test_no_secret_is_in_what_slurm_stores() -> None:
    """Others may read a job's script, arguments and comment: neither variables nor keys are in them."""
    made = submission(*make_parts(declared()))
    text = render_script(made) + "\n".join(render_arguments(made))
    assert "s3cret" not in text
    assert "TOKEN" not in text
    assert "PRIVATE KEY" not in text


def test_an_invitation_has_only_what_anybody_may_know() -> None:
    """Ids, folders and names; a key that is added to it is a decision."""
    made = make_invitation(submission(*make_parts(declared())), 0)
    assert set(made) == {
        *("apply_id", "part", "folder", "port", "bells", "index_env", "node_env"),
        *("keep", "restart_env", "end", "source", "worker"),
    }
    assert "s3cret" not in json.dumps(made)


def test_what_others_of_the_job_say_counts_for_a_component_alone() -> None:
    """Whole nodes ask for all their memory where another component has said its own."""
    whole = (PLAIN.shape, Shape(memory_mb=10))
    assert "--mem=0M" in render_arguments(submission(PLAIN, whole=whole))
    alone = submission(Part(shape=whole[1], hosts=(("w", 0),)), whole=whole)
    assert "--mem=10M" in render_arguments(alone)
    assert not [word for word in render_arguments(submission(PLAIN)) if word.startswith("--mem")]


# The script as text


def invitations(text: str) -> list[dict[str, Any]]:
    """The invitations in a script, as each keeper would read them."""
    found = re.findall(r"^(\{.*\})\nMILKWEED_INVITATION$", text, flags=re.MULTILINE)
    return [json.loads(each) for each in found]


def test_each_component_is_invited_to_its_own_part() -> None:
    """Two components get two invitations."""
    found = invitations(render_script(submission(PLAIN, GPU)))
    assert [each["part"] for each in found] == ["0.0", "0.1"]


PATHS = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=40
)


@given(folder=PATHS)
def test_any_folder_comes_through_an_invitation(folder: str) -> None:
    """Whatever a path has in it, an invitation is one line, and reads back the same."""
    [found] = invitations(render_script(submission(folder=f"/{folder}")))
    assert found["folder"] == f"/{folder}"


def test_resources_of_a_mesh_reach_the_arguments() -> None:
    """From a declaration to sbatch: what a mesh needs is what is asked for."""
    wants = Resources(cpus=8, gpus=2, gpu_type="a100", memory_bytes=3 * 2**30, disk_bytes=2**30)
    spec = JobSpec(
        name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=3, resources=wants),)
    )
    words = render_arguments(submission(*make_parts(spec)))
    assert {"--nodes=3", "--cpus-per-task=8", "--gpus-per-node=a100:2"} <= set(words)
    assert {"--mem=3072M", "--tmp=1024M"} <= set(words)

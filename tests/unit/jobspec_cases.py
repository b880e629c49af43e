"""Work of every kind, which transformers of schedulers render; what they make of it is recorded."""

from __future__ import annotations

import os
from pathlib import Path

from milkweed.jobspec.graph import Auth, Batch, Group, Need, RunFile, Shape, Step, Submit
from unit.jobspec_slurm_scripts import WRITTEN, work, write

CASES: dict[str, tuple[Step, ...]] = {
    "submit": (
        write(),
        Submit(
            id="job",
            needs=WRITTEN,
            work=work(
                "/bin/sh", RunFile("run.sh"), "it's", "$(odd)",
                shape=Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2),
                environment={"A": "b c", "GONE": None}, duration_s=90, queue="big", bank="me",
            ),
        ),
    ),
    "batch": (
        write(),
        Batch(id="job", filename="run.sh", needs=WRITTEN, work=work("/bin/sh", RunFile("run.sh"), cwd="/srv")),
    ),
    "replicas": (Submit(id="job", work=work("true", cwd="/srv", output="o ut", error="err"), replicas=3),),
    "secret": (
        Auth(id="auth", secret="token", variable="MY_TOKEN", export="TOKEN"),  # noqa: S106  a name
        Submit(id="job", needs=(Need("auth"),), work=work("true", cwd="/srv", shape=Shape(exclusive=True))),
    ),
    "group": (
        Group(
            id="g",
            work=work(shape=Shape(slots=4), environment={"X": "1"}, duration_s=600, cwd="/srv"),
            steps=(
                Submit(id="g/a", work=work("echo", "a b"), replicas=2),
                Group(
                    id="g/in", needs=(Need("g/a"),), work=work(shape=Shape(slots=2), duration_s=30),
                    steps=(Submit(id="g/in/b", work=work("true", shape=Shape(slots=2))),),
                ),
                Submit(id="g/c", needs=(Need("g/in", "afterany"),), work=work("true"), local=True),
            ),
        ),
    ),
}  # fmt: skip


def check_golden(path: Path, text: str) -> None:
    """Compare with what is recorded; `MILKWEED_GOLDEN=write` records."""
    if os.environ.get("MILKWEED_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")

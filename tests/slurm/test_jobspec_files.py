"""Words, files and secrets of jobspecs on a real cluster, with a shared folder and without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobspec_work import AUTH, SECRET, Shown, check_secret, odd_folder
from milkweed.jobspec import parse_jobspec
from milkweed.jobspec.graph import (
    Group,
    Need,
    RunFile,
    Shape,
    Stage,
    Work,
    Write,
)
from milkweed.jobspec.transformers.slurm import Transformer
from slurm.jobspec_runs import HOSTILE, NOISE, carry_out, left_behind, make, printed, shell, submit
from slurm.lab import Lab


def test_hostile_words_arrive_unchanged(home: Path, lab: Lab, tmp_path: Path) -> None:
    """Arguments and variables are the same bytes on every node, and nothing of them is run."""
    show = "import os, sys; print(ascii([sys.argv[1:], os.environ['HOSTILE'], os.environ.get('GONE')]))"
    environment = {"HOSTILE": "".join(HOSTILE), "GONE": None}
    os.environ["GONE"] = "there"
    work = {"environment": environment, "shape": Shape(nodes=2, slots=2)}
    _, shown = carry_out(make(submit("a", "python3", "-c", show, *HOSTILE, wait=True, **work)))
    del os.environ["GONE"]
    expected = ascii([HOSTILE, "".join(HOSTILE), None])
    assert sorted(shown) == [f"a| 0: {expected}", f"a| 1: {expected}"]
    group = Group(
        id="g",
        work=Work(argv=()),
        steps=(submit("g/a", "python3", "-c", show, *HOSTILE, environment=environment),),
    )
    run, _ = carry_out(make(group))
    assert f"g/a| {expected}" in printed(run)
    assert not (Path.home() / "pwned").exists()


def test_staged_folders_with_hostile_names(home: Path, lab: Lab, tmp_path: Path) -> None:
    """Every node of the job has the files, whatever their names and bytes."""
    graph, ending = odd_folder(tmp_path, 3)
    _, shown = carry_out(graph)
    assert [line.endswith(ending) for line in shown] == [True] * 3, shown


def big_file(folder: Path) -> Path:
    """A file that does not fit into a script."""
    path = folder / "big.bin"
    path.write_bytes(os.urandom(6 * 2**20))
    return path


def test_large_files_reach_every_node(home: Path, lab: Lab, tmp_path: Path) -> None:
    """They are fetched from the run's folder."""
    stage = Stage(id="s", path=str(big_file(tmp_path)))
    job = shell("a", "wc -c <big.bin", Need("s"), wait=True, shape=Shape(nodes=3, slots=3))
    _, shown = carry_out(make(stage, job))
    assert sorted(shown) == [f"a| {rank}: {6 * 2**20}" for rank in range(3)]
    assert not left_behind(lab)


def test_secrets(home: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work has them on every node; Slurm, its lists and anybody's look at processes do not."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    transformer = Transformer()
    shown = Shown(NOISE)
    plan = transformer.render(parse_jobspec(AUTH))
    assert SECRET not in plan.render()
    run = transformer.run(plan, wait=False, show=shown)
    check_secret(shown)
    job = run.progress().entries["a"].handle
    assert job is not None
    spied = lab.run("scontrol", "show", "job", "-dd", str(job["id"])).stdout
    spied += lab.run("scontrol", "write", "batch_script", str(job["id"]), "-", check=False).stdout
    assert SECRET not in spied
    for path in (lab.run_folder / "state").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert not run.secrets.exists()


@pytest.mark.once
def test_nodes_without_our_files(
    private_home: Path, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, secrets, large staged files and output go through Slurm where nothing is shared."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    run, shown = carry_out(parse_jobspec(AUTH))
    assert run.progress().exit_code() == 0
    assert len([line for line in shown if line.endswith("600")]) == 2
    stage = Stage(id="s", path=str(big_file(private_home.parent)))
    write = Write(id="w", filename="count.sh", content=b"wc -c <big.bin\n")
    argv = ("sh", RunFile("count.sh"))
    job = submit("b", *argv, needs=(Need("s"), Need("w")), shape=Shape(nodes=2, slots=2), wait=True)
    run, shown = carry_out(make(stage, write, job))
    assert sorted(shown) == [f"b| {rank}: {6 * 2**20}" for rank in range(2)]
    assert not left_behind(lab)

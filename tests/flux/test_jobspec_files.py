"""Words, files and secrets of jobspecs on a real Flux."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flux.instance import Instance
from flux.jobspec_runs import carry_out, printed
from jobspec_work import AUTH, HOSTILE, SECRET, Shown, check_secret, make, odd_folder, shell, submit
from milkweed.jobspec import parse_jobspec
from milkweed.jobspec.graph import Auth, Group, Need, RunFile, Shape, Stage, Work, Write
from milkweed.jobspec.runs import create_run
from milkweed.jobspec.transformers.flux import Transformer

if TYPE_CHECKING:
    import pytest

PAIR = Shape(nodes=2, slots=2)


def test_hostile_words_arrive_unchanged(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments and variables are the same bytes on every node, and nothing of them is run or filled in."""
    words = [*HOSTILE, "{{id}}", "{{", "{{tmpdir}}/x"]
    show = "import os, sys; print(ascii([sys.argv[1:], os.environ['HOSTILE'], os.environ.get('GONE')]))"
    environment = {"HOSTILE": "".join(words), "GONE": None}
    monkeypatch.setenv("GONE", "there")
    work = {"environment": environment, "shape": PAIR}
    _, shown = carry_out(make(submit("a", "python3", "-c", show, *words, wait=True, **work)))
    expected = ascii([words, "".join(words), None])
    assert sorted(shown) == [f"a| 0: {expected}", f"a| 1: {expected}"]
    inside = (submit("g/a", "python3", "-c", show, *words, environment=environment),)
    run, _ = carry_out(make(Group(id="g", work=Work(argv=()), steps=inside)))
    assert f"g/a| {expected}" in printed(run)
    assert not (Path.home() / "pwned").exists()


def test_staged_folders_with_hostile_names(instance: Instance, tmp_path: Path) -> None:
    """Every node of the job has the files, whatever their names and bytes."""
    graph, ending = odd_folder(tmp_path, 2)
    _, shown = carry_out(graph)
    assert [line.endswith(ending) for line in shown] == [True] * 2, shown


def test_files_of_any_bytes(instance: Instance) -> None:
    """A written file has the very bytes on each node, also those that end a text elsewhere."""
    content = bytes(range(256)) + b"a\0b"
    write = Write(id="w", filename="data.bin", content=content, executable=True)
    text = Write(id="t", filename="null.txt", content=b"one\0two\n")
    argv = ("sha256sum", RunFile("data.bin"), "null.txt")
    _, shown = carry_out(
        make(write, text, submit("a", *argv, needs=(Need("w"), Need("t")), shape=PAIR, wait=True))
    )
    for wanted in (content, text.content):
        digest = hashlib.sha256(wanted).hexdigest()
        assert len([line for line in shown if digest in line]) == 2


def big_file(folder: Path) -> Path:
    """A file that does not fit into a jobspec."""
    path = folder / "big file.bin"
    path.write_bytes(os.urandom(6 * 2**20))
    return path


def test_large_files_reach_every_node(instance: Instance, tmp_path: Path) -> None:
    """They go through an archive of the instance, which is gone afterwards; also into groups in groups."""
    big = big_file(tmp_path)
    stage = Stage(id="s", path=str(big))
    count = "wc -c <'big file.bin'"
    job = shell("a", count, Need("s"), wait=True, shape=PAIR)
    inner = Group(
        id="g/in", work=Work(argv=(), shape=PAIR), steps=(shell("g/in/b", count, shape=PAIR),)
    )
    group = Group(id="g", needs=(Need("s"),), work=Work(argv=(), shape=PAIR), steps=(inner,))
    run, shown = carry_out(make(stage, job, group))
    sizes = [line for line in sorted(shown) if line.endswith(str(6 * 2**20))]
    assert sizes == [
        f"{step}| {rank}: {6 * 2**20}" for step in ("a", "g/in/b") for rank in range(2)
    ]
    lines = printed(run)
    assert {f"g/in/b| {rank}: {6 * 2**20}" for rank in range(2)} <= set(lines), lines
    listed = instance.run("kvs", "dir", "archive", check=False).stdout
    assert "milkweed-" not in listed


def test_secrets(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work has them on every node; Flux, its records and anybody's look at processes do not."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    transformer = Transformer()
    shown = Shown("flux-shell: ")
    plan = transformer.render(parse_jobspec(AUTH))
    assert SECRET not in plan.render()
    run = transformer.run(plan, wait=False, show=shown)
    check_secret(shown)
    handle = run.progress().entries["a"].handle
    assert handle is not None
    for key in ("jobspec", "J", "eventlog", "R"):
        assert SECRET not in instance.run("job", "info", str(handle["id"]), key).stdout
    assert not run.secrets.exists()


def test_secrets_in_a_group(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are got before its job is submitted, and its steps find them."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    auth = Auth(id="g/auth", secret="token", variable="MY_TOKEN", export="TOKEN")
    see = shell("g/a", 'printf %s "$TOKEN" | sha256sum; echo ${MY_TOKEN:-none}', Need("g/auth"))
    run, _ = carry_out(make(Group(id="g", work=Work(argv=()), steps=(auth, see))))
    lines = printed(run)
    wanted = hashlib.sha256(SECRET.encode()).hexdigest()
    assert f"g/a| {wanted}  -" in lines
    assert "g/a| none" in lines


def test_nodes_that_do_not_see_secrets(instance: Instance) -> None:
    """A job that cannot find them says so and ends with a code of its own, before its work."""
    transformer = Transformer()
    run = create_run(transformer.render(parse_jobspec(AUTH)))
    step = transformer.make_step(run, "a", run.progress())
    handle = step.run(run.files)
    assert isinstance(handle, dict)
    lines = list(step.logs(handle, follow=True))
    assert len(lines) == 2
    assert all("this node does not see the secrets" in line for _, line in lines)
    assert step.poll(handle).code == 78
    transformer.let_go()

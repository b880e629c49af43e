"""The local transformer before it runs anything: what it plans, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milkweed.errors import JobspecError, SpecError
from milkweed.jobspec import Action, Plan, load_jobspec, load_transformer, parse_jobspec
from milkweed.jobspec.graph import Auth, Graph, Group, Need, Shape, Stage, Step, Submit, Work, Write
from milkweed.jobspec.runner import find_soon
from milkweed.jobspec.transformers import local
from milkweed.jobspec.transformers.local import Transformer, list_gpus, place_file
from milkweed.jobspec.transformers.requirements import check_requirements, read_machines
from unit.jobspecs import EXAMPLES, STEPS, graph, job


def plan_of(found: Graph) -> Plan:
    return load_transformer("local").render(found)


def details(found: Graph, name: str) -> dict[str, object]:
    (action,) = (each for each in plan_of(found).actions if each.id == name)
    return dict(action.details)


def refused(*steps: Step) -> str:
    with pytest.raises(JobspecError) as caught:
        plan_of(graph(*steps))
    return str(caught.value)


def work(**more: object) -> Work:
    return Work(argv=("x",), **more)  # type: ignore[arg-type]


def test_the_document_s_example_is_planned() -> None:
    """Each script is started once for each slot, in the run's folder, with the files that came before."""
    found = details(parse_jobspec(STEPS), "submit-job.sh")
    assert found["argv"] == ["/usr/bin/env", "python3", {"file": "job.sh"}]
    assert (found["tasks"], found["nodes"], found["cwd"]) == (4, 4, "run")
    assert found["files"] == ["install.sh", "job.sh"]


def test_work_without_files_runs_where_it_is_asked_for() -> None:
    """Relative names in a command mean what they mean to the person who types it."""
    assert details(graph(job("a")), "a")["cwd"] == "here"


def test_a_batch_script_and_what_runs_in_place_are_one_process() -> None:
    """Only submitted work is started once for each task."""
    many = Work(argv=("x",), shape=Shape(slots=5))
    assert details(graph(Submit(id="a", work=many, local=True)), "a")["tasks"] == 1
    assert details(graph(Submit(id="a", work=many)), "a")["tasks"] == 5
    text = STEPS.replace("{step: submit, filename: job.sh}", "{step: batch, filename: job.sh}")
    assert details(parse_jobspec(text), "batch-job.sh")["tasks"] == 1


def test_a_group_is_what_is_inside_it() -> None:
    """Its steps need what it needs, and whoever needs it needs all of them."""
    plan = plan_of(load_jobspec(EXAMPLES / "tasks.yaml"))
    needs = {action.id: action.needs for action in plan.actions}
    assert list(needs) == [
        "prepare",
        "train/data",
        "train/epochs/1",
        "train/epochs/2",
        "train/epochs",
        "train",
        "report",
    ]
    assert needs["train/data"] == (Need("prepare"),)
    assert needs["train/epochs/2"] == (Need("train/data"), Need("prepare"))
    assert needs["train"] == (
        Need("train/data", "afterany"),
        Need("train/epochs", "afterany"),
        Need("prepare"),
    )
    assert needs["report"] == (Need("train"),)


def test_a_group_s_settings_are_those_of_its_steps() -> None:
    """Variables and folder come from the groups around, the nearest wins, and time limits add up."""
    inner = Group(
        id="g/h",
        steps=(Submit(id="g/h/x", work=work(environment={"C": "x"})),),
        work=work(environment={"B": "h", "C": "h"}, cwd="/inner", duration_s=5.0),
    )
    outer = Group(
        id="g",
        steps=(inner, job("g/y")),
        work=work(environment={"A": "g", "B": "g"}, cwd="/outer", duration_s=9.0),
    )
    found = details(graph(outer), "g/h/x")
    assert found["environment"] == {"A": "g", "B": "h", "C": "x"}
    assert found["cwd"] == "/inner"
    assert found["within"] == {"g": 9.0, "g/h": 5.0}
    assert details(graph(outer), "g/y")["cwd"] == "/outer"


def test_the_limit_of_a_group_begins_with_its_first_step() -> None:
    """Later steps get what is left of it."""
    place = Transformer()
    assert place.limit_s({}, 100.0) is None
    assert place.limit_s({"duration_s": 3.0, "within": {"g": 10.0}}, 100.0) == 3.0
    assert place.limit_s({"within": {"g": 10.0}}, 104.0) == 6.0
    assert place.limit_s({"within": {"g": 10.0}}, 111.0) == -1.0


def test_secrets_are_named_not_shown() -> None:
    """A plan says which secrets a step gets, and in which variables."""
    found = graph(
        Auth(id="k", secret="hub", variable="T", export="TOKEN"),
        Auth(id="l", secret="key", variable="U", needs=(Need("k"),)),
        job("a", "l"),
    )
    assert details(found, "a")["secrets"] == {"hub": "TOKEN", "key": ""}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Submit(id="a", work=work(queue="q")), "does not honour 'queue'"),
        (Submit(id="a", work=work(bank="b", project="p")), "does not honour 'project'"),
        (
            Submit(id="a", work=work(attributes={"constraints": {}})),
            "does not honour 'constraints'",
        ),
        (Submit(id="a", work=work(cwd="data")), "cwd: 'data' does not begin with a slash"),
        (Submit(id="a", work=work(output="out-{{id}}.txt")), "output: only Flux fills in {{…}}"),
        (Submit(id="a", work=work(shape=Shape(gpus_per_slot=99))), "gpus: 99 are asked for"),
        (Stage(id="a", path="/nowhere/at/all"), "there is no '/nowhere/at/all' on this machine"),
        (
            Group(id="a", steps=(job("a/b"),), work=work(cwd="x")),
            "cwd: 'x' does not begin with a slash",
        ),
        (Group(id="a", steps=(job("a/b"),), work=work(output="o")), "a group prints nothing"),
        (Group(id="a", steps=(job("a/b"),), work=work(queue="q")), "does not honour 'queue'"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(step: Step, said: str) -> None:
    """Nothing is started when something that was said would not be kept."""
    assert said in refused(step)


def require(field: str, value: str, **more: str) -> None:
    check_requirements([{"name": "system", "field": field, "value": value, **more}])


def test_machines_that_nobody_can_ask_before() -> None:
    """The kind of machine is read with all its names; that no GPU is needed is met anywhere."""
    cpu = {"name": "a", "field": "cpu.target", "value": "amd64"}
    gpu = {"name": "h", "field": "hardware.gpu.available", "value": "no"}
    assert read_machines([cpu, gpu]) == ("x86_64", "amd64")
    assert read_machines([{**gpu, "field": "gpu.available"}]) == ()
    assert read_machines(None) == ()
    for wrong in ([{**gpu, "value": "yes"}], [{**cpu, "more": "x"}], [{**cpu, "field": "os.name"}]):
        with pytest.raises(SpecError, match="cannot be asked for here"):
            read_machines(list(wrong))
    with pytest.raises(SpecError, match="no machine is x86_64 and aarch64"):
        read_machines([cpu, {**cpu, "value": "arm64"}])


def test_requirements_are_looked_up() -> None:
    """The processor, the system and whether there is a GPU are known; the rest is refused, not assumed."""
    here = os.uname().machine
    require("cpu.target", here)
    require("cpu.target", {"x86_64": "amd64", "aarch64": "arm64"}.get(here, here))
    require("hardware.gpu.available", "no")
    with pytest.raises(SpecError, match=r"cpu\.target is"):
        require("cpu.target", "z80")
    with pytest.raises(SpecError, match="'colour' cannot be looked up here"):
        require("colour", "red")
    with pytest.raises(SpecError, match="cannot be looked up"):
        require("cpu.target", here, attribute="more")
    check_requirements(None)


def test_gpus_are_those_that_a_program_would_see() -> None:
    """A mask that is set already is kept, and no GPU is given to two steps."""
    assert list_gpus({}, lambda _env: 3) == ["0", "1", "2"]
    mask = {"CUDA_VISIBLE_DEVICES": "4, 6,7"}
    assert list_gpus(mask, lambda _env: 3) == ["4", "6", "7"]
    place = Transformer()
    place.find_gpus = lambda: list_gpus(mask, lambda _env: 3)
    assert place.take_gpus("a", 2) == ["4", "6"]
    assert place.take_gpus("b", 1) == ["7"]
    one = Action(id="c", kind="submit", details={"tasks": 1, "slots": 1, "gpus_per_slot": 1})
    assert not place.can_start(one, {})
    place.find_gpus = lambda: ["4", "6", "7", "8"]
    assert place.can_start(one, {})


def test_files_that_work_has_changed_stay(tmp_path: Path) -> None:
    """A file is brought once; a newer one replaces it, and what a job wrote into it since is kept."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("one")
    os.utime(source, (100, 100))
    place_file(source, target)
    target.write_text("changed")
    place_file(source, target)
    assert target.read_text() == "changed"
    source.write_text("two")
    os.utime(source, (2**32, 2**32))
    place_file(source, target)
    assert target.read_text() == "two"


def test_who_asks_for_a_run_sees_its_beginning() -> None:
    """Looked on are the steps that do not wait for work that nobody waits for."""
    write = Write(id="w", filename="x", content=b"")
    found = graph(
        write,
        job("a", "w", wait=True),
        job("b", "a"),
        job("c", Need("b", "submitted")),
        job("d", "b"),
        job("e", "d"),
    )
    assert find_soon(plan_of(found)) == {"w", "a", "b", "c"}


def test_many_processes_wait_for_room() -> None:
    """At most some dozens run at a time; one that is alone may be as large as it likes."""
    place = Transformer()
    scene = place._scene(graph(job("a")), "")
    huge = place.render_step(
        Submit(id="a", work=Work(argv=("x",), shape=Shape(slots=10_000))), scene
    )
    assert place.can_start(huge, {})


def test_the_module_registers_all_steps() -> None:
    """Everything that a file can say without a plugin is known here."""
    assert set(local.Transformer.steps) == {"write", "stage", "submit", "batch", "auth", "group"}

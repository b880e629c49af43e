"""What Flux is given: canonical jobspecs, as recorded, with the meaning of the file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import JobspecError, SpecError
from milkweed.jobspec import load_transformer, parse_jobspec
from milkweed.jobspec.graph import (
    Auth,
    Batch,
    Custom,
    Graph,
    Group,
    Need,
    RunFile,
    Shape,
    Stage,
    Step,
    Submit,
    Work,
    Write,
)
from milkweed.jobspec.plan import parse_plan
from milkweed.jobspec.transformers import flux_inside, group_controller
from milkweed.jobspec.transformers.flux import Transformer
from milkweed.jobspec.transformers.flux_steps import make_environment
from unit.jobspec_cases import CASES, check_golden
from unit.jobspec_slurm_scripts import RUN_ID, WRITTEN, work, write

GOLDEN = Path(__file__).parents[1] / "golden" / "jobspec-flux"


def plan_of(*found: Step, **settings: Any) -> Any:
    return Transformer(**settings).render(Graph(steps=found), run_id=RUN_ID)


def job_of(*found: Step, **settings: Any) -> dict[str, Any]:
    """The details of the last step."""
    return dict(plan_of(*found, **settings).actions[-1].details)


def jobspec_of(*found: Step, **settings: Any) -> dict[str, Any]:
    return job_of(*found, **settings)["jobspec"]


def refused(*found: Step) -> str:
    with pytest.raises(JobspecError) as caught:
        plan_of(*found)
    return str(caught.value)


def test_it_is_found_by_its_name() -> None:
    """It is the transformer that is used where none is named."""
    assert isinstance(load_transformer("flux"), Transformer)


@pytest.mark.parametrize("name", CASES)
def test_what_is_submitted_is_recorded(name: str, home: Path) -> None:
    """The jobspec, each line as it is expected; programs that travel in it are shortened."""
    text = json.dumps(job_of(*CASES[name]), indent=1, ensure_ascii=False) + "\n"
    for module in (group_controller, flux_inside):
        source, name_of = Path(str(module.__file__)).read_text(), module.__name__.rpartition(".")[2]
        for _ in range(3):  # as deep as groups are in groups
            source = json.dumps(source)[1:-1]
            text = text.replace(source, f"<{name_of}>")
    check_golden(GOLDEN / f"{name}.json", text.replace(str(home), "<home>"))


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_read_back_as_it_was(name: str) -> None:
    """The record holds the very jobspec, and a person sees it."""
    plan = plan_of(*CASES[name])
    assert parse_plan(json.loads(json.dumps(plan.to_json()))) == plan
    assert "jobspec:" in plan.render()


def read_resources(jobspec: dict[str, Any]) -> dict[str, int]:
    """The counts of a jobspec, by type."""
    found: dict[str, int] = {}
    level = jobspec["resources"]
    while level:
        for vertex in level:
            found[vertex["type"]] = vertex["count"]
        level = [inner for vertex in level for inner in vertex.get("with", ())]
    return found


@pytest.mark.parametrize(
    ("shape", "resources", "count"),
    [
        (Shape(cores_per_slot=4), {"slot": 1, "core": 4}, {"per_slot": 1}),
        (
            Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2),
            {"node": 2, "slot": 1, "core": 4, "gpu": 2},
            {"per_slot": 1},
        ),
        (Shape(slots=6, gpus_per_slot=1), {"slot": 6, "core": 1, "gpu": 1}, {"per_slot": 1}),
        (Shape(slots=2, tasks_per_slot=3), {"slot": 2, "core": 1}, {"total": 6}),
        (Shape(slots=4, tasks_total=2), {"slot": 4, "core": 1}, {"total": 2}),
    ],
)
def test_cores_gpus_and_tasks_are_apart(
    shape: Shape, resources: dict[str, int], count: dict[str, int]
) -> None:
    """What is inside a slot is asked for once a slot, and a slot is a task."""
    jobspec = jobspec_of(Submit(id="a", work=work("true", shape=shape)))
    assert read_resources(jobspec) == resources
    assert jobspec["tasks"][0]["count"] == count


def test_each_task_has_its_own_cores_and_gpus() -> None:
    """Flux would give every task all that the job has on a node; the person's own word holds."""
    options = jobspec_of(Submit(id="a", work=work("true", shape=Shape(slots=2, gpus_per_slot=1))))[
        "attributes"
    ]["system"]["shell"]["options"]
    assert (options["cpu-affinity"], options["gpu-affinity"]) == ("per-task", "per-task")
    assert options["exit-timeout"] == "none"
    said = work("true", shape=Shape(slots=2), attributes={"shell.options": {"cpu-affinity": "off"}})
    options = jobspec_of(Submit(id="a", work=said))["attributes"]["system"]["shell"]["options"]
    assert options["cpu-affinity"] == "off"


def test_what_flux_alone_knows_is_kept() -> None:
    """Queues, banks, constraints, limits in seconds, urgency of a kind, units and labels."""
    text = """
version: 1
resources: [{type: node, count: 2, exclusive: true, with: [{type: slot, count: 1, label: mine, with: [{type: core, count: 2, unit: cores}]}]}]
tasks: [{command: [echo, "{{id}}", "{{tmpdir}}/a.sh"], slot: mine, count: {total: 2}}]
attributes:
  user: {note: kept}
  system:
    duration: 5
    queue: batch
    bank: me
    project: p
    preemptible-after: 3
    job: {name: own}
    constraints: {properties: [fast]}
    dependencies: [{scheme: afterany, value: f123}]
    shell: {options: {verbose: 2}}
    files: {a.sh: {mode: 33152, data: "x", encoding: utf-8}}
"""
    [*_, action] = Transformer().render(parse_jobspec(text)).actions
    jobspec: Any = action.details["jobspec"]
    system = jobspec["attributes"]["system"]
    for key, value in {
        "duration": 5,
        "queue": "batch",
        "bank": "me",
        "project": "p",
        "preemptible-after": 3,
        "job": {"name": "own"},
        "constraints": {"properties": ["fast"]},
        "dependencies": [{"scheme": "afterany", "value": "f123"}],
    }.items():
        assert system[key] == value
    assert system["shell"]["options"]["verbose"] == 2
    assert jobspec["attributes"]["user"]["note"] == "kept"
    assert jobspec["resources"][0]["exclusive"] is True
    assert jobspec["tasks"][0]["slot"] == "mine"
    assert jobspec["resources"][0]["with"][0]["with"][0]["unit"] == "cores"
    assert jobspec["tasks"][0]["command"][-3:] == ["echo", "{{id}}", "{{tmpdir}}/a.sh"]


def test_words_that_flux_must_not_fill_in() -> None:
    """They are in a file that Flux does not read; its own words are all that Flux sees."""
    jobspec = jobspec_of(Submit(id="a", work=work("echo", "{{id}}", "{{" + "x" * 2000 + "}}")))
    assert jobspec["tasks"][0]["command"] == [
        "/bin/sh", "{{tmpdir}}/.mw/task", "{{tmpdir}}", "{{node.id}}", "{{nnodes}}"
    ]  # fmt: skip
    assert "{{id}}" in jobspec["attributes"]["system"]["files"][".mw/task"]["data"]


def test_settings() -> None:
    """A queue and a bank hold for what says nothing itself; anything else is refused."""
    steps = (Submit(id="a", work=work("true")), Submit(id="b", work=work("true", queue="big")))
    asked = [
        each.details["jobspec"]["attributes"]["system"]
        for each in plan_of(*steps, queue="small", bank="me").actions
    ]
    assert [(each["queue"], each["bank"]) for each in asked] == [("small", "me"), ("big", "me")]
    with pytest.raises(SpecError, match="queeu: unknown setting"):
        Transformer(queeu="small")


def test_inside_a_group_there_is_no_queue() -> None:
    """What holds for the instance is not asked for again inside a group."""
    group = Group(id="g", work=work(), steps=(Submit(id="g/a", work=work("true")),))
    system = jobspec_of(group, queue="small")["attributes"]["system"]
    assert system["queue"] == "small"
    inner = json.loads(system["files"][".mw/job-0.json"]["data"])
    assert "queue" not in inner["attributes"]["system"]


def test_small_files_travel_in_the_jobspec(tmp_path: Path) -> None:
    """A folder with its modes and links; a large one is brought from an archive."""
    folder = tmp_path / "some"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "run").write_bytes(b"\0\xff")
    (folder / "in" / "run").chmod(0o750)
    (folder / "link").symlink_to("in")
    stage = Stage(id="s", path=str(folder))
    job = Submit(id="a", needs=(Need("s"),), work=work("true"))
    files = jobspec_of(stage, job)["attributes"]["system"]["files"]
    assert stat.S_ISDIR(files["some"]["mode"])
    assert files["some/in/run"]["mode"] & 0o777 == 0o750
    assert files["some/in/run"]["data"] == "AP8="
    assert files["some/link"]["data"] == "in"
    (folder / "big").write_bytes(os.urandom(300_000))
    made = Transformer().render(Graph(steps=(stage, job)))
    archive = made.actions[0].details["archive"]
    system: Any = made.actions[1].details["jobspec"]
    assert system["attributes"]["system"]["shell"]["options"]["stage-in"] == {"names": archive}


def test_variables_of_whoever_submits() -> None:
    """They go along, without those of other jobs, of secrets, and what is no text."""
    environ = {"PATH": "/bin", "FLUX_URI": "x", "SLURM_JOB_ID": "1", "TOKEN": "s", "B": "\udcff"}
    environ |= {"MILKWEED_HOME": "/h", "MILKWEED_X": "1", "JOBSPEC_STEP": "a"}
    assert make_environment(environ, ("TOKEN",)) == {"PATH": "/bin", "MILKWEED_HOME": "/h"}


def test_secrets_are_in_no_jobspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where they will be is; and their variables are hidden."""
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    details = job_of(*CASES["secret"])
    assert "s3cret" not in json.dumps(details)
    assert details["hidden"] == ["MY_TOKEN", "TOKEN"]
    assert "/secrets" in details["jobspec"]["attributes"]["system"]["files"][".mw/task"]["data"]


def test_the_task_file_is_what_a_shell_runs(tmp_path: Path) -> None:
    """Run as Flux would: words, variables, folder and files are there."""
    script = 'pwd; printf "%s|" "$@"; echo "$JOBSPEC_TASK_RANK $JOBSPEC_TASKS $JOBSPEC_NODE $JOBSPEC_NODES $A"'
    job = Submit(
        id="a",
        needs=WRITTEN,
        work=work("sh", "-c", script, "sh", "it's", "{{id}}", RunFile("run.sh"), environment={"A": "b c"}),
    )  # fmt: skip
    files = jobspec_of(write(), job)["attributes"]["system"]["files"]
    (tmp_path / "task").write_text(files[".mw/task"]["data"])
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "task"), str(tmp_path), "1", "2"],
        env={"PATH": os.environ["PATH"], "FLUX_TASK_RANK": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        str(tmp_path), f"it's|{{{{id}}}}|{tmp_path}/run.sh|3 1 1 2 b c"
    ]  # fmt: skip


# Refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"attributes": {"requires": [{"field": "os.name", "value": "x"}]}}, "'os.name' cannot be"),
        ({"cwd": "here"}, "cwd: 'here' does not begin with a slash"),
    ],
)
def test_what_is_not_honoured(more: dict[str, Any], words: str) -> None:
    """It is refused, with the step, before anything runs."""
    assert words in refused(Submit(id="a", work=work("true", **more)))
    inner = (Submit(id="g/a", work=work("true")),)
    assert words in refused(Group(id="g", steps=inner, work=Work(argv=(), **more)))


def test_a_command_that_is_an_option() -> None:
    """A program is named, not an option of what starts it."""
    assert "begins with a dash" in refused(Submit(id="a", work=work("-x")))


def test_what_a_group_has_not() -> None:
    """Steps that would wait for ever, output of nobody, and steps that nobody knows."""
    wide = Submit(id="g/a", work=work("true", shape=Shape(slots=2)))
    assert "2 cores are asked for" in refused(Group(id="g", work=work(), steps=(wide,)))
    inner = (Submit(id="g/a", work=work("true")),)
    assert "a group prints nothing" in refused(Group(id="g", work=work(output="/x"), steps=inner))
    assert "knows no 'reboot' step" in refused(Custom(id="c", step="reboot"))


def test_output_that_would_be_lost() -> None:
    """A relative path in the job's own folder is no place for a file."""
    job = Submit(id="a", needs=WRITTEN, work=work("true", output="out"))
    assert "output: 'out' would be removed with the job" in refused(write(), job)


def test_output_files_are_added_to() -> None:
    """Where only output is said, errors go there too; whole paths, whatever the folder of the shell."""
    job = Submit(id="a", work=work("true", output="o", cwd="/srv"))
    output = jobspec_of(job)["attributes"]["system"]["shell"]["options"]["output"]
    both = {"type": "file", "path": "/srv/o"}
    assert output == {"stdout": both, "stderr": both, "mode": "append"}


def test_batch_is_an_instance() -> None:
    """One broker for each node, and the script once inside."""
    batch = Batch(id="b", filename="run.sh", needs=WRITTEN, work=work("/bin/sh", RunFile("run.sh")))
    jobspec = jobspec_of(write(), batch)
    assert jobspec["tasks"][0]["command"][:2] == ["flux", "broker"]
    options = jobspec["attributes"]["system"]["shell"]["options"]
    assert options["per-resource"] == {"type": "node"}


def test_files_with_nulls_are_packed() -> None:
    """A text that holds one would end there."""
    text = Write(id="w", filename="a", content=b"one\0two")
    job = Submit(id="a", needs=(Need("w"),), work=work("true"))
    entry = jobspec_of(text, job)["attributes"]["system"]["files"]["a"]
    assert entry == {"mode": 0o100600, "data": "b25lAHR3bw==", "encoding": "base64"}


def test_a_group_prepares_what_is_inside(tmp_path: Path) -> None:
    """Secrets and large files inside are known to whoever submits it."""
    (tmp_path / "big").write_bytes(os.urandom(300_000))
    group = Group(
        id="g",
        work=work(),
        steps=(
            Auth(id="g/auth", secret="token", variable="X"),
            Stage(id="g/big", path=str(tmp_path / "big")),
            Submit(id="g/a", needs=(Need("g/auth"), Need("g/big")), work=work("true")),
        ),
    )
    details = job_of(group)
    assert details["auth"] == [{"secret": "token", "variable": "X"}]
    [stage] = details["stage"]
    files = details["jobspec"]["attributes"]["system"]["files"]
    assert f"flux archive create --name={stage['archive']} -- big" in files[".mw/task"]["data"]
    assert details["prints"] == ["g", "g/a"]


def test_a_jobspec_that_is_too_large() -> None:
    """It is refused, with what to do, rather than let Flux's own check end over it."""
    big = Write(id="w", filename="a", content=b"x" * 9 * 2**20)
    with pytest.raises(SpecError, match="step 'a': the jobspec has 9,"):
        plan_of(big, Submit(id="a", needs=(Need("w"),), work=work("true")))


def test_errors_of_a_local_step_in_a_group() -> None:
    """Where they go to a file, only the output is printed under the step's name."""
    inner = Submit(id="g/a", work=work("true", error="/srv/err"), local=True)
    files = jobspec_of(Group(id="g", work=work(), steps=(inner,)))["attributes"]["system"]["files"]
    [item] = json.loads(files[".mw/plan.json"]["data"])["items"]
    assert item["argv"][:4] == ["python3", ".mw/inside.py", "--run-output", "g/a"]
    assert item["error"] == "/srv/err"

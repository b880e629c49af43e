"""What other readers of these languages get wrong, each as a test that it is right here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gates.tree import pyproject
from milkweed.cli.commands.jobspec import app
from milkweed.errors import JobspecError
from milkweed.jobspec import load_runs, load_transformer, parse_jobspec
from milkweed.jobspec.graph import Graph, Group, Submit
from milkweed.jobspec.transformers.flux_check import read_counts
from unit.jobspecs import FLUX, STEPS, TASKS, graph, job, wrong
from unit.sites import PLUGIN, use_site

HEAD = "version: 1\nresources: {r: {type: slot, with: [{type: core}]}}\n"


@pytest.fixture(autouse=True)
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A transformer `site`, and a file."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "jobspec_site.py").write_text(PLUGIN)
    (folder / "tasks.yaml").write_text(TASKS)
    yield from use_site(packages, monkeypatch)


def jobspec(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, words, prog_name="jobspec", input=stdin)


def local_argv(found: Graph, name: str) -> Any:
    (action,) = (
        each for each in load_transformer("local").render(found).actions if each.id == name
    )
    return action.details["argv"]


def shape_of(text: str) -> Any:
    (step,) = parse_jobspec(text).steps
    assert isinstance(step, Submit)
    return step.work.shape


# What is reproduced of it


def test_exit_code_0_on_any_failed_step() -> None:
    """The exit code is that of the first step that failed."""
    assert jobspec("run", "-t", "site", "-s", "code=9", "tasks.yaml").exit_code == 9
    (run,) = load_runs()
    assert run.progress().exit_code() == 9


def test_argv_joined_unquoted_in_groups() -> None:
    """Each word of a command in a group stays one word, whatever a shell would make of it."""
    words = ["echo", "a b", "; touch owned", "$(id)", "'", "", "&&", "\n"]
    task = f"{{name: t, command: {json.dumps(words)}}}"
    text = f"{HEAD}groups: [{{name: g, resources: r, tasks: [{task}]}}]\n"
    assert local_argv(parse_jobspec(text), "g/t") == words


def test_depends_on_silently_ignored() -> None:
    """It is a need of the plan, and what needs a failed step is skipped."""
    actions = {
        each.id: each for each in load_transformer("local").render(parse_jobspec(TASKS)).actions
    }
    assert [(need.id, need.kind) for need in actions["b"].needs] == [("a", "afterok")]
    jobspec("run", "-t", "site", "-s", "code=1", "tasks.yaml")
    (run,) = load_runs()
    assert run.progress().entries["b"].status.state.value == "skipped"


def test_cycles_accepted() -> None:
    """A circle is named, with its place."""
    text = TASKS.replace("command: [echo, a]", "command: [echo, a], depends_on: [b]")
    assert "these steps wait for each other: a → b → a" in wrong(text)
    with pytest.raises(JobspecError, match="wait for each other"):
        graph(job("a", "b"), job("b", "a"))


def test_core_4_becomes_4_tasks() -> None:
    """Four cores are four cores of one task."""
    shape = shape_of(
        FLUX.replace("count: 2, label", "count: 1, label").replace("count: 3", "count: 4")
    )
    assert (shape.tasks, shape.cores_per_slot) == (1, 4)
    shape = shape_of(
        "version: 1\nresources: {r: {type: node, count: 1, with: [{type: core, count: 4}]}}\n"
        "tasks: [{resources: r, command: [x]}]\n"
    )
    assert (shape.tasks, shape.cores_per_slot) == (1, 4)


def test_node_2_core_4_gpu_2_asks_for_8_gpus() -> None:
    """Two nodes with two GPUs each are four."""
    shape = shape_of(
        "version: 1\nresources: {r: {type: node, count: 2, with: [{type: core, count: 4}, {type: gpu, count: 2}]}}\n"
        "tasks: [{resources: r, command: [x]}]\n"
    )
    assert (shape.gpus, shape.cores, shape.tasks, shape.nodes) == (4, 8, 2, 2)


def test_duration_5_means_5_minutes() -> None:
    """A bare number has no unit, and is refused; with one it means that."""
    task = "tasks: [{{resources: r, command: [x], attributes: {{duration: {0}}}}}]\n"
    assert "5 has no unit" in wrong(HEAD + task.format("5"))
    (step,) = parse_jobspec(HEAD + task.format("5m")).steps
    assert isinstance(step, Submit)
    assert step.work.duration_s == 300
    (flux,) = parse_jobspec(FLUX).steps
    assert isinstance(flux, Submit)
    assert flux.work.duration_s == 5


def test_nested_groups_lost() -> None:
    """Groups in groups are in the graph and in the plan, and one without a place is refused."""
    text = HEAD + (
        "groups:\n- {name: o, resources: r, groups: [{name: i, resources: r, tasks: [{name: t, command: [x]}]}]}\n"
    )
    found = parse_jobspec(text)
    assert [step.id for step in found.walk()] == ["o", "o/i", "o/i/t"]
    assert isinstance(found.steps[0], Group)
    planned = [action.id for action in load_transformer("local").render(found).actions]
    assert planned == ["o/i/t", "o/i", "o"]


def test_dry_run_really_submits() -> None:
    """It shows, and nothing is recorded or done."""
    done = jobspec("run", "--dry-run", "-t", "site", "tasks.yaml")
    assert (done.exit_code, "argv: [echo, a]" in done.stdout) == (0, True)
    assert load_runs() == []


@pytest.mark.parametrize("flag", ["--dryrun", "--transform=site", "--whatever", "-n"])
def test_unknown_flags_are_swallowed(flag: str) -> None:
    """They are errors, and nothing is submitted."""
    done = jobspec("run", "-t", "site", flag, "tasks.yaml")
    assert done.exit_code == 2
    assert flag.partition("=")[0] in done.stderr
    assert load_runs() == []


def test_scripts_kept_in_the_submitter_s_tmp(folder: Path) -> None:
    """They are in the plan and in the run's own folder, and staging is a step of its own."""
    (folder / "steps.yaml").write_text(STEPS)
    assert jobspec("run", "-t", "site", "steps.yaml").exit_code == 0
    (run,) = load_runs()
    assert (run.files / "install.sh").read_text() == "#!/bin/bash\necho install\n"
    contents = [each.details.get("content") for each in run.plan.actions if each.kind == "write"]
    assert contents == ["#!/bin/bash\necho install\n", "#!/usr/bin/env python3\nprint(1)\n"]


def test_pyyaml_undeclared() -> None:
    """What reads YAML is declared, and nothing else is imported for it."""
    declared = " ".join(pyproject()["project"]["dependencies"])
    assert "ruamel.yaml" in declared
    sources = Path(__file__).parents[2].joinpath("src").rglob("*.py")
    assert not [path for path in sources if "import yaml\n" in path.read_text("utf-8")]


@pytest.mark.parametrize(
    "text",
    [
        TASKS + "colour: red\n",
        TASKS.replace("name: a,", "name: a, colour: red,"),
        STEPS.replace("wait: true", "wait: true, colour: red"),
        FLUX.replace("duration: 5", "duration: 5, colour: red"),
        FLUX.replace("type: core,", "type: core, colour: red,"),
    ],
)
def test_unknown_keys_accepted(text: str) -> None:
    """They are refused, with their place."""
    found = wrong(text)
    assert "unknown key" in found
    assert found.startswith("job.yaml:")


def test_one_broken_package_breaks_all(site: Path) -> None:
    """It is reported, and the others work."""
    (site / "jobspec_aaa.py").write_text("1 / 0")
    assert "ZeroDivisionError" in jobspec("transformers").stdout
    assert jobspec("run", "-t", "site", "tasks.yaml").exit_code == 0


def test_plugins_cannot_work() -> None:
    """A package named `jobspec_*` with a Transformer is found by that name, and carries out a file."""
    assert jobspec("run", "-t", "site", "tasks.yaml").exit_code == 0
    (run,) = load_runs()
    assert (run.folder / "ran").read_text().splitlines() == ["a ['echo', 'a']", "b ['echo', 'b']"]


# What else is bad input


def test_missing_scripts() -> None:
    """A step that names a script that is not there is refused, and a file that is not there, too."""
    text = STEPS.replace("{step: stage, filename: job.sh}", "{step: stage, filename: jobs.sh}")
    assert "no script is named 'jobs.sh'" in wrong(text)
    done = jobspec("run", "-t", "site", "nowhere.yaml")
    assert (done.exit_code, "cannot be read" in done.stderr) == (1, True)


def test_unknown_steps() -> None:
    """A step that a transformer does not know is an error before anything runs."""
    text = STEPS.replace("{step: stage, filename: job.sh}", "{step: teleport, to: moon}")
    done = jobspec("run", "-t", "site", "-", stdin=text)
    assert done.exit_code == 1
    assert "knows no 'teleport' step" in done.stderr
    assert load_runs() == []


TASK = "tasks: [{{name: t, resources: r, command: {}}}]\n"
SHELL = ["echo a; rm -rf x", "echo $(id)", "a && b", "a | b", "a > b", "echo $HOME &"]
WORDS = ["echo `id`", "echo $HOME", "echo *.txt", "echo ~", "echo {a,b}"]


@pytest.mark.parametrize("command", SHELL)
def test_hostile_commands(command: str) -> None:
    """Text that holds what joins commands, or leads output away, is refused: no shell reads it."""
    assert "only a shell understands" in wrong(HEAD + TASK.format(f'"{command}"'))


@pytest.mark.parametrize("command", WORDS)
def test_hostile_words_in_a_text(command: str) -> None:
    """What a shell would fill in is a word like any other."""
    found = parse_jobspec(HEAD + TASK.format(f'"{command}"'))
    assert local_argv(found, "t") == command.split(" ")


@pytest.mark.parametrize("command", [*SHELL, *WORDS])
def test_hostile_words_in_a_list(command: str) -> None:
    """In a list everything is a word."""
    found = parse_jobspec(HEAD + TASK.format(f'[echo, "{command}"]'))
    assert local_argv(found, "t") == ["echo", command]


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "true", "''", "'4'", "null", "[1]"])
def test_wrong_counts(count: str) -> None:
    """A count is a whole number from 1 on."""
    assert "job.yaml:" in wrong(FLUX.replace("count: 3", f"count: {count}"))
    small = TASKS.replace("type: core, count: 1", f"type: core, count: {count}")
    assert "job.yaml:" in wrong(small)


@pytest.mark.parametrize(
    "count", ["{min: 1, max: 4}", "{min: 2}", "2-3", "2+", "'1,3,5'", "'2-8:2:*'"]
)
def test_rfc_14_ranges_at_version_1(count: str) -> None:
    """Ranges belong to another version."""
    assert "not part of version 1" in wrong(FLUX.replace("count: 3", f"count: {count}"))


def flux_with(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Result:
    """Run a jobspec where `flux` is such a program, or none at all."""
    programs = folder / "bin"
    programs.mkdir()
    if script:
        (programs / "flux").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "flux").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("FLUX_URI", raising=False)
    return jobspec("run", "tasks.yaml")


def test_no_flux_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Flux the default transformer says so, and nothing seems to have run."""
    done = flux_with(folder, monkeypatch, "")
    assert done.exit_code not in (0, None)
    assert "there is no flux here" in done.stderr
    assert "do: " in done.stderr
    assert "-t local" in done.stderr
    assert "Traceback" not in done.stderr
    assert load_runs() == []


def test_no_flux_instance(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flux that reaches no instance is an error with what was seen, and nothing is lost or repeated."""
    refusal = "echo 'flux: ERROR: Unable to connect to Flux: broker socket' >&2; exit 1"
    done = flux_with(folder, monkeypatch, refusal)
    assert done.exit_code not in (0, None)
    assert "flux" in done.stderr.lower()
    assert "-t local" in done.stderr
    assert "Traceback" not in done.stderr
    assert load_runs() == []


def flux_job(text: str, name: str) -> Any:
    """What Flux is given for a step."""
    actions = {
        each.id: each for each in load_transformer("flux").render(parse_jobspec(text)).actions
    }
    return actions[name].details["jobspec"]


def flux_task(jobspec: Any) -> str:
    """The command that a job starts."""
    return jobspec["attributes"]["system"]["files"][".mw/task"]["data"].rpartition("\nexec ")[2]


def test_flux_is_asked_for_the_right_shape() -> None:
    """`core: 4` is one task with 4 cores; `node 2, core 4, gpu 2` is 2 tasks and 4 GPUs in all."""
    head = "version: 1\nresources: {r: {type: node, count: %d, with: [%s]}}\ntasks: [{name: t, resources: r, command: [x]}]\n"
    one = flux_job(head % (1, "{type: core, count: 4}"), "t")
    assert read_counts(one["resources"]) == {"node": 1, "slot": 1, "core": 4}
    assert one["tasks"][0]["count"] == {"per_slot": 1}
    two = flux_job(head % (2, "{type: core, count: 4}, {type: gpu, count: 2}"), "t")
    assert read_counts(two["resources"]) == {"node": 2, "slot": 1, "core": 4, "gpu": 2}
    assert two["tasks"][0]["count"] == {"per_slot": 1}


def test_flux_gets_seconds() -> None:
    """Five minutes are 300 seconds, and five seconds are five."""
    task = "tasks: [{name: t, resources: r, command: [x], attributes: {duration: 5m}}]\n"
    assert flux_job(HEAD + task, "t")["attributes"]["system"]["duration"] == 300
    assert flux_job(FLUX, "job")["attributes"]["system"]["duration"] == 5


def test_flux_gets_words_not_text() -> None:
    """In a group, too, each word is one word, and no part of a command runs outside the job."""
    words = ["echo", "a b", "; touch owned", "$(id)", "'", "", "&&", "{{id}}"]
    task = f"{{name: t, command: {json.dumps(words)}}}"
    text = f"{HEAD}groups: [{{name: g, resources: r, tasks: [{task}]}}]\n"
    files = flux_job(text, "g")["attributes"]["system"]["files"]
    inner = json.loads(files[".mw/job-0.json"]["data"])
    assert flux_task(inner) == " ".join(map(shlex.quote, words)) + "\n"
    assert not [
        word
        for word in inner["tasks"][0]["command"]
        if "owned" in word or "id}}" in word.replace("node.id", "")
    ]


def test_flux_keeps_nested_groups_and_dependencies() -> None:
    """A group in a group is an instance in an instance, with what it depends on."""
    inner = "{name: i, resources: r, depends_on: [t], tasks: [{name: u, command: [x]}]}"
    tasks = "[{name: t, command: [x]}]"
    text = f"{HEAD}groups: [{{name: o, resources: r, groups: [{inner}], tasks: {tasks}}}]\n"
    files = flux_job(text, "o")["attributes"]["system"]["files"]
    items = {each["id"]: each for each in json.loads(files[".mw/plan.json"]["data"])["items"]}
    assert items["o/i"]["needs"] == [["o/t", "afterok"]]
    nested = json.loads(files[items["o/i"]["argv"][-1]]["data"])
    assert nested["tasks"][0]["command"][:2] == ["flux", "broker"]
    assert ".mw/plan.json" in nested["attributes"]["system"]["files"]


def test_flux_gets_scripts_inside_the_job() -> None:
    """No file of the submitting machine is named: what is written travels in the jobspec."""
    jobspec = flux_job(STEPS, "submit-install.sh")
    entry = jobspec["attributes"]["system"]["files"]["install.sh"]
    assert entry["data"] == "#!/bin/bash\necho install\n"
    assert "/tmp" not in json.dumps(jobspec["tasks"])  # noqa: S108  what must not be there


def test_a_clean_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a home for records is needed of the environment."""
    for name in set(os.environ) - {"MILKWEED_HOME", "PATH"}:
        monkeypatch.delenv(name)
    assert jobspec("run", "-t", "site", "tasks.yaml").exit_code == 0

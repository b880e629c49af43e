"""`milkweed jobspec`: what is checked, shown, converted, run, and told."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gates.tree import pyproject
from milkweed.cli.app import app
from milkweed.cli.commands import jobspec as commands
from milkweed.cli.commands.jobspec_options import parse_settings
from milkweed.errors import SpecError, UnreachableError
from milkweed.jobspec import find_run, load_runs, load_transformer, parse_jobspec
from milkweed.jobspec.driver import Running, Wake
from milkweed.jobspec.progress import StepStatus
from milkweed.jobspec.runs import create_run
from unit.jobspecs import FLUX, STEPS, TASKS, Talker, graph, job
from unit.sites import PLUGIN, use_site


def milkweed(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["jobspec", *words], prog_name="milkweed", input=stdin)


def alone(*words: str) -> Result:
    """The command `jobspec` of its own."""
    return CliRunner().invoke(commands.app, words, prog_name="jobspec")


@pytest.fixture(autouse=True)
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A transformer `site`, and three jobspecs in the working folder."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "jobspec_site.py").write_text(PLUGIN)
    for name, text in (("steps", STEPS), ("tasks", TASKS), ("flux", FLUX)):
        (folder / f"{name}.yaml").write_text(text)
    yield from use_site(packages, monkeypatch)


def last_run() -> str:
    return load_runs()[-1].id


def test_every_command_explains_itself() -> None:
    """Each has help, and its first line is not cut short."""
    shown = milkweed("--help").stdout
    names = re.findall(r"^  (\w+)  +\w", shown.partition("Commands:")[2], re.MULTILINE)
    assert len(names) >= 11
    assert "..." not in shown.partition("\n")[2]
    for name in names:
        assert f"Usage: milkweed jobspec {name}" in milkweed(name, "-h").stdout


def test_it_is_a_program_too() -> None:
    """`jobspec` has the same commands, and is declared as a script."""
    assert pyproject()["project"]["scripts"]["jobspec"] == "milkweed.cli:jobspec"
    listed = [
        re.findall(r"^  (\w+)  ", shown, re.MULTILINE)
        for shown in (milkweed("--help").stdout, alone("--help").stdout)
    ]
    assert listed[0] == listed[1]


@pytest.mark.parametrize("flag", ["-t", "--transformer"])
def test_the_document_s_flags(flag: str) -> None:
    """`jobspec run -t NAME FILE` and `jobspec run --transformer NAME FILE` are the same."""
    done = alone("run", flag, "site", "steps.yaml")
    assert done.exit_code == 0, done.stderr
    assert "install.sh" in done.stdout


def test_whatever_breaks_what_was_begun_is_told(site: Path) -> None:
    """A mistake in a plugin that nobody expects does not hide that there is a run, and how to end it."""
    text = PLUGIN.replace("return ended(", "return {'id': 'x'}; (").replace('"site"', '"broken"')
    (site / "jobspec_broken.py").write_text(text)
    done = milkweed("run", "-t", "broken", "--wait", "steps.yaml")
    assert done.exit_code == 1
    short = last_run()[:8]
    assert f"run {short} is not over" in done.stderr
    assert f"milkweed jobspec cancel {short}" in done.stderr
    assert "AssertionError: it was done at once" in done.stderr


def test_the_default_is_flux() -> None:
    """Without a name it is Flux that is meant, as the document says."""
    assert "[default: flux]" in " ".join(alone("run", "--help").stdout.split())


@pytest.mark.parametrize("words", [["--transform", "site"], ["--nope"], ["-x"], ["--dryrun"]])
def test_unknown_flags_submit_nothing(words: list[str]) -> None:
    """They end with 2."""
    assert alone("run", *words, "tasks.yaml").exit_code == 2
    assert load_runs() == []


def test_the_exit_code_is_the_work_s() -> None:
    """The first failure's code, and what failed is told."""
    done = milkweed("run", "-t", "site", "-s", "code=7", "--wait", "tasks.yaml")
    assert done.exit_code == 7
    assert "milkweed: a: failed (7)" in done.stderr
    assert "b: skipped" in done.stderr


def test_a_run_shows_its_output() -> None:
    """Each line has its step before it."""
    done = milkweed("run", "-t", "site", "--wait", "tasks.yaml")
    assert "[a] a ['echo', 'a']" in done.stdout
    assert f"run {last_run()[:8]} is over: done" in done.stderr


@pytest.mark.parametrize("words", [["render"], ["run", "--dry-run"]])
def test_showing_submits_nothing(words: list[str]) -> None:
    """What would be submitted is shown, whole, and nothing is recorded."""
    done = milkweed(*words, "-t", "site", "tasks.yaml")
    assert done.exit_code == 0
    assert "argv: [echo, a]" in done.stdout
    assert load_runs() == []


def test_what_was_rendered_is_what_is_run() -> None:
    """A plan that was printed is carried out as it stands, once."""
    shown = milkweed("render", "-t", "site", "--json", "tasks.yaml").stdout
    assert milkweed("run", "--plan", "-", stdin=shown).exit_code == 0
    run = find_run(json.loads(shown)["run_id"])
    assert run.plan.to_json() == json.loads(shown)
    again = milkweed("run", "--plan", "-", stdin=shown)
    assert (again.exit_code, "was started already" in again.stderr) == (1, True)


def test_a_plan_has_its_own_transformer(folder: Path) -> None:
    """Naming another is a mistake, and so is a file that is no plan."""
    assert milkweed("run", "--plan", "-t", "site", "tasks.yaml").exit_code == 2
    done = milkweed("run", "--plan", "tasks.yaml")
    assert (done.exit_code, "is no plan of a jobspec" in done.stderr) == (1, True)
    assert milkweed("run", "--plan", "nowhere.json").exit_code == 1


def test_files_are_checked() -> None:
    """All of them, with every mistake; the code says whether all are fine."""
    done = milkweed("validate", "steps.yaml", "tasks.yaml", "flux.yaml")
    assert done.exit_code == 0
    assert "tasks.yaml: compspec-0.1, 2 steps" in done.stdout
    bad = milkweed(
        "validate", "tasks.yaml", "-", stdin=TASKS.replace("depends_on: [a]", "depends_on: [x]")
    )
    assert bad.exit_code == 1
    assert "-:6:" in bad.stderr
    assert "tasks.yaml: compspec-0.1" in bad.stdout


def test_files_are_checked_against_a_transformer() -> None:
    """With -t what it cannot do is found, before anything runs."""
    done = milkweed("validate", "-t", "site", "steps.yaml")
    assert "site can carry it out" in done.stdout
    queue = FLUX.replace("duration: 5", "duration: 5, queue: q")
    done = milkweed("validate", "-t", "site", "-", stdin=queue)
    assert (done.exit_code, "does not honour 'queue'" in done.stderr) == (1, True)
    assert milkweed("validate", "-s", "code=1", "tasks.yaml").exit_code == 2


def test_a_dialect_may_be_said() -> None:
    """Then the file is read as that, and nothing else."""
    assert milkweed("validate", "--dialect", "compspec-0.1", "tasks.yaml").exit_code == 0
    assert milkweed("validate", "--dialect", "flux-v1", "tasks.yaml").exit_code == 1
    done = milkweed("validate", "--dialect", "flux", "tasks.yaml")
    assert "did you mean 'flux-v1'" in done.stderr


def test_jobspecs_are_converted() -> None:
    """Into what means the same, or not at all."""
    done = milkweed("convert", "--to", "compspec-0.1", "flux.yaml")
    assert parse_jobspec(done.stdout).dialect == "compspec-0.1"
    done = milkweed("convert", "--to", "flux-v1", "tasks.yaml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "nothing was dropped" in done.stderr


def test_transformers_are_listed(site: Path) -> None:
    """Those that are broken, too, with the reason."""
    (site / "jobspec_sad.py").write_text("import not_there_at_all")
    shown = milkweed("transformers").stdout
    assert re.search(r"^sad +broken +.*ModuleNotFoundError", shown, re.MULTILINE)
    assert re.search(r"^local +ok ", shown, re.MULTILINE)
    found = {each["name"]: each for each in json.loads(milkweed("transformers", "--json").stdout)}
    assert found["site"]["problem"] == ""
    assert "not_there_at_all" in found["sad"]["problem"]


def test_runs_are_told_of() -> None:
    """In a list, and one by one, by the beginning of the id."""
    assert "no run is recorded" in milkweed("status").stderr
    milkweed("run", "-t", "site", "tasks.yaml")
    milkweed("run", "-t", "site", "-s", "code=3", "tasks.yaml")
    shown = milkweed("status").stdout
    assert re.search(r"site +done +2/2", shown)
    assert re.search(r"site +failed, exit code 3 +2/2", shown)
    one = milkweed("status", last_run()[:8]).stdout
    assert "a  failed   exit code 3" in one
    assert "b  skipped  it needs afterok:a, which is failed" in one
    data = json.loads(milkweed("status", last_run(), "--json").stdout)
    assert (data["over"], data["exit_code"]) == (True, 3)
    assert [each["exit_code"] for each in json.loads(milkweed("status", "--json").stdout)] == [0, 3]


def test_a_run_whose_transformer_is_gone_is_still_listed(site: Path) -> None:
    """What its journal says is told, and why nobody can say more."""
    run = create_run(load_transformer("site").render(graph(job("a"))))
    (site / "jobspec_site.py").write_text("raise ValueError('gone')")
    del sys.modules["jobspec_site"]
    done = milkweed("status")
    assert done.exit_code == 0
    assert run.id[:8] in done.stdout
    assert "the transformer 'site' is broken" in done.stderr


def test_an_unknown_run_is_an_error() -> None:
    """Whatever is asked of it."""
    for command in ("status", "logs", "cancel", "wait"):
        done = milkweed(command, "feed")
        assert (done.exit_code, "there is no run 'feed'" in done.stderr) == (1, True)


def test_runs_are_cancelled() -> None:
    """What nobody carries on, too; what is over stays as it is."""
    run = create_run(load_transformer("site").render(graph(job("a"), job("b", "a"))))
    assert "nobody carries it on" in milkweed("status").stdout
    assert milkweed("cancel", "--all").stdout == f"{run.id[:8]}: cancelled\n"
    assert run.progress().exit_code() == 143
    assert milkweed("cancel", run.id).stdout == f"{run.id[:8]}: cancelled\n"
    assert milkweed("cancel").exit_code == 2
    assert milkweed("wait", run.id).exit_code == 143


def test_logs_of_an_unknown_step() -> None:
    """The steps there are, are named."""
    milkweed("run", "-t", "site", "tasks.yaml")
    done = milkweed("logs", last_run(), "--step", "aa")
    assert (done.exit_code, "did you mean 'a'" in done.stderr) == (1, True)
    assert milkweed("logs", last_run(), "--step", "a").exit_code == 0
    assert milkweed("logs", "-f", last_run()).exit_code == 0


def test_old_runs_are_cleaned_away() -> None:
    """Those that are over, and nothing else."""
    open_run = create_run(load_transformer("site").render(graph(job("a"))))
    milkweed("run", "-t", "site", "tasks.yaml")
    assert milkweed("clean").stdout == "removed 0 runs\n"
    assert milkweed("clean", "--older-than", "0s").stdout == "removed 1 runs\n"
    assert [run.id for run in load_runs()] == [open_run.id]
    assert milkweed("clean", "--older-than", "soon").exit_code == 1


def test_settings_are_words_with_an_equals_sign() -> None:
    """Each once; dashes are underscores."""
    assert parse_settings(["a-b=c=d", "x="]) == {"a_b": "c=d", "x": ""}
    for words in (["a"], ["=b"], ["a b=c"], ["a=1", "a=2"]):
        with pytest.raises(SpecError):
            parse_settings(words)


def test_unknown_settings_are_refused() -> None:
    """By ours and by others, before anything runs."""
    assert milkweed("run", "-t", "local", "-s", "a=b", "tasks.yaml").exit_code == 1
    assert milkweed("render", "-t", "site", "-s", "a=b", "tasks.yaml").exit_code == 1
    assert load_runs() == []


class Interrupted(Talker):
    """Somebody presses Ctrl-C while a job of it runs."""

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = 2.0
    ) -> Mapping[str, StepStatus]:
        """Ctrl-C."""
        signal.raise_signal(signal.SIGINT)
        return {}


@pytest.mark.parametrize(
    ("word", "state"), [("keep", "pending"), ("ask", "pending"), ("cancel", "cancelled")]
)
def test_ctrl_c_does_what_was_said(
    word: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code is 130, and what becomes of the run is told; without a terminal, asking is keeping."""
    place = Interrupted()
    plan = place.render(graph(job("a")))
    with pytest.raises(commands.typer.Exit) as stop:
        commands.carry_out(place, plan, wait=True, on_interrupt=word)
    assert stop.value.exit_code == 130
    run = find_run(plan.run_id)
    assert run.progress().entries["a"].status.state.value == state
    assert place.world.cancelled == (["job-a"] if word == "cancel" else [])
    told = capsys.readouterr().err
    assert ("goes on" if word != "cancel" else "is being cancelled") in told


def test_what_was_begun_before_an_error_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduler that stops answering leaves a run that can be carried on."""
    place = Talker()
    place.world.fail["b"] = UnreachableError("nobody answers")
    plan = place.render(graph(job("a"), job("b")))
    with pytest.raises(UnreachableError):
        commands.carry_out(place, plan, wait=False, on_interrupt="keep")
    assert f"`milkweed jobspec wait {plan.run_id[:8]}` goes on" in capsys.readouterr().err
    assert place.world.submitted == ["a"]

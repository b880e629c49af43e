"""Transformers are found by name: ours, declared ones, and packages whose names begin with `jobspec_`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gates.tree import pyproject
from milkweed.errors import JobspecError, TransformerError
from milkweed.jobspec import (
    find_run,
    list_transformers,
    load_transformer,
    parse_jobspec,
    transformer_names,
)
from milkweed.jobspec.discovery import BUILT_IN, GROUP
from unit.jobspecs import STEPS

PLUGIN = """\
import milkweed.jobspec.steps as steps
from milkweed.jobspec import TransformerBase


class Transformer(TransformerBase):
    name = "my-site"
    description = "what my site does"


class submit(steps.StepBase):
    name = "submit"

    def run(self, stage):
        (stage / "submitted").write_text(str(self.options["argv"]))

    def poll(self, handle):
        raise AssertionError("it was done at once")


Transformer.register_step(steps.WriterStep)
Transformer.register_step(submit)
Transformer.register_step(steps.EmptyStep, name="stage")
"""

ENTRY_POINTS = "[milkweed.transformers]\ndeclared = declared_plugin:Transformer\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("jobspec_", "declared_plugin")):
            del sys.modules[name]


def test_ours_come_in_by_the_same_door() -> None:
    """The table that spares reading metadata is the one that the package declares."""
    assert dict(BUILT_IN) == pyproject()["project"]["entry-points"][GROUP]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_ours_load(name: str) -> None:
    """Each has its name and a description."""
    found = load_transformer(name)
    assert (found.name, bool(found.description)) == (name, True)


def test_a_package_is_found_by_its_name(site: Path) -> None:
    """A transformer in one file, as the document writes it, carries out the document's example."""
    (site / "jobspec_my_site").mkdir()
    (site / "jobspec_my_site" / "__init__.py").write_text(PLUGIN)
    assert "my-site" in transformer_names()
    transformer = load_transformer("my-site")
    run = transformer.run(transformer.render(parse_jobspec(STEPS)))
    assert run.progress().exit_code() == 0
    assert "job.sh" in (run.files / "submitted").read_text()


def test_a_plugin_that_calls_itself_otherwise(site: Path) -> None:
    """Its runs are found again by the name that it was found by, whatever its class is called."""
    (site / "jobspec_other.py").write_text(PLUGIN)
    transformer = load_transformer("other")
    run = transformer.run(transformer.render(parse_jobspec(STEPS)))
    again = find_run(run.id)
    assert again.plan.transformer == "other"
    assert load_transformer(again.plan.transformer).status(again).over


def test_a_module_is_enough(site: Path) -> None:
    """A single file need not be a package."""
    (site / "jobspec_single.py").write_text(PLUGIN)
    assert load_transformer("single").description == "what my site does"


def test_a_package_may_declare_one(site: Path) -> None:
    """The entry-point group is the other door."""
    (site / "declared_plugin.py").write_text(PLUGIN)
    info = site / "declared-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    assert load_transformer("declared").name == "my-site"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("raise SystemError('on purpose')", "SystemError: on purpose"),
        ("raise SystemExit(9)", "SystemExit: 9"),
        ("import not_there_at_all", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("x = 1", "AttributeError"),
        ("Transformer = 5", "it is no class made from"),
        ("class Transformer: pass", "it is no class made from"),
        (PLUGIN.replace('name = "my-site"', "name = ''"), "it needs a name"),
        (PLUGIN[: PLUGIN.index("Transformer.register")], "registered steps"),
    ],
)
def test_a_broken_package_breaks_nothing_else(site: Path, code: str, seen: str) -> None:
    """It is reported by name when it is asked for, and all others work."""
    (site / "jobspec_broken.py").write_text(code)
    (site / "jobspec_fine.py").write_text(PLUGIN)
    with pytest.raises(TransformerError, match="the transformer 'broken' is broken") as caught:
        load_transformer("broken")
    assert seen in caught.value.seen
    assert load_transformer("fine")
    found = {each.name: each for each in list_transformers()}
    assert seen in found["broken"].problem
    assert (found["fine"].problem, found["local"].problem) == ("", "")
    assert found["local"].description


def test_names_are_listed_without_importing_anything(site: Path) -> None:
    """A package that does harm when it is imported is only named."""
    (site / "jobspec_harm.py").write_text("raise SystemExit(9)")
    assert "harm" in transformer_names()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """A slip in a name is easy to mend."""
    with pytest.raises(TransformerError, match="did you mean 'local'"):
        load_transformer("loca")


def test_ours_win_over_others(site: Path) -> None:
    """No package can take the name of one of ours."""
    (site / "jobspec_local.py").write_text(PLUGIN)
    assert load_transformer("local").name == "local"


def declare(site: Path, name: str, text: str) -> None:
    """Install the metadata of a package."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[milkweed.transformers]\nsad = not_there_at_all:Transformer\n", "sad"),
        ("[milkweed.transformers]\nsad = not a module\n", "sad"),
        ("[milkweed.transformers]\nsad = json:dumps\n", "sad"),
        ("[milkweed.transformers]\nsad\n", "unread"),
    ],
)
def test_a_broken_declaration_breaks_nothing_else(site: Path, text: str, name: str) -> None:
    """Whatever a package says of itself, the others are found, and it is told by name."""
    (site / "declared_plugin.py").write_text(PLUGIN)
    declare(site, "fine", ENTRY_POINTS)
    declare(site, "unread", text)
    found = {each.name: each for each in list_transformers()}
    assert found[name].problem
    assert (found["declared"].problem, found["local"].problem) == ("", "")
    assert load_transformer("declared").name == "my-site"
    with pytest.raises(TransformerError, match=f"the transformer '{name}' is broken"):
        load_transformer(name)


CUSTOM = """

class notify(steps.PlainStep):
    name = "notify"
    required = ("who",)
    optional = ("loud",)

    def run(self, stage):
        (stage / "notified").write_text(self.options["who"])


Transformer.register_step(notify)
"""


def test_a_package_brings_a_step_of_its_own(site: Path) -> None:
    """It is done where its transformer is, its options are checked, and others refuse it."""
    (site / "jobspec_custom.py").write_text(PLUGIN + CUSTOM)
    place = load_transformer("custom")
    run = place.run(place.render(parse_jobspec(STEPS + "  - {step: notify, who: ada}\n")))
    assert (run.files / "notified").read_text() == "ada"
    for step, said in (
        ("{step: notify}", "who: is missing"),
        ("{step: notify, who: ada, lout: true}", "did you mean 'loud'"),
    ):
        with pytest.raises(JobspecError, match=said):
            place.render(parse_jobspec(f"{STEPS}  - {step}\n"))
    with pytest.raises(JobspecError, match="knows no 'notify' step"):
        load_transformer("local").render(parse_jobspec(STEPS + "  - {step: notify, who: ada}\n"))

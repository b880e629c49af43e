"""`kill`: ending what was started, with a record or without, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeScheduler
from milkweed.cli.app import app
from milkweed.cli.commands import kill as kill_module
from milkweed.errors import BackendError
from milkweed.state import StateFile

pytestmark = pytest.mark.usefixtures("folder")


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def apply(world: FakeScheduler, name: str = "demo") -> str:
    """Declare and apply a job; its id."""
    Path(f"{name}.yaml").write_text(f"name: {name}\non: fake\nmeshes: {{workers: 2}}\n")
    assert milkweed("apply", f"{name}.yaml").exit_code == 0
    return list(world.allocations)[-1]


def entries() -> list[str]:
    return [entry.name for entry in registry.load_entries()]


def test_kill_leaves_nothing(world: FakeScheduler, home: Path) -> None:
    """After `kill` the allocation, its record, its entry and the folders for them are gone."""
    apply_id = apply(world)
    done = milkweed("kill", "demo")
    assert done.stdout == f"killed demo ({apply_id[:8]})\n"
    assert world.alive == []
    assert not Path(".milkweed").exists()
    assert not home.exists()


def test_kill_twice_is_fine(world: FakeScheduler) -> None:
    """A declared job without an allocation has nothing to end, and that is no error."""
    apply(world)
    milkweed("kill", "demo.yaml")
    done = milkweed("kill", "demo.yaml")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to end" in done.stderr


def test_a_name_that_nobody_knows_is_an_error(world: FakeScheduler) -> None:
    """A slip in a name ends nothing, and fails."""
    apply(world)
    assert milkweed("kill", "dmeo").exit_code == 1
    assert len(world.alive) == 1


@pytest.mark.parametrize("job", ["demo", "demo.yaml"])
@pytest.mark.parametrize("content", [None, b"[1]"])
def test_kill_works_without_a_record(
    world: FakeScheduler, home: Path, job: str, content: bytes | None
) -> None:
    """With the record gone or damaged, the id finds the allocation, and all of it ends."""
    apply(world)
    record = Path(".milkweed/demo.json")
    record.unlink() if content is None else record.write_bytes(content)
    assert milkweed("kill", job).exit_code == 0
    assert world.alive == []
    assert not home.exists()


def test_what_ended_is_forgotten(world: FakeScheduler, home: Path) -> None:
    """An allocation that is over already is only forgotten."""
    world.end(apply(world))
    assert milkweed("kill", "demo").exit_code == 0
    assert not home.exists()


def test_kill_by_id_leaves_a_newer_record(world: FakeScheduler) -> None:
    """Ending an older allocation of a job leaves the record of the newer one."""
    older = apply(world)
    Path("demo.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 3}\n")
    assert milkweed("apply", "demo.yaml", "--on-change", "new").exit_code == 0
    assert milkweed("kill", "demo").exit_code == 1
    assert milkweed("kill", older[:8]).exit_code == 0
    assert older not in world.alive
    assert len(world.alive) == 1
    assert "running" in milkweed("status", "demo.yaml").stdout


def test_an_intent_without_an_answer_is_ended(world: FakeScheduler, home: Path) -> None:
    """An allocation whose submission was cut short is found and ended."""
    apply(world)
    file = StateFile(".milkweed/demo.json")
    record = file.load()
    assert record is not None
    file.save(replace(record, handle=None, phase="intent"))
    assert milkweed("kill", "demo").exit_code == 0
    assert world.alive == []
    assert not home.exists()


def test_silence_forgets_nothing(world: FakeScheduler) -> None:
    """When the scheduler does not answer, everything stays so that the next try finds it."""
    apply(world)
    world.go_silent(100)
    done = milkweed("kill", "demo")
    assert done.exit_code == 1
    assert entries() == ["demo"]
    assert Path(".milkweed/demo.json").is_file()
    world.go_silent(0)
    assert milkweed("kill", "demo").exit_code == 0


def test_silence_forgets_no_lost_record(world: FakeScheduler) -> None:
    """The same holds when only the id is left."""
    apply(world)
    Path(".milkweed/demo.json").unlink()
    world.go_silent(100)
    assert milkweed("kill", "demo").exit_code == 1
    assert entries() == ["demo"]


def test_another_machines_job_is_not_forgotten(world: FakeScheduler) -> None:
    """Processes of another machine cannot be ended here, so their record stays."""
    apply(world)
    world.capabilities = Capabilities(machine_bound=True)
    file = StateFile(".milkweed/demo.json")
    record = file.load()
    assert record is not None
    file.save(replace(record, machine={"hostname": "far", "machine_id": "x"}))
    done = milkweed("kill", "demo")
    assert done.exit_code == 1
    assert "far" in done.stderr
    assert entries() == ["demo"]


def test_kill_all(world: FakeScheduler, home: Path) -> None:
    """--all ends every recorded job."""
    apply(world, "one")
    apply(world, "two")
    done = milkweed("kill", "--all")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["one", "two"]
    assert world.alive == []
    assert not home.exists()


def test_kill_all_goes_on(world: FakeScheduler) -> None:
    """One job that cannot be ended is told, and does not keep the others alive."""
    apply(world, "one")
    apply(world, "two")
    broken = next(registry.load_entries())
    Path(".milkweed/one.json").unlink()
    registry.save_entry(replace(broken, backend="sky-no-more"))
    done = milkweed("kill", "--all")
    assert done.exit_code == 1
    assert "one" in done.stderr
    assert entries() == ["one"]


def test_kill_takes_a_job_or_all(world: FakeScheduler) -> None:
    """A job and --all together are a usage error, and nothing ends."""
    apply(world)
    assert milkweed("kill", "demo", "--all").exit_code == 2
    assert len(world.alive) == 1


def test_a_damaged_entry_is_searched_everywhere(
    world: FakeScheduler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the entry damaged, too, every backend is asked for the id."""
    apply_id = apply(world)
    Path(".milkweed/demo.json").unlink()
    (home / "jobs" / apply_id / "entry.json").write_text("{")
    monkeypatch.setattr("milkweed.backends.backend_names", lambda: ["local", "fake"])
    assert milkweed("kill", apply_id[:8]).exit_code == 0
    assert world.alive == []
    assert not home.exists()


def test_a_damaged_entry_is_kept_when_a_backend_cannot_be_asked(
    world: FakeScheduler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one backend cannot be asked nobody can be sure, so the entry stays."""
    apply_id = apply(world)
    Path(".milkweed/demo.json").unlink()
    (home / "jobs" / apply_id / "entry.json").write_text("{")

    def broken(name: str) -> None:
        raise BackendError(f"the backend {name!r} is broken")

    monkeypatch.setattr("milkweed.backends.load_backend", broken)
    done = milkweed("kill", apply_id[:8])
    assert done.exit_code == 1
    assert "damaged" in done.stderr
    assert entries() == ["?"]
    assert kill_module.kill_all

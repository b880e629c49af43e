"""`doctor`: each line says how something is and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from milkweed.backends.fake import FakeScheduler
from milkweed.cli import checks
from milkweed.cli.app import app
from unit.flux_fake import FakeFlux, forget_flux

pytestmark = pytest.mark.usefixtures("folder")


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the process that imports the engine does."""
    told: dict[str, object] = {"returncode": 0, "stdout": "noise\n0.7.0\n", "stderr": ""}

    real = subprocess.run

    def run(argv: list[str], **kwargs: Any) -> subprocess.CompletedProcess[Any]:
        if argv[0] != sys.executable:
            return real(argv, **kwargs)  # Slurm's own commands are asked, too, where there are any
        if "error" in told:
            raise subprocess.TimeoutExpired(argv, 1)
        return subprocess.CompletedProcess(argv, **told)  # type: ignore[arg-type]

    monkeypatch.setattr(checks.subprocess, "run", run)
    return told


def levels(name: str) -> list[str]:
    return [check.level for check in checks.run_checks() if check.name == name]


def test_a_good_machine_is_ok() -> None:
    """On a machine that has everything no line fails, and the exit code is 0."""
    done = milkweed("doctor")
    assert done.exit_code == 0, done.output
    assert {line.split()[0] for line in done.stdout.splitlines()} <= {"ok", "note", "warn"}
    assert "torchmonarch 0.7.0" in done.stdout


def test_doctor_as_json(engine: dict[str, object]) -> None:
    """`doctor --json` is one document, and its exit code is the same."""
    engine["returncode"] = 1
    done = milkweed("doctor", "--json")
    data = json.loads(done.stdout)
    assert (done.exit_code, data["ok"]) == (1, False)
    assert {"level", "name", "seen", "do"} == set(data["checks"][0])


def test_a_missing_engine_fails(engine: dict[str, object]) -> None:
    """An engine that cannot be imported is told with the reason and what to do."""
    engine |= {
        "returncode": 1,
        "stderr": "Traceback\nModuleNotFoundError: No module named 'monarch'",
    }
    done = milkweed("doctor")
    assert done.exit_code == 1
    assert "No module named 'monarch'; install torchmonarch" in done.stdout


def test_a_crashing_engine_fails(engine: dict[str, object]) -> None:
    """An engine that crashes silently fails too."""
    engine["returncode"] = -11
    assert levels("engine") == ["fail"]


def test_a_hanging_engine_fails(engine: dict[str, object]) -> None:
    """An engine that does not finish its import fails too."""
    engine["error"] = True
    assert levels("engine") == ["fail"]


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that is too old is told."""
    monkeypatch.setattr(checks, "MIN_PYTHON", (99, 0))
    assert levels("python") == ["fail"]


def test_a_kernel_without_pidfd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pidfd a signal could hit another process, so it fails."""

    def refuse(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert levels("pidfd") == ["fail"]
    assert levels("/proc") == ["ok"]


@pytest.mark.parametrize(
    ("mode", "level"), [(0o700, "ok"), (0o750, "warn"), (0o755, "warn"), (0o770, "fail")]
)
def test_folders_must_be_private(tmp_path: Path, mode: int, level: str) -> None:
    """A folder that others can write to fails, and one they can read is a warning."""
    path = tmp_path / "f"
    path.mkdir()
    path.chmod(mode)
    found = checks.check_folder("records", path)
    assert found.level == level
    assert not found.do or found.do == f"chmod 700 {path}"


def test_a_file_in_the_folders_place_fails(tmp_path: Path) -> None:
    """A file, or a link, where a folder should be is told."""
    (tmp_path / "f").touch()
    (tmp_path / "l").symlink_to(tmp_path)
    assert checks.check_folder("records", tmp_path / "f").level == "fail"
    assert "not a folder" in checks.check_folder("records", tmp_path / "l").seen


def test_another_users_folder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that somebody else prepared is not used."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "belongs to user" in checks.check_folder("records", tmp_path).seen


def test_folders_are_only_looked_at(home: Path) -> None:
    """A folder that is not there yet is fine, and is not made."""
    assert levels("records") == ["ok"]
    assert not home.exists()


def test_a_folder_that_cannot_be_made_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be written, the place is named."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert (
        checks.check_folder("records", tmp_path / "a" / "b").do
        == f"make {tmp_path} writable for you"
    )
    tmp_path.chmod(0o700)
    assert checks.check_folder("records", tmp_path).seen.endswith("cannot be written to")


@pytest.mark.parametrize(("free", "level"), [(0, "fail"), (2**29, "warn"), (2**40, "ok")])
def test_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    """A disk without room fails, and one with little room is a warning."""
    usage = namedtuple("usage", "free")  # noqa: PYI024
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _path: usage(free))
    assert checks.check_disk("records", tmp_path / "gone").level == level


def test_fuse_is_only_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without file systems in user space nothing fails."""
    monkeypatch.setattr(Path, "exists", lambda _self: False)
    assert [check.level for check in checks.check_fuse()] == ["note"]
    monkeypatch.setattr(Path, "exists", lambda _self: True)
    assert [check.level for check in checks.check_fuse()] == ["ok"]


def test_stale_jobs_are_warnings(world: FakeScheduler) -> None:
    """Jobs that are over, and jobs whose record is lost, are listed with what forgets or ends them."""
    for name in ("fine", "over", "lost"):
        Path(f"{name}.yaml").write_text(f"name: {name}\non: fake\nmeshes: {{workers: 1}}\n")
        assert milkweed("apply", f"{name}.yaml").exit_code == 0
    _fine, over, lost = world.allocations
    world.end(over, "time limit")
    Path(".milkweed/lost.json").unlink()
    first, second = checks.check_entries()
    assert (first.level, first.do) == ("warn", f"`milkweed kill {over[:8]}` forgets it")
    assert (second.level, second.do) == ("warn", f"`milkweed kill {lost[:8]}` ends it")
    assert milkweed("doctor").exit_code == 0
    assert len(world.alive) == 2


def test_a_flux_instance_is_looked_at(flux: FakeFlux) -> None:
    """Its version and how many nodes it has; without one that answers it is only noted."""
    [check] = checks.check_flux()
    assert (check.level, check.seen) == ("ok", "0.88, 4 nodes")
    forget_flux()
    flux.be_away()
    [check] = checks.check_flux()
    assert check.level == "note"
    assert "no instance answers here" in check.seen
    flux.answer("version", "commands: 0.11.0\n")
    forget_flux()
    [check] = checks.check_flux()
    assert (check.level, check.seen) == (
        "warn",
        "this is Flux 0.11, and milkweed needs 0.51 or newer",
    )
    (flux.bin / "flux").unlink()
    [check] = checks.check_flux()
    assert check.level == "note"

"""A spool folder and real services: killed at every point, none loses a file or runs it twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.local_jobspecs import hold, until
from milkweed.jobspec import load_runs
from milkweed.jobspec.spool import POINTS

pytestmark = pytest.mark.e2e

TEXT = """\
version: 1
resources: {{r: {{type: slot, with: [{{type: core}}]}}}}
tasks:
- {{name: a, resources: r, command: [bash, -c, "echo ran >> {ran}"]}}
- {{name: b, resources: r, command: [bash, -c, "echo then >> {ran}"], depends_on: [a]}}
"""

# A service that ends itself by SIGKILL when it comes to a point.
DOOMED = """
import os, signal, sys
from pathlib import Path
from milkweed.jobspec.spool import Spool

def passed(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

Spool(Path(sys.argv[1]), transformer="local", passed=passed).serve(0.05)
"""


@pytest.fixture
def place(folder: Path) -> Path:
    path = folder / "spool"
    path.mkdir(mode=0o700)
    return path


def put(place: Path, name: str, ran: Path) -> None:
    path = place / name
    path.write_text(TEXT.format(ran=ran))
    os.utime(path, (1000, 1000))


def serve(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "milkweed", "jobspec", "serve", str(place), "-t", "local"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=True)


def files(place: Path, name: str) -> list[Path]:
    return sorted(path for path in (place / name).iterdir() if path.suffix == ".yaml")


@pytest.mark.parametrize("point", POINTS)
def test_a_service_is_killed_at_every_point(place: Path, folder: Path, point: str) -> None:
    """Another one comes, as cron starts it, and the work of the file is done once."""
    put(place, "a.yaml", folder / "ran")
    killed = subprocess.run([sys.executable, "-c", DOOMED, str(place), point], check=False)
    assert killed.returncode == -signal.SIGKILL

    def is_done() -> bool:
        serve(place, "--once")
        return bool(files(place, "done"))

    until(is_done, 60)
    serve(place, "--once")
    assert (folder / "ran").read_text() == "ran\nthen\n"
    assert [files(place, name) for name in ("running", "failed")] == [[], []]
    assert len(files(place, "done")) == 1
    assert len(load_runs()) == 1
    assert not (place / "a.yaml").exists()


def test_services_share_a_folder(place: Path, folder: Path) -> None:
    """Three of them, twelve files: each file is run by one; SIGTERM ends them well."""
    for number in range(12):
        put(place, f"{number}.yaml", folder / f"ran-{number}")
    command = [sys.executable, "-m", "milkweed", "jobspec", "serve", str(place), "-t", "local"]
    services = [subprocess.Popen([*command, "--every", "0.05s"]) for _ in range(3)]
    try:
        until(lambda: (place / "done").exists() and len(files(place, "done")) == 12, 60)
    finally:
        for service in services:
            service.terminate()
        codes = [service.wait(20) for service in services]
    assert codes == [0, 0, 0]
    assert {(folder / f"ran-{number}").read_text() for number in range(12)} == {"ran\nthen\n"}
    assert len(load_runs()) == 12


def test_runs_go_on_without_a_service(place: Path, folder: Path) -> None:
    """`--once` ends at once; what it started is over later, and the next look tells."""
    (place / "a.yaml").write_text(
        TEXT.format(ran=folder / "ran").replace("echo then", f"{hold(folder / 'go')}; echo then")
    )
    os.utime(place / "a.yaml", (1000, 1000))
    shown = serve(place, "--once").stderr
    assert "a.yaml: taken, run" in shown
    (run,) = load_runs()
    assert not run.progress().over
    (folder / "go").touch()
    until(lambda: run.progress().over, 60)
    assert len(files(place, "running")) == 1
    assert ": done" in serve(place, "--once").stderr
    assert len(files(place, "done")) == 1


def test_a_driver_that_is_killed_is_replaced(place: Path, folder: Path) -> None:
    """The service sees to the rest of the run: the work that was lost is told, and nothing is repeated."""
    script = f"touch {folder}/up; {hold(folder / 'go')}; echo ran"
    text = TEXT.format(ran=folder / "ran").replace("echo ran", script)
    (place / "a.yaml").write_text(text)
    os.utime(place / "a.yaml", (1000, 1000))
    serve(place, "--once")
    until((folder / "up").exists)
    (run,) = load_runs()
    driver = run.driver()
    assert driver is not None
    os.kill(driver["pid"], signal.SIGKILL)
    (folder / "go").touch()

    def is_over() -> bool:
        serve(place, "--once")
        return bool(files(place, "failed"))

    until(is_over, 60)
    (told,) = (place / "failed").glob("*.txt")
    assert "a: lost: nobody saw how it ended" in told.read_text()
    assert "b: skipped" in told.read_text()
    assert (folder / "ran").read_text() == "ran\n"

"""Services of a spool folder that are killed at a point, on any scheduler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from programs import wait_until

# A service that ends itself by SIGKILL when it comes to a point.
DOOMED = """
import json, os, signal, sys
from pathlib import Path
from milkweed.jobspec.spool import Spool

def passed(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

place = Path(sys.argv[1])
Spool(place, transformer=sys.argv[3], settings=json.loads(sys.argv[4]), passed=passed).serve(0.05)
"""


def kill_at(point: str, place: Path, text: str, transformer: str, **settings: str) -> None:
    """Put a file into a folder, and serve it until a point at which the service is killed."""
    place.mkdir(mode=0o700)
    (place / "a.yaml").write_text(text)
    os.utime(place / "a.yaml", (1000, 1000))
    words = [sys.executable, "-c", DOOMED, str(place), point, transformer, json.dumps(settings)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL


def serve_until_over(place: Path, transformer: str, limit_s: float, **settings: str) -> str:
    """Serve a folder as cron does until its only file is done or failed; where it went."""
    words = [sys.executable, "-m", "milkweed", "jobspec", "serve", str(place), "--once"]
    said = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    found: list[str] = []

    def is_over() -> bool:
        subprocess.run([*words, "-t", transformer, *said], check=True)
        found[:] = [name for name in ("done", "failed") if any((place / name).glob("*.yaml"))]
        return bool(found)

    wait_until(is_over, limit_s)
    return found[0]

"""The stages of `make test`, some side by side; what failed is tried once more at the end, alone.

    python tests/stages.py STAGE... [+ STAGE...]...    STAGE: 'NAME: COMMAND', a command that calls pytest

Groups, between `+`, follow each other. The stages of a group run side by side, four at a time, and each
prints when it is over. When a few tests of a stage fail, these are tried once more, and so on a new cluster
where the command makes one: a machine that was too busy for a moment does not decide about a commit, a test
that fails twice does. Tests that needed their second try are named at the end. Exit status: 0 when every
stage went well, else 1.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MOST = 5
"""More failures of one stage are no coincidence."""
SIDE_BY_SIDE = 4
"""Tests on labs mostly wait: so many share two cores."""
TESTS_FAILED = 1
"""What pytest ends with when tests failed; anything else is not about tests."""


class Stage(NamedTuple):
    """Tests that are run by one command."""

    name: str
    command: tuple[str, ...]

    @property
    def cache(self) -> Path:
        """Where pytest keeps what failed."""
        return Path(".pytest_cache") / self.name

    def failed(self) -> set[str]:
        """The tests that its last run left failed."""
        try:
            return set(json.loads((self.cache / "v/cache/lastfailed").read_text()))
        except OSError:
            return set()

    def run(self, *more: str, log: Path | None = None) -> int:
        """Run it, and print what it prints: at once, or with a log when it is over."""
        command = [*self.command, "-o", f"cache_dir={self.cache}", *more]
        say(f"{self.name}: {shlex.join(command)}")
        began_s = time.monotonic()
        if log is None:
            code = subprocess.run(command, check=False).returncode
        else:
            with log.open("wb") as file:
                done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
            code = done.returncode
            say(f"{self.name}:\n{log.read_text(errors='replace')}")
        say(f"{self.name}: exit code {code} after {time.monotonic() - began_s:.0f} s")
        return code


def main(argv: Sequence[str]) -> int:
    """Run all groups, then the second tries."""
    codes: dict[Stage, int] = {}
    for group in read_groups(argv):
        codes |= run_group(group)
    unsteady: list[str] = []
    for stage, code in codes.items():
        failed = stage.failed()
        if code == TESTS_FAILED and 0 < len(failed) <= MOST:
            say(f"{stage.name}: {len(failed)} failed, and have a second try")
            codes[stage] = stage.run("--last-failed", "--last-failed-no-failures=none")
            unsteady += sorted(failed - stage.failed())
    if unsteady:
        say("unsteady, passed at the second try only:", *unsteady)
    if bad := [stage.name for stage, code in codes.items() if code]:
        say(f"failed: {', '.join(bad)}")
    return 1 if bad else 0


def read_groups(argv: Sequence[str]) -> list[list[Stage]]:
    """What the command line says."""
    groups: list[list[Stage]] = [[]]
    for word in argv:
        if word == "+":
            groups.append([])
            continue
        name, _, command = word.partition(":")
        groups[-1].append(Stage(name, tuple(shlex.split(command))))
    return groups


def run_group(group: Sequence[Stage]) -> dict[Stage, int]:
    """Run stages side by side; one alone prints as it goes."""
    for stage in group:
        shutil.rmtree(stage.cache, ignore_errors=True)
        stage.cache.mkdir(parents=True)
    if len(group) == 1:
        return {group[0]: group[0].run()}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        begun = {stage: pool.submit(stage.run, log=stage.cache / "log") for stage in group}
        return {stage: future.result() for stage, future in begun.items()}


def say(*lines: str) -> None:
    """Print lines at once, whole."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

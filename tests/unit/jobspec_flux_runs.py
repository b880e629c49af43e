"""Runs of jobspecs on a Flux that prints what it was told to: a small program on PATH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.jobspec import Run
from milkweed.jobspec.driver import Wake
from milkweed.jobspec.graph import Graph, Need, Step, Submit, Work
from milkweed.jobspec.transformers.flux import Transformer

# Jobs are numbered from 1 on; `jobs/N` is what the list says of one, `outputs/N` what it printed.
PROGRAM = """#!/bin/sh
home='{home}'
printf '%s\\036' "$(printf '%s\\037' "$@")" >>"$home/calls"  # in one piece: others write, too
if [ -f "$home/away" ]; then cat "$home/away" >&2; exit 1; fi
[ -f "$home/then" ] && . "$home/then"
last=
for last; do :; done
case "$1 $2" in
"version ") echo "commands:    		0.88.0" ;;
"getattr local-uri") echo "local://$home/local-0" ;;
"resource R") cat "$home/R" ;;
"queue list") echo batch ;;
"job submit")
  number=$(($(ls "$home/submitted" | wc -l) + 1))
  cat >"$home/submitted/$number"
  printf '{{"id": %s, "state": "RUN", "name": "%s"}}' "$number" "$(cat "$home/name")" >"$home/jobs/$number"
  echo "$number" ;;
"job info") cat "$home/submitted/$3" ;;
"job eventlog") if [ -f "$home/outputs/$last" ]; then cat "$home/outputs/$last"; else exit 1; fi ;;
"jobs --json")
  case $last in
  [0-9]*) if [ -f "$home/jobs/$last" ]; then cat "$home/jobs/$last"; else echo "$last: unknown" >&2; exit 1; fi ;;
  *)
    printf '{{"jobs": ['
    comma=
    for file in "$home"/jobs/*; do [ -f "$file" ] && {{ printf '%s' "$comma"; cat "$file"; comma=,; }}; done
    printf ']}}' ;;
  esac ;;
"cancel "*) : ;;
"archive "*) : ;;
*) echo "flux: no $1 here" >&2; exit 1 ;;
esac
"""
RESOURCES = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-3", "children": {"core": "0-7", "gpu": "0-1"}}],
        "nodelist": ["n[1-4]"],
    },
}


class FakeFlux:
    """What was asked of it, and what it says of jobs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        for name in ("bin", "submitted", "jobs", "outputs"):
            (home / name).mkdir(parents=True)
        (self.bin / "flux").write_text(PROGRAM.format(home=home))
        (self.bin / "flux").chmod(0o755)
        (home / "R").write_text(json.dumps(RESOURCES))
        (home / "name").write_text("a")

    @property
    def uri(self) -> str:
        """Its address."""
        return f"local://{self.home}/local-0"

    @property
    def submitted(self) -> list[dict[str, Any]]:
        """The jobspecs that it took."""
        paths = sorted((self.home / "submitted").iterdir(), key=lambda path: int(path.name))
        return [json.loads(path.read_text()) for path in paths]

    @property
    def calls(self) -> list[list[str]]:
        """How it was called."""
        text = (self.home / "calls").read_text() if (self.home / "calls").exists() else ""
        return [call.split("\x1f")[:-1] for call in text.split("\x1e")[:-1]]

    def say(self, number: int, **more: Any) -> None:
        """From now on a job is so."""
        said = {"id": number, "state": "INACTIVE", "name": "a", **more}
        (self.home / "jobs" / str(number)).write_text(json.dumps(said))

    def end(self, number: int, code: int = 0, **more: Any) -> None:
        """A job has ended with a code."""
        result = "FAILED" if code else "COMPLETED"
        self.say(number, **{"result": result, "returncode": code, "waitstatus": code << 8, **more})

    def forget(self, number: int) -> None:
        """Nothing is known of a job any more."""
        (self.home / "jobs" / str(number)).unlink()

    def output(self, number: int, *events: dict[str, Any]) -> None:
        """What a job printed."""
        text = "".join(json.dumps(event) + "\n" for event in events)
        (self.home / "outputs" / str(number)).write_text(text)

    def be_away(self) -> None:
        """Nobody answers."""
        (self.home / "away").write_text("flux-job: flux_open: No such file or directory\n")

    def come_back(self) -> None:
        """It answers again."""
        (self.home / "away").unlink()

    def then(self, script: str) -> None:
        """Run a piece of shell whenever it is called, before it answers; `$home` is our folder."""
        (self.home / "then").write_text(script)


def data(text: str, rank: str = "0", stream: str = "stdout", **more: Any) -> dict[str, Any]:
    """What a task printed, as Flux records it."""
    context = {"stream": stream, "rank": rank, "data": text, **more}
    return {"timestamp": 1.0, "name": "data", "context": context}


@pytest.fixture
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeFlux:
    """An instance of four nodes and no jobs."""
    made = FakeFlux(tmp_path / "flux")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setenv("FLUX_URI", made.uri)
    return made


class Quick(Transformer):
    """A transformer that never really waits; each look at the jobs is a chapter of a story."""

    def __init__(self, *chapters: Any) -> None:
        super().__init__()
        self.sleep = lambda _seconds: None
        self._chapters = iter(chapters)

    def poll(self, running: Any, wake: Wake, timeout_s: float = 0.0) -> Any:
        """Turn a page, then look at once."""
        next(self._chapters)()
        from milkweed.backends.flux import commands

        commands.queue(self.uri).wake()
        return super().poll(running, wake, 0.0)


def job(name: str, *needs: Need | str, wait: bool = False, **more: Any) -> Submit:
    """A job; a plain name is one that must have ended well."""
    found = tuple(need if isinstance(need, Need) else Need(need) for need in needs)
    own = {key: more.pop(key) for key in ("local", "replicas", "watch") if key in more}
    return Submit(id=name, needs=found, wait=wait, work=Work(argv=("true",), **more), **own)


def run(transformer: Transformer, *found: Step, wait: bool = False) -> Run:
    """Carry out steps."""
    return transformer.run(transformer.render(Graph(steps=found)), wait=wait)

"""A Flux that prints what it was told to: a small program on PATH, which writes down how it was called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from milkweed.backends.flux import commands
from milkweed.backends.flux.nodes import inventory
from milkweed.backends.flux.places import FluxPlace, make_places
from milkweed.backends.flux.text import JobRow, render_name
from milkweed.backends.marks import Mark

APPLY_ID = "11111111-2222-4333-8444-555555555555"
CORPUS = Path(__file__).parents[1] / "corpus" / "flux" / "0.88"
START_S = 1_794_800_000.0
"""When jobs began."""

# An answer is a folder, named by the first words of a call, the longest name first.
PROGRAM = """#!/bin/sh
home='{home}'
printf '%s\\036' "$(printf '%s\\037' "$@")" >>"$home/calls"  # in one piece: others write, too
env | sort >"$home/env"
for name in "$1 $2" "$1" ""; do [ -d "$home/answers/$name@" ] && break; done
answer="$home/answers/$name@"
case "$1 $2" in "job submit") cat >"$home/stdin" ;; esac
[ -f "$answer/then" ] && . "$answer/then"
cat "$answer/out"
cat "$answer/err" >&2
exit "$(cat "$answer/code")"
"""


class FakeFlux:
    """What `flux` prints and was asked; until told otherwise it prints nothing and succeeds."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        self.bin.mkdir(parents=True)
        (home / "answers").mkdir()
        (self.bin / "flux").write_text(PROGRAM.format(home=home))
        (self.bin / "flux").chmod(0o755)
        self.answer("")
        self.answer("version", (CORPUS / "version.txt").read_text())
        self.answer("getattr local-uri", f"local://{home}/local-0\n")
        self.nodes("n1", "n2", "n3", "n4")
        self.jobs()

    def answer(self, words: str, out: str = "", *, err: str = "", code: int = 0) -> None:
        """From now on a call that begins with some words prints this."""
        folder = self.home / "answers" / f"{words}@"
        folder.mkdir(exist_ok=True)
        (folder / "out").write_text(out)
        (folder / "err").write_text(err)
        (folder / "code").write_text(str(code))

    def then(self, words: str, script: str) -> None:
        """Run a piece of shell at such a call, before it prints; `$home` is our folder."""
        folder = self.home / "answers" / f"{words}@"
        if not folder.exists():
            self.answer(words)
        (folder / "then").write_text(script)

    def be_away(self) -> None:
        """The instance does not answer."""
        words = (CORPUS / "error-down-jobs.txt").read_text()
        for folder in (self.home / "answers").iterdir():
            if folder.name != "version@":
                self.answer(folder.name.removesuffix("@"), err=words, code=1)

    def nodes(self, *names: str, cores: str = "0-7", **more: Any) -> None:
        """The instance has these nodes."""
        self.answer("resource R", render_resources(*names, cores=cores, **more))

    def jobs(self, *items: dict[str, Any]) -> None:
        """The instance has these jobs, as `item` writes them."""
        self.answer("jobs --json", json.dumps({"jobs": items}))

    @property
    def calls(self) -> list[list[str]]:
        """The words of every call so far."""
        path = self.home / "calls"
        text = path.read_text() if path.exists() else ""
        return [record.split("\037")[:-1] for record in text.split("\036")[:-1]]

    def called(self, word: str) -> list[list[str]]:
        """The words after the first of every such call."""
        return [rest for first, *rest in self.calls if first == word]

    @property
    def read(self) -> Any:
        """What was read last, as JSON."""
        return json.loads((self.home / "stdin").read_text())

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it saw last."""
        lines = (self.home / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


def render_resources(*names: str, cores: str = "0-7", gpus: str = "", **more: Any) -> str:
    """What `flux resource R` prints for nodes that are alike; `properties` says which ranks have one."""
    children = {"core": cores, **({"gpu": gpus} if gpus else {})}
    lite = [{"rank": f"0-{len(names) - 1}" if len(names) > 1 else "0", "children": children}]
    execution = {"R_lite": lite if names else [], "nodelist": [",".join(names)], **more}
    return json.dumps({"version": 1, "execution": execution})


def name_of(component: int = 0, name: str = "demo") -> str:
    """The name of a component's job in Flux."""
    return render_name(Mark(APPLY_ID, 0, component, name))


def item(job_id: int = 7, state: str = "RUN", component: int = 0, **more: Any) -> dict[str, Any]:
    """One job as `flux jobs --json` tells it."""
    said: dict[str, Any] = {"id": job_id, "state": state, "name": name_of(component)}
    said |= {"t_run": START_S, "nodelist": "n[1-2]"} if state != "SCHED" else {}
    return {**said, "exception": {"occurred": False}, "annotations": {}, **more}


def row(job_id: int = 7, state: str = "RUN", **more: Any) -> JobRow:
    """The same as a value."""
    said: dict[str, Any] = {"name": name_of(), "nodes": ("n1", "n2"), "start": START_S}
    return JobRow(job_id=job_id, state=state, **{**said, **more})


def part(folder: Path | str = "/job", *labels: str, **more: Any) -> dict[str, Any]:
    """What the keepers of a component are told, as far as others look at it."""
    hosts = [label.rpartition("/")[::2] for label in labels or ("w/0", "w/1")]
    return {
        "apply_id": APPLY_ID,
        "part": "0.0",
        "hosts": [{"mesh": mesh, "rank": int(rank)} for mesh, rank in hosts],
        "envs": {mesh: {} for mesh, *_ in hosts},
        "released": [],
        "addresses": {"n1": "127.0.0.1", "n2": "127.0.0.1"},
        "logs": f"{folder}/logs",
        "record_folder": str(folder),
        "port": 22222,
        **more,
    }


def place(folder: Path | str, seen: JobRow | None, index: int = 0) -> FluxPlace:
    """One host of a job of two."""
    return make_places([seen] if seen else [], {0: part(folder)})[index]


def forget_flux() -> None:
    """A program keeps what it has read of an instance; a test is none."""
    commands.forget()
    inventory.cache_clear()

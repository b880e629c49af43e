"""Running steps as processes of this machine, for the tests of several files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from milkweed.jobspec import Run, load_transformer
from milkweed.jobspec.graph import Graph, Need, Submit, Work


def sh(name: str, script: str, *needs: str, **more: object) -> Submit:
    """A job of one line of shell."""
    work = Work(argv=("/bin/bash", "-c", script), **more)  # type: ignore[arg-type]
    return Submit(id=name, work=work, needs=tuple(Need(need) for need in needs))


def hold(gate: Path) -> str:
    """Shell that goes on when a file is there."""
    return f"until [ -e '{gate}' ]; do sleep 0.05; done"


def run(*steps: object, wait: bool = True, lines: list[tuple[str, str]] | None = None) -> Run:
    """Run steps to their end."""
    local = load_transformer("local")
    show = None if lines is None else (lambda label, line: lines.append((label, line)))
    return local.run(local.render(Graph(steps=steps)), wait=wait, show=show)  # type: ignore[arg-type]


def states(found: Run) -> dict[str, str]:
    progress = load_transformer("local").status(found)
    return {name: entry.status.state.value for name, entry in progress.entries.items()}


def log(found: Run, label: str) -> str:
    return (found.logs / f"{label.replace('/', '+')}.log").read_text()


def until(come_true: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for something that other processes do."""
    deadline_s = time.monotonic() + timeout_s
    while not come_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)

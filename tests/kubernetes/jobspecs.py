"""Jobspecs in one namespace of the lab, and how they went."""

from __future__ import annotations

from typing import Any

from kubernetes.lab import WORKER, Lab
from milkweed.jobspec import load_transformer
from milkweed.jobspec.graph import Graph, Need, Submit, Work
from milkweed.jobspec.runs import Run
from milkweed.jobspec.transformer import TransformerBase

LIMIT_S = 120.0


class Place:
    """One namespace, and jobspecs in it."""

    def __init__(self, lab: Lab, namespace: str) -> None:
        self.lab, self.namespace = lab, namespace
        self.shown: list[tuple[str, str]] = []

    def make(self, **settings: Any) -> TransformerBase:
        """A transformer for the namespace, with the image that the lab has."""
        said = {"image": WORKER, "namespace": self.namespace, "pull_policy": "Never", **settings}
        return load_transformer("kubernetes", **said)

    def run(self, graph: Graph, *, waits: bool = True, **settings: Any) -> Run:
        """Carry out a graph; what is printed meanwhile is kept."""
        made = self.make(**settings)
        return made.run(made.render(graph), wait=waits, show=lambda *line: self.shown.append(line))

    def lines(self, run: Run) -> list[tuple[str, str]]:
        """All that a run printed, in some order."""
        return sorted(self.make().logs(run))

    def jobs(self) -> list[Any]:
        """The Jobs that are there."""
        return self.lab.get("jobs", "-n", self.namespace)["items"]


def work(name: str, *argv: str, needs: tuple[str, ...] = (), **more: Any) -> Submit:
    """A step that runs a command."""
    said = {key: more.pop(key) for key in ("wait", "watch", "replicas", "local") if key in more}
    found = Work(argv=argv, **more)
    return Submit(id=name, work=found, needs=tuple(Need(each) for each in needs), **said)


def graph(*steps: Any) -> Graph:
    """A graph of steps."""
    return Graph(steps=steps)


def states(run: Run) -> dict[str, str]:
    """How every step is, by the journal."""
    return {key: entry.status.state.value for key, entry in run.progress().entries.items()}

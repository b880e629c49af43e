"""Paths of a graph, made whole: a plan means the same wherever it is carried out later."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from .graph import Auth, Graph, Group, Stage, Step


def make_whole(graph: Graph) -> Graph:
    """The graph with whole paths of this machine; the same one where all are whole already."""
    if not any(_needs_it(step) for step in graph.walk()):
        return graph
    folder = os.getcwd()
    return replace(graph, steps=tuple(_resolve(step, folder) for step in graph.steps))


def _needs_it(step: Step) -> bool:
    if isinstance(step, Stage):
        return not os.path.isabs(step.path or "/")
    if isinstance(step, Auth):
        return not os.path.isabs(step.file or "/") or _is_near(step.command)
    return False


def _is_near(command: tuple[str, ...]) -> bool:
    """Whether a program is named by where it lies below the working folder, and not looked for."""
    return bool(command) and "/" in command[0] and not os.path.isabs(command[0])


def _resolve(step: Step, folder: str) -> Step:
    if isinstance(step, Group):
        return replace(step, steps=tuple(_resolve(each, folder) for each in step.steps))
    if isinstance(step, Stage) and step.path:
        return replace(step, path=_join(folder, step.path))
    if isinstance(step, Auth) and step.file:
        return replace(step, file=_join(folder, step.file))
    if isinstance(step, Auth) and _is_near(step.command):
        return replace(step, command=(_join(folder, step.command[0]), *step.command[1:]))
    return step


def _join(folder: str, path: str) -> str:
    return str(Path(folder, os.path.expanduser(path)))

"""What pods print, copied into files of this machine while they print it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...kube import pod_logs
from ...kube.api import Api
from .kubernetes_objects import CONTAINER


def lines_of(api: Api, namespace: str, pod: str) -> pod_logs.Lines:
    """The lines of the one container that a pod of ours has."""
    return pod_logs.Lines(api, namespace, pod, CONTAINER)


class Files:
    """Where lines go: all into one file, or what each step of a pod prints into the file of that."""

    def __init__(self, files: Mapping[str, str], *, labelled: bool) -> None:
        self._files = dict(files)
        self._labelled = labelled
        self._open: dict[str, int] = {}

    def write(self, line: bytes) -> None:
        """Put a line into its file."""
        path = next(iter(self._files.values()))
        if self._labelled:
            label, tab, text = line.partition(b"\t")
            if tab and (own := self._files.get(label.decode(errors="replace"))):
                path, line = own, text
        if path not in self._open:  # what an earlier driver copied is copied again
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._open[path] = os.open(path, flags, 0o600)
        os.write(self._open[path], line)

    def close(self) -> None:
        """There is nothing more to come."""
        for fd in self._open.values():
            os.close(fd)


def follow_into(
    lines: pod_logs.Lines,
    files: Mapping[str, str],
    *,
    labelled: bool,
    pause: Callable[[float], Any] | None = None,
) -> pod_logs.Follower:
    """Copy the log of one pod into a file, or what each step in it prints into the file of that."""
    target = Files(files, labelled=labelled)
    return pod_logs.Follower(lines, target.write, close=target.close, pause=pause)


def write_output(path: str, logs: Mapping[str, str]) -> None:
    """Put what all tasks printed into one file, one task after the other."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
        for each in logs.values():
            with contextlib.suppress(FileNotFoundError), open(each, "rb") as source:
                while data := source.read(2**20):
                    target.write(data)

"""Runs one step of a group inside the group's own Flux instance, and prints what it prints under its name.

`python3 inside LABEL JOBSPEC` submits a job and stays until its end; `python3 inside --run LABEL COMMAND` is one
process. This file travels in the jobspec of the group, so it needs nothing but Python 3.7 and its own library.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import sys
from typing import Any, Iterable, Iterator  # noqa: UP035  Python 3.7 reads this

TIMED_OUT = 124
CANCELLED = 143
BEGIN, MIDDLE = b"\x1e", b"\x1f"
"""What stands before and behind the name in a line that belongs to a step inside."""
LOCK = ".mw/lock"
_ERRORS = 3
_NOT_FOR_JOBS = ("FLUX_", "PMI_", "PMIX_")
FOLLOW = (
    ("eventlog", "--follow", "--format=json", "--path=output"),
    ("wait-event", "--verbose", "--format=json", "--path=output", "--waitcreate"),
)
"""The words after `flux job` that print output as it comes; where the first break down, the others do it: some
versions of Flux end with a fault over them (flux-core issue 7780)."""
NEVER = "none-of-that-name"
"""The event that the second way waits for, and that never comes."""


def follow_words(way: int, job_id: str) -> list[str]:
    """The words of one of the ways to follow what a job prints."""
    return [*FOLLOW[way], job_id, *([NEVER] if way else [])]


def broke_down(code: int | None) -> bool:
    """Whether a program was ended by a fault of its own, as its parent or a shell sees it."""
    return code in (-6, -7, -11, 134, 135, 139)


class Lines:
    """Puts the pieces that tasks printed together to whole lines, as Flux recorded them."""

    def __init__(self, *, labels: bool = True) -> None:
        """`labels`: of several tasks each is told by its rank before its lines."""
        self._labels = labels
        self._rests: dict[tuple[str, str], bytes] = {}

    def add(self, text: bytes) -> Iterator[bytes]:
        """Take one recorded event; the lines that it completes."""
        try:
            event = json.loads(text)
            context: dict[str, Any] = event.get("context") or {}
        except (ValueError, AttributeError):
            return
        if event.get("name") == "header":
            self._labels = self._labels and context.get("count", {}).get("stdout", 1) > 1
        elif event.get("name") == "log" and context.get("level", 9) <= _ERRORS:
            yield f"flux-shell: {context.get('message', '')}".encode()
        elif event.get("name") == "data":
            yield from self._take(context)

    def _take(self, context: dict[str, Any]) -> Iterator[bytes]:
        key = (str(context.get("rank", "")), str(context.get("stream", "")))
        data = str(context.get("data") or "").encode()
        if context.get("encoding") == "base64":
            data = base64.b64decode(data)
        *lines, rest = (self._rests.pop(key, b"") + data).split(b"\n")
        before = f"{key[0]}: ".encode() if self._labels else b""
        for line in lines:
            yield before + line
        if rest and context.get("eof"):
            yield before + rest
        elif rest:
            self._rests[key] = rest

    def end(self) -> Iterator[bytes]:
        """What was left without an end of line."""
        for (rank, _), rest in self._rests.items():
            yield (f"{rank}: ".encode() if self._labels else b"") + rest
        self._rests = {}


def judge(events: Iterable[bytes]) -> int:
    """The exit code of a job, from its recorded events."""
    trouble, status = "", None
    for text in events:
        event = json.loads(text)
        context: dict[str, Any] = event.get("context") or {}
        if event["name"] == "exception" and context.get("severity") == 0:
            trouble = trouble or str(context.get("type"))
        elif event["name"] == "finish":
            status = int(context["status"])
    if trouble in ("timeout", "cancel"):
        return TIMED_OUT if trouble == "timeout" else CANCELLED
    if status is None:
        return 1
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 or (1 if trouble else 0)


def split_frame(line: bytes) -> tuple[str, bytes]:
    """Whose line it is, and the line; no name where it is the group's own."""
    if line.startswith(BEGIN) and MIDDLE in line:
        label, _, rest = line[1:].partition(MIDDLE)
        return label.decode(errors="replace"), rest
    return "", line


def _print(label: str, lines: Iterable[bytes]) -> None:
    """Print lines of a step, whole ones, whatever others print meanwhile."""
    before = b"" if label == "-" else BEGIN + label.encode() + MIDDLE
    data = b"".join(before + line + b"\n" for line in lines)
    if not data:
        return
    with open(LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while data:
            data = data[os.write(1, data) :]


def _submit(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        jobspec = json.load(file)
    system = jobspec["attributes"]["system"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_FOR_JOBS)}
    system["environment"] = {**kept, **system.get("environment", {})}
    done = subprocess.run(
        ["flux", "job", "submit"],  # noqa: S607  that of the instance
        input=json.dumps(jobspec).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.decode().strip()


def _flux(*words: str) -> subprocess.Popen[bytes]:
    command = ["flux", "job", *words]
    return subprocess.Popen(  # noqa: S603  a list of arguments: there is nothing to quote
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def _load_events(path: str, job_id: str) -> list[bytes]:
    with _flux("eventlog", "--format=json", f"--path={path}", job_id) as process:
        return process.communicate()[0].splitlines()


def _follow(label: str, job_id: str) -> int:
    """Print what a job prints until it is over; its exit code."""
    lines = Lines(labels=label != "-")
    count = _watch(label, lines, job_id)
    # Following an output that ends just then may miss its end, so the rest is read anew.
    for text in _load_events("output", job_id)[count:]:
        _print(label, lines.add(text))
    _print(label, lines.end())
    events = _load_events("eventlog", job_id)
    _print(label, (text for text in map(_describe, events) if text))
    return judge(events)


def _watch(label: str, lines: Lines, job_id: str) -> int:
    """Print output as it comes until the job is over; how many events that were."""
    count = 0
    with _flux("wait-event", job_id, "clean") as ending:
        for way in range(len(FOLLOW)):
            with _flux(*follow_words(way, job_id)) as output:
                count += _pump(label, lines, output.stdout, ending.stdout, count)
                output.terminate()
            if not broke_down(output.returncode):
                break
        ending.communicate()
    return count


def _pump(label: str, lines: Lines, output: Any, ending: Any, skipped: int) -> int:
    """Print what comes, but for what was printed before, until one of the two ends; how many events were new."""
    rest, count, reading = b"", 0, [output, ending]
    while len(reading) > 1:
        for file in select.select(reading, [], [])[0]:
            data = os.read(file.fileno(), 65536)
            if not data:
                reading.remove(file)
            elif file is output:
                *texts, rest = (rest + data).split(b"\n")
                new = texts[max(0, skipped - count) :]
                count += len(texts)
                _print(label, (line for text in new for line in lines.add(text)))
    return max(0, count - skipped)


def _describe(text: bytes) -> bytes:
    """What Flux says of a job that it ended."""
    event = json.loads(text)
    context: dict[str, Any] = event.get("context") or {}
    if event["name"] != "exception" or context.get("severity") != 0:
        return b""
    return f"flux: {context.get('type')}: {context.get('note', '')}".encode()


def _run(label: str, argv: list[str], errors: int | None) -> int:
    with subprocess.Popen(  # noqa: S603  words of the plan
        argv, stdout=subprocess.PIPE, stderr=errors
    ) as process:
        for line in process.stdout or ():
            _print(label, [line.rstrip(b"\n")])
    return 128 - process.returncode if process.returncode < 0 else process.returncode


def main(argv: list[str]) -> int:
    """Run one step; its exit code."""
    if argv[0] == "--run":
        return _run(argv[1], argv[2:], subprocess.STDOUT)
    if argv[0] == "--run-output":  # its errors go to a file, which whoever started this has opened
        return _run(argv[1], argv[2:], None)
    return _follow(argv[0], _submit(argv[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

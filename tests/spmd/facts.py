"""What can be seen of a run, as values that are the same under both launchers unless something differs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spmd.differences import Difference, explain
from spmd.sides import Case, Ran

Facts = dict[str, Any]
NOTHING = "<nothing>"
UNSET = "<unset>"
RUN_FOLDER = re.compile(r"[^/]+(?=/attempt_)|[^/]+_[^/]+$")
TIMESTAMP = re.compile(r'(?<="timestamp": ")\d+')
FREE_PORTS = range(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
"""Of which the kernel gives one to whoever asks for any."""
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ERROR_FILE = re.compile(r"(?P<logs>.*)/(?P<run>[^/]*)/(?P<rest>attempt_\d+/\d+/error\.json)")
THEIR_REPORT = re.compile(
    r"rank      : (\d+) \(local_rank: (\d+)\)\s+exitcode  : (-?\d+) \(pid: \d+\)"
)
OUR_REPORT = re.compile(
    r"rank (\d+) \(local rank (\d+) on host \S+\) (?:exited with code (\d+)|was ended by (\w+))"
)
OUR_RESTART = re.compile(r"restart \d+ of \d+$")
OTHERS_ENDED = re.compile(r"(\d+) other ranks? (?:was|were) ended for it")


def compare(case: Case, theirs: Facts, ours: Facts) -> tuple[list[Difference], list[str]]:
    """The documented differences between two runs, and all others in words."""
    ours = {**ours, **_seen_alike(theirs, ours)}
    documented: list[Difference] = []
    others: list[str] = []
    absent = {*theirs["ranks"]} ^ {*ours["ranks"]}
    for key in sorted({*theirs, *ours}):
        if key.startswith("rank ") and key.split()[1] in absent:
            continue
        pair = tuple(_text(facts.get(key, NOTHING)) for facts in (theirs, ours))
        if pair[0] != pair[1]:
            known = explain(case.name, key, *pair)
            if known:
                documented.append(known)
            else:
                others.append(f"{key}:\n  torchrun {pair[0]}\n  milkweed {pair[1]}")
    return documented, others


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _seen_alike(theirs: Facts, ours: Facts) -> Facts:
    """Milkweed marks all lines of ranks, torchrun those that it tees: these must be marked alike."""
    return {
        key: sorted((Counter(theirs[key]) & Counter(ours[key])).elements())
        for key in ("teed out", "teed err")
    }


def gather(
    case: Case, argv: Sequence[str], env: Mapping[str, str], ran: Ran, *, ours: bool
) -> Facts:
    """All that can be seen of a run."""
    found: Facts = {"code": ran.code, **_lines(case, ran, ours=ours), **_files(ran)}
    found["failures"] = (_our_failures if ours else _their_failures)(ran.log)
    found["made"] = sorted(name for name in os.listdir(ran.folder) if not _known(name, case))
    found["left behind"] = any(map(_is_left, ran.folder.glob("left-*")))
    if case.told:
        found["told"] = case.told in ran.log
    if case.within_s:
        found["in time"] = ran.seconds < case.within_s
    if "console" in argv:
        found["events"] = _events(ran.log)
    records = sorted((ran.folder / "ranks").glob("*.json"))
    found["ranks"] = [path.stem for path in records]
    for path in records:
        for key, value in _rank(json.loads(path.read_text()), argv, env, ran).items():
            found[f"rank {path.stem} {key}"] = value
    return found


def _known(name: str, case: Case) -> bool:
    given = {path.partition("/")[0] for path in case.files}
    return name in {"stdin", "train.py", "ranks", "logs", *given} or name.startswith(
        ("up-", "left-")
    )


def _is_left(path: Path) -> bool:
    """Whether a process lives for much longer than what is left behind takes to be ended."""
    process = Path("/proc", path.name.removeprefix("left-"), "cmdline")
    for _ in range(100):
        try:
            if b"sleep" not in process.read_bytes():
                return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


# What is shown


def _lines(case: Case, ran: Ran, *, ours: bool) -> Facts:
    marked = re.compile(case.prefix)
    own = [line for line in _split(ran.log) if marked.match(line)]
    shown = {"out": _split(ran.out), "err": own if ours else _split(ran.err) + own}
    found: Facts = {"ends with newline": ran.out[-1:] in {"", "\n"}}
    for name, lines in shown.items():
        found[name] = sorted(_plain(marked.sub("", line, count=1), ran) for line in lines)
        found[f"teed {name}"] = sorted(line for line in lines if marked.match(line))
    return found


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    return lines if lines.pop() == "" else text.split("\n")


def _plain(text: str, ran: Ran) -> str:
    return UUID.sub("<uuid>", text.replace(str(ran.folder), "<folder>"))


# What is written


def _files(ran: Ran) -> Facts:
    """Everything below `logs`; the folder of an attempt is in one whose name has a random part."""
    found: Facts = {}
    root = ran.folder / "logs"
    for path in sorted(root.rglob("*")):
        inside = RUN_FOLDER.sub("<run>", str(path.relative_to(root)))
        if path.is_file():
            found[f"file {inside}"] = _content(path.read_bytes().decode(errors="replace"), ran)
        else:
            found[f"folder {inside}"] = True
    return found


def _content(text: str, ran: Ran) -> object:
    text = TIMESTAMP.sub("<time>", text)
    lines = _split(_plain(text, ran))
    return sorted(lines) if len(lines) < 50 else [len(lines), lines[0], lines[-1]]


# Who failed


def _their_failures(log: str) -> object:
    report = log.rpartition("Failures:")[2]
    others, _, root = report.partition("Root Cause (first observed failure):")
    first = THEIR_REPORT.search(root)
    if not first:
        return NOTHING
    return [*map(int, first.groups()), len(THEIR_REPORT.findall(others))]


def _our_failures(log: str) -> object:
    lines = [line for line in _split(log) if not OUR_RESTART.search(line)]
    found = [match for line in lines if (match := OUR_REPORT.search(line))]
    if not found:
        return NOTHING
    rank, local, code, name = found[0].groups()
    ended = sum(int(match[1]) for match in map(OTHERS_ENDED.search, lines) if match)
    how = -signal.Signals[name] if name else int(code)
    return [int(rank), int(local), how, len(found) - 1 + ended]


def _events(log: str) -> list[str]:
    """What `--event-log-handler console` tells about ranks."""
    found = [json.loads(line) for line in _split(log) if line.startswith('{"name":')]
    return sorted(
        f"{event['name']} {event['source']} {event['metadata']['global_rank']}"
        for event in found
        if event["source"] == "WORKER"
    )


# What ranks are


def _rank(seen: Facts, argv: Sequence[str], env: Mapping[str, str], ran: Ran) -> Facts:
    """What a rank wrote down; of its variables those that the launcher does not have as they are."""
    variables = seen.pop("env")
    found = {key: json.loads(_plain(json.dumps(value), ran)) for key, value in seen.items()}
    for key in {*variables, *env}:
        if variables.get(key) != env.get(key):
            found[f"env {key}"] = _variable(key, variables.get(key, UNSET), argv, ran)
    run = ERROR_FILE.fullmatch(variables["TORCHELASTIC_ERROR_FILE"])
    if run:
        found["run folder"] = run["run"].startswith(f"{variables['TORCHELASTIC_RUN_ID']}_")
    return found


def _variable(key: str, value: str, argv: Sequence[str], ran: Ran) -> str:
    text = _plain(value, ran)
    if key == "MASTER_PORT" and not any(word.endswith(value) for word in argv):
        return "<port>" if int(value) in FREE_PORTS else value
    if key == "TORCHELASTIC_ERROR_FILE" and (match := ERROR_FILE.fullmatch(text)):
        logs = match["logs"] if re.match(r"<folder>|logs\b", match["logs"]) else "<elsewhere>"
        return f"{logs}/<run>/{match['rest']}"
    return text

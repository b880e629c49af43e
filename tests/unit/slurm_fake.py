"""A Slurm that prints what it was told to: small programs on PATH, which write down how they were called."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from milkweed.backends.slurm.check import Component, find_problems, make_error
from milkweed.backends.slurm.nodes import NodeRow
from milkweed.backends.slurm.places import PartData
from milkweed.backends.slurm.text import JobRow, Mark, render_mark

HEADING = "job|JOBID|JOBID|STATE|NODELIST|EXEC_HOST|START_TIME|END_TIME|TIME_LEFT|REASON|COMMENT|NAME|end\n"
EMPTY_QUEUE = f"echo '{HEADING.strip()}' >$home/squeue.out"
"""What the shell does when no job is left."""
NODES_HEADING = (
    "node|NODELIST|HOSTNAMES|NODE_ADDR|PARTITION|AVAIL|TIMELIMIT|JOB_SIZE|STATE|CPUS|MEMORY|GRES|"
    "AVAIL_FEATURES|REASON|end\n"
)
"""By them an answer without any job, or node, shows that it is one."""
COMMANDS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct", "srun")
APPLY_ID = "11111111-2222-4333-8444-555555555555"
START_S = 1_794_800_000.0
"""When jobs began, or will; one that was put back into the queue begins at another time."""

# Each call is one record in `calls`; `NAME.then` is what else happens when it is called.
PROGRAM = """#!/bin/sh
home='{home}'
{{ printf '%s\\037' {name} "$@"; printf '\\036'; }} >>"$home/calls"
[ -f "$home/{name}.stdin" ] && cat >"$home/{name}.stdin"
env | sort >"$home/{name}.env"
pwd >"$home/{name}.cwd"
[ -f "$home/{name}.then" ] && . "$home/{name}.then"
[ "{name} $*" = "scontrol show config" ] && [ -f "$home/config" ] && exec cat "$home/config"
[ "{name} $1" = "sbatch --test-only" ] && {{ cat "$home/refusal" >&2; ! [ -s "$home/refusal" ]; exit; }}
[ "{name} $1 $2" = "scontrol show partition" ] && exec cat "$home/partitions"
cat "$home/{name}.out"
cat "$home/{name}.err" >&2
exit "$(cat "$home/{name}.code")"
"""


class FakeSlurm:
    """What each command prints and was asked; until told otherwise all succeed, and there is nothing."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        self.bin.mkdir(parents=True)
        for name in COMMANDS:
            program = self.bin / name
            program.write_text(PROGRAM.format(home=home, name=name))
            program.chmod(0o755)
            self.answer(name)
        self.jobs()
        self.nodes()
        (home / "sbatch.stdin").touch()
        self.cluster("lab")
        self.would_take(refusal="allocation failure: Requested node configuration is not available")
        self.partitions()

    def answer(self, name: str, out: str = "", *, err: str = "", code: int = 0) -> None:
        """From now on a command prints this."""
        (self.home / f"{name}.out").write_text(out)
        (self.home / f"{name}.err").write_text(err)
        (self.home / f"{name}.code").write_text(str(code))

    def then(self, name: str, script: str) -> None:
        """Run a piece of shell whenever the command is called, before it prints; `$home` is our folder."""
        (self.home / f"{name}.then").write_text(script)

    def remove(self, name: str) -> None:
        """The command is not installed."""
        (self.bin / name).unlink()

    def be_away(self) -> None:
        """No command reaches the controller."""
        words = "Unable to contact slurm controller (connect failure)"
        for name in ("config", "partitions"):
            (self.home / name).unlink(missing_ok=True)
        self.would_take(refusal=f"allocation failure: {words}")
        for name in COMMANDS:
            self.answer(name, err=f"slurm_load_jobs error: {words}\n", code=1)

    def cluster(self, name: str, **settings: str) -> None:
        """The cluster's name, and its settings."""
        shown = "".join(f"{key} = {value}\n" for key, value in settings.items())
        text = f"BOOT_TIME = now\nClusterName             = {name}\n{shown}"
        (self.home / "config").write_text(text)

    def would_take(self, *, refusal: str = "") -> None:
        """What sbatch says when it is only asked whether a job could run: it could, or why not."""
        (self.home / "refusal").write_text(refusal and f"{refusal}\n")

    def partitions(self, **counts: int) -> None:
        """The cluster's partitions, with how many nodes each has."""
        lines = [
            f"PartitionName={name} AllowGroups=ALL Nodes=(null) TotalCPUs=4 TotalNodes={count} Power=\n"
            for name, count in counts.items()
        ]
        (self.home / "partitions").write_text("".join(lines))

    def nodes(self, *names: str, partition: str = "debug*", address: str = "", **more: str) -> None:
        """The cluster has these nodes."""
        shown = render_nodes(*names, partition=partition, address=address, **more)
        self.answer("sinfo", NODES_HEADING + shown)

    def jobs(self, *rows: str) -> None:
        """The queue has these jobs, as `line` writes them."""
        self.answer("squeue", "".join((HEADING, *rows)))

    @property
    def calls(self) -> list[list[str]]:
        """Every call so far: the command and its arguments."""
        path = self.home / "calls"
        text = path.read_text() if path.exists() else ""
        return [record.split("\037")[:-1] for record in text.split("\036")[:-1]]

    def called(self, name: str) -> list[list[str]]:
        """The arguments of every call of one command."""
        return [arguments for command, *arguments in self.calls if command == name]

    @property
    def submitted(self) -> list[list[str]]:
        """The arguments of every submission."""
        asked = ("--version", "--test-only")
        return [words for words in self.called("sbatch") if words[0] not in asked]

    @property
    def script(self) -> str:
        """What sbatch read last."""
        return (self.home / "sbatch.stdin").read_text()

    def environment(self, name: str) -> dict[str, str]:
        """The variables that a command saw last."""
        lines = (self.home / f"{name}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def folder(self, name: str) -> str:
        """Where a command ran last."""
        return (self.home / f"{name}.cwd").read_text().rstrip("\n")


def render_nodes(*names: str, partition: str = "debug*", address: str = "", **more: str) -> str:
    """What `sinfo` prints for nodes that are alike."""
    said = {"state": "idle", "cpus": "4", "memory": "2000", "gres": "(null)", "reason": "none"}
    said |= {"up": "up", "limit": "infinite", "features": "(null)", **more}
    return "".join(
        f"node|{name}|{name}|{address or name}|{partition}|{said['up']}|{said['limit']}|1-infinite|"
        f"{said['state']}|{said['cpus']}|{said['memory']}|{said['gres']}|{said['features']}|"
        f"{said['reason']}|end\n"
        for name in names
    )


def line(
    job_id: int = 7,
    *,
    state: str = "RUNNING",
    nodes: str = "",
    apply_id: str = APPLY_ID,
    generation: int = 0,
    component: int = 0,
    number: str = "",
    reason: str = "None",
    left: str = "1:00:00",
    start: str = "1794800000",
    comment: str = "",
) -> str:
    """A job as `squeue` prints it, with our mark."""
    mark = comment or render_mark(Mark(apply_id, generation, component, "demo"))
    return (
        f"job|{number or job_id}|{job_id}|{state}|{nodes}|n/a|{start}|N/A|{left}|{reason}|{mark}|"
        "demo|end\n"
    )


def shown(job_id: int = 7, *, state: str = "COMPLETED", code: str = "0:0", **more: str) -> str:
    """A job as `scontrol show job -o` prints it."""
    reason = more.get("reason", "None")
    return (
        f"JobId={job_id} JobName=demo UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A "
        f"JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
        f"ExitCode={code} RunTime=00:00:06 TimeLimit=01:00:00 StartTime=2026-11-16T03:56:08 "
        "EndTime=2026-11-16T03:56:14 Partition=debug NodeList=n1 BatchHost=n1 "
        "Command=(null) WorkDir=/ StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power= \n"
    )


def row(**more: Any) -> JobRow:
    """A job as a value; `component` and `generation` stand in its mark."""
    mark = Mark(APPLY_ID, more.pop("generation", 0), more.pop("component", 0), "demo")
    said: dict[str, Any] = {
        "job_id": 7,
        "leader": 7,
        "offset": None,
        "state": "RUNNING",
        "nodes": (),
        "batch_host": "",
        "start": START_S,
        "end": None,
        "time_left_s": None,
        "reason": "",
        "comment": render_mark(mark),
        "name": "demo",
    }
    return JobRow(**{**said, **more})


def node(name: str, **more: Any) -> NodeRow:
    """A node as a value."""
    said: dict[str, Any] = {
        "name": name,
        "hostname": name,
        "address": name,
        "partition": "debug",
        "partition_up": True,
        "default": True,
        "max_time_s": None,
        "min_nodes": 1,
        "max_nodes": None,
        "state": "idle",
        "cpus": 4,
        "memory_mb": 2000,
        "gpus": 0,
        "gres": "",
        "features": (),
        "reason": "",
    }
    return NodeRow(**{**said, **more})


def part(*hosts: str, number: str = "0.0", **more: Any) -> PartData:
    """A part's file with these hosts (`w/0`), as far as mapping hosts to nodes needs it."""
    names = [host.rpartition("/") for host in hosts]
    said: dict[str, Any] = {
        "apply_id": APPLY_ID,
        "part": number,
        "hosts": [{"mesh": mesh, "rank": int(rank)} for mesh, _, rank in names],
        "envs": {mesh: {} for mesh, *_ in names},
        "released": [],
        "addresses": {},
        "logs": "/nowhere/logs",
        "record_folder": "/nowhere",
        "port": 22222,
        "turn": 0,
        "keep": True,
        "with_client": False,
        "first": number.endswith(".0"),
    }
    return {**said, **more}


def check_components(components: Sequence[Component], rows: Sequence[NodeRow]) -> None:
    """Refuse what looks impossible, where Slurm itself has nothing to add."""
    if problems := find_problems(components, rows):
        raise make_error(problems)


def save_part_file(folder: Path, data: PartData) -> None:
    """Write a part's file where the backend looks for it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f"part-{data['part']}.json").write_text(json.dumps(data))


def write_log(path: Path, text: str, *, after_s: float = 1.0) -> Path:
    """A file that was written so long after the job began."""
    path.write_text(text)
    os.utime(path, (START_S + after_s,) * 2)
    return path

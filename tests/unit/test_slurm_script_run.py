"""The batch script as a shell reads it: whatever is in a path, each word arrives as it was given."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm.script import (
    EXIT_NOT_SHARED,
    LOADER,
    Submission,
    render_script,
)
from milkweed.backends.slurm.shape import Part, Shape
from programs import wait_until
from unit.keepers import WAIT_S
from unit.slurm_fake import APPLY_ID

# Writes down its arguments and what it reads, one file a component.
SRUN = """#!/bin/sh
at=$(mktemp "$RECORDS/srun.XXXXXX")
printf '%s\\0' "$@" >"$at.argv"
cat >"$at.stdin"
env >"$at.env"
exec 3>&1
readlink "/proc/$$/fd/3" >"$at.log"
stat -c %a "$(dirname "$(cat "$at.log")")" >"$at.mode" 2>/dev/null
echo "said by srun"
[ -z "$TASKS_STAY" ] || { touch "$RECORDS/stays"; exec sleep 600; }
exit "${TASKS_CODE:-0}"
"""
HOSTILE = [
    "with space",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME",
    "a;touch pwned;",
    "a&touch pwned",
    "a|touch pwned",
    "two\nlines",
    "MILKWEED_INVITATION",
    "\nMILKWEED_INVITATION\ntouch pwned\n",
    "back\\slash\\n",
    "*?[a]",
    "-rf",
    "mílkweed 蝶",
    "#hash",
    "!bang",
    "\t tab",
    "~",
]
PART = Part(shape=Shape(), hosts=(("w", 0), ("w", 1)))


class Node:
    """The node that a batch script runs on."""

    def __init__(self, root: Path) -> None:
        self.records = root / "records"
        self.work = root / "cwd"
        self.tmp = root / "tmp"
        self.bin = root / "bin"
        for folder in (self.records, self.work, self.tmp, self.bin):
            folder.mkdir()
        srun = self.bin / "srun"
        srun.write_text(SRUN)
        srun.chmod(0o755)

    def run(self, made: Submission, **env: str) -> subprocess.CompletedProcess[bytes]:
        """Run the script as Slurm would: by its first line, from the working folder."""
        return subprocess.run(
            ["/bin/sh"],
            input=render_script(made).encode(),
            cwd=self.work,
            env=self.env(env),
            capture_output=True,
            check=False,
        )

    def start(self, made: Submission, **env: str) -> subprocess.Popen[bytes]:
        """Start the script in a group of its own, and leave it running."""
        path = self.work / "script"
        path.write_text(render_script(made))
        return subprocess.Popen(
            ["/bin/sh", str(path)], cwd=self.work, env=self.env(env), start_new_session=True
        )

    def env(self, more: dict[str, str]) -> dict[str, str]:
        """The variables that Slurm gives to a script."""
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "RECORDS": str(self.records),
            "TMPDIR": str(self.tmp),
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NUM_NODES_HET_GROUP_0": "2",
            "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3",
            **more,
        }

    @property
    def steps(self) -> list[list[str]]:
        """The arguments of each srun, by component."""
        found = [path.read_bytes().decode() for path in self.records.glob("*.argv")]
        return sorted(text.split("\0")[:-1] for text in found)

    @property
    def invitations(self) -> list[dict[str, Any]]:
        """What each srun read, by component."""
        found = [json.loads(path.read_bytes()) for path in self.records.glob("*.stdin")]
        return sorted(found, key=lambda each: str(each["part"]))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def make(root: Path, name: str = "plain", **more: Any) -> Submission:
    """A submission whose folders have that name somewhere."""
    folders = {key: root / key / name.strip("/") for key in ("folder", "logs", "project")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    said: dict[str, Any] = {
        "apply_id": APPLY_ID,
        "name": "demo",
        "generation": 0,
        "first": 0,
        "parts": (PART,),
        "folder": str(folders["folder"]),
        "logs": str(folders["logs"]),
        "cwd": str(folders["project"]),
    }
    return Submission(**{**said, **more})


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    [mask] = re.findall(r"SigIgn:\s(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


def pwned(root: Path) -> list[Path]:
    return list(root.rglob("pwned"))


@pytest.mark.parametrize("name", HOSTILE)
def test_keepers_are_started_whatever_the_paths_are(node: Node, tmp_path: Path, name: str) -> None:
    """Folders, logs and Python with any name: srun gets its words, the keeper its invitation, and no more."""
    made = make(tmp_path, name, python=f"/usr/{name}/python")
    done = node.run(made)
    assert (done.returncode, done.stderr) == (0, b"")
    [words] = node.steps
    assert words[-4:-1] == [f"/usr/{name}/python", "-c", LOADER]
    assert node.invitations[0]["folder"] == made.folder
    assert Path(made.logs, "part.0.0.log").read_text() == "said by srun\n"
    assert pwned(tmp_path) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_batch_client_gets_its_words(node: Node, tmp_path: Path, name: str) -> None:
    """Command line, working folder, record and exit code of a batch client, whatever their names are."""
    program = (
        "import json, os, sys; "
        "print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['MILKWEED_STATE']])); sys.exit(7)"
    )
    client = (sys.executable, "-I", "-c", program, name, "", "last")
    made = make(tmp_path, name, client=client, state_path=f"/state/{name}.json")
    done = node.run(made)
    assert (done.returncode, done.stderr) == (7, b"")
    said = json.loads(Path(made.logs, "client.log").read_text())
    assert said == [[name, "", "last"], made.cwd, f"/state/{name}.json"]
    assert Path(made.folder, "exit").read_text() == "7\n"
    assert pwned(tmp_path) == []


def test_two_components_are_two_steps(node: Node, tmp_path: Path) -> None:
    """Each component has a step of its own, of the size that Slurm gave it, and its own log."""
    made = make(tmp_path, parts=(PART, PART), first=2)
    assert node.run(made).returncode == 0
    assert [words[:4] for words in node.steps] == [
        ["--het-group=0", "--no-kill", "--nodes=2", "--ntasks=2"],
        ["--het-group=1", "--no-kill", "--nodes=3", "--ntasks=3"],
    ]
    assert [each["part"] for each in node.invitations] == ["0.2", "0.3"]
    logs = sorted(path.name for path in Path(made.logs).iterdir())
    assert logs == ["part.0.2.log", "part.0.3.log"]


def test_the_size_is_the_one_the_job_has_now(node: Node, tmp_path: Path) -> None:
    """A job that starts again with fewer nodes starts as many keepers."""
    node.run(make(tmp_path), SLURM_JOB_NUM_NODES="1")
    assert {"--nodes=1", "--ntasks=1"} <= set(node.steps[0])


def test_keepers_that_fail_fail_the_job(node: Node, tmp_path: Path) -> None:
    """When no keeper could start, the job's exit code is not 0."""
    assert node.run(make(tmp_path), TASKS_CODE="3").returncode == 3


def test_a_failed_component_fails_the_job(node: Node, tmp_path: Path) -> None:
    """All components are waited for, and one that failed is not hidden by one that did not."""
    (node.bin / "srun").write_text(
        SRUN.replace('exit "${TASKS_CODE:-0}"', 'case "$*" in *het-group=0*) exit 5;; esac; exit 0')
    )
    assert node.run(make(tmp_path, parts=(PART, PART))).returncode == 5


def test_settings_of_the_batch_step_do_not_reach_the_keepers(node: Node, tmp_path: Path) -> None:
    """What would shape the step in another way is taken out of its environment; the rest stays."""
    node.run(
        make(tmp_path), SLURM_CPUS_PER_TASK="9", SLURM_MEM_PER_NODE="1", SLURM_JOB_ID="42", MINE="1"
    )
    [path] = node.records.glob("*.env")
    names = {text.partition("=")[0] for text in path.read_text().splitlines()}
    assert not names & {"SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE"}
    assert {"SLURM_JOB_ID", "MINE"} <= names


def test_logs_that_this_node_cannot_write_go_to_a_private_folder(
    node: Node, tmp_path: Path
) -> None:
    """A node without the folder for logs starts its keepers all the same, and keeps nothing afterwards."""
    made = make(tmp_path, logs=str(tmp_path / "not here"))
    assert node.run(made, TASKS_CODE="3").returncode == 3
    [log], [mode] = node.records.glob("*.log"), node.records.glob("*.mode")
    assert re.fullmatch(rf"{node.tmp}/milkweed-logs-\w+/part.0.0.log", log.read_text().strip())
    assert mode.read_text() == "700\n"
    assert list(node.tmp.iterdir()) == []
    assert not Path(made.logs).exists()


def test_a_private_folder_goes_with_a_job_that_is_cancelled(node: Node, tmp_path: Path) -> None:
    """Slurm asks the script to end before it kills it."""
    made = make(tmp_path, logs=str(tmp_path / "not here"))
    with node.start(made, TASKS_STAY="1") as script:
        wait_until((node.records / "stays").exists)
        assert len(list(node.tmp.iterdir())) == 1
        os.kill(script.pid, signal.SIGTERM)
        assert script.wait(WAIT_S) == 143
        os.killpg(script.pid, signal.SIGKILL)
    assert list(node.tmp.iterdir()) == []


def test_logs_are_closed_to_others(node: Node, tmp_path: Path) -> None:
    """What hosts print may be anything: only the owner reads it."""
    made = make(tmp_path)
    node.run(made)
    assert Path(made.logs, "part.0.0.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_programs_have_the_umask_of_who_submitted(node: Node, tmp_path: Path, umask: int) -> None:
    """A batch client writes as at home, and keepers are told how; what the script itself writes is closed."""
    made = make(tmp_path, client=("sh", "-c", "umask; echo x >mine"))
    before = os.umask(umask)
    try:
        assert node.run(made).returncode == 0
    finally:
        os.umask(before)
    log = Path(made.logs, "client.log")
    assert int(log.read_text(), 8) == umask
    assert Path(made.cwd, "mine").stat().st_mode & 0o777 == 0o666 & ~umask
    assert int(node.steps[0][-1], 8) == umask
    written = [log, Path(made.logs, "part.0.0.log"), Path(made.folder, "exit")]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}


def test_an_old_exit_code_is_not_taken_for_a_new_one(node: Node, tmp_path: Path) -> None:
    """A job that is put back into the queue forgets how its client ended before."""
    made = make(tmp_path)
    (Path(made.folder) / "exit").write_text("9\n")
    node.run(made)
    assert not (Path(made.folder) / "exit").exists()


def test_keepers_of_an_earlier_run_do_not_count_in_this_one(node: Node, tmp_path: Path) -> None:
    """A job that starts again soon, and on the same node, has no keeper that was there and is gone."""
    made = make(tmp_path)
    for name in ("up-0.0.0", "up-0.0.12", "up-0.1.0"):
        (Path(made.folder) / name).write_text("n1")
    node.run(made)
    assert [path.name for path in Path(made.folder).glob("up-*")] == ["up-0.1.0"]


def test_a_batch_client_without_its_folder_says_so(node: Node, tmp_path: Path) -> None:
    """Where the first node does not see the job's folder, a code of its own tells that."""
    made = make(tmp_path, client=("touch", "pwned"), folder=str(tmp_path / "elsewhere"))
    assert node.run(made).returncode == EXIT_NOT_SHARED
    assert pwned(tmp_path) == []


def test_a_batch_client_without_its_working_folder_is_not_run(node: Node, tmp_path: Path) -> None:
    """A client is never run in another folder than the one it was applied from."""
    made = make(tmp_path, client=("touch", "pwned"), cwd=str(tmp_path / "gone"))
    assert node.run(made).returncode == 1
    assert pwned(tmp_path) == []
    assert not Path(made.folder, "exit").exists()
    said = Path(made.logs, "client.log").read_text()
    assert str(tmp_path / "gone") in said
    assert f"its machine {os.uname().nodename} cannot enter" in said


@pytest.mark.parametrize(("there", "expected"), [(True, "own"), (False, "python")])
def test_the_clients_own_python_is_used_where_it_is(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, expected: str
) -> None:
    """`python` is the client's interpreter where the node has it, and the one on PATH elsewhere."""
    own = tmp_path / "own"
    monkeypatch.setattr(sys, "executable", str(own))
    if there:
        own.write_text("#!/bin/sh\n")
        own.chmod(0o755)
    node.run(make(tmp_path))
    assert Path(node.steps[0][-4]).name == expected


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_for_programs_does_not_end_the_script(
    node: Node, tmp_path: Path, number: signal.Signals
) -> None:
    """`--signal=B:USR1@60` of sbatch reaches the script alone, which waits on for its keepers."""
    with node.start(make(tmp_path), TASKS_STAY="1") as script:
        wait_until(lambda: ignores(script.pid, number))
        os.kill(script.pid, number)
        os.kill(script.pid, signal.SIGTERM)
        assert script.wait(WAIT_S) == -signal.SIGTERM
        os.killpg(script.pid, signal.SIGKILL)


def test_a_signal_for_programs_does_not_end_a_batch_script(node: Node, tmp_path: Path) -> None:
    """The client's own code is told, and the client itself may trap what is sent to it."""
    trap = "trap 'echo saved; exit 7' USR1; touch up; while :; do sleep 0.01; done"
    made = make(tmp_path, client=("sh", "-c", f"echo $$ >pid; {trap}"))
    with node.start(made, TASKS_STAY="1") as script:
        wait_until(Path(made.cwd, "up").exists)
        os.kill(script.pid, signal.SIGUSR1)
        os.kill(int(Path(made.cwd, "pid").read_text()), signal.SIGUSR1)
        assert script.wait(WAIT_S) == 7
        os.killpg(script.pid, signal.SIGKILL)
    assert Path(made.logs, "client.log").read_text() == "saved\n"
    assert Path(made.folder, "exit").read_text() == "7\n"


def test_srun_is_told_by_the_script_alone(node: Node, tmp_path: Path) -> None:
    """What the shell of the user, or the site, sets for every srun would shrink a keeper to one CPU, or end it."""
    told = {"SRUN_CPUS_PER_TASK": "", "SRUN_EXPORT_ENV": "NONE", "MINE": "a\nSRUN_X=1"}
    assert node.run(make(tmp_path), **told).stderr == b""
    [seen] = [path.read_text() for path in node.records.glob("*.env")]
    assert [line for line in seen.splitlines() if line.startswith("SRUN_")] == ["SRUN_X=1"]
    assert "MINE=a" in seen


def test_a_script_is_small_enough_for_slurm() -> None:
    """The worker travels with every job, within Slurm's limit on scripts."""
    assert len(render_script(make_bare())) < 1_000_000


def make_bare() -> Submission:
    return Submission(
        apply_id=APPLY_ID, name="x", generation=0, first=0, parts=(PART,), folder="/f", logs="/l"
    )

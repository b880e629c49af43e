"""The script of a job: as recorded, and run by a shell; nothing stays behind."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from milkweed.jobspec.graph import (
    Auth,
    Batch,
    Need,
    RunFile,
    Stage,
    Step,
    Submit,
)
from milkweed.jobspec.runs import runs_folder
from milkweed.jobspec.transformers import group_controller
from milkweed.jobspec.transformers.slurm_files import make_end, pack
from milkweed.jobspec.transformers.slurm_script import EXIT_NOT_DELIVERED, render_task
from milkweed.jobspec.transformers.task_file import Task
from unit.jobspec_cases import CASES, check_golden
from unit.jobspec_slurm_scripts import (
    RUN_ID,
    WRITTEN,
    job_of,
    logs_of,
    plan_of,
    run_job,
    work,
    write,
)
from unit.slurm_script_runs import AWAY_ONCE, JOB_ID, Node

GOLDEN = Path(__file__).parents[1] / "golden" / "jobspec-slurm"


@pytest.fixture(autouse=True)
def _record(home: Path) -> None:
    """Every run of these tests has the same id, so it has the same folder."""
    (runs_folder() / RUN_ID).mkdir(parents=True, mode=0o700)
    for name in ("logs", "secrets", "parcels"):
        (runs_folder() / RUN_ID / name).mkdir(mode=0o700)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node."""
    return Node(tmp_path / "node")


@pytest.mark.parametrize("name", CASES)
def test_what_is_submitted_is_recorded(name: str, home: Path) -> None:
    """Command line and script, each line as it is expected."""
    details = job_of(*CASES[name])
    source = (Path(group_controller.__file__)).read_text()
    steady = details["script"].replace(str(home), "<home>").replace(source, "<controller>\n")
    check_golden(GOLDEN / f"{name}.sh", steady.replace(make_end(source), "<end>"))
    check_golden(GOLDEN / f"{name}.args", "\n".join(details["command"]) + "\n")


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown_is_what_is_submitted(name: str) -> None:
    """The whole command line and the whole script can be read before anything runs."""
    plan = plan_of(*CASES[name])
    details: Any = plan.actions[-1].details
    shown = plan.render()
    for line in details["script"].splitlines():
        assert line.strip() in shown
    assert all(word in shown for word in details["command"])


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_job_runs_and_leaves_nothing(shell: str, node: Node, home: Path) -> None:
    """Its files are there while it runs, in a folder that nobody else can enter, and gone afterwards."""
    script = b"#!/bin/sh\npwd; stat -c %a .. ; ls; exit 5\n"
    job = Submit(id="job", needs=WRITTEN, work=work("/bin/sh", RunFile("run.sh")))
    assert run_job(node, write(content=script), job, shell=shell) == 5
    folder = node.tmp / f"milkweed-jobspec-{os.getuid()}-{JOB_ID}"
    assert logs_of(home).splitlines() == [f"{folder}/files", "700", "run.sh"]
    assert node.left == []
    record = home / "jobspec" / RUN_ID / "logs"
    assert (record / f".job.{JOB_ID}.exit").read_text() == "5\n"
    assert (record / f".job.{JOB_ID}.began").read_text() == f"{JOB_ID}\n"
    assert stat.S_IMODE((record / "job.log").stat().st_mode) == 0o600


def test_a_persons_own_variables_are_left_alone(node: Node, home: Path) -> None:
    """Names that a script might use for itself arrive as they were; the umask, too."""
    names = ["folder", "logs", "label", "record", "base", "code", "line", "i", "n"]
    said = {name: f"mine {name}" for name in names}
    show = "; ".join(f'echo "${name}"' for name in names)
    job = Submit(id="job", work=work("sh", "-c", f"umask; {show}", cwd="/"))
    mask = os.umask(0o027)
    try:
        assert run_job(node, job, **said) == 0
    finally:
        os.umask(mask)
    assert logs_of(home).splitlines() == ["0027", *said.values()]


def test_what_a_process_is_told(node: Node, home: Path) -> None:
    """The same variables as everywhere."""
    job = Submit(
        id="job", needs=WRITTEN, work=work("sh", "-c", "env | grep JOBSPEC_ | sort"), replicas=2
    )
    assert run_job(node, write(), job, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_JOB_ID="70") == 0
    folder = f"{node.tmp}/milkweed-jobspec-{os.getuid()}-{JOB_ID}"
    assert logs_of(home, "job+2").splitlines() == [
        f"JOBSPEC_FILES={folder}/files",
        "JOBSPEC_NODE=0",
        "JOBSPEC_NODES=1",
        "JOBSPEC_REPLICA=1",
        f"JOBSPEC_RUN={RUN_ID}",
        "JOBSPEC_STEP=job",
        "JOBSPEC_TASKS=1",
        "JOBSPEC_TASK_RANK=0",
    ]
    began = home / "jobspec" / RUN_ID / "logs" / f".job+2.{JOB_ID}.began"
    assert began.read_text() == "70\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [(("/nowhere",), 127), (("/etc/passwd",), 126), (("sh", "-c", "kill -9 $$"), 137)],
)
def test_exit_codes(argv: tuple[str, ...], code: int, node: Node) -> None:
    """As a shell tells them."""
    assert run_job(node, Submit(id="job", work=work(*argv))) == code
    assert node.left == []


def test_a_folder_that_is_not_there(node: Node, home: Path) -> None:
    """Work does not run somewhere else instead."""
    assert run_job(node, Submit(id="job", work=work("pwd", cwd="/no where"))) != 0
    assert "/no where" in logs_of(home)


def test_output_and_error(node: Node, tmp_path: Path) -> None:
    """They go where the file says; a name is not a pattern."""
    said = work(
        "sh", "-c", "echo out; echo err >&2", cwd=str(tmp_path), output="o %j $(id)", error="e"
    )
    assert run_job(node, Submit(id="job", work=said)) == 0
    assert (tmp_path / "o %j $(id)").read_text() == "out\n"
    assert (tmp_path / "e").read_text() == "err\n"
    both = work("sh", "-c", "echo out; echo err >&2", cwd=str(tmp_path), output="both")
    assert run_job(node, Submit(id="job", work=both)) == 0
    assert (tmp_path / "both").read_text() == "out\nerr\n"


def test_work_waits_for_a_controller_that_is_away(node: Node, home: Path) -> None:
    """Steps cannot start without it, and work that never ran must not look like work that failed."""
    (node.bin / "scontrol").write_text(AWAY_ONCE)
    (node.bin / "sleep").symlink_to("/bin/true")
    assert run_job(node, Submit(id="job", work=work("echo", "ran", cwd="/"))) == 0
    assert logs_of(home) == "ran\n"
    (node.bin / "scontrol").unlink()
    assert (
        run_job(
            node, Submit(id="other", work=work("echo", "ran", cwd="/")), PATH=f"{node.bin}:/bin"
        )
        == 0
    )


def test_work_that_could_not_start_is_started_again(node: Node, home: Path) -> None:
    """The controller went away between two words; work that has begun is never begun again."""
    (node.bin / "sleep").symlink_to("/bin/true")
    (node.bin / "scontrol").write_text(AWAY_ONCE)
    (node.bin / "scontrol.asked").touch()
    srun = (node.bin / "srun").read_text()
    fails = 'if [ ! -e "$0.failed" ]; then : >"$0.failed"; rm -f "${0%srun}scontrol.asked"; exit 1; fi\n'
    (node.bin / "srun").write_text(srun.replace("while", f"{fails}while", 1))
    job = Submit(id="job", work=work("sh", "-c", "echo ran; exit 4", cwd="/"))
    assert run_job(node, job) == 4
    assert logs_of(home) == "ran\n"
    assert len(node.calls.read_text().split("--ntasks=1")) == 3


def test_steps_do_not_take_the_allocations_settings(node: Node, home: Path) -> None:
    """Slurm's srun is told everything by arguments; a batch script sees what Slurm said."""
    show = work("sh", "-c", "echo ${SLURM_NTASKS:-none}", cwd="/")
    assert run_job(node, Submit(id="job", work=show), SLURM_NTASKS="8") == 0
    assert logs_of(home) == "none\n"
    batch = Batch(id="again", filename="run.sh", needs=WRITTEN, work=show)
    assert run_job(node, write(), batch, SLURM_NTASKS="8") == 0
    assert logs_of(home, "again") == "8\n"


SECRET = "s3cr et'\n$(id)\n"


def secret_steps(argv: tuple[str, ...]) -> tuple[Step, ...]:
    """Work that uses a secret."""
    auth = Auth(id="auth", secret="token", variable="MY_TOKEN", export="TOKEN")
    return auth, Submit(id="job", needs=(Need("auth"),), work=work(*argv, cwd="/"))


def test_secrets(node: Node, home: Path) -> None:
    """They come from the run's folder, to the byte, and are nowhere else."""
    (home / "jobspec" / RUN_ID / "secrets" / "token").write_text(SECRET)
    script = 'printf %s "$TOKEN"; cat "$JOBSPEC_SECRETS/token"; stat -c %a "$JOBSPEC_SECRETS/token"'
    found = secret_steps(("sh", "-c", script))
    details = job_of(*found)
    assert run_job(node, *found) == 0
    assert logs_of(home) == f"{SECRET}{SECRET}600\n"
    assert details["command"][:3] == ["env", "-u", "MY_TOKEN"]
    assert details["command"][3:6] == ["-u", "TOKEN", "sbatch"]
    assert "s3cr" not in str(details)
    assert "s3cr" not in node.calls.read_text()
    assert node.left == []


def test_a_secret_that_nobody_brings(node: Node, home: Path) -> None:
    """Where the run's folder is not seen, the job waits a while, and then says what is wrong."""
    found = secret_steps(("true",))
    script = job_of(*found)["script"].replace("mw_left=600", "mw_left=2")
    shutil.move(home, home.with_name("elsewhere"))
    assert node.run(script).returncode == EXIT_NOT_DELIVERED
    assert node.left == []


def test_staged_files(node: Node, home: Path, tmp_path: Path) -> None:
    """Small ones travel in the script, large ones are fetched from the run's folder."""
    small, large = tmp_path / "a 'small' one", tmp_path / "large"
    small.write_text("small\n")
    large.write_bytes(os.urandom(600_000))
    stages = (Stage(id="small", path=str(small)), Stage(id="large", path=str(large)))
    job = Submit(
        id="job",
        needs=(Need("small"), Need("large")),
        work=work("sh", "-c", "cat a*; wc -c <large"),
    )
    plan = plan_of(*stages, job)
    assert plan.actions[-1].details["parcels"] == ["large.tar.gz"]
    assert plan.actions[1].details == {"path": str(large), "parcel": "large.tar.gz"}
    with (home / "jobspec" / RUN_ID / "parcels" / "large.tar.gz").open("wb") as file:
        pack(large, file)
    assert run_job(node, *stages, job) == 0
    assert logs_of(home) == "small\n600000\n"


def test_a_place_that_somebody_else_took(node: Node, home: Path) -> None:
    """A link in the way is not followed."""
    elsewhere = node.tmp.parent / "elsewhere"
    elsewhere.mkdir()
    (node.tmp / f"milkweed-jobspec-{os.getuid()}-{JOB_ID}").symlink_to(elsewhere)
    assert run_job(node, Submit(id="job", work=work("true"))) == 1
    assert list(elsewhere.iterdir()) == []


def test_what_an_earlier_start_left_is_taken_over(node: Node, home: Path) -> None:
    """A folder of one's own from before is made anew."""
    old = node.tmp / f"milkweed-jobspec-{os.getuid()}-{JOB_ID}" / "files"
    old.mkdir(parents=True)
    (old / "stale").touch()
    assert run_job(node, write(), Submit(id="job", needs=WRITTEN, work=work("ls"))) == 0
    assert "stale" not in logs_of(home)


def test_a_script_that_is_too_long() -> None:
    """It is refused before anything runs."""
    content = os.urandom(5 * 2**20)
    with pytest.raises(ValueError, match=r"Slurm takes 4,190,208"):
        plan_of(write(content=content), Submit(id="job", needs=WRITTEN, work=work("true")))


def test_a_task_is_its_words() -> None:
    """Nothing but variables, a folder and the command."""
    task = Task(run_id="r", step_id="s", argv=("echo", "a b", RunFile("x.sh")), tasks=2, cwd=None)
    lines = render_task(task).splitlines()
    assert lines[-2:] == ['cd -- "$mw_files" || exit 1', "exec echo 'a b' \"$mw_files/\"x.sh"]

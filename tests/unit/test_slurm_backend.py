"""The Slurm backend with Slurm's commands: checking, asking, finding; and what is left when one of them fails."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.base import Request
from milkweed.backends.slurm import backend as module
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import BackendError, SpecError, UnreachableError
from milkweed.job.observing import observe
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import StateFile
from milkweed.status import Liveness
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, shown
from unit.slurm_jobs import OTHER_ID, SPEC, create, handle_of, left_behind, make_spec

HANDLE_KEYS = {"apply_id", "generation", "jobs", "folder", "sizes"}


# Checking


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (make_spec(partition="nosuch"), "there is no partition 'nosuch'"),
        (make_spec(5), "5 hosts, but partition 'debug' has 4"),
        (make_spec(cpus_per_task=99), "99 CPUs"),
        (make_spec(mem="64G"), "65536 MB of memory"),
        (make_spec(gpus_per_node=1), "1 GPUs"),
        (make_spec(constraint="h100"), "the feature 'h100'"),
    ],
)
def test_what_the_cluster_lacks_is_refused_before_sbatch(
    cluster: FakeSlurm, folder: Path, home: Path, spec: JobSpec, what: str
) -> None:
    """What could never run is told at once, and nothing was submitted or written."""
    with pytest.raises(SpecError, match=r"meshes\.w: ") as caught:
        create(spec)
    assert what in caught.value.what
    assert cluster.submitted == []
    assert left_behind(home) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"slurm_args": ["--nodes=9"]}, {"mem": "lots"}, {"time_limit": "soon"}]
)
def test_what_is_wrong_by_itself_is_refused_without_asking(
    cluster: FakeSlurm, options: dict[str, Any]
) -> None:
    """A malformed declaration needs no cluster to be refused."""
    with pytest.raises(SpecError):
        SlurmBackend().validate(make_spec(**options))
    assert cluster.calls == []


def test_a_cluster_that_does_not_answer_refuses_nothing(cluster: FakeSlurm) -> None:
    """What nobody knows to be wrong is not refused: Slurm decides when it is back."""
    cluster.answer(
        "sinfo", err="slurm_load_partitions: Unable to contact slurm controller\n", code=1
    )
    SlurmBackend().validate(make_spec(999, partition="nosuch"))


def test_without_slurm_the_error_says_where_to_go(
    tmp_path: Path, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without Slurm nothing is begun."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(BackendError, match=r"there is no .*sbatch here") as caught:
        create()
    assert "login node" in caught.value.hint
    assert left_behind(home) == []


# Submitting


def test_a_submission_gives_a_handle(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """Plain data that finds the allocation again; the job carries our mark."""
    record = create()
    assert record.handle is not None
    assert set(record.handle) == HANDLE_KEYS
    assert (record.handle["jobs"], record.handle["generation"]) == ([7], 0)
    assert record.handle["folder"] == str(home / "jobs" / APPLY_ID)
    assert json.loads(json.dumps(record.handle)) == record.handle
    [arguments] = cluster.submitted
    assert f"--comment=milkweed:1:{APPLY_ID}:0:0:demo" in arguments
    assert cluster.script.startswith("#!/bin/sh\n")


def test_secrets_stay_in_private_files(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """Variables and keys are in files of the owner's alone, and not in what Slurm was given."""
    create()
    job = home / "jobs" / APPLY_ID
    private = [path for path in job.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    folders = [job, *(path for path in job.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert "s3cret" in (job / "part-0.0.json").read_text()
    keys = [path.read_text() for path in private if path.name == "tls.key"]
    told = cluster.script + "\0".join(map(str, cluster.calls)) + str(cluster.environment("sbatch"))
    assert keys
    assert not [key for key in keys if key.splitlines()[1] in told]
    assert "s3cret" not in told


def test_two_shapes_are_one_submission(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """Components of different shapes are given together or not at all."""
    meshes = (MeshSpec(name="a", hosts=1), MeshSpec(name="b", hosts=2))
    own = {"b": {"ntasks_per_node": 2}}
    create(JobSpec(name="demo", backend="slurm", meshes=meshes, options={"meshes": own}))
    [arguments] = cluster.submitted
    assert arguments.count(":") == 1
    assert sorted(path.name for path in (home / "jobs" / APPLY_ID).glob("part-*")) == [
        "part-0.0.json",
        "part-0.1.json",
    ]


@pytest.mark.parametrize(("script", "survives"), [((), True), (("train.py",), False)])
def test_a_batch_client_is_not_outlived_by_its_hosts(
    cluster: FakeSlurm, folder: Path, home: Path, script: tuple[str, ...], survives: bool
) -> None:
    """When the node of a batch client fails its job must not go on without it; other jobs keep their hosts."""
    create(client_script=script)
    [arguments] = cluster.submitted
    assert ("--no-kill" in arguments) is survives
    assert ("--no-kill" in cluster.script) is survives


def test_logs_go_where_they_were_wanted(cluster: FakeSlurm, folder: Path, tmp_path: Path) -> None:
    """A folder for each allocation below the one that was named, so that two never share a file."""
    create(make_spec(log_dir=str(tmp_path / "my logs")))
    logs = tmp_path / "my logs" / f"demo-{APPLY_ID[:8]}"
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    assert f"logs='{logs}'" in cluster.script


def test_a_folder_for_logs_that_cannot_be_made(
    cluster: FakeSlurm, folder: Path, home: Path, tmp_path: Path
) -> None:
    """The error names the parameter, and nothing is left."""
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="log_dir: ") as caught:
        create(make_spec(log_dir=str(tmp_path / "file" / "logs")))
    assert "write to" in caught.value.hint
    assert (cluster.submitted, left_behind(home)) == ([], [])


def test_a_batch_client_is_in_the_script(cluster: FakeSlurm, folder: Path) -> None:
    """The client's command line, its folder and where its job is on record."""
    record = create(client_script=("python", "train.py", "a b"))
    assert "exec python train.py 'a b') </dev/null" in cluster.script
    assert f"{{ cd {folder} || {{ echo" in cluster.script
    assert f"MILKWEED_STATE={(folder / 'job.json').resolve()}" in cluster.script
    assert record.batch


# Refused, lost, unknown


@pytest.mark.parametrize("log_dir", [None, "logs"])
def test_a_refusal_leaves_nothing(
    cluster: FakeSlurm, folder: Path, home: Path, log_dir: str | None
) -> None:
    """When sbatch says no, its own words are told, and neither record nor keys nor folders stay."""
    cluster.answer(
        "sbatch", err="sbatch: error: Batch job submission failed: Invalid qos\n", code=1
    )
    options = {"log_dir": str(folder / log_dir)} if log_dir else {}
    with pytest.raises(BackendError, match="Slurm refused") as caught:
        create(make_spec(**options))
    assert "Invalid qos" in caught.value.seen
    assert "sacctmgr" in caught.value.hint
    assert left_behind(home) == []
    assert [path for path in folder.rglob("*") if path.name != "logs"] == []


def test_a_lost_answer_is_found_again(cluster: FakeSlurm, folder: Path) -> None:
    """What sbatch took though its answer was lost: the intent stays, and the next look finds the job."""
    away = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    cluster.answer("sbatch", err=away, code=1)
    with pytest.raises(UnreachableError):
        create()
    record = StateFile("job.json").load()
    assert record is not None
    assert (record.phase, record.apply_id, record.handle) == ("intent", APPLY_ID, None)
    cluster.jobs(line(41, state="PENDING"))
    found, observed = observe(SlurmBackend(), record, StateFile("job.json"))
    assert found is not None
    assert found.handle == handle_of(41)
    assert observed.status is not None
    assert observed.status.liveness is Liveness.PENDING


def test_an_answer_without_a_number_is_not_known(cluster: FakeSlurm, folder: Path) -> None:
    """Whatever a site's own sbatch prints: it may have taken the job, and the next look finds it by its mark."""
    cluster.answer("sbatch", "thank you\n")
    with pytest.raises(UnreachableError, match="cannot be read") as caught:
        create()
    assert "thank you" in caught.value.seen
    record = StateFile("job.json").load()
    assert record is not None
    assert record.phase == "intent"
    cluster.jobs(line(41))
    found, _observed = observe(SlurmBackend(), record, StateFile("job.json"))
    assert found is not None
    assert found.handle == handle_of(41)


# Finding


def test_an_allocation_is_found_by_its_mark(cluster: FakeSlurm) -> None:
    """Without any file of ours: all jobs with the mark, and no other."""
    cluster.jobs(
        line(41), line(42, component=1), line(43, apply_id=OTHER_ID), line(44, comment="mine")
    )
    assert SlurmBackend().find(APPLY_ID) == handle_of(41, 42)


def test_what_is_not_there_is_not_there(cluster: FakeSlurm) -> None:
    """A queue that was read and has no such job is certain."""
    cluster.jobs(line(43, apply_id=OTHER_ID))
    assert SlurmBackend().find(APPLY_ID) is None


def test_what_nobody_knows_is_not_taken_for_gone(cluster: FakeSlurm) -> None:
    """While the controller does not answer nobody says that a job does not exist."""
    cluster.be_away()
    with pytest.raises(UnreachableError):
        SlurmBackend().find(APPLY_ID)
    with pytest.raises(UnreachableError):
        SlurmBackend().allocations()


def test_a_job_of_another_cluster_is_not_taken_for_gone(cluster: FakeSlurm, folder: Path) -> None:
    """Asked on another cluster than it was submitted to, nothing is known of a job."""
    create()
    cluster.cluster("elsewhere")
    module.commands.cluster_name.cache_clear()
    for ask in (lambda: SlurmBackend().find(APPLY_ID), lambda: SlurmBackend().cancel(handle_of())):
        with pytest.raises(UnreachableError, match="on the cluster lab, and this is elsewhere"):
            ask()
    assert SlurmBackend().poll(handle_of()).liveness is Liveness.UNKNOWN


def test_the_queue_lists_what_is_ours(cluster: FakeSlurm) -> None:
    """Every living allocation once, with its name; those that ended, and jobs of others, are not listed."""
    cluster.jobs(
        line(41),
        line(42, component=1),
        line(43, apply_id=OTHER_ID, state="CANCELLED"),
        line(44, comment="milkweed:2:x"),
    )
    assert SlurmBackend().allocations() == {APPLY_ID: "demo"}


# Looking


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", Liveness.PENDING),
        ("COMPLETING", Liveness.UNKNOWN),
        ("CANCELLED", Liveness.ENDED),
    ],
)
def test_what_slurm_says_is_the_status(cluster: FakeSlurm, state: str, expected: Liveness) -> None:
    """Both looks agree while there are no hosts to be asked."""
    cluster.jobs(line(7, state=state))
    cluster.answer("scontrol", shown(state=state))
    backend = SlurmBackend()
    assert backend.poll(handle_of()).liveness is expected
    assert backend.glance(handle_of(), fresh=True).liveness is expected


def test_a_job_that_slurm_has_forgotten_has_ended(cluster: FakeSlurm) -> None:
    """A queue without the job is an end, told as such."""
    cluster.answer("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    cluster.answer("sacct", err="Slurm accounting storage is disabled\n", code=1)
    status = SlurmBackend().poll(handle_of())
    assert (status.liveness, "no trace of job 7" in status.reason) == (Liveness.ENDED, True)


def test_silence_is_unknown(cluster: FakeSlurm) -> None:
    """A controller that does not answer is never an end, and its words are the reason."""
    cluster.be_away()
    for status in (SlurmBackend().poll(handle_of()), SlurmBackend().glance(handle_of())):
        assert status.liveness is Liveness.UNKNOWN
        assert "Unable to contact slurm controller" in status.reason


def test_a_request_without_a_record_is_not_kept(cluster: FakeSlurm, home: Path) -> None:
    """Hosts that nobody will look for are told to end with their client."""
    registry.folder_of(APPLY_ID).mkdir(parents=True)
    SlurmBackend().submit(Request(spec=SPEC, apply_id=APPLY_ID, keep=False))
    data = json.loads((home / "jobs" / APPLY_ID / "part-0.0.json").read_text())
    assert data["keep"] is False

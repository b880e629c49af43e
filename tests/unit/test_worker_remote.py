"""The start of a keeper on a scheduler's machine: its folder, its share, its certificate."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed import pki
from milkweed.backends.slurm.script import Submission, make_invitation
from milkweed.backends.slurm.shape import Part, Shape
from milkweed.worker import enrol, leaving, remote, tls, wire
from unit.slurm_fake import APPLY_ID, part, save_part_file

SHARE = "0.0.1"
SUBMISSION = Submission(
    apply_id=APPLY_ID,
    name="demo",
    generation=0,
    first=0,
    parts=(Part(shape=Shape(), hosts=(("w", 0), ("w", 1), ("w", 2))),),
    folder="/shared/job",
    logs="/shared/logs",
)
INVITATION = dict(make_invitation(SUBMISSION, 0))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this user's run folders; locks that a keeper holds for life end with the test."""
    folder = tmp_path / "runs"
    monkeypatch.setattr(remote, "runs_folder", lambda: folder)
    yield folder
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        if os.path.exists(link) and os.readlink(link).startswith(str(folder)):
            os.close(int(number))


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every sleep, none of which takes time."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The run folder


def test_a_run_folder_is_private_and_locked(runs: Path) -> None:
    """All of it is the owner's alone, and its lock is held for as long as the keeper lives."""
    run = remote.ensure_run_folder(APPLY_ID, SHARE)
    assert run == runs / f"{APPLY_ID.replace('-', '')[:16]}.{SHARE}"
    assert {path.name for path in run.iterdir()} == {
        wire.LOCK_FILE,
        wire.LOG_FOLDER,
        wire.SOCKET_FOLDER,
    }
    assert {mode_of(path) for path in (runs, run, run / wire.LOG_FOLDER)} == {0o700}
    assert mode_of(run / wire.LOCK_FILE) == 0o600
    with open(run / wire.LOCK_FILE, "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_the_name_of_a_run_folder_leaves_room_for_sockets() -> None:
    """The name of a socket may have 107 bytes."""
    path = remote.runs_folder() / f"{'0' * 16}.99.99.9999" / wire.SOCKET_FOLDER
    assert len(str(path)) < 60
    assert str(os.getuid()) in str(path)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o701])
def test_a_folder_that_others_may_enter_is_refused(runs: Path, mode: int) -> None:
    """Somebody could have prepared what the keeper is about to use."""
    runs.mkdir()
    runs.chmod(mode)
    with pytest.raises(SystemExit, match="only this user can enter"):
        remote.ensure_run_folder(APPLY_ID, SHARE)
    assert mode_of(runs) == mode


def test_a_folder_of_somebody_else_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a closed one: its owner can open it at any time."""
    runs.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: runs.stat().st_uid + 1)
    with pytest.raises(SystemExit, match="only this user can enter"):
        remote.ensure_run_folder(APPLY_ID, SHARE)


def test_a_link_in_place_of_the_folder_is_refused(runs: Path, tmp_path: Path) -> None:
    """A link leads wherever its maker wants."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SystemExit, match="only this user can enter"):
        remote.ensure_run_folder(APPLY_ID, SHARE)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_a_dead_keeper_left_is_replaced(runs: Path, sleeps: list[float]) -> None:
    """Nobody holds its lock, so nobody is there: the folder is made anew, at once."""
    run = remote.ensure_run_folder(APPLY_ID, SHARE)
    (run / "keeper.json").write_text("{}")
    for number in os.listdir("/proc/self/fd"):
        if os.path.realpath(f"/proc/self/fd/{number}") == str(run / wire.LOCK_FILE):
            os.close(int(number))
    again = remote.ensure_run_folder(APPLY_ID, SHARE)
    assert (again, (run / "keeper.json").exists(), sleeps) == (run, False, [])


def test_a_folder_without_a_lock_is_replaced(runs: Path) -> None:
    """A keeper that ended before it took the lock left it."""
    run = runs / f"{APPLY_ID.replace('-', '')[:16]}.{SHARE}"
    run.mkdir(parents=True)
    runs.chmod(0o700)
    assert remote.ensure_run_folder(APPLY_ID, SHARE) == run


def test_a_keeper_that_still_leaves_is_waited_for(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was put back into the queue may start where its last run is still ending."""
    run = remote.ensure_run_folder(APPLY_ID, SHARE)
    slept: list[float] = []

    def leave(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (run / wire.LOCK_FILE).unlink()

    monkeypatch.setattr(time, "sleep", leave)
    assert remote.ensure_run_folder(APPLY_ID, SHARE) == run
    assert len(slept) == 3


def test_a_keeper_that_does_not_leave_is_not_disturbed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, sleeps: list[float]
) -> None:
    """Two keepers of one share would take each other's files: the second gives up, and says why."""
    monkeypatch.setattr(remote, "CLAIM_S", -1.0)
    run = remote.ensure_run_folder(APPLY_ID, SHARE)
    (run / "keeper.json").write_text("{}")
    with pytest.raises(SystemExit, match="in use by another keeper"):
        remote.ensure_run_folder(APPLY_ID, SHARE)
    assert (run / "keeper.json").exists()


def test_shares_of_one_job_do_not_meet(runs: Path) -> None:
    """Two hosts of a job on one machine have folders of their own."""
    first = remote.ensure_run_folder(APPLY_ID, "0.0.0")
    second = remote.ensure_run_folder(APPLY_ID, "0.0.1")
    assert first != second
    assert first.is_dir()


def test_a_keeper_that_leaves_takes_no_other_folder_with_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last keeper of a machine removes the folder above its own, just when the next one begins."""
    remove = remote.shutil.rmtree

    def leave_meanwhile(path: Path, **more: Any) -> None:
        remove(path, **more)
        runs.rmdir()
        monkeypatch.setattr(remote.shutil, "rmtree", remove)

    monkeypatch.setattr(remote.shutil, "rmtree", leave_meanwhile)
    assert remote.ensure_run_folder(APPLY_ID, SHARE).is_dir()


# What the job's folder says


def test_a_folder_that_shows_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared file system may take a moment to show what the client wrote."""
    slept: list[float] = []

    def show(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            save_part_file(tmp_path, part("w/0"))

    monkeypatch.setattr(time, "sleep", show)
    found = remote.load_start(tmp_path, "0.0")
    assert found is not None
    assert found["part"] == "0.0"


def test_a_folder_that_is_not_seen_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps: list[float]
) -> None:
    """A machine without a shared file system is told in another way."""
    monkeypatch.setattr(remote, "PATIENCE_S", -1.0)
    assert remote.load_start(tmp_path / "none", "0.0") is None


# The share of one machine


def make_start(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """What the job's folder says, with a certificate for n1 and n2."""
    authority = pki.make_authority("job")
    folder = tmp_path / "host"
    pki.save_credentials(folder, authority.issue(["n1", "n2"]), authority.cert_pem)
    said = {
        "certificates": [
            {"folder": "/elsewhere", "nodes": ["n8"]},
            {"folder": str(folder), "nodes": ["n1", "n2"]},
        ],
        "cwd": str(tmp_path),
        "logs": str(tmp_path),
        "addresses": {"n2": "10.0.0.2"},
        "record_folder": str(tmp_path / "record"),
        "turn": 0,
        "idle_timeout_s": 60.0,
    }
    return dict(part("w/0", "w/1", "w/2", **{**said, **more}))


def share(start: dict[str, Any], tmp_path: Path, index: int = 1) -> dict[str, Any]:
    run = tmp_path / f"run{index}"
    run.mkdir()
    return remote.make_share(start, INVITATION, index, run)


@pytest.fixture(autouse=True)
def _on_n2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")


def test_a_machine_keeps_the_host_of_its_task(tmp_path: Path) -> None:
    """Its one host, by the number of its task, with all a keeper needs."""
    made = share(make_start(tmp_path), tmp_path)
    [host] = made["hosts"]
    assert (host["mesh"], host["rank"], host["transport"]) == ("w", 1, "tls")
    assert (host["name"], host["port"]) == ("10.0.0.2", 22222)
    assert host["log"] == f"{tmp_path}/w.1.log"
    assert (made["node"], made["share"], made["folder"]) == ("n2", SHARE, "/shared/job")
    assert made["control"] == {"port": 22222, "folder": str(tmp_path / "run1" / "tls")}


def test_tasks_are_counted_along_the_hosts_that_are_left(tmp_path: Path) -> None:
    """After a release, a job that starts again has as many tasks as hosts, and nobody keeps a released one."""
    start = make_start(tmp_path, released=[0])
    first, second = (share(start, tmp_path, index) for index in (0, 1))
    assert (first["hosts"][0]["rank"], second["hosts"][0]["rank"]) == (1, 2)
    assert (first["share"], second["share"]) == ("0.0.1", "0.0.2"), "files are named by the host"
    assert (first["record_folder"], second["record_folder"]) == (str(tmp_path / "record"), "")


def test_a_machine_that_was_let_in_keeps_the_host_it_was_told_to_be(tmp_path: Path) -> None:
    """Others may have been given back while it waited: its task is counted along those of the start."""
    start = make_start(tmp_path, released=[0, 1], own="w/2")
    made = share(start, tmp_path, 2)
    assert (made["hosts"][0]["rank"], made["share"]) == (2, "0.0.2")


def test_a_task_too_many_has_no_host(tmp_path: Path) -> None:
    """It says so and ends."""
    with pytest.raises(SystemExit, match=r"no host for place 3 of part 0\.0"):
        share(make_start(tmp_path), tmp_path, 3)
    with pytest.raises(SystemExit, match="no host"):
        share(make_start(tmp_path, released=[0, 1]), tmp_path, 1)


def test_a_machine_knows_whether_a_client_was_there_before(tmp_path: Path) -> None:
    """Of this part, as its last run wrote down: added hosts wait for a first client of their own."""
    start = make_start(tmp_path)
    invitation = {**INVITATION, "folder": str(tmp_path)}

    def met(index: int) -> bool:
        (tmp_path / f"run{index}").mkdir()
        return remote.make_share(start, invitation, index, tmp_path / f"run{index}")["met"]

    (tmp_path / wire.met_file("0.1")).touch()
    assert not met(0)
    leaving.note_met({"folder": str(tmp_path), "share": SHARE})
    assert met(1)
    assert mode_of(tmp_path / wire.met_file("0.0")) == 0o600
    leaving.note_met({"folder": str(tmp_path / "not here"), "share": SHARE})


def test_variables_have_the_certificates_place(tmp_path: Path) -> None:
    """The host's own variables, and where the engine finds its certificate: paths, no secrets."""
    start = make_start(tmp_path)
    start["envs"] = {"w": {"A": "1"}}
    env = share(start, tmp_path)["hosts"][0]["env"]
    assert env["A"] == "1"
    assert env["HYPERACTOR_TLS_KEY"] == f"{tmp_path}/run1/tls/tls.key"
    assert "PRIVATE" not in json.dumps(env)


@pytest.mark.parametrize(("index", "first", "tidies"), [(0, True, 1), (1, True, 0), (0, False, 0)])
def test_one_keeper_tidies_up(tmp_path: Path, index: int, first: bool, tidies: int) -> None:
    """The first host of the first part removes the job's folder when nobody keeps it; no other does."""
    made = share(make_start(tmp_path, first=first), tmp_path, index)
    assert bool(made["record_folder"]) == bool(tidies)


def test_folders_that_are_not_there_are_replaced(tmp_path: Path) -> None:
    """Without the working folder a host runs in the root, without the folder for logs it keeps them itself."""
    made = share(make_start(tmp_path, cwd="/no/such", logs="/no/such"), tmp_path)
    assert made["cwd"] == "/"
    assert made["logs"] == f"{tmp_path}/run1/{wire.LOG_FOLDER}"
    assert made["hosts"][0]["log"].startswith(made["logs"])


def test_without_slurms_name_the_machines_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other schedulers may not say what they call a machine."""
    monkeypatch.delenv("SLURMD_NODENAME")
    assert remote.node_of(INVITATION) == os.uname().nodename


# Certificates


def test_a_certificate_is_found_by_the_name_of_the_machine(tmp_path: Path) -> None:
    """The one that carries it; none for a machine that nobody thought of."""
    start = make_start(tmp_path)
    assert remote.find_certificate(start, "n1") == str(tmp_path / "host")
    assert remote.find_certificate(start, "n8") == "/elsewhere"
    assert remote.find_certificate(start, "n") == ""


def test_credentials_are_copied_to_private_files(tmp_path: Path) -> None:
    """What was read once needs no shared file system any more; nobody else can read it."""
    old = os.umask(0)
    try:
        remote.copy_credentials(make_start(tmp_path), "n2", tmp_path)
    finally:
        os.umask(old)
    folder = tmp_path / wire.TLS_FOLDER
    assert mode_of(folder) == 0o700
    assert {path.name: mode_of(path) for path in folder.iterdir()} == dict.fromkeys(
        tls.FILES, 0o600
    )
    for name in tls.FILES:
        assert (folder / name).read_bytes() == (tmp_path / "host" / name).read_bytes()


def test_credentials_that_were_brought_stay(tmp_path: Path) -> None:
    """A machine that was let in through the job has its own already."""
    run = tmp_path / "run1"
    (run / wire.TLS_FOLDER).mkdir(parents=True)
    (run / wire.TLS_FOLDER / "tls.key").write_text("own")
    remote.make_share(make_start(tmp_path), INVITATION, 1, run)
    assert (run / wire.TLS_FOLDER / "tls.key").read_text() == "own"


@pytest.mark.parametrize("case", ["no folder", "no certificate"])
def test_a_machine_that_nobody_thought_of_asks_to_be_let_in(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Without the job's folder, or without a certificate in it, the keeper waits for its owner."""
    monkeypatch.setattr(remote, "PATIENCE_S", -1.0)
    monkeypatch.setenv("SLURM_PROCID", "1")
    if case == "no certificate":
        save_part_file(tmp_path, make_start(tmp_path, certificates=[]))

    def ask(_invitation: object, run: Path) -> dict[str, Any]:
        raise SystemExit(f"asked in {run.name}")

    monkeypatch.setattr(enrol, "wait_for_start", ask)
    with pytest.raises(SystemExit, match=r"asked in 1111111122224333\.0\.0\.1"):
        remote.main({**INVITATION, "folder": str(tmp_path)})

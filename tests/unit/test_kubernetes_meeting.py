"""Pods that come anew, or whose containers do: they know of the time before, so that no mesh stays for ever."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes import backend
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.reasons import describe_pod, is_hopeless
from milkweed.backends.kubernetes.start import (
    LEASE_OVER,
    LOADER,
    MOUNT,
    RUN_MOUNT,
    make_invitation,
    secret_name,
)
from milkweed.errors import UnreachableError
from milkweed.kube.answers import ApiError
from milkweed.kube.resources import MESHES, SECRETS
from milkweed.operator.ending import SPREAD_S, is_over
from milkweed.worker.lease import LEFT_GRACE_S, Lease
from milkweed.worker.remote import make_share
from unit.kubernetes_jobs import (
    APPLY_ID,
    FOUND,
    Space,
    make_pod,
    make_spec,
    mesh_name,
    read_secret,
    submit,
)
from unit.operator_farewell import farewell
from unit.test_operator_ending import make_world

MAIN = "import json\ndef main(invitation):\n    print(json.dumps(invitation))\n    return 0\n"


def queued(space: Space) -> list[bool]:
    """Whether pods that come now wait for a client without end, mesh by mesh."""
    secret = read_secret(space, secret_name(APPLY_ID))
    return [json.loads(value)["queued"] for key, value in secret.items() if key.startswith("part-")]


# The first client


def test_pods_that_come_after_a_client_do_not_wait_for_one_without_end(space: Space) -> None:
    """The first ones do; nothing else of what pods are told changes, and it is told once."""
    handle = submit(make_spec({"a": 1, "b": 2}))
    before = read_secret(space, secret_name(APPLY_ID))
    assert queued(space) == [True, True]
    KubernetesBackend().joined(handle, ["w/0"])
    assert queued(space) == [False, False]
    after = read_secret(space, secret_name(APPLY_ID))
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"part-0", "part-1"}
    space.asked.clear()
    KubernetesBackend().joined(handle, ["w/0"])
    assert space.asked == []


def test_a_client_of_another_machine_finds_it_told(space: Space, home: Path) -> None:
    """It is read once, and not written."""
    handle = submit()
    KubernetesBackend().joined(handle, ["w/0"])
    shutil.rmtree(home)
    (home / "jobs" / APPLY_ID).mkdir(parents=True, mode=0o700)
    writes = len(space.writes)
    KubernetesBackend().joined(handle, ["w/0"])
    assert len(space.writes) == writes


def test_who_may_not_tell_it_is_connected_all_the_same(space: Space) -> None:
    """Pods then wait as the first ones did; the next client tries again."""
    handle = submit()
    space.forbidden.add(("patch", SECRETS.plural))
    KubernetesBackend().joined(handle, ["w/0"])
    assert queued(space) == [True]
    space.forbidden.clear()
    KubernetesBackend().joined(handle, ["w/0"])
    assert queued(space) == [False]


def test_pods_of_others_are_told_nothing(space: Space) -> None:
    """They have no keepers."""
    handle = submit(FOUND)
    space.asked.clear()
    KubernetesBackend().joined(handle, ["w/0"])
    assert space.asked == []


@pytest.mark.parametrize("met", [True, False])
@pytest.mark.parametrize("files", [True, False])
def test_a_change_of_size_does_not_make_it_forgotten(
    space: Space, home: Path, *, met: bool, files: bool
) -> None:
    """Hosts that come with it are as the others: only those of a job that nobody has used yet wait without end."""
    handle = submit()
    if met:
        KubernetesBackend().joined(handle, ["w/0"])
    if not files:
        shutil.rmtree(home)
    KubernetesBackend().resize(handle, make_spec({"w": 3}))
    assert queued(space) == [not met]
    assert space.get(MESHES, "lab", mesh_name())["spec"]["replicas"] == 3


@pytest.mark.parametrize("keep", [True, False])
def test_a_change_of_size_keeps_nobody_who_was_not_kept(space: Space, *, keep: bool) -> None:
    """Hosts of a program alone end with it, also those that it has asked for later."""
    handle = submit(keep=keep)
    KubernetesBackend().resize(handle, make_spec({"w": 3}))
    told = json.loads(read_secret(space, secret_name(APPLY_ID))["part-0"])
    assert told["keep"] is keep


# A record that comes later


def kept(space: Space) -> list[bool]:
    """Whether pods that come now outlive their client, mesh by mesh."""
    secret = read_secret(space, secret_name(APPLY_ID))
    return [json.loads(value)["keep"] for key, value in secret.items() if key.startswith("part-")]


def test_pods_that_come_after_a_record_outlive_their_client(space: Space) -> None:
    """They go on waiting for the first one, nothing else of what they are told changes, and it is told once."""
    handle = submit(make_spec({"a": 1, "b": 2}), keep=False)
    before = read_secret(space, secret_name(APPLY_ID))
    KubernetesBackend().keep(handle)
    after = read_secret(space, secret_name(APPLY_ID))
    assert (kept(space), queued(space)) == ([True, True], [True, True])
    assert {key for key in before if before[key] != after[key]} == {"part-0", "part-1"}
    writes = len(space.writes)
    KubernetesBackend().keep(handle)
    assert len(space.writes) == writes


def test_who_has_no_keepers_or_asks_nobody_tells_nobody(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods of others live as their owner likes, and a client without rights knows names alone."""
    handle = submit(FOUND, keep=False)
    space.asked.clear()
    KubernetesBackend().keep(handle)
    monkeypatch.setattr(backend, "is_blind", lambda _handle: True)
    KubernetesBackend().keep(handle)
    assert space.asked == []


@pytest.mark.parametrize(
    ("status", "raised"), [(404, None), (409, UnreachableError), (403, ApiError)]
)
def test_a_cluster_that_says_no_is_heard(
    space: Space,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    raised: type[Exception] | None,
) -> None:
    """What is gone needs no word; what others have changed is read once more; who may not do it is told."""
    handle, error = submit(keep=False), ApiError("the cluster says no")
    error.status = status

    def patch(*_: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(Space, "patch", patch)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        KubernetesBackend().keep(handle)
    assert kept(space) == [False]


def test_nothing_that_others_wrote_meanwhile_is_written_over(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that was read is the one that may be changed; whoever comes next notes it."""
    handle, sent = submit(), list[Any]()
    patch = space.patch
    monkeypatch.setattr(space, "patch", lambda *words: sent.append(words[-1]) or patch(*words))
    version = space.get(SECRETS, "lab", secret_name(APPLY_ID))["metadata"]["resourceVersion"]
    KubernetesBackend().joined(handle, ["w/0"])
    assert [each["metadata"] for each in sent] == [{"resourceVersion": version}]


# A container that is started again


def load(folder: Path) -> dict[str, Any]:
    """Run what a container runs first; what its worker is told."""
    mount, run = folder / "mount", folder / "run"
    for each in (mount, run):
        each.mkdir(exist_ok=True)
    (mount / "invitation.json").write_text(json.dumps(make_invitation(APPLY_ID, 0)))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("milkweed/__init__.py", "milkweed/worker/__init__.py"):
            archive.writestr(name, "")
        archive.writestr("milkweed/worker/remote.py", MAIN)
    (mount / "worker.zip").write_bytes(packed.getvalue())
    code = LOADER.replace(MOUNT, str(mount)).replace(RUN_MOUNT, str(run))
    done = subprocess.run(
        [sys.executable, "-u", "-c", code],
        env={**os.environ, "MILKWEED_POD": "w-3"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_container_knows_what_was_before_it(tmp_path: Path) -> None:
    """Whether there was one, since when, and whether the last one left because its lease was over."""
    first = load(tmp_path)
    assert (first["again"], first["left"]) == (False, False)
    assert 0 <= first["age_s"] < 60
    born = (tmp_path / "run" / "began").stat().st_mtime
    os.utime(tmp_path / "run" / "began", (born - 1000, born - 1000))
    (tmp_path / "run" / "left").touch()
    second, third = load(tmp_path), load(tmp_path)
    assert (second["again"], second["left"]) == (True, True)
    assert second["age_s"] >= 1000
    assert (third["again"], third["left"]) == (True, False)
    assert third["age_s"] >= second["age_s"]


def test_a_host_that_leaves_for_its_lease_leaves_a_word(tmp_path: Path) -> None:
    """For the operator, and for the container that comes next."""
    [shell, flag, words] = make_invitation(APPLY_ID, 0)["end"]
    words = words.replace(RUN_MOUNT, str(tmp_path)).replace(
        "/dev/termination-log", str(tmp_path / "log")
    )
    subprocess.run([shell, flag, words], check=True)
    assert (tmp_path / "log").read_text().strip() == LEASE_OVER
    assert (tmp_path / "left").exists()


def test_a_keeper_is_told_what_was_before(tmp_path: Path) -> None:
    """As far as whoever invited it says so."""
    (tmp_path / "tls").mkdir()
    start = {
        "hosts": [{"mesh": "w", "rank": 0}], "envs": {"w": {}}, "released": [], "logs": "", "addresses": {},
        "port": 1, "turn": 0, "cwd": "", "record_folder": "", "first": False, "queued": True,
    }  # fmt: skip
    told = {"part": "0.0", "folder": "", "node_env": "NO_NODE", "restart_env": "NO_TURN"}
    share = make_share(start, told, 0, tmp_path)
    assert (share["age_s"], share["left"], share["queued"]) == (0.0, False, True)
    again = {"age_s": 7.0, "left": True, "again": True}
    share = make_share(start, {**told, **again}, 0, tmp_path)
    assert (share["age_s"], share["left"], share["queued"]) == (7.0, True, False)


def test_a_host_that_left_is_not_given_up() -> None:
    """It ended well, however often: it is started again, and takes clients."""
    last = {"exitCode": 0, "reason": "Completed", "message": f"{LEASE_OVER}\n"}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    worker = {
        "name": "worker", "restartCount": 9,
        "state": {"waiting": waiting}, "lastState": {"terminated": last},
    }  # fmt: skip
    status = {"containerStatuses": [worker]}
    assert not is_hopeless(describe_pod(make_pod("w-0", labels={}, ready=False, status=status)))
    last["message"] = "something else"
    assert is_hopeless(describe_pod(make_pod("w-0", labels={}, ready=False, status=status)))


# Hosts that idle since different moments


@pytest.mark.parametrize("apart_s", [0.0, SPREAD_S + 30, 900.0, 3500.0])
def test_hosts_that_idle_since_different_moments_agree_in_the_end(apart_s: float) -> None:
    """The first says so again and again; when the last one does, the first was never up for long."""
    idle_s = 3600.0
    first = Lease(keep=True, idle_timeout_s=idle_s, born_s=0.0)
    last_at = idle_s + apart_s
    said_at = next(at for at in range(10_000) if first.over(float(at), 0))
    up_at = said_at + 1.0
    while up_at <= last_at:
        again = Lease(keep=True, idle_timeout_s=idle_s, left=True, born_s=up_at)
        leaves = (up_at + at for at in range(10_000) if again.over(up_at + at, 0))
        leaves_at = next(leaves)
        if leaves_at > last_at:
            break
        said_at, up_at = leaves_at, leaves_at + 1.0
    assert last_at - up_at <= LEFT_GRACE_S + 1
    ready = min(up_at + 1, last_at)
    assert is_over(make_world(farewell(said_at, up=up_at, ready=ready), farewell(last_at)))

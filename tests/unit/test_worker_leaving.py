"""What a keeper leaves behind: nothing, or the reason for its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.worker.lease import OWNER_GRACE_S, QUEUED_OWNER_GRACE_S, Lease
from milkweed.worker.leaving import ended_file, leave_remote, remove_all, save


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with something in it, in the folder of this user's run folders."""
    folder = tmp_path / "runs" / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "w.0.log").write_text("hello")
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A job's folder, as the client made it: `home/jobs/<id>`."""
    folder = tmp_path / "home" / "jobs" / "id"
    folder.mkdir(parents=True)
    (folder / "part-0.0.json").write_text("{}")
    return folder


def start(record: Path, **more: Any) -> dict[str, Any]:
    return {"folder": str(record), "share": "0.0.1", "record_folder": str(record), **more}


def test_a_file_is_written_in_one_step(tmp_path: Path) -> None:
    """Whoever reads sees the old or the new, and no half; nothing is left beside it."""
    path = tmp_path / "keeper.json"
    save(path, {"pid": 1})
    save(path, {"pid": 2})
    assert json.loads(path.read_text()) == {"pid": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_host_that_is_kept_leaves_its_reason(run: Path, record: Path) -> None:
    """The job's folder has why it ended; the machine has nothing any more."""
    leave_remote(run, start(record), "nobody was connected", keep=True)
    assert ended_file(start(record)) == record / "ended-0.0.1.json"
    said = json.loads((record / "ended-0.0.1.json").read_text())
    assert said["reason"] == "nobody was connected"
    assert said["at"] > 0
    assert (record / "part-0.0.json").exists()
    assert not run.parent.exists()


def test_without_a_record_nothing_is_left(run: Path, record: Path, tmp_path: Path) -> None:
    """Nobody looks for it again: the job's folder goes too, and folders that are empty then."""
    leave_remote(run, start(record), "its owner is gone", keep=False)
    assert list(tmp_path.iterdir()) == []


def test_a_keeper_that_does_not_tidy_up_leaves_the_jobs_folder(run: Path, record: Path) -> None:
    """One host of an allocation does that for all of them."""
    leave_remote(run, start(record, record_folder=""), "its owner is gone", keep=False)
    assert (record / "part-0.0.json").exists()
    assert not run.exists()


def test_a_jobs_folder_that_is_not_seen_stops_nobody(run: Path, tmp_path: Path) -> None:
    """Without a shared file system the reason cannot be left, and the machine is tidied up all the same."""
    leave_remote(run, start(tmp_path / "not here"), "x", keep=True)
    assert not run.exists()
    assert not (tmp_path / "not here").exists()


def test_a_folder_that_a_follow_up_needs_is_left(run: Path, record: Path) -> None:
    """The job goes on there: its keys, its record, and what its hosts are told lie in the same folder."""
    (record / "part-1.0.json").write_text("{}")
    old = start(record, share="0.0.0")
    leave_remote(run, old, "its owner is gone", keep=False)
    assert (record / "part-1.0.json").exists()
    assert json.loads(ended_file(old).read_text())["left"] is True
    assert not run.exists()


def test_only_one_host_tells_a_follow_up_that_it_was_left(run: Path, record: Path) -> None:
    """It may be about to remove the folder."""
    (record / "part-1.0.json").write_text("{}")
    leave_remote(run, start(record, record_folder=""), "its owner is gone", keep=False)
    assert list(record.glob("ended-*")) == []


def test_a_follow_up_that_was_used_leaves_nothing(run: Path, record: Path, tmp_path: Path) -> None:
    """It has taken the place of the others, and tidies up for them."""
    (record / "part-1.0.json").write_text("{}")
    leave_remote(run, start(record, share="1.0.0"), "its owner is gone", keep=False, used=True)
    assert list(tmp_path.iterdir()) == []


def test_a_follow_up_that_nobody_used_leaves_the_folder_to_those_who_are(
    run: Path, record: Path
) -> None:
    """Its owner may be busy with the hosts before, whose folder this is."""
    (record / "part-1.0.json").write_text("{}")
    late = start(record, share="1.0.0")
    leave_remote(run, late, "its owner did not connect", keep=False, used=False)
    assert (record / "part-0.0.json").exists()
    assert not run.exists()


@pytest.mark.parametrize("share", ["0.0.0", "0.0.2"], ids=["first", "first that was left"])
def test_a_follow_up_of_an_owner_that_has_gone_leaves_nothing(
    run: Path, record: Path, tmp_path: Path, share: str
) -> None:
    """It waited in the queue when its owner left the hosts before: nobody comes, and nobody looks here again."""
    (record / "part-1.0.json").write_text("{}")
    save(ended_file(start(record, share=share)), {"reason": "its owner is gone", "left": True})
    late = start(record, share="1.0.0")
    leave_remote(run, late, "its owner did not connect", keep=False, used=False)
    assert list(tmp_path.iterdir()) == []


def test_what_others_have_is_left(run: Path, record: Path) -> None:
    """Run folders of other jobs, and records of other jobs, stay where they are."""
    (run.parent / "other").mkdir()
    (record.parent / "other").mkdir()
    remove_all(run, str(record))
    assert [path.name for path in run.parent.iterdir()] == ["other"]
    assert [path.name for path in record.parent.iterdir()] == ["other"]


def test_leaving_twice_is_fine(run: Path, record: Path) -> None:
    """What is gone already is gone."""
    for _ in range(2):
        remove_all(run, str(record))
    assert not run.exists()


# Hosts that took a queue to get


def lease(*, keep: bool, **more: Any) -> Lease:
    return Lease(**{"keep": keep, "idle_timeout_s": 100.0, "queued": True, "born_s": 0.0, **more})


def test_queued_hosts_wait_for_their_first_client() -> None:
    """They came at a moment nobody knew: until somebody was there, they do not idle."""
    it = lease(keep=True)
    assert it.over(10**6, 0) == ""
    it.saw_client(owner=False)
    it.lost_client(10**6, owner=False)
    assert it.over(10**6 + 99.9, 0) == ""
    assert it.over(10**6 + 100, 0) == "nobody was connected for 100 s (its idle time-out)"


def test_queued_hosts_still_have_their_time_limit() -> None:
    """However long they wait for a client, not longer than they may live."""
    assert (
        lease(keep=True, time_limit_s=500.0).over(500.0, 0) == "its time limit of 500 s was reached"
    )


def test_an_owner_has_longer_to_come_to_queued_hosts() -> None:
    """A client that looks at the queue now and then needs more than a moment, and does not have for ever."""
    it = lease(keep=False)
    assert QUEUED_OWNER_GRACE_S > OWNER_GRACE_S
    assert it.over(OWNER_GRACE_S + 1, 0) == ""
    assert it.over(QUEUED_OWNER_GRACE_S, 0) == ""
    assert "did not connect within 300 s" in it.over(QUEUED_OWNER_GRACE_S + 0.1, 0)


def test_queued_hosts_that_are_not_kept_end_with_their_owner() -> None:
    """As any others do."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    assert it.over(10**6, 1) == ""
    it.lost_client(10.0, owner=True)
    assert it.over(10.0, 1) == "its owner is gone"


def test_queued_hosts_can_be_kept_later() -> None:
    """From then on they idle as others do."""
    it = lease(keep=False)
    it.saw_client(owner=True)
    it.keep = True
    it.lost_client(10.0, owner=True)
    assert it.over(109.9, 0) == ""
    assert it.over(110.0, 0)


def test_a_batch_job_on_queued_hosts_lives_with_its_client() -> None:
    """Nobody ever connects, and that is no reason to end."""
    assert lease(keep=True, batch=True).over(10**9, 0) == ""

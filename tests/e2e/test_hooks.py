"""Job classes that people wrote against the hooks work when only the base class's import changes."""

from __future__ import annotations

import json

import pytest

from programs import Client

pytestmark = pytest.mark.e2e

MODULE = """
import os, signal, subprocess, sys, tempfile
from milkweed.job import JobTrait, JobState
from milkweed.actor import attach_to_workers

WORKER = "from monarch.actor import run_worker_loop_forever as run; run(address=%r, ca='trust_all_connections')"

class OwnJob(JobTrait):
    def __init__(self, size):
        super().__init__()
        self._size = size
        self._pids = []

    def _create(self, client_script):
        self._folder = tempfile.mkdtemp()
        for number in range(self._size):
            address = f"ipc://{self._folder}/{number}"
            null = subprocess.DEVNULL
            process = subprocess.Popen([sys.executable, "-c", WORKER % address], start_new_session=True,
                                       stdin=null, stdout=null, stderr=null)
            self._pids.append(process.pid)

    def _state(self):
        workers = [f"ipc://{self._folder}/{number}" for number in range(self._size)]
        return JobState({"mine": attach_to_workers(ca="trust_all_connections", workers=workers)})

    def can_run(self, spec):
        return (isinstance(spec, OwnJob) and spec._size == self._size
                and all(os.path.exists(f"/proc/{pid}") for pid in self._pids))

    def _kill(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)


class Unsaved(OwnJob):
    def _create(self, client_script):
        self._lock = __import__("threading").Lock()
        super()._create(client_script)
"""


def test_a_job_with_hooks_is_created_reused_and_killed(client: Client) -> None:
    """The first program creates, the second reuses what was saved as JSON, kill ends it and removes the file."""
    (client.folder / "own.py").write_text(MODULE)
    first = client.run(
        """
        from own import OwnJob
        job = OwnJob(2)
        state = job.state()
        assert len(values(state.mine.spawn("a", Probe).pid.call().get())) == 2
        print("id", job.apply_id, job.active)
        """
    )
    record = json.loads((client.folder / ".milkweed/job.json").read_text())
    assert record["job_class"] == "own:OwnJob"
    assert len(record["handle"]["attributes"]["_pids"]) == 2
    second = client.run(
        """
        from own import OwnJob
        job = OwnJob(2)
        assert len(values(job.state().mine.spawn("a", Probe).pid.call().get())) == 2
        print("id", job.apply_id, job.active)
        """
    )
    pick = [line for line in first.splitlines() if line.startswith("id")]
    assert pick == [line for line in second.splitlines() if line.startswith("id")]
    client.run(
        """
        from own import OwnJob
        from milkweed.errors import ChangedError
        try:
            OwnJob(3).state()
        except ChangedError as error:
            print(error)
        else:
            raise SystemExit("the changed job silently replaced the old one")
        job = job_load()
        assert isinstance(job, OwnJob) and job.active
        job.kill()
        assert not os.path.exists(".milkweed")
        """
    )


def test_what_cannot_be_saved_is_named(client: Client) -> None:
    """An attribute that is not plain data is an error naming it, with what was created ended again."""
    (client.folder / "own.py").write_text(MODULE)
    out = client.run(
        """
        from own import Unsaved
        from milkweed.errors import SpecError
        try:
            Unsaved(1).state()
        except SpecError as error:
            print(error)
        job = Unsaved(1)
        assert len(values(job.state(cached_path=None).mine.spawn("a", Probe).pid.call().get())) == 1
        job.kill()
        """
    )
    assert "Unsaved._lock cannot be saved" in out
    assert "to_state() and from_state(state)" in out

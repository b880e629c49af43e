"""`status`, `ls`, `hosts` and `logs`: reading, whatever state the records and schedulers are in."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.cli.app import app
from milkweed.errors import BackendError
from milkweed.job import JobTrait
from milkweed.state import StateFile

pytestmark = pytest.mark.usefixtures("folder")


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def apply(world: FakeScheduler, name: str = "demo") -> str:
    """Declare and apply a job; its id."""
    Path(f"{name}.yaml").write_text(f"name: {name}\non: fake\nmeshes: {{workers: 2}}\n")
    assert milkweed("apply", f"{name}.yaml").exit_code == 0
    return list(world.allocations)[-1]


def snapshot(home: Path) -> dict[Path, bytes]:
    """Every file there is."""
    files = (path for root in (home, Path.cwd()) for path in root.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_ls_is_a_table(world: FakeScheduler) -> None:
    """`ls` shows name, backend, status, hosts, age and the beginning of the id."""
    apply_id = apply(world)
    header, row = milkweed("ls").stdout.splitlines()
    assert header.split() == ["NAME", "BACKEND", "STATUS", "HOSTS", "AGE", "ID"]
    assert row.split()[:4] == ["demo", "fake", "running", "2/2"]
    assert row.split()[-1] == apply_id[:8]


def test_ls_without_jobs_has_no_output(world: FakeScheduler) -> None:
    """With nothing recorded stdout stays empty, and JSON is an empty list."""
    done = milkweed("ls")
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(milkweed("ls", "--json").stdout) == {"jobs": []}


def test_ls_as_json(world: FakeScheduler) -> None:
    """`ls --json` has every job with its id, hosts and record."""
    apply_id = apply(world)
    (job,) = json.loads(milkweed("ls", "--json").stdout)["jobs"]
    assert (job["apply_id"], job["status"], job["record_lost"]) == (apply_id, "running", False)
    assert job["hosts"][1] == {
        "host": "workers/1",
        "state": "ready",
        "reason": "",
        "exit_code": None,
    }


def test_ls_asks_all_schedulers(world: FakeScheduler) -> None:
    """Several jobs are all listed, the oldest first."""
    apply(world, "one")
    world.end(apply(world, "two"))
    rows = milkweed("ls").stdout.splitlines()[1:]
    assert [row.split()[:3] for row in rows] == [
        ["one", "fake", "running"],
        ["two", "fake", "ended"],
    ]


def test_a_silent_scheduler_is_unknown(world: FakeScheduler, home: Path) -> None:
    """A scheduler that does not answer makes a job unknown, and nothing is written."""
    apply(world)
    before = snapshot(home)
    world.go_silent(100)
    assert "unknown" in milkweed("ls").stdout
    assert "unknown (the fake scheduler does not answer)" in milkweed("status", "demo").stdout
    assert snapshot(home) == before


def test_a_broken_backend_hides_no_other_job(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that fails in an unforeseen way makes its own jobs unknown, and no others."""
    broken = apply(world, "broken")
    apply(world, "fine")
    poll = FakeBackend.poll

    def fail(self: FakeBackend, handle: dict[str, str]) -> object:
        return 1 / 0 if handle["apply_id"] == broken else poll(self, handle)

    monkeypatch.setattr(FakeBackend, "poll", fail)
    first, second = json.loads(milkweed("ls", "--json").stdout)["jobs"]
    assert first["status"] == "unknown"
    assert "ZeroDivisionError" in first["reason"]
    assert second["status"] == "running"


def test_a_backend_that_is_gone_is_unknown(world: FakeScheduler) -> None:
    """A job of a backend that is not installed any more is listed as unknown."""
    entry = next(iter([apply(world)])) and next(registry.load_entries())
    registry.save_entry(replace(entry, backend="sky-no-more"))
    Path(".milkweed/demo.json").unlink()
    assert "unknown (record lost)" in milkweed("ls").stdout


def test_a_lost_record_is_shown(world: FakeScheduler, home: Path) -> None:
    """An allocation whose record is gone is found by its id, and reading it changes nothing."""
    apply(world)
    Path(".milkweed/demo.json").unlink()
    before = snapshot(home)
    assert "running (record lost)" in milkweed("ls").stdout
    assert "its record is lost" in milkweed("status", "demo.yaml").stdout
    assert milkweed("hosts", "demo").stdout.count("ready") == 2
    assert snapshot(home) == before
    assert len(world.alive) == 1


@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", b"[1]", b'{"milkweed": "state"}'])
def test_a_damaged_record_is_as_good_as_lost(world: FakeScheduler, content: bytes) -> None:
    """A record that cannot be read does not hide the allocation."""
    apply(world)
    Path(".milkweed/demo.json").write_bytes(content)
    assert "running (record lost)" in milkweed("ls").stdout
    assert "running" in milkweed("status", "demo.yaml").stdout


def test_a_damaged_record_without_an_entry_is_an_error(world: FakeScheduler) -> None:
    """With nothing to find the allocation by, what is wrong with the record is told."""
    registry.remove_entry(apply(world))
    Path(".milkweed/demo.json").write_bytes(b"[1]")
    done = milkweed("status", "demo.yaml")
    assert done.exit_code == 1
    assert "is not a milkweed state file" in done.stderr


def test_a_damaged_entry_is_listed(home: Path) -> None:
    """An entry that cannot be read is shown, not dropped."""
    folder = home / "jobs" / "12345678-x"
    folder.mkdir(parents=True)
    (folder / "entry.json").write_text("{")
    row = milkweed("ls").stdout.splitlines()[1]
    assert row.split() == ["?", "?", "unknown", "(record", "lost)", "-", "?", "12345678"]


def test_a_path_that_another_job_took_is_a_lost_record(world: FakeScheduler) -> None:
    """A record that tells of another allocation is not taken for this one's."""
    apply(world)
    entry = next(registry.load_entries())
    registry.save_entry(replace(entry, apply_id="other-id", name="older"))
    words = [row.split()[2:4] for row in milkweed("ls").stdout.splitlines()[1:]]
    assert sorted(words) == [["ended", "(record"], ["running", "2/2"]]


def test_an_allocation_that_was_never_started_has_ended(world: FakeScheduler) -> None:
    """An intent of which the scheduler has no trace is told as such."""
    apply_id = apply(world)
    file = StateFile(".milkweed/demo.json")
    record = file.load()
    assert record is not None
    file.save(replace(record, handle=None, phase="intent"))
    assert "running" in milkweed("status", "demo").stdout
    world.forget(apply_id)
    assert "no trace of it" in milkweed("status", "demo").stdout


def test_another_machines_processes_are_unknown(world: FakeScheduler) -> None:
    """Processes of another machine are not looked for here."""
    apply(world)
    world.capabilities = Capabilities(machine_bound=True)
    file = StateFile(".milkweed/demo.json")
    record = file.load()
    assert record is not None
    file.save(replace(record, machine={"hostname": "far", "machine_id": "x"}))
    assert "processes of far" in milkweed("status", "demo").stdout
    assert milkweed("hosts", "demo").exit_code == 1


def test_status_shows_the_hosts(world: FakeScheduler) -> None:
    """`status` is one line for the job and one for each host."""
    apply_id = apply(world)
    first, *hosts = milkweed("status", "demo").stdout.splitlines()
    assert first.startswith("demo on fake: running, 2/2 hosts ready, ")
    assert first.endswith(f"id {apply_id[:8]}")
    assert [line.split() for line in hosts] == [["workers/0", "ready"], ["workers/1", "ready"]]


def test_status_of_a_job_that_was_never_applied(world: FakeScheduler) -> None:
    """A declared job without an allocation is told as such, and that is no error."""
    Path("milkweed.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 2}\n")
    assert milkweed("status").stdout == "demo on fake: not applied\n"
    (job,) = json.loads(milkweed("status", "--json").stdout)["jobs"]
    assert job == {"name": "demo", "backend": "fake", "status": None, "hosts": []}


def test_status_of_all_jobs(world: FakeScheduler) -> None:
    """Without a job in this folder, `status` tells of all recorded ones."""
    apply(world, "one")
    apply(world, "two")
    shown = milkweed("status").stdout
    assert shown.index("one on fake") < shown.index("two on fake")
    assert len(json.loads(milkweed("status", "--json").stdout)["jobs"]) == 2


def test_why_tells_the_story(world: FakeScheduler) -> None:
    """`status --why` adds what happened, and the end of the log of each failed host."""
    apply_id = apply(world)
    world.fail_host(apply_id, "workers/1", "it died\nImportError: no torch")
    world.fail_host(apply_id, "workers/0", "killed")
    world.write_log(apply_id, "workers/0", "out of memory")
    shown = milkweed("status", "demo", "--why").stdout
    assert "0/2 hosts ready" in shown
    assert "asked: fake for 2 hosts" in shown
    assert "  workers/1: it died\n    ImportError: no torch" in shown
    assert "  workers/0: killed\n    out of memory" in shown
    assert "ImportError" not in milkweed("status", "demo").stdout


def test_why_of_a_job_that_has_ended_shows_what_each_host_wrote_last(world: FakeScheduler) -> None:
    """No host has failed, and the time limit is no word of any program: the end of each log tells more."""
    apply_id = apply(world)
    for number in range(9):
        world.write_log(apply_id, "workers/0", f"step {number}")
    world.write_log(apply_id, "workers/1", "idle")
    assert "step" not in milkweed("status", "demo", "--why").stdout
    world.end(apply_id, "time limit")
    shown = milkweed("status", "demo", "--why").stdout
    steps = "".join(f"\n    step {number}" for number in range(3, 9))
    assert shown.endswith(
        f"\n  workers/0: the end of its log{steps}\n  workers/1: the end of its log\n    idle\n"
    )
    (job,) = json.loads(milkweed("status", "demo", "--why", "--json").stdout)["jobs"]
    assert job["logs"]["workers/1"] == ["idle"]


def test_why_of_a_job_that_ended_in_order_shows_no_logs(world: FakeScheduler) -> None:
    """Nobody needs the log of what went well."""
    apply_id = apply(world)
    world.write_log(apply_id, "workers/0", "all is well")
    world.end(apply_id, "it has ended", exit_code=0)
    assert "all is well" not in milkweed("status", "demo", "--why").stdout


def test_why_of_what_its_scheduler_has_forgotten_tells_the_story(world: FakeScheduler) -> None:
    """Such as a job on `fake`, which the next program knows nothing of."""
    world.forget(apply(world))
    done = milkweed("status", "demo", "--why")
    assert done.exit_code == 0
    assert "asked: fake for 2 hosts" in done.stdout


def test_why_of_a_large_job_that_has_ended_is_short(world: FakeScheduler) -> None:
    """A few hosts are shown, and how to see the others; without a log of any there is nothing to show."""
    Path("big.yaml").write_text("name: big\non: fake\nmeshes: {workers: 500}\n")
    assert milkweed("apply", "big.yaml").exit_code == 0
    [apply_id] = world.allocations
    world.end(apply_id)
    assert "log" not in milkweed("status", "big", "--why").stdout
    for number in range(500):
        world.write_log(apply_id, f"workers/{number}", "the end")
    shown = milkweed("status", "big", "--why").stdout
    assert shown.count("the end of its log") == 8
    assert shown.endswith("  and 492 more hosts: `milkweed logs --tail 5`\n")


def test_why_as_json(world: FakeScheduler) -> None:
    """`status --why --json` has the events and logs as data."""
    world.fail_host(apply(world), "workers/1", "it died\nlast words")
    (job,) = json.loads(milkweed("status", "demo", "--why", "--json").stdout)["jobs"]
    assert [event["what"] for event in job["events"]] == ["asked", "submitted"]
    assert job["logs"] == {"workers/1": ["last words"]}


def test_why_survives_a_log_that_cannot_be_read(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that cannot be read is told in its place."""
    world.fail_host(apply(world), "workers/1", "it died")
    poll = FakeBackend.poll

    def then_silence(self: FakeBackend, handle: dict[str, str]) -> object:
        status = poll(self, handle)
        world.go_silent(100)
        return status

    monkeypatch.setattr(FakeBackend, "poll", then_silence)
    shown = milkweed("status", "demo", "--why").stdout
    assert "its log cannot be read: the fake scheduler does not answer" in shown


@pytest.mark.parametrize("words", [["--why"], ["--why", "--json"]], ids=" ".join)
def test_why_survives_last_lines_that_cannot_be_read(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """What happened is told, and of the other jobs all; that they cannot be read stands beside it."""

    def fail(*_: object) -> None:
        raise BackendError("the disk is away")

    world.end(apply(world), "time limit")
    apply(world, "other")
    monkeypatch.setattr(FakeBackend, "last_lines", fail)
    done = milkweed("status", *words)
    assert done.exit_code == 0
    assert all(each in done.stdout for each in ("time limit", "submitted", "other"))
    assert done.stderr == "milkweed: the logs of job 'demo' cannot be read: the disk is away\n"


def test_hosts_are_listed(world: FakeScheduler) -> None:
    """`hosts` shows each host's state, name and address."""
    apply(world)
    header, first, _second = milkweed("hosts", "demo").stdout.splitlines()
    assert header.split() == ["HOST", "STATE", "NAME", "ADDRESS"]
    assert first.split() == ["workers/0", "ready", "fake-1-workers-0", "fake://1/workers/0"]


def test_hosts_as_json(world: FakeScheduler) -> None:
    """`hosts --json` has mesh, rank, address and state."""
    apply(world)
    data = json.loads(milkweed("hosts", "demo", "--json").stdout)
    assert data["job"] == "demo"
    assert [(host["mesh"], host["rank"], host["state"]) for host in data["hosts"]] == [
        ("workers", 0, "ready"),
        ("workers", 1, "ready"),
    ]


@pytest.mark.parametrize("what", ["queued", "ended", "silent", "never"])
def test_hosts_that_are_not_there_are_an_error(world: FakeScheduler, what: str) -> None:
    """Without hosts, `hosts` fails and says how the job is."""
    if what == "never":
        Path("demo.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 2}\n")
    else:
        apply_id = apply(world)
        world.requeue(apply_id, 100) if what == "queued" else None
        world.end(apply_id, "time limit") if what == "ended" else None
        world.go_silent(100) if what == "silent" else None
    done = milkweed("hosts", "demo.yaml")
    assert (done.exit_code, done.stdout) == (1, "")
    words = {"queued": "requeued", "ended": "time limit", "silent": "unknown", "never": "apply"}
    assert words[what] in done.stderr


OWN_JOB = """
from milkweed.job import JobTrait

class OwnJob(JobTrait):
    def _create(self, client_script):
        self.number = 7

    def _is_running(self):
        return self.number == 7

    def can_run(self, spec):
        return True

    def _kill(self):
        open("killed", "w").close()
"""


@pytest.fixture
def own_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> JobTrait:
    """A job whose class was written by a person, with hooks of its own."""
    (folder / "own_job.py").write_text(OWN_JOB)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own_job", raising=False)
    job: JobTrait = importlib.import_module("own_job").OwnJob()
    job._apply(StateFile("state.json"), keep=True)
    return job


def test_jobs_with_hooks_are_asked_themselves(own_job: JobTrait) -> None:
    """A job class of a person's own tells itself how it is, and ends itself."""
    assert milkweed("ls").stdout.splitlines()[1].split()[:4] == ["OwnJob", "hooks", "running", "-"]
    assert milkweed("hosts", "OwnJob").stdout == ""
    assert milkweed("kill", "OwnJob").exit_code == 0
    assert Path("killed").exists()
    assert list(registry.load_entries()) == []


def test_jobs_with_hooks_need_their_record(own_job: JobTrait) -> None:
    """Without a record nobody knows which class to ask, so nothing is forgotten."""
    Path("state.json").unlink()
    assert "unknown (record lost)" in milkweed("ls").stdout
    assert milkweed("kill", "OwnJob").exit_code == 1
    assert len(list(registry.load_entries())) == 1

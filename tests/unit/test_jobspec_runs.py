"""Runs on disk: saved before anything happens, closed to others, read back after a crash."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed.errors import AccessError, StateBusyError, StateCorruptError, StateError
from milkweed.jobspec import Plan
from milkweed.jobspec.plan import Action
from milkweed.jobspec.progress import (
    DONE,
    Entry,
    Progress,
    State,
    StepStatus,
    ended,
    judge_need,
)
from milkweed.jobspec.runs import (
    Journal,
    create_run,
    find_run,
    load_run,
    load_runs,
    merge_environment,
    runs_folder,
    take_lock,
)
from unit.jobspecs import Talker, graph, job


@pytest.fixture
def plan() -> Plan:
    return Talker().render(graph(job("a"), job("b", "a")))


def test_looking_keeps_nobody_from_carrying_on(tmp_path: Path) -> None:
    """Whoever looks shares the lock for a moment, and whoever wants to hold it waits for that, not for a holder."""
    path = tmp_path / "lock"
    looking, holding = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            fcntl.flock(looking, fcntl.LOCK_UN)

    fcntl.flock(looking, fcntl.LOCK_SH)
    assert take_lock(holding, pause)
    assert len(pauses) == 3
    assert not take_lock(looking, pause)
    assert len(pauses) == 3
    os.close(looking)
    os.close(holding)


def test_a_run_is_closed_to_others(plan: Plan) -> None:
    """Folders are 0700 and files 0600, whatever the umask says."""
    before = os.umask(0)
    try:
        run = create_run(plan)
        run.journal.write("intent", id="a")
    finally:
        os.umask(before)
    for path in [run.folder, *run.folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_run_is_read_back(plan: Plan, folder: Path) -> None:
    """Its plan, and where it was asked for, are there after a restart."""
    run = create_run(plan)
    again = load_run(run.folder)
    assert (again.plan, again.cwd, again.id) == (plan, str(folder), plan.run_id)
    assert again.created == run.created


def test_a_plan_is_run_once(plan: Plan) -> None:
    """A second run of the same plan would submit everything twice under one mark."""
    create_run(plan)
    with pytest.raises(StateError, match="was started already"):
        create_run(plan)


def test_others_cannot_have_prepared_the_folder(home: Path, plan: Plan) -> None:
    """A folder that others can write to is refused."""
    home.mkdir()
    (home / "jobspec").mkdir()
    (home / "jobspec").chmod(0o777)
    with pytest.raises(AccessError, match="other users can write"):
        create_run(plan)


def test_runs_are_found_by_the_beginning_of_their_id(plan: Plan) -> None:
    """Enough of the id is enough; too little, or nothing, is told."""
    run = create_run(plan)
    other = create_run(
        replace(plan, run_id="f" + run.id[1:] if run.id[0] != "f" else "e" + run.id[1:])
    )
    assert find_run(run.id[:8]).id == run.id
    assert {each.id for each in load_runs()} == {run.id, other.id}
    for name in ("zz", ""):
        with pytest.raises(StateError, match="there is no run"):
            find_run(name)
    create_run(replace(plan, run_id=run.id[:-1] + ("0" if run.id[-1] != "0" else "1")))
    with pytest.raises(StateError, match="2 runs have an id that begins with"):
        find_run(run.id[:8])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"milkweed": "state"}', "null"])
def test_a_damaged_record_is_told_as_such(plan: Plan, text: str) -> None:
    """It is never repaired, and it does not hide the other runs."""
    run = create_run(plan)
    (run.folder / "run.json").write_text(text)
    with pytest.raises(StateCorruptError, match="is not the record of a run"):
        load_run(run.folder)
    assert load_runs() == []


def test_a_record_belongs_to_its_folder(plan: Plan) -> None:
    """A record that was moved under another name is not trusted."""
    run = create_run(plan)
    other = run.folder.with_name(run.id[:-1] + "x")
    run.folder.rename(other)
    with pytest.raises(StateCorruptError, match="it records run"):
        load_run(other)


def test_removing_a_run(plan: Plan) -> None:
    """Nothing of it stays."""
    run = create_run(plan)
    run.remove()
    assert list(runs_folder().iterdir()) == []


def test_secrets_go_first(plan: Plan) -> None:
    """They do not stay as long as the rest."""
    run = create_run(plan)
    (run.secrets / "t").write_text("x")
    run.drop_secrets()
    assert not run.secrets.exists()
    assert run.logs.exists()


def test_one_process_carries_a_run_on(plan: Plan) -> None:
    """A second one is told who has it, and the kernel lets go with the first."""
    run = create_run(plan)
    assert (run.is_driven(), run.driver()) == (False, None)
    with run.hold():
        driver = load_run(run.folder).driver()
        assert driver is not None
        assert driver["pid"] == os.getpid()
        with pytest.raises(StateBusyError), load_run(run.folder).hold():
            pass
    assert not run.is_driven()


def test_a_damaged_note_of_the_driver_is_nobody(plan: Plan) -> None:
    """Who holds the lock and cannot be named is not signalled."""
    run = create_run(plan)
    with run.hold():
        (run.folder / "driver.json").write_text("{")
        assert run.driver() is None
        assert run.is_driven()


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    """What was written before it counts, and what is written after it is a line of its own."""
    path = tmp_path / "journal"
    path.write_bytes(b'{"event": "intent", "id": "a"}\n{"event": "subm')
    journal = Journal(path, clock=lambda: 1.0)
    assert [line["event"] for line in journal.read()[0]] == ["intent"]
    journal.write("state", id="a", state="done", durable=True)
    journal.close()
    assert [line["event"] for line in journal.read()[0]] == ["intent", "state"]


def test_a_journal_is_read_from_where_one_was(tmp_path: Path) -> None:
    """Following a run reads each line once."""
    journal = Journal(tmp_path / "journal")
    assert journal.read() == ([], 0)
    journal.write("intent", id="a")
    lines, offset = journal.read()
    journal.write("intent", id="b")
    more, _ = journal.read(offset)
    assert ([line["id"] for line in lines], [line["id"] for line in more]) == (["a"], ["b"])
    journal.close()


def test_a_journal_says_how_all_steps_are(plan: Plan) -> None:
    """Lines about steps that are not in the plan, or about nothing, change nothing."""
    progress = Progress.of(plan)
    for line in (
        {"event": "intent", "id": "a"},
        {"event": "submitted", "id": "a", "state": "pending", "handle": {"id": "7"}},
        {"event": "intent", "id": "z"},
        {"event": "note"},
        {"event": "state", "id": "a", "state": "failed", "code": 3, "reason": "r"},
    ):
        progress.add(line)
    assert progress.entries["a"] == Entry(
        StepStatus(State.FAILED, 3, "r"), {"id": "7"}, intended=True
    )
    assert progress.entries["b"] == Entry()
    assert (progress.over, progress.exit_code()) == (False, 3)


def make_progress(**states: StepStatus) -> Progress:
    plan = Plan(
        run_id="", transformer="", actions=tuple(Action(id=name, kind="x") for name in states)
    )
    progress = Progress.of(plan)
    for name, status in states.items():
        facts = {"state": status.state.value, "code": status.code, "reason": status.reason}
        progress.add(json.loads(json.dumps({"event": "state", "id": name, **facts})))
    return progress


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ({"a": DONE}, 0),
        ({"a": DONE, "b": StepStatus(State.SKIPPED)}, 0),
        ({"b": ended(4), "a": ended(3)}, 4),
        ({"a": StepStatus(State.FAILED)}, 1),
        ({"a": StepStatus(State.CANCELLED), "b": DONE}, 143),
        ({"a": StepStatus(State.UNKNOWN)}, 1),
    ],
)
def test_the_exit_code_is_that_of_the_first_failure(
    states: dict[str, StepStatus], code: int
) -> None:
    """A failed step is never hidden by what comes after it."""
    assert make_progress(**states).exit_code() == code


@pytest.mark.parametrize(
    ("kind", "verdicts"),
    [
        # waiting, pending, running, done, failed, skipped, cancelled, lost, unknown
        ("submitted", [None, True, True, True, True, False, False, True, True]),
        ("after", [None, None, True, True, True, False, False, True, None]),
        ("afterok", [None, None, None, True, False, False, False, False, None]),
        ("afternotok", [None, None, None, False, True, False, False, False, None]),
        ("afterany", [None, None, None, True, True, True, True, True, None]),
    ],
)
def test_needs_come_true(kind: str, verdicts: list[bool | None]) -> None:
    """For every state of a step, whether a need of each kind is met, never will be, or may yet be."""
    found = [judge_need(kind, Entry(StepStatus(state))) for state in State]  # type: ignore[arg-type]
    assert found == verdicts


def test_statuses_in_words() -> None:
    """State, code and reason, as far as there are any."""
    assert ended(3, "x").describe() == "failed (3): x"
    assert DONE.describe() == "done"


def test_variables_are_set_and_taken_away() -> None:
    """Later layers win, and None takes one away."""
    assert merge_environment({"A": "1", "B": "2"}, {"B": None, "C": "3"}, {"C": "4"}) == {
        "A": "1",
        "C": "4",
    }

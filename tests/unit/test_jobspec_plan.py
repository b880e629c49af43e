"""Plans: one value that is shown, recorded and read back."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from milkweed.errors import StateCorruptError
from milkweed.jobspec import Action, Plan, parse_jobspec
from milkweed.jobspec.graph import Auth, Need, Stage, Submit, Work, Write
from milkweed.jobspec.plan import (
    check_run_id,
    make_content,
    make_details,
    make_mark,
    parse_content,
    parse_plan,
)
from unit.jobspecs import STEPS, Talker, graph, job

RUN_ID = "00000000-0000-4000-8000-000000000001"


def plan_of(text: str) -> Plan:
    return Talker(place="here").render(parse_jobspec(text, "job.yaml"), run_id=RUN_ID)


def test_a_plan_is_what_it_was_after_a_trip_to_disk() -> None:
    """Written as JSON and read back, it is the same value."""
    plan = plan_of(STEPS)
    assert parse_plan(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.settings == {"place": "here"}


def test_a_plan_shows_everything_that_will_be_done() -> None:
    """People see every action with what it needs and all of its details."""
    shown = plan_of(STEPS).render()
    assert shown.startswith(f"# 6 steps on talker, run {RUN_ID}\n\n# write write-install.sh\n")
    assert "# submit submit-install.sh, afterok:stage-install.sh (wait)\nargv:" in shown
    assert "cores_per_slot: 4" in shown


def test_a_plan_does_not_change() -> None:
    """What was shown cannot become something else."""
    plan = plan_of(STEPS)
    with pytest.raises(FrozenInstanceError):
        plan.name = "x"  # type: ignore[misc]


def test_every_run_has_an_id_of_its_own() -> None:
    """Two plans of one graph are two runs."""
    found = graph(job("a"))
    assert Talker().render(found).run_id != Talker().render(found).run_id


def test_the_mark_names_run_and_step() -> None:
    """Whatever is submitted can be found by it."""
    assert (
        plan_of(STEPS).mark("a/b") == make_mark(RUN_ID, "a/b") == f"milkweed-jobspec:1:{RUN_ID}:a/b"
    )


@pytest.mark.parametrize("content", [b"", b"text\n", b"\xff\x00", "schön".encode()])
def test_files_come_back_byte_for_byte(content: bytes) -> None:
    """Text is shown as text, anything else as base64."""
    made = make_content(Write(id="w", filename="x", content=content))
    assert parse_content(json.loads(json.dumps(made))) == content


def test_a_plan_tells_whence_a_secret_comes() -> None:
    """Its source is shown, since there is no secret in it."""
    step = Auth(id="a", secret="hub", command=("vault", "x"), export="T")
    assert make_details(step) == {"secret": "hub", "command": ["vault", "x"], "export": "T"}
    assert make_details(Auth(id="a", secret="k", file="~/k")) == {"secret": "k", "file": "~/k"}


def test_details_hold_what_was_said_and_nothing_else() -> None:
    """Fields that were not said are not shown."""
    assert make_details(job("a")) == {"argv": ["true"], "tasks": 1, "slots": 1, "cores_per_slot": 1}
    assert make_details(Stage(id="s", path="/x")) == {"path": "/x"}
    work = Work(argv=("x",), environment={"A": None}, queue="q", attributes={"user": {"a": 1}})
    found = make_details(Submit(id="a", work=work, local=True))
    assert found["local"] is True
    assert (found["environment"], found["queue"], found["attributes"]) == (
        {"A": None},
        "q",
        {"user": {"a": 1}},
    )


@pytest.mark.parametrize(
    "bad", [None, 5, "", "..", "../../etc", "abc", RUN_ID + "/x", RUN_ID.upper() + "G"]
)
def test_ids_that_are_not_ours_are_refused(bad: object) -> None:
    """An id names a folder that is deleted in the end."""
    with pytest.raises(StateCorruptError, match="is not the id of a run"):
        check_run_id(bad)


def test_plans_of_another_time_are_not_guessed() -> None:
    """A newer version, or a kind of need that nobody knows, is an error."""
    data = plan_of(STEPS).to_json()
    with pytest.raises(ValueError, match="version 2"):
        parse_plan({**data, "version": 2})
    action = Action(id="b", kind="submit", needs=(Need("a"),)).to_json()
    action["needs"] = [{"id": "a", "kind": "sometime"}]
    with pytest.raises(ValueError, match="no kind of need"):
        parse_plan({**data, "actions": [action]})

"""The plan: what is done follows from what is declared and seen, and from nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from milkweed.plan import Action, Change, Observed, Plan, Renewal, diff_specs, make_plan
from milkweed.spec import JobSpec, Lifetime, Resources, make_meshes
from milkweed.status import HostState, HostStatus, Liveness, Status


def spec(sizes: dict[str, int] | None = None, **more: Any) -> JobSpec:
    return JobSpec(
        **{"name": "demo", "backend": "fake", "meshes": make_meshes(sizes or {"a": 2}), **more}
    )


def seen(live: Liveness, made: JobSpec | None = None, reason: str = "") -> Observed:
    return Observed(
        spec=made or spec(), status=Status(liveness=live, reason=reason), apply_id="id-1"
    )


ALIVE = [Liveness.PENDING, Liveness.RUNNING]


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (Observed(), "there is no allocation"),
        (Observed(spec=spec(), apply_id="x"), "the recorded allocation was never started"),
        (seen(Liveness.ENDED), "the recorded allocation has ended: no reason was given"),
        (seen(Liveness.ENDED, reason="TIMEOUT"), "the recorded allocation has ended: TIMEOUT"),
    ],
)
@pytest.mark.parametrize("word", [None, "ask", "replace", "new"])
def test_without_an_allocation_one_is_made(
    observed: Observed, reason: str, word: str | None
) -> None:
    """Nothing recorded, nothing started, or ended: create, whatever the habits on change are."""
    plan = make_plan(spec(), observed, on_change=word)
    assert (plan.action, plan.reasons) == (Action.CREATE, (reason,))
    assert plan.approved
    assert plan.apply_id is None
    assert not plan.blocked
    assert not plan.keeps_old


@pytest.mark.parametrize("live", ALIVE)
@pytest.mark.parametrize(("held", "action"), [(False, Action.REUSE), (True, Action.NOTHING)])
def test_what_is_there_is_used(live: Liveness, held: bool, action: Action) -> None:
    """A living allocation of the same declaration is connected to, or already is."""
    plan = make_plan(spec(), seen(live), held=held)
    assert (plan.action, plan.apply_id, plan.changes) == (action, "id-1", ())


@pytest.mark.parametrize("word", [None, "ask", "replace", "new"])
@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("changed", [spec(), spec({"a": 9}), spec(env={"A": "1"})])
def test_not_knowing_blocks_everything(word: str | None, queued: bool, changed: JobSpec) -> None:
    """While the scheduler does not answer nothing is done, whatever was asked for."""
    plan = make_plan(
        changed, seen(Liveness.UNKNOWN), on_change=word, queued=queued, can_resize=True
    )
    assert plan.action is Action.NOTHING
    assert plan.blocked


@pytest.mark.parametrize("live", ALIVE)
@pytest.mark.parametrize(
    ("word", "queued", "expected"),
    [
        (None, True, (Action.REPLACE, False, False)),
        (None, False, (Action.REPLACE, True, False)),
        ("ask", True, (Action.REPLACE, False, False)),
        ("ask", False, (Action.REPLACE, False, False)),
        ("replace", True, (Action.REPLACE, True, False)),
        ("new", True, (Action.CREATE, True, True)),
        ("new", False, (Action.CREATE, True, True)),
    ],
)
def test_a_change_needs_a_word_where_there_is_a_queue(
    live: Liveness, word: str | None, queued: bool, expected: tuple[Action, bool, bool]
) -> None:
    """What took a queue to get is replaced only on a person's word; local hosts are disposable."""
    plan = make_plan(spec(env={"A": "1"}), seen(live), queued=queued, on_change=word)
    assert (plan.action, plan.approved, plan.keeps_old) == expected
    assert plan.apply_id == "id-1"


@pytest.mark.parametrize(
    "changed",
    [
        spec(name="other"),
        spec(client={"start_timeout": 5}),
        spec(lifetime=Lifetime(idle_timeout_s=5)),
        spec(run=("x",)),
    ],
)
def test_client_side_changes_touch_nothing(changed: JobSpec) -> None:
    """Settings of this client only are no reason to touch an allocation."""
    assert make_plan(changed, seen(Liveness.RUNNING)).action is Action.REUSE


def test_where_it_can_only_sizes_are_changed() -> None:
    """Other sizes of the same meshes are a resize where the backend can, and else a change."""
    plan = make_plan(spec({"a": 3}), seen(Liveness.RUNNING), can_resize=True)
    assert (plan.action, plan.approved, plan.apply_id) == (Action.RESIZE, True, "id-1")
    assert make_plan(spec({"a": 3}), seen(Liveness.RUNNING)).action is Action.REPLACE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (spec({"a": 1}), spec({"a": 1, "b": 1})),
        (spec({"a": 1, "b": 1}), spec({"a": 1})),
        (spec({"a": 1}), spec({"b": 1})),
        (spec({"a": 1}), spec({"a": 2}, env={"A": "1"})),
        (spec({"a": 1}, env={"hosts": "1"}), spec({"a": 1}, env={"hosts": "2"})),
        (spec({"a": 1}, options={"hosts": ["n1"]}), spec({"a": 1}, options={"hosts": ["n2"]})),
    ],
)
def test_more_than_sizes_is_not_a_resize(before: JobSpec, after: JobSpec) -> None:
    """Other meshes, or anything else that changed, even if it is called «hosts», is no resize."""
    plan = make_plan(after, seen(Liveness.RUNNING, before), can_resize=True)
    assert plan.action is Action.REPLACE
    assert not plan.approved


def test_a_record_read_back_from_json_has_not_changed() -> None:
    """An allocation is not taken for changed because its record went through a file."""
    made = spec(options={"args": ("a", "b"), "limit": 60.0, "ports": {1: 2}})
    again = JobSpec.from_json(json.loads(json.dumps(made.to_json())))
    assert diff_specs(again, made) == ()
    assert make_plan(made, seen(Liveness.RUNNING, again)).action is Action.REUSE


def test_changes_are_named_field_by_field() -> None:
    """Every changed field is listed, in a stable order, with what it was and what it becomes."""
    before = spec({"a": 2, "b": 1}, options={"queue": "short"})
    after = spec(
        backend="fake",
        meshes=make_meshes({"a": 3, "c": 1}, resources={"a": Resources(gpus=8)}),
        options={"queue": "long"},
    )
    assert [str(change) for change in diff_specs(before, after)] == [
        "~ fake.queue: short → long",
        "+ meshes.a.gpus: 8",
        "~ meshes.a.hosts: 2 → 3",
        "- meshes.b.hosts: 1",
        "+ meshes.c.hosts: 1",
    ]


def test_values_of_variables_are_not_shown() -> None:
    """A plan shows that a variable changed, never its value: it may be a secret."""
    before, after = spec(env={"TOKEN": "hunter2", "OLD": "hunter3"}), spec(env={"TOKEN": "hunter4"})
    plan = make_plan(after, seen(Liveness.RUNNING, before))
    assert "hunter" not in plan.render() + json.dumps(plan.to_json())
    assert [change.field for change in plan.changes] == ["meshes.a.env.OLD", "meshes.a.env.TOKEN"]


def test_true_and_one_are_two_values() -> None:
    """Python takes True for 1; a scheduler does not."""
    assert diff_specs(spec(options={"x": True}), spec(options={"x": 1})) != ()


def test_a_plan_is_read_by_people() -> None:
    """The shown plan has the action, the reason, the changes and what is waited for."""
    plan = make_plan(spec({"a": 3}), seen(Liveness.RUNNING))
    assert plan.render() == (
        "replace: job 'demo' on fake (a=3)\n"
        "  because the declaration differs from the running allocation\n"
        "  ~ meshes.a.hosts: 2 → 3\n"
        "  needs your word: on_change replace, or new"
    )


def test_a_plan_is_read_by_programs() -> None:
    """The plan as JSON has everything that the shown one has."""
    plan = make_plan(spec({"a": 3}), seen(Liveness.RUNNING))
    assert json.loads(json.dumps(plan.to_json())) == {
        "action": "replace",
        "reasons": ["the declaration differs from the running allocation"],
        "changes": [{"field": "meshes.a.hosts", "before": 2, "after": 3}],
        "apply_id": "id-1",
        "approved": False,
        "blocked": False,
        "job": "demo",
        "backend": "fake",
        "meshes": {"a": 3},
    }


def test_planning_is_pure() -> None:
    """The same question has the same answer, and a plan cannot be changed."""
    observed = seen(Liveness.RUNNING)
    plan = make_plan(spec({"a": 3}), observed)
    assert plan == make_plan(spec({"a": 3}), observed)
    with pytest.raises(AttributeError):
        plan.approved = True  # type: ignore[misc]
    assert isinstance(plan, Plan)


def test_what_hosts_do_is_no_part_of_the_decision() -> None:
    """A starting host does not change what is planned."""
    host = HostStatus(host="a/0", state=HostState.STARTING)
    observed = seen(Liveness.RUNNING)
    status = replace(observed.status or Status(liveness=Liveness.RUNNING), hosts=(host,))
    assert make_plan(spec(), replace(observed, status=status)).action is Action.REUSE


def with_lost(*hosts: str, size: int = 3) -> Observed:
    """A job of one mesh of which some hosts were lost."""
    lost = [
        HostStatus(host=host, state=HostState.FAILED, reason="its node is DOWN") for host in hosts
    ]
    status = Status(liveness=Liveness.RUNNING, hosts=tuple(lost))
    return Observed(spec=spec({"a": size}), status=status, apply_id="id-1")


def with_unheard(host: str) -> Observed:
    """An allocation one of whose hosts is not heard by its scheduler."""
    observed = with_lost(host)
    status = observed.status or Status(liveness=Liveness.RUNNING)
    unheard = tuple(replace(each, unheard=True) for each in status.hosts)
    return replace(observed, status=replace(status, hosts=unheard))


def test_a_host_that_is_only_not_heard_is_no_loss() -> None:
    """A cable that was pulled ends no allocation, whatever the person has allowed."""
    plan = make_plan(spec({"a": 3}), with_unheard("a/1"), on_change="replace")
    assert plan.action is Action.REUSE


def test_lost_hosts_can_be_repaired() -> None:
    """Others take their place where sizes can change; nobody has to end what is well for them."""
    asked = make_plan(spec({"a": 3}), with_lost("a/1"), can_repair=True)
    assert (asked.action, asked.approved, asked.repairable) == (Action.REPLACE, False, True)
    assert asked.render().endswith("needs your word: on_change repair, replace, or new")
    plan = make_plan(spec({"a": 3}), with_lost("a/1"), can_repair=True, on_change="repair")
    assert (plan.action, plan.approved) == (Action.RESIZE, True)
    assert "hosts were lost: a/1 (its node is DOWN); others take their place" in plan.reasons


def test_a_repair_ends_nothing_for_a_follow_up_that_waits() -> None:
    """Hosts that are well are not exchanged for a place in the queue."""
    observed = replace(with_lost("a/1"), renewal=Renewal.WAITING)
    plan = make_plan(spec({"a": 3}), observed, can_repair=True, on_change="repair")
    assert (plan.action, plan.moves) == (Action.RESIZE, False)


def test_a_repair_is_for_lost_hosts_only() -> None:
    """Another declaration, and a backend whose sizes are fixed, still need another word."""
    cases = [
        make_plan(spec({"a": 3}), with_lost("a/1"), on_change="repair"),
        make_plan(
            spec({"a": 3}, options={"x": 1}), with_lost("a/1"), can_repair=True, on_change="repair"
        ),
    ]
    for plan in cases:
        assert (plan.action, plan.approved, plan.repairable) == (Action.REPLACE, False, False)


@pytest.mark.parametrize("word", [None, "replace"])
def test_nothing_is_given_back_to_keep_a_host_that_nobody_hears(word: str | None) -> None:
    """If it is lost, too, nothing would be left; if it is not, replacing it all would be a pity."""
    plan = make_plan(spec({"a": 1}), with_unheard("a/0"), can_resize=True, on_change=word)
    assert (plan.action, plan.blocked) == (Action.NOTHING, True)
    assert "would keep hosts of which nothing is known: a/0 (its node is DOWN)" in plan.reasons[0]
    last = make_plan(spec({"a": 2}), with_unheard("a/2"), can_resize=True)
    assert last.action is Action.RESIZE


@pytest.mark.parametrize(
    ("lost", "size"), [("a/0", 4), ("a/2", 4), ("a/2", 2), ("a/1", 1)], ids=str
)
def test_lost_hosts_that_are_not_in_the_way(lost: str, size: int) -> None:
    """A mesh may grow beside them, and those that go anyway are no loss."""
    plan = make_plan(spec({"a": size}), with_lost(lost), can_resize=True)
    assert (plan.action, plan.approved) == (Action.RESIZE, True)


@pytest.mark.parametrize(("lost", "size"), [("a/0", 2), ("a/1", 2), ("a/0", 1)], ids=str)
def test_what_would_be_left_must_live(lost: str, size: int) -> None:
    """Giving back hosts that live to keep those that were lost needs a person's word."""
    plan = make_plan(spec({"a": size}), with_lost(lost), can_resize=True)
    assert (plan.action, plan.approved) == (Action.REPLACE, False)
    assert (
        f"a smaller one would keep hosts that were lost: {lost} (its node is DOWN)"
        in plan.reasons[0]
    )


def test_changes_from_and_to_nothing() -> None:
    """What comes and what goes are told apart from what changes."""
    assert str(Change(field="x", before=None, after=0)) == "+ x: 0"
    assert str(Change(field="x", before=False, after=None)) == "- x: False"

"""Follow-ups and plans: the table of docs/design.md, row by row, and that no word but a person's ends anything."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.plan import Action, Observed, Plan, Renewal, make_plan
from milkweed.spec import JobSpec, make_meshes
from milkweed.status import HostState, HostStatus, Liveness, Status


def spec(hosts: int = 2, **options: Any) -> JobSpec:
    return JobSpec(name="demo", backend="fake", meshes=make_meshes({"w": hosts}), options=options)


def host(label: str, state: HostState = HostState.READY) -> HostStatus:
    return HostStatus(host=label, state=state, reason="its time is over\nand its log")


HOSTS = (host("w/0"), host("w/1"))
LOST = (host("w/0"), host("w/1", HostState.FAILED))
STATUSES = {
    "pending": Status(liveness=Liveness.PENDING),
    "running": Status(liveness=Liveness.RUNNING, hosts=HOSTS),
    "lost": Status(liveness=Liveness.RUNNING, hosts=LOST),
    "unfinished": Status(liveness=Liveness.RUNNING, hosts=LOST),
    "ending": Status(liveness=Liveness.UNKNOWN, ending=True, reason="it is COMPLETING"),
    "unknown": Status(liveness=Liveness.UNKNOWN, reason="nobody answers"),
    "ended": Status(liveness=Liveness.ENDED, reason="TIMEOUT"),
}
DECLARED = {"same": spec(), "sizes": spec(3), "other": spec(queue="long")}
FOLLOWS = ("none", "failed", "due", "waiting", "ready")
CREATE, REUSE, RESIZE, RENEW = Action.CREATE, Action.REUSE, Action.RESIZE, Action.RENEW
MOVE, REPLACE, NOTHING = Action.MOVE, Action.REPLACE, Action.NOTHING

# What was before, its follow-up: what is done when the same is declared, other sizes, anything else.
TABLE: dict[tuple[str, str], tuple[Action, Action, Action]] = {
    **{("pending", each): (REUSE, RESIZE, REPLACE) for each in FOLLOWS},
    ("pending", "ready"): (MOVE, RESIZE, REPLACE),
    **{("running", each): (REUSE, RESIZE, REPLACE) for each in FOLLOWS},
    ("running", "due"): (RENEW, RESIZE, REPLACE),
    ("running", "ready"): (MOVE, RESIZE, REPLACE),
    **{("unfinished", each): (RESIZE, RESIZE, REPLACE) for each in FOLLOWS},
    ("unfinished", "due"): (RENEW, RESIZE, REPLACE),
    ("unfinished", "ready"): (MOVE, RESIZE, REPLACE),
    **{("lost", each): (REPLACE, RESIZE, REPLACE) for each in FOLLOWS},
    ("lost", "due"): (RENEW, RESIZE, REPLACE),
    ("lost", "waiting"): (MOVE, RESIZE, REPLACE),
    ("lost", "ready"): (MOVE, RESIZE, REPLACE),
    **{("ending", each): (NOTHING, NOTHING, NOTHING) for each in FOLLOWS},
    ("ending", "ready"): (MOVE, RESIZE, REPLACE),
    **{("unknown", each): (NOTHING, NOTHING, NOTHING) for each in FOLLOWS},
    **{("ended", each): (CREATE, CREATE, CREATE) for each in FOLLOWS},
    ("ended", "waiting"): (MOVE, RESIZE, REPLACE),
    ("ended", "ready"): (MOVE, RESIZE, REPLACE),
}


def plan_for(before: str, follow: str, declared: str = "same", **more: Any) -> Plan:
    seen = Observed(
        spec=spec(),
        status=STATUSES[before],
        apply_id="id-1",
        renewal=Renewal(follow),
        unfinished=before == "unfinished",
    )
    return make_plan(DECLARED[declared], seen, **{"can_resize": True, **more})


@pytest.mark.parametrize(("before", "follow"), [*TABLE])
def test_the_table(before: str, follow: str) -> None:
    """What is done follows from what was before, its follow-up and the declaration; a word only says how."""
    for declared, action in zip(DECLARED, TABLE[before, follow], strict=True):
        for word in (None, "ask", "replace", "new"):
            plan = plan_for(before, follow, declared, on_change=word)
            if action is not REPLACE:
                assert (plan.action, plan.approved, plan.keeps_old) == (action, True, False)
            else:
                assert plan.action is (CREATE if word == "new" else REPLACE)
                assert (plan.approved, plan.keeps_old) == (
                    word in {"replace", "new"},
                    word == "new",
                )
            assert plan.blocked is (action is NOTHING)


@pytest.mark.parametrize(("before", "follow"), [*TABLE])
def test_what_goes_over_first(before: str, follow: str) -> None:
    """A record goes over to the follow-up where that took the place of what was before, and to move."""
    took_place = (before, follow) in {("ending", "ready"), ("ended", "waiting"), ("ended", "ready")}
    for declared in DECLARED:
        plan = plan_for(before, follow, declared)
        assert plan.moves is (took_place or plan.action is MOVE)


@pytest.mark.parametrize("declared", ["sizes", "other"])
def test_where_sizes_cannot_change_a_follow_up_is_kept(declared: str) -> None:
    """What has waited in a queue is not ended because an allocation before it was over."""
    plan = plan_for("ended", "waiting", declared, can_resize=False)
    assert (plan.action, plan.approved) == (REPLACE, False)
    assert plan.reasons[1] == "its follow-up is waiting: TIMEOUT"


def test_a_follow_up_is_judged_as_it_is() -> None:
    """One that has lost a host, or that nobody hears, or has ended, too, is all that there is."""

    def plan(status: Status) -> Plan:
        seen = Observed(
            spec=spec(),
            status=STATUSES["ended"],
            apply_id="id-1",
            renewal=Renewal.WAITING,
            follow=status,
        )
        return make_plan(spec(), seen)

    lost = plan(STATUSES["lost"])
    assert (lost.action, lost.approved, lost.moves) == (REPLACE, False, True)
    silent = plan(STATUSES["unknown"])
    assert (silent.blocked, silent.moves) == (True, False)
    over = plan(STATUSES["ended"])
    assert (over.action, over.approved, over.moves) == (CREATE, True, False)


def test_what_there_is_of_a_job() -> None:
    """The allocation, or what has taken its place."""
    seen = Observed(spec=spec(), status=STATUSES["ended"], renewal=Renewal.WAITING)
    assert seen.standing is not None
    assert seen.standing.liveness is Liveness.PENDING
    before = Observed(spec=spec(), status=STATUSES["running"], renewal=Renewal.READY)
    assert before.standing is before.status
    assert Observed().standing is None


def test_a_follow_up_that_failed_is_told() -> None:
    """Whoever looks at the plan reads why."""
    seen = Observed(
        spec=spec(),
        status=STATUSES["running"],
        apply_id="id-1",
        renewal=Renewal.FAILED,
        follow=Status(liveness=Liveness.ENDED, reason="it is FAILED\nlog"),
    )
    plan = make_plan(spec(), seen, held=True)
    assert plan.action is NOTHING
    assert plan.reasons[1] == "its follow-up has failed: it is FAILED"


def test_hosts_that_were_not_declared_are_no_matter() -> None:
    """They may be those of another record of the same job: none is given back for it, and none is a loss."""
    hosts = (*HOSTS, host("w/2", HostState.FAILED))
    status = Status(liveness=Liveness.RUNNING, hosts=hosts)
    seen = Observed(spec=spec(), status=status, apply_id="id-1")
    assert make_plan(spec(), seen, can_resize=True).action is REUSE


def test_where_sizes_cannot_change_nothing_is_finished() -> None:
    """Nothing could be done about it."""
    status = STATUSES["running"]
    seen = Observed(spec=spec(), status=status, apply_id="id-1", unfinished=True)
    assert make_plan(spec(), seen, can_resize=False).action is REUSE

"""Jobspecs in a cluster in memory, when things go wrong: what is known then, ended, and found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import (
    BackendError,
    SpecError,
)
from milkweed.jobspec import load_transformer
from milkweed.jobspec.graph import Graph, Write
from milkweed.jobspec.progress import Progress, State
from milkweed.jobspec.runs import Run, create_run
from milkweed.jobspec.transformers import kubernetes as module, kubernetes_cluster as clusters
from milkweed.jobspec.transformers.kubernetes_objects import MARK_NOTE, RUN_LABEL, name_of
from milkweed.jobspec.transformers.kubernetes_status import GONE
from milkweed.kube.resources import CONFIG_MAPS, EVENTS, JOBS
from unit.jobspec_kubernetes import (
    RUN_ID,
    Yard,
    graph,
    hang,
    make_transformer,
    succeed,
    work,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Nobody waits for long, and there is no other cluster."""
    monkeypatch.setattr(module, "GONE_S", 0.0)
    monkeypatch.setattr(clusters, "PAUSE_S", 0.0)
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))


def run(yard: Yard, found: Graph, **settings: Any) -> Run:
    """Carry out a graph to its end."""
    made = make_transformer(yard, **settings)
    return made.run(made.render(found, run_id=RUN_ID), wait=True)


def states(found: Run) -> dict[str, str]:
    """How every step is, with its code."""
    entries = found.progress().entries
    return {key: entry.status.describe() for key, entry in entries.items()}


# When things go wrong


def test_an_answer_that_did_not_come() -> None:
    """What was asked for is asked for again, and made once."""
    yard = Yard()
    yard.faults.extend(["after", "", "before"])
    script = Write(id="w", filename="s.sh", content=b"x")
    found = run(yard, graph(script, work("x", needs=("w",))))
    assert states(found)["x"] == "done"
    assert yard.made() == []


def test_something_of_another_has_the_name() -> None:
    """It is not ours, and stays as it is."""
    yard = Yard()
    name = name_of(RUN_ID, "x")
    yard.put(JOBS.plural, {"metadata": {"name": name, "namespace": "lab"}})
    made = make_transformer(yard)
    script = Write(id="w", filename="s.sh", content=b"x")
    found = made.run(made.render(graph(script, work("x", needs=("w",))), run_id=RUN_ID), wait=True)
    assert "is not ours" in states(found)["x"]
    assert yard.made() == ["jobs"]


def test_what_was_begun_is_undone() -> None:
    """A Job that the cluster refuses leaves no files behind."""
    yard = Yard()

    def admit(plural: str, _body: Any) -> None:
        if plural == JOBS.plural:
            raise BackendError("a webhook says no")

    yard.admit = admit
    script = Write(id="w", filename="s.sh", content=b"x")
    found = run(yard, graph(script, work("x", needs=("w",))))
    assert states(found)["x"] == "failed (1): a webhook says no"
    assert yard.made() == []


def test_output_that_cannot_be_written_fails_the_step(folder: Path) -> None:
    """It is over with the reason, and what needs it is left out; nobody tries for ever."""
    (folder / "out").mkdir()

    def behave(yard: Yard, job: Any) -> None:
        (folder / "out").rmdir()
        succeed(yard, job)

    found = run(Yard(behave), graph(work("a", output="out/x"), work("b", needs=("a",))))
    told = states(found)
    assert told["a"].startswith("failed (1): its output cannot be written: No such file or directo")
    assert told["b"] == "skipped: it needs afterok:a, which is failed"
    assert found.progress().exit_code() == 1


def test_a_job_that_somebody_deleted() -> None:
    """It is told, and nobody waits for it."""
    yard = Yard(lambda yard, job: yard.remove(JOBS.plural, "lab", job["metadata"]["name"]))
    assert states(run(yard, graph(work("x")))) == {"x": f"lost: {GONE}"}


def test_a_job_without_pods_says_why() -> None:
    """A rule for pods shows only in the events of their Job."""
    yard = Yard(lambda _yard, _job: None)
    made: Any = make_transformer(yard)
    plan = made.render(graph(work("x")), run_id=RUN_ID)
    job = clusters.ensure_objects(yard, plan.actions[0].details["objects"], {})
    step = made.make_step(create_run(plan), "x", Progress.of(plan))
    handle = step.find()
    assert step.poll(handle).reason == ""
    event = {"reason": "FailedCreate", "message": "violates PodSecurity", "type": "Warning"}
    about = {"kind": "Job", "uid": job["metadata"]["uid"]}
    meta = {"name": "e", "namespace": "lab"}
    yard.put(EVENTS.plural, {"metadata": meta, "involvedObject": about, **event})
    assert step.poll(handle).reason == "violates PodSecurity"
    assert step.poll(handle).state is State.PENDING


def test_the_api_server_goes_away_and_comes_back() -> None:
    """UNKNOWN meanwhile; nothing is submitted then; the end is seen afterwards."""
    yard = Yard()
    made = make_transformer(yard)
    running: list[Any] = []

    def leave(yard: Yard, job: Any) -> None:
        hang(yard, job)
        running.append(job)
        with yard.changed:
            yard.down = True
            yard.changed.notify_all()

    class Story:
        """Looks on as the driver does, and lets the server come back."""

        def __init__(self) -> None:
            self.poll = made.poll

        def __call__(self, *args: Any) -> Any:
            found = self.poll(*args)
            if yard.down and any(each.state is State.UNKNOWN for each in found.values()):
                assert not made.can_start(plan.actions[1], {})
                with yard.changed:
                    yard.down = False
                yard.behave = succeed
                succeed(yard, running[0])
            return found

    yard.behave = leave
    plan = made.render(graph(work("x"), work("y", needs=("x",))), run_id=RUN_ID)
    made.poll = Story()
    found = made.run(plan, wait=True)
    assert states(found) == {"x": "done", "y": "done"}
    seen = [
        line["state"]
        for line in found.journal.read()[0]
        if line.get("id") == "x" and "state" in line
    ]
    assert "unknown" in seen


# Cancelling, and finding again


@pytest.fixture
def left(folder: Path) -> tuple[Yard, Run]:
    """A run whose driver was killed after it made a Job, and before it wrote that down."""
    yard = Yard(hang)
    made: Any = make_transformer(yard)
    plan = made.render(graph(work("x"), work("y", needs=("x",))), run_id=RUN_ID)
    found = create_run(plan)
    found.journal.write("intent", id="x")
    found.journal.close()
    clusters.ensure_objects(yard, plan.actions[0].details["objects"], {})
    return yard, found


def test_what_was_made_before_a_crash_is_seen(left: tuple[Yard, Run]) -> None:
    """By its mark; looking changes nothing."""
    yard, found = left
    made, before = make_transformer(yard), yard.made()
    assert made.status(found).entries["x"].status.state is State.RUNNING
    assert list(made.logs(found)) == []  # its handle is not written down yet
    assert (yard.made(), found.is_driven()) == (before, False)


def test_what_was_made_before_a_crash_is_carried_on(left: tuple[Yard, Run]) -> None:
    """It is not made a second time."""
    yard, found = left
    (job,) = yard.of_kind(JOBS.plural)
    succeed(yard, job)
    yard.behave = succeed
    make_transformer(yard).carry_on(found, wait=True)
    assert states(found) == {"x": "done", "y": "done"}
    names = [name for verb, plural, name in yard.writes if (verb, plural) == ("create", "jobs")]
    assert names.count(job["metadata"]["name"]) == 1


def test_what_was_made_before_a_crash_is_cancelled(left: tuple[Yard, Run]) -> None:
    """Nothing is left, and what waited never begins."""
    yard, found = left
    progress = make_transformer(yard).cancel(found)
    assert progress.exit_code() == 143
    assert yard.made() == []


def test_a_job_with_another_mark_is_not_found(left: tuple[Yard, Run]) -> None:
    """Only what carries the mark is ours."""
    yard, found = left
    name = name_of(found.id, "x")
    yard.edit(
        JOBS.plural, "lab", name, lambda job: job["metadata"].update(annotations={MARK_NOTE: "z"})
    )
    made = make_transformer(yard)
    assert made.make_step(found, "x", found.progress()).find() is None
    yard.remove(JOBS.plural, "lab", name)
    assert made.make_step(found, "x", found.progress()).find() is None


def test_a_run_without_a_driver_is_looked_at(left: tuple[Yard, Run]) -> None:
    """How its Job is, and what its pods printed, comes from the cluster; nobody who waits is told it is lost."""
    yard, found = left
    made: Any = make_transformer(yard)
    handle = dict(made.make_step(found, "x", found.progress()).find())
    found.journal.write("submitted", id="x", state="pending", handle=handle)
    assert made.status(found).entries["x"].status.state is State.RUNNING
    assert list(made.logs(found)) == [("x", "so far")]
    assert not made._is_stuck(made.status(found))
    yard.down = True
    assert made.status(found).entries["x"].status.state is State.UNKNOWN
    yard.down = False
    yard.remove(JOBS.plural, "lab", str(handle["job"]))
    assert made.status(found).entries["x"].status.reason == GONE
    assert list(made.logs(found)) == []


def test_cleaning_up_may_wait() -> None:
    """Work that is over is over, also when the server is away as it ends; the rest goes by itself."""
    yard = Yard()
    made: Any = make_transformer(yard)
    plan = made.render(graph(work("x")), run_id=RUN_ID)
    found = create_run(plan)
    yard.down = True
    made.finish(found)
    (line,) = found.journal.read()[0]
    assert line["event"] == "left"
    assert found.progress().entries["x"].status.state is State.WAITING


def test_who_may_not_delete_still_hears_the_end() -> None:
    """A right that is missing spoils no result; the journal says that something is left."""
    yard = Yard()
    yard.forbidden = {("delete", "jobs")}
    found = run(yard, graph(work("x"), work("y", needs=("x",))))
    assert states(found) == {"x": "done", "y": "done"}
    assert found.journal.read()[0][-1]["event"] == "left"


def test_deleting_a_run_spares_others() -> None:
    """Only what carries its label goes."""
    yard = Yard(hang)
    labels = {RUN_LABEL: "other"}
    yard.put(CONFIG_MAPS.plural, {"metadata": {"name": "c", "namespace": "lab", "labels": labels}})
    clusters.delete_run(yard, "lab", RUN_ID)
    assert yard.made() == ["configmaps"]


def test_waiting_for_what_shall_end() -> None:
    """Until it is gone, or time is up."""
    yard, time_s = Yard(hang), [0.0]
    meta = {"name": "j", "namespace": "lab"}
    yard.put(JOBS.plural, {"metadata": meta})

    def sleep(seconds: float) -> None:
        time_s[0] += seconds
        if time_s[0] > 5:
            yard.remove(JOBS.plural, "lab", "j")

    more: dict[str, Any] = {"sleep": sleep, "clock": lambda: time_s[0]}
    assert clusters.wait_gone(yard, "lab", ["j"], 3.0, **more) == ["j"]
    assert clusters.wait_gone(yard, "lab", ["j"], 30.0, **more) == []


def test_a_queue_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for in the version that the cluster has."""
    yard = Yard()
    version = {"preferredVersion": {"version": "v1beta1"}}
    monkeypatch.setattr(yard, "read", lambda _path: json.dumps(version).encode())
    yard.put("localqueues", {"metadata": {"name": "fast", "namespace": "lab"}})
    clusters.check_queue(yard, "lab", "fast")
    with pytest.raises(SpecError, match="there is no queue 'slow'"):
        clusters.check_queue(yard, "lab", "slow")


def test_it_comes_in_by_its_name() -> None:
    """As every transformer does."""
    made = load_transformer("kubernetes", image="x")
    assert (made.name, made.detaches, made.durable) == ("kubernetes", True, True)

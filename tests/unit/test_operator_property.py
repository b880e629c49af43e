"""Whatever happens to meshes, to the cluster and to operators, in whatever order: the world comes right.

Then a new operator that sees it for the first time has nothing to write.
"""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import Phase, given, settings, strategies as st

from milkweed.errors import MilkweedError
from milkweed.kube.resources import MESHES, PODS, SERVICES, STATEFUL_SETS
from milkweed.operator.loop import Operator
from milkweed.operator.objects import make_service, make_stateful_set
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster
from unit.operator_runs import condition, make_mesh, make_operator, make_template, run, work, writes

NAMES = ("a", "b")
IMAGES = ("worker:1", "worker:2")
LABELS = ({}, {"queue": "x"}, {"queue": "y", "team": "z"})


class Story:
    """A cluster with up to two meshes, and one operator at a time."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.clock = FakeClock()
        self.count = 0
        self.operator = self._hire()

    def _hire(self) -> Operator:
        self.count += 1
        return make_operator(self.cluster, self.clock, f"operator{self.count}")

    def mesh_exists(self, name: str) -> bool:
        """Whether there is such a mesh."""
        return (MESHES.plural, "team", name) in self.cluster.objects

    # What people do

    def create(self, name: str, size: int, image: str, labels: Any) -> None:
        """Make a mesh."""
        if not self.mesh_exists(name):
            mesh = make_mesh(name, size, image, labels=dict(labels))
            self.cluster.put(MESHES.plural, mesh)

    def change(self, name: str, size: int, image: str, labels: Any) -> None:
        """Ask for something else."""

        def edit(mesh: Any) -> None:
            mesh["spec"] |= {"replicas": size, "podTemplate": make_template(image)}
            mesh["metadata"]["labels"] = dict(labels)

        if self.mesh_exists(name):
            self.cluster.edit(MESHES.plural, "team", name, edit)

    def delete(self, name: str, *_: Any) -> None:
        """Give a mesh up."""
        self.cluster.remove(MESHES.plural, "team", name)

    def meddle(self, name: str, size: int, image: str, _labels: Any) -> None:
        """Change what is not theirs."""

        def edit(found: Any) -> None:
            found["spec"]["replicas"] = size
            found["spec"]["template"]["spec"]["containers"][0]["image"] = image

        if (STATEFUL_SETS.plural, "team", name) in self.cluster.objects:
            self.cluster.edit(STATEFUL_SETS.plural, "team", name, edit)

    def destroy(self, name: str, size: int, *_: Any) -> None:
        """Delete what is not theirs."""
        if size % 2:
            self.cluster.remove(STATEFUL_SETS.plural, "team", name)
        else:
            self.cluster.remove(SERVICES.plural, "team", f"{name}-svc")

    # What the cluster does

    def settle(self, *_: Any) -> None:
        """Make pods, and remove what belongs to nobody."""
        self.cluster.settle()

    def break_off(self, _name: str, size: int, image: str, _labels: Any) -> None:
        """Break one of the next connections, before or after the write was made."""
        fault = "before" if image == IMAGES[0] else "after"
        self.cluster.faults.extend([""] * size + [fault])

    def forget(self, *_: Any) -> None:
        """Forget what happened, as a server does that was restarted."""
        self.cluster.forgotten = self.cluster.version

    # What the operator does

    def see(self, _name: str, size: int, *_: Any) -> None:
        """Hear of one kind of object; of the others it knows what was true before."""
        self.operator.followers[size % len(self.operator.followers)].step()

    def act(self, *_: Any) -> None:
        """Do what is due by what it has seen."""
        self.operator.lead()
        work(self.operator)

    def wait(self, _name: str, size: int, *_: Any) -> None:
        """Let some time pass."""
        self.clock.advance(size * size)

    def live(self, *_: Any) -> None:
        """See and do everything for a moment."""
        run(self.operator, self.cluster, self.clock, 2)

    def crash(self, *_: Any) -> None:
        """End in the middle of the next write, or right here; another operator takes its place."""
        self.operator.lead()
        self.clock.advance(1)
        if self.operator.may_work() and (key := self.operator.queue.take()):
            self.cluster.faults.appendleft("after")
            self.operator.hands._may_act = Once()
            self.operator.work(key)
            self.cluster.faults.clear()
        self.operator = self._hire()

    def end(self) -> None:
        """Let everything come to rest."""
        self.cluster.faults.clear()
        run(self.operator, self.cluster, self.clock, 700)


class Once:
    """Lets one write happen, and then no more: the program is gone."""

    def __init__(self) -> None:
        self.used = False

    def __call__(self) -> bool:
        """Whether it may happen."""
        used, self.used = self.used, True
        return not used


STEPS = (
    *("create", "change", "change", "change", "delete", "meddle", "meddle", "destroy"),
    *("settle", "break_off", "break_off", "forget"),
    *("see", "see", "act", "act", "wait", "live", "live", "live", "crash", "crash"),
)
Step = tuple[str, str, int, str, Any]


def make_story(seed: int) -> list[Step]:
    """Some steps, each as likely as the other; lists that hypothesis makes are too much alike."""
    chance = random.Random(seed)
    return [
        (
            chance.choice(STEPS),
            chance.choice(NAMES),
            chance.randint(1, 4),
            chance.choice(IMAGES),
            chance.choice(LABELS),
        )
        for _ in range(chance.randint(5, 40))
    ]


STORIES = st.builds(make_story, st.integers(0, 2**32))
told = settings(
    max_examples=int(os.environ.get("MILKWEED_STORIES", "40")),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is no smaller story
)


def tell(steps: list[Step]) -> Story:
    story = Story()
    story.create("a", 2, IMAGES[0], {"queue": "x"})
    story.live()
    for step, *words in steps:
        try:
            getattr(story, step)(*words)
        except MilkweedError as error:  # what people do may be answered by a broken connection
            assert error.transient  # noqa: PT017  nothing else may come
    story.end()
    return story


def check(story: Story) -> None:
    """The world is as the meshes say, and nothing else is there."""
    cluster = story.cluster
    meshes = {mesh["metadata"]["name"]: mesh for mesh in cluster.of_kind(MESHES.plural)}
    sets = {found["metadata"]["name"]: found for found in cluster.of_kind(STATEFUL_SETS.plural)}
    services = {found["metadata"]["name"] for found in cluster.of_kind(SERVICES.plural)}
    assert set(sets) == set(meshes)
    assert services == {f"{name}-svc" for name in meshes}
    for name, mesh in meshes.items():
        wanted = make_stateful_set(mesh)
        assert sets[name]["spec"]["replicas"] == mesh["spec"]["replicas"]
        assert sets[name]["spec"]["template"] == wanted["spec"]["template"]
        assert sets[name]["metadata"]["labels"] == wanted["metadata"]["labels"]
        assert make_service(mesh)["spec"].items() <= service_of(cluster, name)["spec"].items()
        assert condition(cluster, name)["reason"] == "AllReady"
        assert condition(cluster, name)["observedGeneration"] == mesh["metadata"]["generation"]
    pods = cluster.of_kind(PODS.plural)
    assert len(pods) == sum(mesh["spec"]["replicas"] for mesh in meshes.values())


def service_of(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.objects[SERVICES.plural, "team", f"{name}-svc"]


@told
@given(STORIES)
def test_the_world_comes_right(steps: list[Step]) -> None:
    """Whatever order things happen in, and wherever it crashes."""
    check(tell(steps))


@told
@given(STORIES)
def test_then_nothing_is_written_any_more(steps: list[Step]) -> None:
    """Neither by the operator that did it, nor by one that comes anew."""
    story = tell(steps)
    story.cluster.writes.clear()
    run(story.operator, story.cluster, story.clock, 60)
    second = make_operator(story.cluster, story.clock, "afterwards")
    run(second, story.cluster, story.clock, 60)
    assert writes(story.cluster) == []
    assert second.counts.terms == 1


@told
@given(STORIES)
def test_hosts_are_kept_where_nothing_asks_for_others(steps: list[Step]) -> None:
    """Sizes, labels, crashes and blips restart no host of a mesh whose template stays the same."""
    story = Story()
    story.create("a", 3, IMAGES[0], {})
    story.live()
    first = story.cluster.objects[PODS.plural, "team", "a-0"]["metadata"]["uid"]
    harmless = {"change", "settle", "break_off", "forget", "see", "act", "wait", "live", "crash"}
    for step, name, size, _image, labels in steps:
        if step in harmless:
            try:
                getattr(story, step)(name, size, IMAGES[0], labels)
            except MilkweedError as error:
                assert error.transient  # noqa: PT017  nothing else may come
    story.end()
    assert story.cluster.objects[PODS.plural, "team", "a-0"]["metadata"]["uid"] == first

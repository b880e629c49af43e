"""Transformers: what carries out a graph in one place. A class with a name, a description and steps."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ..errors import DeadlineError, MilkweedError, SpecError
from ..options import Data
from .graph import WORKING, Graph, Group, Step, Work, kind_of, says_wait, says_watch
from .order import Complaint, prepared_before, refuse, sort_steps
from .plan import Action, Plan
from .progress import LOST, Progress, State, StepStatus
from .steps import Scene, StepBase, can_be_asked, can_run
from .tail import Show, Tail
from .whole_paths import make_whole

if TYPE_CHECKING:
    from .driver import Running, Wake
    from .runs import Run

POLL_S = 2.0


class TransformerBase:
    """The base of all transformers. Registering steps is all that most of them need."""

    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    steps: ClassVar[dict[str, type[StepBase]]] = {}
    """What does each kind of step here."""
    honours: ClassVar[frozenset[str]] = frozenset()
    """What may be said of work: fields such as `cwd` and `queue`, and attributes such as `requires`. Anything
    else that a file says is refused before anything runs."""
    detaches: ClassVar[bool] = False
    """Whether work needs somebody of this machine until its end, so that a run that nobody waits for gets a
    process of its own."""
    durable: ClassVar[bool] = True
    """Whether what is submitted survives this machine, so that each intent must survive it, too."""

    found_as: str = ""
    """The name by which it was found, which plans record; nothing where somebody made it by hand."""

    def __init_subclass__(cls) -> None:
        """Give every class a table of its own, which begins with what its parent has."""
        super().__init_subclass__()
        cls.steps = dict(cls.steps)

    def __init__(self, **settings: Data) -> None:
        self.settings: Mapping[str, Data] = settings
        """What the person said beside the file."""
        self.tail = Tail(None)
        """Shows what work prints, while it is driven here."""
        self.leaves = False
        """Whether SIGINT and SIGTERM leave a run as it is and raise KeyboardInterrupt, instead of ending it."""
        self.launch: Callable[[Run], None] | None = None
        """What starts recorded runs somewhere else; None: they are carried on from here."""

    @classmethod
    def register_step(cls, step: type[StepBase], name: str | None = None) -> None:
        """Let a class do a kind of step here; `name` where it is not the class's own."""
        cls.steps[name or step.name] = step

    # Before anything runs.

    def check(self, graph: Graph) -> None:
        """Refuse a graph that this transformer cannot carry out; JobspecError lists all reasons."""
        scene = self._scene(graph, "")
        refuse(
            graph.source, [bad for step in graph.walk() for bad in self._check_step(step, scene)]
        )

    def _check_step(self, step: Step, scene: Scene) -> Iterator[Complaint]:
        kind = kind_of(step)
        cls = self.steps.get(kind)
        if cls is None:
            known = f"it knows: {', '.join(sorted(self.steps))}"
            yield Complaint(step, f"the transformer {self.name!r} knows no {kind!r} step", known)
            return
        if not can_run(cls):
            hint = f"give {cls.__qualname__} a run(self, stage)"
            yield Complaint(step, f"the class for {kind!r} steps has no run()", hint)
        if isinstance(step, (*WORKING, Group)):
            yield from self._check_work(step, step.work)
        if isinstance(step, WORKING) and step.wait and not can_be_asked(cls):
            yield Complaint(step, f"the transformer {self.name!r} cannot wait for a {kind!r} step")
        try:
            cls.validate(step, scene)
        except SpecError as error:
            yield Complaint(step, error.what, error.hint)

    def _check_work(self, step: Step, work: Work) -> Iterator[Complaint]:
        for name in sorted(work.said() - self.honours):
            hint = f"take it out, or use a transformer that honours it; {self.name} honours: "
            known = ", ".join(sorted(self.honours)) or "nothing of the kind"
            yield Complaint(
                step, f"the transformer {self.name!r} does not honour {name!r}", hint + known
            )

    def render(self, graph: Graph, *, run_id: str | None = None) -> Plan:
        """The plan of a run: everything that will be submitted, as one value. Nothing is done yet."""
        self.check(graph)
        graph = make_whole(graph)
        run_id = run_id or str(uuid.uuid4())
        scene = self._scene(graph, run_id)
        return Plan(
            run_id=run_id,
            transformer=self.found_as or self.name,
            name=graph.name,
            source=graph.source,
            settings=dict(self.settings),
            actions=tuple(self.render_steps(graph.steps, scene)),
        )

    def render_steps(self, steps: Sequence[Step], scene: Scene) -> Iterator[Action]:
        """The actions of steps, each after those it needs; a group is one action of its class."""
        for step in sort_steps(steps):
            yield self.render_step(step, scene)

    def render_step(self, step: Step, scene: Scene) -> Action:
        """The action of one step."""
        kind = kind_of(step)
        return Action(
            id=step.id,
            kind=kind,
            needs=step.needs,
            wait=says_wait(step),
            watch=says_watch(step),
            details=self.steps[kind].render(step, scene),
        )

    def _scene(self, graph: Graph, run_id: str) -> Scene:
        return Scene(
            graph=graph,
            run_id=run_id,
            settings=self.settings,
            prepared=prepared_before(graph),
            groups={step.id: step for step in graph.walk() if isinstance(step, Group)},
        )

    # Carrying it out.

    def run(self, plan: Plan, *, wait: bool = False, show: Show | None = None) -> Run:
        """Carry out a plan.

        With `wait`, until all work is over; else until everything is handed over and the steps that say
        `wait` are over.
        """
        from .driver import carry_out

        return carry_out(self, plan, wait=wait, show=show)

    def carry_on(self, run: Run, *, wait: bool = False, show: Show | None = None) -> None:
        """Go on with a run that lost whoever drove it; what was submitted is found by its mark."""
        from .driver import carry_on

        carry_on(self, run, wait=wait, show=show)

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = POLL_S
    ) -> Mapping[str, StepStatus]:
        """What has changed: wait a little, then ask about each.

        One question for all is better where a scheduler has one.
        """
        wake.pause(timeout_s)
        return {step_id: each.step.poll(each.handle) for step_id, each in running.items()}

    def can_start(self, action: Action, running: Mapping[str, Running]) -> bool:
        """Whether there is room for one more."""
        del action, running
        return True

    def end(self, running: Mapping[str, Running]) -> None:
        """End what runs; all together where that is quicker than one by one.

        What cannot be ended keeps nothing else running: the first trouble is told in the end.
        """
        trouble: MilkweedError | None = None
        for each in running.values():
            try:
                each.step.cancel(each.handle)
            except MilkweedError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    def let_go(self) -> None:
        """Nobody drives a run from here any more: end what was only needed for that."""

    def finish(self, run: Run) -> None:
        """Tidy up after the last step."""
        run.drop_secrets()

    # Looking, later and from elsewhere.

    def status(self, run: Run) -> Progress:
        """How every step is: the journal, and for what runs on without a driver, one look at each."""
        progress = run.progress()
        if run.is_driven():
            return progress
        for step_id, entry in list(progress.entries.items()):
            if entry.status.state.over:
                continue
            status = self._look(run, step_id, progress)
            if status is not None:
                progress.add(_line(step_id, status))
        return progress

    def _look(self, run: Run, step_id: str, progress: Progress) -> StepStatus | None:
        entry = progress.entries[step_id]
        step = self.make_step(run, step_id, progress)
        try:
            handle = entry.handle
            if handle is None and entry.intended:
                handle = step.find()
            if handle is not None:
                return step.poll(handle)
        except MilkweedError as error:
            return StepStatus(State.UNKNOWN, None, error.what)
        if entry.status.state is State.WAITING:
            return StepStatus(State.WAITING, None, "nobody carries this run on")
        return None

    def make_step(self, run: Run, step_id: str, progress: Progress) -> StepBase:
        """What does a step of a run."""
        action = next(each for each in run.plan.actions if each.id == step_id)
        before = {need.id: progress.entries[need.id] for need in action.needs}
        return self.steps[action.kind](action, run, before, self)

    def wait(
        self,
        run: Run,
        timeout_s: float | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Wait until a run is over; its exit code. At the deadline nothing is cancelled."""
        deadline_s = None if timeout_s is None else clock() + timeout_s
        pause_s = 0.02
        while True:
            driven = run.is_driven()  # asked first: what a driver wrote before its end is then read
            progress = self.status(run)
            if progress.over or (not driven and self._is_stuck(progress)):
                return progress.exit_code() if progress.over else progress.exit_code() or LOST
            if deadline_s is not None and clock() > deadline_s:
                raise DeadlineError(
                    f"run {run.id} is not over after {timeout_s} s", hint="nothing was cancelled"
                )
            sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.25 if driven else POLL_S)

    def is_quiet(self, run: Run) -> bool:
        """Whether nothing of a run will happen any more by itself."""
        if run.is_driven():
            return run.progress().over
        progress = self.status(run)
        return progress.over or self._is_stuck(progress)

    def needs_driver(self, run: Run) -> bool:
        """Whether somebody must carry a run on, and nobody does."""
        if run.is_driven():
            return False
        entries = run.progress().entries.values()
        if self.detaches:
            return any(not entry.status.state.over for entry in entries)
        return any(entry.status.state is State.WAITING for entry in entries)

    def _is_stuck(self, progress: Progress) -> bool:
        """Whether nothing will happen by itself.

        Work of this machine has lost who saw to it, or nothing runs and somebody would have to start the rest.
        """
        states = {entry.status.state for entry in progress.entries.values()}
        return self.detaches or not states & {State.PENDING, State.RUNNING, State.UNKNOWN}

    def logs(self, run: Run, *, follow: bool = False) -> Iterator[tuple[str, str]]:
        """What the work of a run printed, as pairs of a label and a line."""
        progress = run.progress()
        for step_id, entry in progress.entries.items():
            if entry.handle is not None:
                step = self.make_step(run, step_id, progress)
                yield from step.logs(entry.handle, follow=follow)

    def cancel(self, run: Run) -> Progress:
        """End whatever of a run is not over."""
        from .driver import cancel_run

        return cancel_run(self, run)


def _line(step_id: str, status: StepStatus) -> dict[str, Data]:
    return {
        "event": "state",
        "id": step_id,
        "state": status.state.value,
        "code": status.code,
        "reason": status.reason,
    }

"""What a file wants done on the machine that submits, for transformers whose other work runs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from ...errors import SpecError
from ...options import Data
from ...spec import suggest
from ..graph import Stage, Step, Submit
from ..plan import Action
from ..progress import Progress, StepStatus
from ..runs import Run
from ..steps import Scene, StepBase
from ..transformer import TransformerBase
from . import local

if TYPE_CHECKING:
    from ..driver import Running, Wake

HERE = "submit-local"
"""The kind of action that is a process of the submitting machine."""
HONOURED = frozenset(
    {
        *("bank", "cwd", "duration_s", "environment", "error"),
        *("exclusive", "gpus", "output", "queue", "requires"),
    }
)
"""What every scheduler can be told of work."""
SHOW_S = 0.1
LOOK_S = 0.5


class ElsewhereTransformer(TransformerBase):
    """The base of transformers whose work runs elsewhere, but for what is local."""

    knows: ClassVar[tuple[str, ...]] = ()
    """The names of its settings, which are texts."""

    def __init__(self, **settings: Data) -> None:
        super().__init__(**settings)
        for name, value in settings.items():
            if name not in self.knows:
                raise SpecError(f"{name}: unknown setting", hint=suggest(name, self.knows))
            if not isinstance(value, str):
                raise SpecError(f"{name}: {value!r} is no name")
        self.here = local.Transformer()
        """Carries out what the file wants done on the machine that submits."""

    def render_step(self, step: Step, scene: Scene) -> Action:
        """What is local is done here, and whoever carries the run on stays until its end."""
        if isinstance(step, Submit) and step.local:
            details = HereStep.render(step, scene)
            return Action(
                id=step.id,
                kind=HERE,
                needs=step.needs,
                wait=True,
                watch=step.watch,
                details=details,
            )
        return super().render_step(step, scene)

    def poll_here(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float
    ) -> dict[str, StepStatus]:
        """Wait a little; what ended of the processes of this machine, heard of as they end."""
        pause_s = min(timeout_s, SHOW_S if self.tail.is_busy else LOOK_S)
        mine = _find_mine(running)
        if mine:
            self.here.tail = self.tail
            return dict(self.here.poll(mine, wake, pause_s))
        wake.pause(pause_s)
        return {}

    def end_here(self, running: Mapping[str, Running]) -> list[Running]:
        """End the processes of this machine; what runs elsewhere is left."""
        mine = _find_mine(running)
        self.here.end(mine)
        return [each for name, each in running.items() if name not in mine]

    def finish(self, run: Run) -> None:
        """End what local steps left in the background, and forget secrets."""
        self.here.finish(run)

    def status(self, run: Run) -> Progress:
        """How every step is; who sees that all is over forgets the secrets."""
        progress = super().status(run)
        if progress.over and not run.is_driven():
            run.drop_secrets()
        return progress


def _find_mine(running: Mapping[str, Running]) -> dict[str, Running]:
    return {name: each for name, each in running.items() if isinstance(each.step, HereStep)}


def is_here(step: Step) -> bool:
    """Whether a step is a process of the machine that submits: it is local, and in no group."""
    return isinstance(step, Submit) and step.local and step.parent is None


class MaybeHereStep(StepBase):
    """Work: elsewhere, or a process of this machine where it is local and in no group."""

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what could not be carried out where it runs."""
        if is_here(step):
            HereStep.validate(step, scene)
        else:
            super().validate(step, scene)


class AwayStageStep(local.StageStep):
    """A file on every node of the jobs that come after, and here where local work wants it."""

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """How it travels."""
        found = super().render(step, scene)
        if not isinstance(step, Stage):
            return found
        if step.path:
            found |= cls.render_parcel(step, scene)
        needs_it = any(is_here(each) for each in scene.graph.steps)
        return {**found, "here": True} if needs_it else found

    @classmethod
    def render_parcel(cls, step: Stage, scene: Scene) -> dict[str, Data]:
        """What is said of one that is too large to travel inside a job."""
        raise NotImplementedError

    def run(self, stage: Path) -> None:
        """Copy it here, and send what is too large to travel inside a job."""
        if self.options.get("here"):
            super().run(stage)
        self.send()

    def send(self) -> None:
        """Bring what is too large to where jobs fetch it."""
        raise NotImplementedError


class HereStep(local.JobStep):
    """One process of the machine that submits."""

    name = HERE

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Only local work is done so."""
        if not (isinstance(step, Submit) and step.local):
            raise SpecError(f"there is no {HERE!r} step", hint="let a submit step be local")
        if step.replicas > 1:
            raise SpecError("replicas: local work is one process", hint="take the replicas out")
        super().validate(step, scene)

    @property
    def _place(self) -> local.Transformer:
        place = cast("ElsewhereTransformer", self.transformer).here
        place.tail = self.transformer.tail
        return place

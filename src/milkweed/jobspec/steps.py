"""Steps as transformers do them: those that all can share, and the base of one's own.

A step class has two halves. Before anything runs, `validate` and `render` look at a step of the graph and
are pure. While a plan is carried out, an object of the class has the rendered action, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import SpecError, UnsupportedError
from ..options import Data
from ..spec import suggest
from .graph import Auth, Custom, Graph, Group, NeedKind, Stage, Step, Write
from .plan import Action, make_details, parse_content
from .progress import Entry, StepStatus

if TYPE_CHECKING:
    from .runs import Run
    from .transformer import TransformerBase

__all__ = ["AuthStep", "EmptyStep", "Handle", "PlainStep", "Scene", "StepBase", "WriterStep"]

Handle = Mapping[str, Data]
"""What finds a submitted thing again: plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a step sees of the rest when it is rendered."""

    graph: Graph
    run_id: str
    settings: Mapping[str, Data]
    prepared: Mapping[str, Sequence[Step]]
    """For each step, the write, stage and auth steps that come before it."""
    groups: Mapping[str, Group]
    """All groups, by id."""

    def files(self, step: Step) -> dict[str, Write]:
        """The files that travel with a job, by name: those that were written before it."""
        return {each.filename: each for each in self.prepared[step.id] if isinstance(each, Write)}

    def secrets(self, step: Step) -> list[Auth]:
        """The secrets that it may use."""
        return [each for each in self.prepared[step.id] if isinstance(each, Auth)]

    def has_folder(self, step: Step) -> bool:
        """Whether it runs in the run's folder, where no cwd is said.

        Files were written or staged for it. Other work runs where the jobspec is run.
        """
        return any(isinstance(each, Write | Stage) for each in self.prepared[step.id])

    def around(self, step: Step) -> list[Group]:
        """The groups that it is in, the outermost first."""
        found: list[Group] = []
        parent = step.parent
        while parent is not None:
            found.append(self.groups[parent])
            parent = self.groups[parent].parent
        return found[::-1]


class StepBase:
    """What does one kind of step. A subclass has a `name` and a `run`; the rest has defaults."""

    name: ClassVar[str] = ""
    required: ClassVar[Sequence[str]] = ()
    """Options that a step of one's own must have."""
    optional: ClassVar[Sequence[str]] = ()
    """Options that it may have; any other is an error before anything runs."""
    native: ClassVar[frozenset[NeedKind]] = frozenset()
    """The needs that the scheduler itself keeps between two steps that both name them here: such a step is
    handed over as soon as those it needs are, and finds their handles in `before`."""

    at_once: ClassVar[bool] = False
    """Whether what is handed over runs already."""

    def __init__(
        self, action: Action, run: Run, before: Mapping[str, Entry], transformer: TransformerBase
    ) -> None:
        self.action = action
        self.record = run
        """The run: its folders, its plan, its journal."""
        self.before = before
        """What is known of the steps it needs."""
        self.transformer = transformer

    @property
    def options(self) -> Mapping[str, Any]:
        """The details of the action."""
        return self.action.details

    @property
    def mark(self) -> str:
        """What the submitted thing must carry."""
        return self.record.plan.mark(self.action.id)

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what could never be done, with SpecError; all steps are looked at before the first runs."""
        del scene
        if isinstance(step, Custom):
            _check_options(cls, step)

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """Everything that will be done, as plain data without a secret."""
        del scene
        return make_details(step)

    def run(self, stage: Path) -> Handle | str | StepStatus | None:
        """Do it. `stage` is the folder of the run's files.

        None: it is done. A handle, or the id of a job: something was submitted that `poll` can be asked
        about. A status: it is over, with a code. Errors end the run.
        """
        raise UnsupportedError(
            f"nobody can do a {self.name!r} step: its class has no run()", seen=f"files in {stage}"
        )

    def poll(self, handle: Handle) -> StepStatus:
        """How what was submitted is, by one look; UNKNOWN when nobody answers."""
        raise UnsupportedError(
            f"nobody can ask how a {self.name!r} step is", seen=f"handle {dict(handle)}"
        )

    def cancel(self, handle: Handle) -> None:
        """End what was submitted; ended already is fine."""
        raise UnsupportedError(
            f"a {self.name!r} step cannot be cancelled", seen=f"handle {dict(handle)}"
        )

    def find(self) -> Handle | None:
        """What carries the mark, after a crash between intent and record; None: certainly nothing.

        A step that cannot tell is never done a second time.
        """
        raise UnsupportedError(
            f"nobody can tell whether the {self.name!r} step {self.action.id!r} was submitted",
            hint="look for it by hand, then cancel the run",
        )

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        """What it printed, as pairs of a label and a line."""
        del handle, follow
        return iter(())


def can_run(cls: type[StepBase]) -> bool:
    """Whether a class says what a step does."""
    return cls.run is not StepBase.run


def can_be_asked(cls: type[StepBase]) -> bool:
    """Whether somebody can tell how a submitted step is."""
    return cls.poll is not StepBase.poll


def _check_options(cls: type[StepBase], step: Custom) -> None:
    for key in cls.required:
        if step.options.get(key) is None:
            raise SpecError(f"{key}: is missing", hint=f"a {cls.name!r} step needs `{key}: …`")
    known = [*cls.required, *cls.optional]
    for key in step.options:
        if key not in known:
            raise SpecError(f"{key}: unknown key", hint=suggest(key, known))


class PlainStep(StepBase):
    """A step that submits nothing, so that doing it again does no harm."""

    def find(self) -> None:
        """There is nothing to find."""


class EmptyStep(PlainStep):
    """A step that has nothing to do here: it is accepted, and skipped."""

    name = "empty"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Accept anything."""

    def run(self, stage: Path) -> None:
        """Do nothing."""


class WriterStep(PlainStep):
    """Write a file of the run."""

    name = "write"

    def run(self, stage: Path) -> None:
        """Write it in one step: whoever reads it sees all of it."""
        path = stage / self.options["filename"]
        write_file(path, parse_content(self.options), executable=bool(self.options["executable"]))


def write_file(path: Path, content: bytes, *, executable: bool) -> None:
    """Write a file that only its owner reads, beside and renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o700 if executable else 0o600)
        file.write(content)
    os.replace(beside, path)


class AuthStep(PlainStep):
    """Get a secret from where it is, and keep it in the run's own folder until the run is over."""

    name = "auth"

    def run(self, stage: Path) -> None:
        """Get it; what goes wrong is told without it."""
        from .auth import get_secret, save_secret

        del stage
        save_secret(self.record, self.options["secret"], get_secret(self.options, os.environ))

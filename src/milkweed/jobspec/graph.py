"""Work as steps that need each other: what every dialect is read into, and where every transformer starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from ..errors import SpecError
from ..options import Data

NeedKind = Literal["submitted", "after", "afterok", "afterany", "afternotok"]
NEED_KINDS: tuple[NeedKind, ...] = ("submitted", "after", "afterok", "afterany", "afternotok")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where something stands in a file, counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class RunFile:
    """A word of a command that names a file of the run, wherever a transformer puts it."""

    name: str


Word: TypeAlias = "str | RunFile"


@dataclass(frozen=True, slots=True)
class Need:
    """A step that must have come so far before another may start.

    submitted: it was handed over; after: it has started; afterok: it ended well; afternotok: it failed;
    afterany: it is over, however.
    """

    id: str
    kind: NeedKind = "afterok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What work runs on. Cores and GPUs belong to a slot, tasks run in slots, slots lie on nodes."""

    nodes: int | None = None
    """How many nodes; None: as many as the slots happen to need."""
    slots: int = 1
    """Slots in all; with nodes, the same number on each."""
    cores_per_slot: int = 1
    gpus_per_slot: int = 0
    exclusive: bool = False
    """Nodes that nobody else uses meanwhile."""
    tasks_per_slot: int = 1
    tasks_total: int | None = None
    """Tasks in all, where that is said instead of how many run in a slot."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("nodes", "slots", "cores_per_slot", "tasks_per_slot", "tasks_total"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"shape.{name}: {value} is less than 1")
        if self.gpus_per_slot < 0:
            raise SpecError(f"shape.gpus_per_slot: {self.gpus_per_slot} is less than 0")
        if self.nodes is not None and self.slots % self.nodes:
            raise SpecError(
                f"shape.slots: {self.slots} slots cannot be spread evenly over {self.nodes} nodes"
            )

    @property
    def tasks(self) -> int:
        """How many times the command is started."""
        return self.slots * self.tasks_per_slot if self.tasks_total is None else self.tasks_total

    @property
    def cores(self) -> int:
        """Cores in all."""
        return self.slots * self.cores_per_slot

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.slots * self.gpus_per_slot

    @property
    def slots_per_node(self) -> int | None:
        """Slots of each node; None where nodes are not said."""
        return None if self.nodes is None else self.slots // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A command and all that was said about how it runs; None means «not said»."""

    argv: tuple[Word, ...]
    shape: Shape = Shape()
    duration_s: float | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Variables; None takes one away."""
    cwd: str | None = None
    output: str | None = None
    error: str | None = None
    queue: str | None = None
    bank: str | None = None
    project: str | None = None
    attributes: Mapping[str, Data] = field(default_factory=dict[str, Data])
    """What else was said: `constraints`, `dependencies`, `requires`, `shell.options`, `user`, ….
    A transformer that does not know one of the keys refuses the work. `templates` says that words hold
    {{…}} which Flux fills in; `units` has the units of counts, by the type of resource."""
    slot: str = field(default="", compare=False)
    """How the file calls its slots: a label that changes nothing."""

    def said(self) -> frozenset[str]:
        """Every field and attribute that a transformer must honour or refuse."""
        fields = {name for name in _OPTIONAL if getattr(self, name) not in (None, {})}
        shape = {name for name in ("exclusive", "gpus") if getattr(self.shape, name)}
        return frozenset({*fields, *shape, *self.attributes})


_OPTIONAL = (
    "duration_s",
    "environment",
    "cwd",
    "output",
    "error",
    "queue",
    "bank",
    "project",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node of a graph. Inside a group its id is the group's, a slash and its name."""

    kind: ClassVar[str] = ""

    id: str
    needs: tuple[Need, ...] = ()
    at: Position | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.rpartition("/")[2]

    @property
    def parent(self) -> str | None:
        """The id of its group; None at the top."""
        return self.id.rpartition("/")[0] or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write(Step):
    """Write a file of the run."""

    kind: ClassVar[str] = "write"

    filename: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Step):
    """Put a file of the run, or one of this machine, into the run's folder on every host."""

    kind: ClassVar[str] = "stage"

    filename: str = ""
    """A file of the run."""
    path: str = ""
    """A file or folder of this machine; it gets its last name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Step):
    """Submit work as a job: its command is started once for each task."""

    kind: ClassVar[str] = "submit"

    work: Work
    wait: bool = False
    """The steps after it in the file wait for its end, and so does whoever runs the file."""
    watch: bool = False
    """What it prints is shown while it runs."""
    local: bool = False
    """One process, at the place where the graph or the group is carried out; no job of its own."""
    replicas: int = 1
    """How many jobs of this kind; whoever needs the step needs all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Step):
    """Submit a script that is started once, inside an allocation of the shape."""

    kind: ClassVar[str] = "batch"

    work: Work
    filename: str
    wait: bool = False
    watch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth(Step):
    """Get a secret for the steps that come after; exactly one of variable, command and file says whence."""

    kind: ClassVar[str] = "auth"

    variable: str = ""
    command: tuple[str, ...] = ()
    file: str = ""
    secret: str
    """How the secret is called: the name of its file."""
    export: str = ""
    """The variable in which steps after it find the secret; without it, only the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom(Step):
    """A step that only some transformer knows."""

    kind: ClassVar[str] = "custom"

    step: str
    options: Mapping[str, Data] = field(default_factory=dict[str, Data])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Step):
    """An allocation with steps inside; it is over when all of them are."""

    kind: ClassVar[str] = "group"

    steps: tuple[Step, ...]
    work: Work
    """Its shape and settings; there is no command."""


WORKING = (Submit, Batch)
"""The steps that run a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """All steps of a file. What is wrong with them is refused, with its place, before there is a graph."""

    steps: tuple[Step, ...]
    name: str = ""
    dialect: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    """The name of the file."""

    def __post_init__(self) -> None:
        """Refuse names that nobody has, and steps that wait for each other."""
        from .order import check_files, check_steps, refuse

        refuse(self.source, check_steps(self.steps))
        refuse(self.source, check_files(self))

    def walk(self) -> Iterator[Step]:
        """Every step, groups before what is in them."""
        waiting = list(reversed(self.steps))
        while waiting:
            step = waiting.pop()
            yield step
            if isinstance(step, Group):
                waiting += reversed(step.steps)


def kind_of(step: Step) -> str:
    """The name under which a transformer registers what does this step."""
    return step.step if isinstance(step, Custom) else step.kind


def place_of(source: str, step: Step) -> str:
    """Where a step stands, as errors begin."""
    if step.at is not None:
        return f"{source}:{step.at}"
    return source or "this graph"


def says_wait(step: Step) -> bool:
    """Whether whoever runs the file waits for its end; of a group, whether that is said of a step inside."""
    if isinstance(step, Group):
        return any(map(says_wait, step.steps))
    return isinstance(step, WORKING) and step.wait


def says_watch(step: Step) -> bool:
    """Whether what it prints is shown; of a group, whether that is said of a step inside."""
    if isinstance(step, Group):
        return any(map(says_watch, step.steps))
    return isinstance(step, WORKING) and step.watch

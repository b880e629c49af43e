"""Every error milkweed raises, in one tree.

MilkweedError
├── SpecError (also ValueError)      the declaration is wrong; nothing was started
│   ├── JobFileError                 the same, found in a job file, with file:line:column
│   └── JobspecError                 the same, found in a jobspec; nothing was submitted
├── StateError                       the state file cannot be used
│   ├── StateCorruptError            it is not what milkweed writes
│   │   └── PickleRefusedError       it is a pickle, which is never loaded
│   ├── StateVersionError            a newer milkweed wrote it
│   ├── StateForeignError            another machine's processes are recorded in it
│   └── StateBusyError               another client holds its lock
├── ChangedError                     the declaration differs from the running allocation
├── BackendError                     a scheduler said no, or something unexpected
│   ├── UnknownBackendError          no backend has that name
│   ├── UnsupportedError             this backend cannot do that
│   └── UnreachableError             the scheduler did not answer: nothing is known, nothing was changed
├── AllocationError                  the allocation is not what was asked for
│   ├── NotAppliedError              there is no allocation yet
│   ├── AllocationEndedError         it has ended
│   ├── HostFailedError              a host did not start, or was lost
│   └── StepFailedError              a step of an image failed on a host
├── TransformerError                 no transformer has that name, or it is broken
├── RanksFailedError                 a rank of an SPMD program failed, and took the others with it
├── DeadlineError (also TimeoutError)  the deadline passed; nothing was cancelled
├── ServiceMissingError              a declared service is not part of this version
└── AccessError                      a peer without the job's certificate, or a folder others can write
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class MilkweedError(Exception):
    """Something milkweed can explain: what happened, what was seen, what to do next."""

    transient = False
    """Whether the same call may succeed later with nothing changed."""
    usual_hint = ""
    """What to do about it, where whoever raises it knows nothing better."""

    def __init__(self, what: str, *, seen: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.seen = seen
        self.hint = hint or self.usual_hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.seen:
            parts.append(_indent("seen: ", self.seen))
        if self.hint:
            parts.append(_indent("do:   ", self.hint))
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.seen, self.hint)


def _rebuild(cls: type[MilkweedError], what: str, seen: str, hint: str) -> MilkweedError:
    return cls(what, seen=seen, hint=hint)


def _indent(label: str, text: str) -> str:
    first, *rest = text.rstrip().splitlines() or [""]
    pad = " " * (2 + len(label))
    return "\n".join([f"  {label}{first}", *(pad + line for line in rest)])


class SpecError(MilkweedError, ValueError):
    """The declaration is wrong; nothing was started."""


class JobFileError(SpecError):
    """A job file is wrong; the text names file, line and column."""


class JobspecError(SpecError):
    """A jobspec is wrong; the text names file, line and column where there is a file."""


class StateError(MilkweedError):
    """The state file cannot be used."""


class StateCorruptError(StateError):
    """The file is not what milkweed writes."""


class PickleRefusedError(StateCorruptError):
    """The file is a pickle; loading one runs whatever code it holds, so milkweed never does."""


class StateVersionError(StateError):
    """A newer milkweed wrote the file."""


class StateForeignError(StateError):
    """The file records processes of another machine."""


class StateBusyError(StateError):
    """Another client holds the file's lock."""

    transient = True


class ChangedError(MilkweedError):
    """The declaration differs from the allocation that exists."""


class BackendError(MilkweedError):
    """A scheduler said no, or said something unexpected."""

    unfinished = False
    """Whether a part of what was asked for was done all the same."""


class UnknownBackendError(BackendError, ValueError):
    """No backend has that name."""


class UnsupportedError(BackendError):
    """This backend cannot do that."""

    usual_hint = "use another backend, or do without"


class UnreachableError(BackendError):
    """The scheduler did not answer: nothing is known, and nothing was changed."""

    transient = True
    usual_hint = "try again when it answers"


class AllocationError(MilkweedError):
    """The allocation is not what was asked for."""


class NotAppliedError(AllocationError):
    """There is no allocation yet."""


class AllocationEndedError(AllocationError):
    """The allocation has ended."""

    usual_hint = "state() or `milkweed apply` makes another; `milkweed status --why` tells more"


class HostFailedError(AllocationError):
    """A host did not start, or was lost."""

    usual_hint = (
        "`milkweed status --why` tells more; the next plan is to replace it, "
        "and `milkweed kill` ends the job"
    )


class StepFailedError(AllocationError):
    """A step of an image failed on a host; hosts keep what was done before it."""

    host: str = ""
    """The first host on which it failed."""
    step: str = ""
    """The step, as it was written."""
    exit_code: int = 1
    """Its exit code; negative for a signal."""


class TransformerError(MilkweedError):
    """No transformer has that name, or the package that brings it is broken."""


class RanksFailedError(MilkweedError):
    """A rank of an SPMD program failed, and the others were ended for it."""

    rank: int = -1
    """The first rank that failed."""
    local_rank: int = -1
    host: str = ""
    exit_code: int = 1
    """Its exit code; negative for a signal."""
    failures: Sequence[Mapping[str, Any]] = ()
    """All ranks that failed, the first one first."""


class DeadlineError(MilkweedError, TimeoutError):
    """The deadline passed; nothing was cancelled."""

    transient = True


class ServiceMissingError(MilkweedError):
    """A declared service is not part of this version."""


class AccessError(MilkweedError):
    """Somebody who must not get in could, or did not."""

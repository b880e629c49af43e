"""What programs were to run, where nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from milkweed.spmd import run as run_module, target as target_module

if TYPE_CHECKING:
    import pytest


class Runs:
    """Takes the place of running a program, and remembers what was to run."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []
        self.error: BaseException | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens before that."""

    def __call__(self, target: Any, launch: Any, **more: Any) -> None:
        """Take a program."""
        self.calls.append(SimpleNamespace(target=target, launch=launch, **more))
        self.meanwhile()
        if self.error:
            raise self.error

    def gather(self) -> None:
        """The last one has its hosts."""
        self.last.gathered()

    @property
    def last(self) -> SimpleNamespace:
        """What was to run last."""
        return self.calls[-1]


def replace_runs(patch: pytest.MonkeyPatch) -> Runs:
    """Let nothing run, on hosts of any kind."""
    made = Runs()
    patch.setattr(run_module, "run", made)
    patch.setattr(target_module, "check_backend", lambda _backend: None)
    return made

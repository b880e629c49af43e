"""Groups of commands that are imported when one of them is called, and not to be listed."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


class LazyGroup(TyperGroup):
    """A group whose commands lie in a module of their own."""

    module: ClassVar[str] = ""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in their order."""
        return self._load().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them."""
        return self._load().get_command(ctx, cmd_name)

    def _load(self) -> TyperGroup:
        if not self.commands:
            from typer.main import get_command

            module: Any = importlib.import_module(self.module, __package__)
            found: Any = get_command(module.app)
            self.commands.update(found.commands)
            self._group = found
        return self._group


class JobspecGroup(LazyGroup):
    """The commands about jobspecs."""

    module = ".commands.jobspec"


JOBSPEC_HELP = "Run jobspecs: steps described once."
jobspec = typer.Typer(
    cls=JobspecGroup, help=JOBSPEC_HELP, no_args_is_help=True, rich_markup_mode=None
)

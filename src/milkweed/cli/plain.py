"""Commands that start fast: plain words pass as they are.

typer lets pydantic check the values of options, and importing that takes longer than most commands
run. A value that was not given and need not be, and one that is any text, need no check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand

TEXTS = frozenset({"job", "host", "on", "timeout", "words"})
"""The parameters that take any text."""


class PlainCommand(TyperCommand):
    """A command whose text parameters are not checked."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, `--help` included."""
        return spare_checks(super().get_params(ctx))


def spare_checks(params: list[Any]) -> list[Any]:
    """Let values pass that no check could refuse."""
    for param in params:
        if "process_value" not in vars(param):
            param.process_value = _make_process(param, param.process_value)
    return params


def _make_process(param: Any, check: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def process_value(ctx: Any, value: Any) -> Any:
        if param.required and param.value_is_missing(value):
            return check(ctx, value)
        if value is not None and param.name not in TEXTS:
            return check(ctx, value)
        return value if param.callback is None else param.callback(ctx, param, value)

    return process_value

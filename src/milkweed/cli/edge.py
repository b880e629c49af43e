"""The edge of the process: every error becomes a few lines and an exit code, never a surprise."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import Any

import typer
from typer.core import TyperGroup

from ..errors import MilkweedError
from .plain import spare_checks

DEBUG_ENV = "MILKWEED_DEBUG"
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell says of a program that SIGPIPE ended."""


class Commands(TyperGroup):
    """The group of all commands, which reports what they raise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options that stand before a command."""
        return spare_checks(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with reported():
            return super().invoke(ctx)


def say(text: str) -> None:
    """Tell a person something that is not the command's output."""
    typer.echo(f"milkweed: {text}", err=True)


@contextlib.contextmanager
def reported() -> Generator[None]:
    """Turn errors into lines on stderr and an exit code; MILKWEED_DEBUG=1 lets them pass."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.Abort, typer.TyperException):
        raise
    except Exception as error:  # the edge of the process: nobody is left to handle it
        if os.environ.get(DEBUG_ENV, "0") not in {"", "0"}:
            raise
        say(describe(error))
        raise typer.Exit(1) from None


def describe(error: Exception) -> str:
    """An error as a person should read it."""
    if isinstance(error, MilkweedError):
        return str(error)
    if isinstance(error, OSError):
        text = error.strerror or str(error) or type(error).__name__
        return f"{text}: {error.filename}" if error.filename is not None else text
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        f"  do:   this is a mistake in milkweed; {DEBUG_ENV}=1 shows where"
    )


def _drop_output() -> None:
    """Nobody reads any more: what is still buffered must not fail once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def leave_with_reader() -> None:
    """End as soon as nobody reads stdout any more, though there may be nothing to write for long."""
    import threading

    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file: somebody reads it from within this process
        return
    threading.Thread(target=_watch_reader, args=(out,), daemon=True).start()


def _watch_reader(out: int) -> None:
    import select

    waiting = select.poll()
    waiting.register(out, 0)  # nothing is asked for but what is always told: that the reader left
    waiting.poll()
    os._exit(BROKEN_PIPE)

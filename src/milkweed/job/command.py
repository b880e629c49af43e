"""Naming things for a record: the job's class, and the command line of a batch client."""

from __future__ import annotations

import os
import shlex
import sys

from ..errors import SpecError


def class_path(cls: type) -> str:
    """How a class is named in a record."""
    return f"{cls.__module__}:{cls.__qualname__}"


def make_client_command(client_script: str) -> tuple[str, ...]:
    """The command line of a batch client: a script with its arguments, or any command."""
    words = shlex.split(client_script)
    if not words:
        raise SpecError("client_script: it is empty", hint='write apply("train.py")')
    if not words[0].endswith(".py"):
        return tuple(words)
    if not os.path.isfile(words[0]):
        raise SpecError(
            f"client_script: there is no file {words[0]!r}",
            seen=f"looked in {os.getcwd()}",
            hint="give its full path, or start this program in its folder",
        )
    return (sys.executable, os.path.abspath(words[0]), *words[1:])

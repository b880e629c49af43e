"""How a script is started: by the program that its first line names."""

from __future__ import annotations

from .graph import RunFile, Word

SHELL = "/bin/bash"


def script_argv(filename: str, content: bytes) -> tuple[Word, ...]:
    """The command that runs a script of the run, executable or not."""
    return (*interpreter(content), RunFile(filename))


def interpreter(content: bytes) -> tuple[str, ...]:
    """The program of a script's first line, with its one argument as the kernel cuts it; else bash."""
    first = content.split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return (SHELL,)
    words = first[2:].decode(errors="replace").strip().split(None, 1)
    return tuple(word.strip() for word in words) or (SHELL,)

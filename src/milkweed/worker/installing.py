"""What one step of an image does: pure but for the commands that a child turns into."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import site
import sys
from collections.abc import Mapping

from . import children

PIP = ["python", "-m", "pip", "install"]
"""What a step begins with for which nobody chose a Python or an installer: then it is the keeper's own."""
_REFERENCE = re.compile(r"\\\$|\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)


def expand(text: str, env: Mapping[str, str]) -> str:
    r"""Put in variables: `$NAME` and `${NAME}`; `\$` is a dollar sign, and what is not set is empty."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return env.get(name, "") if name else "$"

    return _REFERENCE.sub(value, text)


def read_env(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variable that a step sets."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise ValueError(f"{text!r} is not NAME=value")
    return {name: expand(value, env)}


def resolve(path: str, env: Mapping[str, str], cwd: str) -> str:
    """A folder or file as a step names it: below the working folder, or the home of whom it runs as."""
    named = expand(path, env)
    if named == "~" or named.startswith("~/"):
        named = env.get("HOME", "/") + named[1:]
    return os.path.join(cwd, named)


def run(kind: str, text: str, env: Mapping[str, str]) -> int:
    """Be a step, in a session of its own; returns only when its program cannot be started."""
    os.setsid()
    words = shlex.split(text) if kind == "pip" else []
    argv = (
        find_pip(words[len(PIP) :], env) if words[: len(PIP)] == PIP else [*find_shell(env), text]
    )
    return children.execute(argv, env)


def find_shell(env: Mapping[str, str]) -> list[str]:
    """Bash, where it is; else the shell that every machine has."""
    return [shutil.which("bash", path=env.get("PATH")) or "/bin/sh", "-c"]


def find_pip(words: list[str], env: Mapping[str, str]) -> list[str]:
    """The command that installs for this very Python: pip, else uv."""
    importlib.invalidate_caches()  # a step before may have installed it
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", *words]
    if uv := shutil.which("uv", path=env.get("PATH")):
        return [uv, "pip", "install", "--python", sys.executable, *words]
    if words and all(map(is_installed, words)):
        return ["true"]
    raise SystemExit(
        f"{sys.executable} has no pip, and uv is not on PATH: nothing can be installed\n"
        "choose an image that has one of them, or install one in a step before"
    )


def is_installed(requirement: str) -> bool:
    """Whether a package is there that is asked for by its name, or its name and one version."""
    from importlib import metadata  # by those who need it: every keeper has this module

    name, equals, version = requirement.partition("==")
    try:
        found = metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return not equals or found == version


def notice_packages() -> None:
    """See what steps have installed: forks have the paths of this process, which were read when it started."""
    importlib.invalidate_caches()
    for folder in list(sys.path):
        if os.path.basename(folder) in {"site-packages", "dist-packages"}:
            site.addsitedir(folder)

"""Where secrets come from. They are never printed, never in a plan, a journal, an error or an argument."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AccessError
from .runs import Run

TIMEOUT_S = 60.0
MAX_BYTES = 2**20


def get_secret(
    source: Mapping[str, Any], environment: Mapping[str, str], *, timeout_s: float = TIMEOUT_S
) -> bytes:
    """The secret that a variable, a command or a file of this machine holds."""
    name = source["secret"]
    if "variable" in source:
        return _check(_from_variable(name, source["variable"], environment), name)
    if "command" in source:
        return _check(_from_command(name, source["command"], environment, timeout_s), name)
    return _check(_from_file(name, Path(source["file"]).expanduser()), name)


def _check(secret: bytes, name: str) -> bytes:
    """A secret without the newline that tools put behind it."""
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if not secret:
        raise AccessError(f"the secret {name!r} is empty", hint="look at where it comes from")
    if len(secret) > MAX_BYTES:
        raise AccessError(f"the secret {name!r} has more than {MAX_BYTES:,} bytes")
    return secret


def _from_variable(name: str, variable: str, environment: Mapping[str, str]) -> bytes:
    if variable not in environment:
        raise AccessError(
            f"there is no secret {name!r}: the variable {variable} is not set",
            hint=f"export {variable} where the jobspec is run",
        )
    return os.fsencode(environment[variable])


def _from_command(
    name: str, argv: list[str], environment: Mapping[str, str], timeout_s: float
) -> bytes:
    hint = f"run it by hand: it must print the secret; its first word is {argv[0]!r}"
    try:
        done = subprocess.run(  # noqa: S603  the person's own command, as they wrote it
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # tools that fail may print what they know
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        seen = error.strerror or type(error).__name__
        raise AccessError(
            f"the command for the secret {name!r} cannot be started", seen=seen, hint=hint
        ) from None
    except subprocess.TimeoutExpired:
        raise AccessError(
            f"the command for the secret {name!r} did not end within {timeout_s:g} s", hint=hint
        ) from None
    if done.returncode:
        seen = f"exit code {done.returncode}"
        raise AccessError(f"the command for the secret {name!r} failed", seen=seen, hint=hint)
    return done.stdout


def _from_file(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
                raise AccessError(
                    f"others can read or change the secret {name!r}",
                    seen=f"{path} has mode {stat.S_IMODE(mode):04o}",
                    hint=f"chmod 600 {path}, and treat the secret as known to others",
                )
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AccessError(
            f"the secret {name!r} cannot be read",
            seen=f"{error.strerror}: {path}",
            hint="name a file of your own",
        ) from None


def save_secret(run: Run, name: str, secret: bytes) -> None:
    """Keep a secret in the run's own folder, until the run is over."""
    run.secrets.mkdir(mode=0o700, exist_ok=True)
    path = run.secrets / name
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(secret)

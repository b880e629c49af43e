"""What hosts should have in them: a container image, and steps that are replayed from the first one that changed.

A value: nothing is built, fetched or read here. What a COPY step copies is read by whoever asks for the steps.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from .errors import SpecError
from .spec import check_env

DEFAULT_IMAGE = "ghcr.io/meta-pytorch/monarch:latest"
"""The container image of hosts for which nobody named one."""

StepKind = Literal["run", "pip", "env", "copy", "workdir"]
KINDS: tuple[StepKind, ...] = ("run", "pip", "env", "copy", "workdir")

Reader = Callable[[str], Iterable[tuple[str, bytes]]]
"""Reads a local file or folder: the name below it, and the content, of each file. A file's own name is empty."""

_SIGNS = frozenset("/:@")
"""What tells the name of a container image from a word that somebody calls theirs."""
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?"  # the registry
    rf"{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[A-Za-z0-9]+(?:[.+_-][A-Za-z0-9]+)*:[0-9a-fA-F]{32,})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing to be done in a container after it has started."""

    kind: StepKind
    text: str
    """run, pip: a command line for a shell. env: `NAME=value`; `$OTHER` and `${OTHER}` are replaced, `\\$` is a
    dollar sign. workdir: a folder. copy: what `parse_copy` reads."""
    force: bool = False
    """Do it each time, changed or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Line):
    """A line that knows what came before it."""

    digest: str
    """Equal only when this step and all before it are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What a COPY step does.

    A file comes to `dest`, or into it when that ends with a slash. A folder comes into `dest` under its own name;
    with `contents`, what is in it does.
    """

    source: str
    dest: str
    contents: bool = False


class _FromDockerfile:
    """Reads the steps of a Dockerfile: for the class, or for an image without steps, which keeps what it has."""

    def __init__(self, start: Image | None = None) -> None:
        self._start = start

    def __get__(self, image: Image | None, _owner: type[Image]) -> _FromDockerfile:
        return _FromDockerfile(image)

    def __call__(
        self, path: str, name: str | None = None, *, read_text: Callable[[str], str] | None = None
    ) -> Image:
        """Read the steps of a Dockerfile; `read_text` reads a file, and is given for tests."""
        from .dockerfile import parse_dockerfile

        start = self._start or Image()
        if start.lines:
            raise SpecError(
                "image.from_dockerfile: a Dockerfile comes first, and this image has steps already",
                hint="write Image.from_dockerfile(path), and the other steps behind it",
            )
        made = parse_dockerfile((read_text or _read_text)(path), path=path)
        begun = start.from_docker(made.image_id) if made.image_id else start
        read = {"lines": made.lines, "entrypoint": made.entrypoint, "cmd": made.cmd}
        return replace(begun, **read, name=name if name is not None else start.name)


@dataclass(frozen=True, slots=True)
class Image:
    """A container image and steps on top of it; every method returns a new value.

    Example:
        Image(name="my-training").pip_install(["torch", "transformers"]).set_env_vars({"OMP_NUM_THREADS": 1})
    """

    name: str | None = None
    """The container image as `registry/image:tag`, where `image_id` names none; else a word for people, which
    means nothing. It is a container image when a slash, a colon or an @ is in it."""
    image_id: str | None = None
    python_path: str | None = None
    install_cmd: str | None = None
    """The command that installs packages; else pip, run by `python_path`."""
    lines: tuple[Line, ...] = field(default=(), kw_only=True)
    entrypoint: tuple[str, ...] = field(default=(), kw_only=True)
    """A Dockerfile's ENTRYPOINT. Hosts run the worker instead, so it is kept and not run."""
    cmd: tuple[str, ...] = field(default=(), kw_only=True)
    """A Dockerfile's CMD, likewise."""

    def __post_init__(self) -> None:
        for name in ("name", "python_path", "install_cmd"):
            if (value := getattr(self, name)) is not None:
                _check_text(value, f"image.{name}")
        if self.python_path and not self.python_path.startswith("/"):
            raise SpecError(f"image.python_path: {self.python_path!r} is not an absolute path")
        if self.image_id is not None:
            check_image(self.image_id, field="image")

    @property
    def _is_named(self) -> bool:
        return not _SIGNS.isdisjoint(self.name or "")

    @property
    def image(self) -> str:
        """The container image: the one that was named, or the default."""
        if self.image_id is not None:
            return self.image_id
        return check_image(self.name, field="image.name") if self._is_named else DEFAULT_IMAGE

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done in a container, in order; what is copied counts by its name."""
        return make_steps(self, None)

    def steps_with(self, read: Reader) -> tuple[Step, ...]:
        """The same, and what is copied counts by what is in it; `read` gives that."""
        return make_steps(self, read)

    def from_docker(self, image_id: str) -> Image:
        """Start from a container image: `registry/image:tag`; it wins over the name."""
        check_image(image_id, field="image")
        if self.image_id not in {None, image_id}:
            raise SpecError(
                f"image: it is {self.image_id!r} already, and cannot be {image_id!r}, too"
            )
        return replace(self, image_id=image_id)

    from_dockerfile = _FromDockerfile()

    def pip_install(self, reqs: str | Sequence[str], *, force: bool = False) -> Image:
        """Install packages; each may have options of pip before it: `--pre torch`."""
        words = [reqs] if isinstance(reqs, str) else list(reqs)
        install = _words(self.install_cmd, "image.install_cmd") if self.install_cmd else None
        install = install or [self.python_path or "python", "-m", "pip", "install"]
        lines = [shlex.join([*install, *_words(each, "image.pip_install")]) for each in words]
        return self._with(*(Line(kind="pip", text=line, force=force) for line in lines))

    def run_bash(self, command: str, *, force: bool = False) -> Image:
        """Run a command of the shell; `force` runs it each time."""
        return self._with(
            Line(kind="run", text=_check_text(command, "image.run_bash"), force=force)
        )

    def copy(
        self,
        source: str,
        dest: str | None = None,
        *,
        contents: bool = False,
        force: bool = False,
        filter_options: str | None = None,
    ) -> Image:
        """Copy a local file or folder; relative destinations are below the working folder."""
        if filter_options is not None:
            raise SpecError(
                "image.copy: filter_options are options of rsync, which milkweed does not use",
                hint="copy the folders that you need",
            )
        made = Copy(
            source=_check_text(source, "image.copy"),
            dest="./" if dest is None else _check_text(dest, "image.copy"),
            contents=contents,
        )
        return self._with(Line(kind="copy", text=render_copy(made), force=force))

    def set_env_vars(self, env_vars: Mapping[str, str | int | float]) -> Image:
        r"""Set variables, in order; a value may name variables: `$HOME/data`. `\$` is a dollar sign."""
        found = read_variables(env_vars, field="image.set_env_vars")
        return self._with(*(Line(kind="env", text=f"{key}={found[key]}") for key in found))

    def sync_package(self, package: str, *, force: bool = False) -> Image:  # noqa: ARG002  as Kubetorch has it
        """Refused: code is not synced yet."""
        raise SpecError(
            f"image.sync_package: {package!r} cannot be synced: milkweed does not sync code yet",
            hint="copy its folder with copy(), or install it with pip_install()",
        )

    def _with(self, *lines: Line) -> Image:
        return replace(self, lines=(*self.lines, *lines))

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back; what was not said is not in it."""
        plain: dict[str, Any] = {
            "name": self.name,
            "image_id": self.image_id,
            "python_path": self.python_path,
            "install_cmd": self.install_cmd,
            "lines": [_plain_line(line) for line in self.lines],
            "entrypoint": list(self.entrypoint),
            "cmd": list(self.cmd),
        }
        return {key: value for key, value in plain.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Image:
        """Read what `to_json` wrote."""
        tuples: dict[str, Any] = {
            "lines": tuple(Line(**line) for line in data.get("lines", ())),
            "entrypoint": tuple(data.get("entrypoint", ())),
            "cmd": tuple(data.get("cmd", ())),
        }
        return cls(**{**data, **tuples})


def is_prepared(client: Mapping[str, Any], mesh: str) -> bool:
    """Whether hosts of a mesh wait until their client has done its image's steps, and sent folders."""
    return mesh in (client.get("images") or {}) or bool(client.get("sync_dirs"))


def _plain_line(line: Line) -> dict[str, Any]:
    plain = {"kind": line.kind, "text": line.text}
    return {**plain, "force": True} if line.force else plain


def _read_text(path: str) -> str:
    """The one file that is read here, when a person names it."""
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: the Dockerfile cannot be read", seen=str(error)) from error


def _check_text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise SpecError(f"{field}: {value!r} is not text")
    return value


def _words(text: object, field: str) -> list[str]:
    words = _check_text(text, field)
    try:
        return shlex.split(words)
    except ValueError as error:
        raise SpecError(f"{field}: {text!r} is not a list of words", seen=str(error)) from error


def check_image(reference: object, *, field: str) -> str:
    """Refuse what could never name a container image."""
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise SpecError(
            f"{field}: {reference!r} is not the name of a container image",
            hint="write it as registry/image:tag; the image's own name has no capitals",
        )
    return reference


def read_variables(variables: object, *, field: str) -> dict[str, str]:
    """Read variables; numbers become text."""
    if not isinstance(variables, Mapping):
        raise SpecError(f"{field}: {variables!r} is not a mapping", hint='write {"NAME": "text"}')
    given = cast("Mapping[str, Any]", variables)
    found = {key: str(value) if _is_number(value) else value for key, value in given.items()}
    check_env(found, where=field)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def render_copy(copy: Copy) -> str:
    """Write what is copied as one line."""
    return json.dumps({"source": copy.source, "dest": copy.dest, "contents": copy.contents})


def parse_copy(line: Line) -> Copy:
    """Read what a COPY step copies."""
    return Copy(**json.loads(line.text))


def make_steps(image: Image, read: Reader | None) -> tuple[Step, ...]:
    """Chain the lines of an image: the digest of a step covers the image and all steps before it."""
    steps: list[Step] = []
    digest = _digest(["image", image.image])
    for line in image.lines:
        digest = _digest([digest, line.kind, _content(line, read)])
        steps.append(Step(kind=line.kind, text=line.text, force=line.force, digest=digest))
    return tuple(steps)


def _content(line: Line, read: Reader | None) -> Any:
    """What makes a line differ: its text; for files what is in them and where they go, not whence."""
    if read is None or line.kind != "copy":
        return line.text
    copy = parse_copy(line)
    name = "" if copy.contents else posixpath.basename(copy.source.rstrip("/"))
    files = sorted((file, hashlib.sha256(data).hexdigest()) for file, data in read(copy.source))
    return [copy.dest, copy.contents, name, files]


def _digest(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def first_changed(old_steps: Sequence[Step], new_steps: Sequence[Step]) -> int:
    """The first step to be replayed where the old ones were done already; `len(new_steps)` when there is none.

    What steps did that are no longer there is not undone.
    """
    for index, step in enumerate(new_steps):
        known = index < len(old_steps) and old_steps[index].digest == step.digest
        if step.force or not known:
            return index
    return len(new_steps)

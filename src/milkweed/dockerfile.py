"""Reading a Dockerfile as steps: what can be replayed in a container that runs, and nothing else.

FROM, RUN, ENV, COPY and WORKDIR are steps; CMD and ENTRYPOINT are kept. Anything else is refused with its place.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from .errors import SpecError
from .image import Copy, Image, Line, check_image, read_variables, render_copy

_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?[A-Za-z_]")
_VARIABLE = re.compile(
    r"""([A-Za-z_]\w*)=((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])*)(?:\s+|$)""", re.ASCII
)
_QUOTED = re.compile(r""""((?:\\.|[^"\\])*)"|'([^']*)'|\\(.)""")
_ESCAPED = re.compile(r'\\(["\\])')
_WILD = re.compile(r"[*?\[]")

_HINTS = {
    "ADD": "use COPY; what lies elsewhere can be fetched by RUN",
    "ARG": "write the value where it is used, or set it with ENV",
    "USER": "hosts run as the user of the container image",
    "SHELL": "RUN uses the container's sh",
}
_INERT = "take it out: it has no meaning for a host"
_KNOWN = ("CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "WORKDIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """Where an instruction stands, and what it says."""

    path: str
    line: int
    keyword: str
    rest: str

    def refuse(self, message: str, hint: str = "") -> NoReturn:
        raise SpecError(f"{self.path}:{self.line}: {message}", hint=hint)


def parse_dockerfile(text: str, *, path: str) -> Image:
    """Read a Dockerfile; `path` is its name in errors, and its folder is where COPY looks."""
    image = Image()
    for site in _parse_instructions(text, path):
        if not site.rest:
            site.refuse(f"{site.keyword} says nothing")
        if _HEREDOC.search(site.rest):
            site.refuse(
                "here-documents are not read", "write the command on lines that end with \\"
            )
        image = _READERS[site.keyword](image, site)
    return image


def _parse_instructions(text: str, path: str) -> Iterator[_Site]:
    for number, line in _join_lines(text, path):
        keyword, *rest = line.split(maxsplit=1) or [""]
        word = keyword.upper()
        site = _Site(path=path, line=number, keyword=word, rest="".join(rest))
        if word not in _KNOWN:
            what = (
                f"{keyword} cannot be replayed in a container"
                if keyword
                else "an empty instruction"
            )
            site.refuse(what, _hint(word))
        yield site


def _hint(word: str) -> str:
    known = word in {
        "EXPOSE",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "STOPSIGNAL",
        "VOLUME",
    }
    return _HINTS.get(word) or (_INERT if known else f"known: {', '.join(_KNOWN)}")


def _join_lines(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Whole instructions with the number of their first line; a comment inside one is left out."""
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip()
        if not line or line.lstrip().startswith("#"):
            _check_escape(line.strip(), path, number)
            continue
        start = start if parts else number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield start, "".join(parts)
            parts = []
    if parts:
        yield start, "".join(parts)


def _check_escape(comment: str, path: str, number: int) -> None:
    found = _ESCAPE.fullmatch(comment)
    if found and found[1] != "\\":
        raise SpecError(f"{path}:{number}: only lines that end with \\ are joined")


def _read_from(image: Image, site: _Site) -> Image:
    words = site.rest.split()
    if image.image_id or image.lines:
        site.refuse(
            "FROM stands once, before all other lines",
            "stages are not built: keep the last one, or build the image and name it",
        )
    if words[0].startswith("--"):
        site.refuse(f"FROM with {words[0]} is not read")
    if len(words) not in {1, 3} or (len(words) == 3 and words[1].upper() != "AS"):
        site.refuse(f"FROM {site.rest} is not read", "write FROM registry/image:tag")
    return replace(image, image_id=check_image(words[0], field=f"{site.path}:{site.line}"))


def _read_run(image: Image, site: _Site) -> Image:
    _check_options(site)
    words = _parse_list(site.rest)
    command = shlex.join(words) if words else site.rest
    return _add(image, Line(kind="run", text=command))


def _check_options(site: _Site) -> None:
    option = site.rest.split(maxsplit=1)[0]
    if option.startswith("--"):
        site.refuse(f"{site.keyword} with {option} cannot be replayed in a container")


def _parse_list(text: str) -> list[str] | None:
    """The words of `["a", "b"]`; None for anything else, which is for a shell."""
    try:
        found: Any = json.loads(text) if text.startswith("[") else None
    except ValueError:
        return None
    if not isinstance(found, list):
        return None
    words = cast("list[Any]", found)
    return words if all(isinstance(word, str) for word in words) else None


def _read_env(image: Image, site: _Site) -> Image:
    first = site.rest.split(maxsplit=1)
    if "=" in first[0]:
        found = _parse_variables(site)
    elif len(first) == 2:
        found = {first[0]: _QUOTED.sub(_unquote, first[1])}
    else:
        site.refuse(f"ENV {site.rest} has no value", "write ENV NAME=value")
    read_variables(found, field=f"{site.path}:{site.line}")
    return _add(image, *(Line(kind="env", text=f"{key}={value}") for key, value in found.items()))


def _parse_variables(site: _Site) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(site.rest):
        match = _VARIABLE.match(site.rest, at)
        if match is None:
            site.refuse(
                f"ENV {site.rest[at:]} is not NAME=value", "put a value with blanks in quotes"
            )
        found[match[1]] = _QUOTED.sub(_unquote, match[2])
        at = match.end()
    return found


def _unquote(match: re.Match[str]) -> str:
    """What is meant by a quoted part; a dollar sign that stands for itself stays marked."""
    double, single, escaped = match.groups()
    if double is not None:
        return _ESCAPED.sub(r"\1", double)
    if single is not None:
        return single.replace("$", "\\$")
    return "\\$" if escaped == "$" else escaped


def _read_copy(image: Image, site: _Site) -> Image:
    _check_options(site)
    *sources, dest = _parse_list(site.rest) or site.rest.split()
    if not sources or not dest or not all(sources):
        site.refuse(f"COPY {site.rest} has no destination", "write COPY source destination")
    if len(sources) > 1 and not dest.endswith("/"):
        site.refuse(f"COPY of several files to {dest}", "end the destination with a slash")
    return _add(image, *(_copy_line(source, dest, site) for source in sources))


def _copy_line(source: str, dest: str, site: _Site) -> Line:
    """As Docker does it: sources lie beside the Dockerfile, and of a folder its contents are copied."""
    if _WILD.search(source) or "$" in source:
        site.refuse(f"COPY {source} has a pattern in it", "write the names out")
    if ".." in source.split("/"):
        site.refuse(f"COPY {source} is outside of the Dockerfile's folder")
    below = posixpath.normpath(source.lstrip("/") or ".")
    local = posixpath.normpath(posixpath.join(posixpath.dirname(site.path), below))
    return Line(kind="copy", text=render_copy(Copy(source=local, dest=dest, contents=True)))


def _read_workdir(image: Image, site: _Site) -> Image:
    return _add(image, Line(kind="workdir", text=site.rest))


def _read_entrypoint(image: Image, site: _Site) -> Image:
    return replace(image, entrypoint=_command(site.rest))


def _read_cmd(image: Image, site: _Site) -> Image:
    return replace(image, cmd=_command(site.rest))


def _command(rest: str) -> tuple[str, ...]:
    words = _parse_list(rest)
    return ("/bin/sh", "-c", rest) if words is None else tuple(words)


def _add(image: Image, *lines: Line) -> Image:
    return replace(image, lines=(*image.lines, *lines))


_READERS: dict[str, Callable[[Image, _Site], Image]] = {
    "CMD": _read_cmd,
    "COPY": _read_copy,
    "ENTRYPOINT": _read_entrypoint,
    "ENV": _read_env,
    "FROM": _read_from,
    "RUN": _read_run,
    "WORKDIR": _read_workdir,
}

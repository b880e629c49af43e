"""Reading a Dockerfile as steps: what is read as Docker reads it, and what is refused with its place."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import given, strategies as st

from milkweed.dockerfile import parse_dockerfile
from milkweed.errors import SpecError
from milkweed.image import DEFAULT_IMAGE, Copy, Image, parse_copy


def parse(text: str, path: str = "app/Dockerfile") -> Image:
    return parse_dockerfile(textwrap.dedent(text), path=path)


def texts(text: str) -> list[tuple[str, str]]:
    return [(line.kind, line.text) for line in parse(text).lines]


def copies(text: str) -> list[Copy]:
    return [parse_copy(line) for line in parse(text).lines]


def refusal(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return caught.value


def test_a_whole_file() -> None:
    """All that is known, in the order of the file."""
    image = parse("""\
        # syntax=docker/dockerfile:1
        FROM nvcr.io/nvidia/pytorch:23.12-py3 AS base

        ENV A=1
        WORKDIR /app
        COPY requirements.txt .
        RUN pip install -r requirements.txt
        ENTRYPOINT ["python", "-u"]
        CMD python main.py
        """)
    assert image.image == "nvcr.io/nvidia/pytorch:23.12-py3"
    assert [line.kind for line in image.lines] == ["env", "workdir", "copy", "run"]
    assert image.entrypoint == ("python", "-u")
    assert image.cmd == ("/bin/sh", "-c", "python main.py")


def test_a_file_without_from_is_for_the_default_image() -> None:
    """So a few lines can be put on top of what is there."""
    assert parse("RUN true").image == DEFAULT_IMAGE
    assert parse("").lines == ()


# Lines


def test_lines_are_joined() -> None:
    """As Docker does it: also over comments and empty lines, and with blanks after the backslash."""
    text = "RUN a && \\\n  b \\   \n# why\n\n  && c\nRUN d\n"
    assert texts(text) == [("run", "a &&   b   && c"), ("run", "d")]


@pytest.mark.parametrize("text", ["RUN a\\\n", "RUN a\\", "RUN a", "run a\r\n", "  RUN\ta  "])
def test_the_end_of_a_file_ends_a_line(text: str) -> None:
    """With or without a newline, in any case, with Windows' newlines, too."""
    assert texts(text) == [("run", "a")]


def test_a_tab_inside_a_command_stays() -> None:
    """Only what surrounds a command is trimmed."""
    assert texts("RUN printf 'a\tb'") == [("run", "printf 'a\tb'")]


def test_another_sign_for_joining_lines_is_refused() -> None:
    """The file would be read wrongly."""
    assert refusal("# escape=`\nRUN a `\n  b").what.startswith("app/Dockerfile:1: ")
    assert texts("# escape=\\\nRUN a") == [("run", "a")]


# Instructions


def test_commands_of_both_forms() -> None:
    """A list of words is quoted for a shell; what only looks like one is for the shell."""
    assert texts('RUN ["echo", "a b"]') == [("run", "echo 'a b'")]
    assert texts("RUN [ -f x ] || touch x") == [("run", "[ -f x ] || touch x")]
    assert texts("RUN [1, 2]") == [("run", "[1, 2]")]
    assert parse('CMD ["a", "b c"]').cmd == ("a", "b c")
    assert parse("CMD []").cmd == ()


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("ENV A=1", ["A=1"]),
        ("ENV A=1 B=2", ["A=1", "B=2"]),
        ('ENV A="two words" B=x', ["A=two words", "B=x"]),
        ("ENV A='two words'", ["A=two words"]),
        ("ENV A=two\\ words", ["A=two words"]),
        ("ENV A=", ["A="]),
        ('ENV A=x"y z"w', ["A=xy zw"]),
        ('ENV A="say \\"hi\\""', ['A=say "hi"']),
        ("ENV P=$HOME/bin:${PATH}", ["P=$HOME/bin:${PATH}"]),
        ("ENV A='$HOME'", ["A=\\$HOME"]),
        ("ENV A=\\$HOME", ["A=\\$HOME"]),
        ('ENV A="\\$HOME"', ["A=\\$HOME"]),
        ("ENV A one value", ["A=one value"]),
        ('ENV A "one value"', ["A=one value"]),
        ("ENV A=b=c", ["A=b=c"]),
    ],
)
def test_variables_of_both_forms(line: str, variables: list[str]) -> None:
    """Quotes go, and a dollar sign that stands for itself is marked."""
    assert texts(line) == [("env", variable) for variable in variables]


def test_files_lie_beside_the_dockerfile() -> None:
    """And of a folder its contents are copied, as Docker does it."""
    assert copies("COPY a.txt /etc/") == [Copy(source="app/a.txt", dest="/etc/", contents=True)]
    assert copies("COPY . /srv") == [Copy(source="app", dest="/srv", contents=True)]
    assert copies("COPY /src/./x lib") == [Copy(source="app/src/x", dest="lib", contents=True)]
    assert copies('COPY ["a b", "c/"]') == [Copy(source="app/a b", dest="c/", contents=True)]
    assert [each.source for each in copies("COPY a b c/")] == ["app/a", "app/b"]
    [here] = parse("COPY . x", path="Dockerfile").lines
    assert parse_copy(here).source == "."


# Refusals


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("ARG X=1", "ARG cannot be replayed", "set it with ENV"),
        ("ADD a b", "ADD cannot be replayed", "use COPY"),
        ("USER me", "USER cannot be replayed", "the user of the container image"),
        ('SHELL ["bash"]', "SHELL cannot be replayed", "sh"),
        ("EXPOSE 80", "EXPOSE cannot be replayed", "take it out"),
        ("LABEL a=b", "LABEL cannot be replayed", "take it out"),
        ("VOLUME /x", "VOLUME cannot be replayed", "take it out"),
        ("HEALTHCHECK NONE", "HEALTHCHECK cannot be replayed", "take it out"),
        ("RUM a", "RUM cannot be replayed", "known: CMD, COPY"),
        ("RUN", "RUN says nothing", ""),
        ("RUN --mount=type=cache x", "RUN with --mount=type=cache", ""),
        ("RUN cat <<EOF", "here-documents", "lines that end with"),
        ("COPY <<EOF /a", "here-documents", ""),
        ("COPY a", "COPY a has no destination", "COPY source destination"),
        ('COPY ["a", ""]', "COPY", ""),
        ("COPY --from=base a b", "COPY with --from=base", ""),
        ("COPY --chown=me a b", "COPY with --chown=me", ""),
        ("COPY *.py /app/", "COPY *.py has a pattern", "write the names out"),
        ("COPY $X /app/", "COPY $X has a pattern", "write the names out"),
        ("COPY ../x /app/", "COPY ../x is outside", ""),
        ("COPY a b c", "COPY of several files to c", "slash"),
        ("ENV A", "ENV A has no value", "NAME=value"),
        ("ENV A=1 B", "ENV B is not NAME=value", "quotes"),
        ("ENV A='x", "ENV A='x is not NAME=value", "quotes"),
        ("ENV 1A=x", "ENV 1A=x is not NAME=value", ""),
        ("ENV 1A x", "'1A' is not a name of a variable", ""),
        ("FROM a", "FROM stands once", "stages"),
        ("\\", "an empty instruction", ""),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_its_place(
    line: str, message: str, hint: str
) -> None:
    """The file, the line, and what to do."""
    error = refusal(f"FROM busybox\n# why\n{line}\n")
    assert error.what.startswith("app/Dockerfile:3: ")
    assert message in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    "line", ["FROM --platform=linux/arm64 a", "FROM a b", "FROM a AS", "FROM Big", "FROM a:$TAG"]
)
def test_bases_that_cannot_be_read(line: str) -> None:
    """A base is one name."""
    assert re.match(r"app/Dockerfile:1: ", refusal(line).what)


def test_the_place_is_where_an_instruction_begins() -> None:
    """Not where it ends."""
    assert refusal("RUN a\nARG x \\\n  y\n").what.startswith("app/Dockerfile:2: ")


def test_redirections_are_no_here_documents() -> None:
    """`<<<` is for the shell, and so are numbers."""
    assert texts("RUN cat <<<word") == [("run", "cat <<<word")]
    assert texts("RUN echo $((1<<3))") == [("run", "echo $((1<<3))")]


PIECES = [
    *("FROM a", "RUN", "ENV", "COPY", "CMD", "WORKDIR", "ARG", " ", "\\", "\n", "#", '"', "'", "="),
    *("[", "]", "a", "$A", "a=b", "/x/", "\t", "--x", "<<E", "\r", "\u2028"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a SpecError is ever raised, and it names the file."""
    try:
        parse_dockerfile(text, path="D")
    except SpecError as error:
        assert error.what.startswith("D:")  # noqa: PT017  both outcomes are looked at

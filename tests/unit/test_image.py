"""What hosts should have in them: immutable images, and which of their steps are replayed."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import SpecError
from milkweed.image import (
    DEFAULT_IMAGE,
    Copy,
    Image,
    Step,
    check_image,
    first_changed,
    parse_copy,
)

BASE = Image(name="base").from_docker("python:3.12")


def texts(image: Image) -> list[tuple[str, str]]:
    return [(step.kind, step.text) for step in image.steps]


def reader(files: Mapping[str, Mapping[str, bytes]]) -> Any:
    """Reads from a mapping instead of from a disk."""

    def read(path: str) -> Iterable[tuple[str, bytes]]:
        return files[path].items()

    return read


# Building


def test_every_method_returns_a_new_image() -> None:
    """An image is a value: what is added to one is not added to another."""
    first = Image()
    second = first.run_bash("true")
    assert first.steps == ()
    assert len(second.steps) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        second.name = "x"  # type: ignore[misc]


def test_the_container_image_is_the_one_named_or_the_default() -> None:
    """Nobody needs to name one."""
    assert Image().image == DEFAULT_IMAGE
    assert BASE.image == "python:3.12"
    assert Image("x", "busybox:1").image == "busybox:1"


@pytest.mark.parametrize(
    "name", ["localhost/worker:1", "worker:1", "team/worker", f"a@sha256:{'0' * 64}"]
)
def test_a_name_with_signs_is_a_container_image(name: str) -> None:
    """So the name is all that has to be said; what a Dockerfile or `from_docker` says wins."""
    assert Image(name=name).image == name
    assert Image(name=name).pip_install("torch").steps != Image().pip_install("torch").steps
    assert Image(name=name).from_docker("busybox").image == "busybox"
    made = Image.from_dockerfile("Dockerfile", name, read_text=lambda _path: "FROM busybox")
    assert made.image == "busybox"


@pytest.mark.parametrize("name", ["monarch-worker", "my training", "Lunch 2"])
def test_any_other_name_is_for_people(name: str) -> None:
    """It may be anything, and changes nothing."""
    assert Image(name=name).image == DEFAULT_IMAGE
    assert Image(name=name).pip_install("torch").steps == Image().pip_install("torch").steps


def test_a_container_image_that_is_misspelt_is_not_taken_for_a_word() -> None:
    """Else the default image would run instead, without a word."""
    with pytest.raises(SpecError, match=r"image\.name: 'ghcr.io/You/worker:1' is not"):
        _ = Image(name="ghcr.io/You/worker:1").image


def test_any_name_will_do_beside_a_container_image() -> None:
    """Then it is for people, whatever signs are in it."""
    assert Image(name="Ada/LLM run").from_docker("busybox").image == "busybox"


def test_an_image_has_one_base() -> None:
    """A second, other base is a mistake; the same one is not."""
    assert BASE.from_docker("python:3.12") == BASE
    with pytest.raises(SpecError, match="already"):
        BASE.from_docker("busybox")


@pytest.mark.parametrize(
    "reference",
    [
        *("busybox", "busybox:1.36", "library/busybox", "ghcr.io/a/b:latest", "localhost:5000/a/b"),
        *(
            "nvcr.io/nvidia/pytorch:23.12-py3",
            "a@sha256:" + "0" * 64,
            "REG.example.com/a__b/c-d.e:T_1",
        ),
    ],
)
def test_names_of_container_images(reference: str) -> None:
    """As registries have them."""
    assert check_image(reference, field="image") == reference


@pytest.mark.parametrize(
    "reference", ["", "a b", "Busybox", "a/B", "a:", ":1", "a//b", "a:x y", None, "a\n"]
)
def test_what_is_no_name_of_a_container_image(reference: Any) -> None:
    """Refused before a node could refuse it."""
    with pytest.raises(SpecError, match=r"^image: .* is not the name of a container image"):
        Image().from_docker(reference) if reference is not None else check_image(
            None, field="image"
        )


def test_packages_are_installed_one_after_the_other() -> None:
    """Each requirement is a step of its own, and safe for a shell: `>=` is no redirection."""
    image = Image().pip_install(["torch", "pandas>=1.2", "--pre monarch[a,b]"])
    assert texts(image) == [
        ("pip", "python -m pip install torch"),
        ("pip", "python -m pip install 'pandas>=1.2'"),
        ("pip", "python -m pip install --pre 'monarch[a,b]'"),
    ]
    assert texts(Image().pip_install("torch")) == texts(image)[:1]


def test_packages_are_installed_as_the_image_says() -> None:
    """With its own Python, or a command of its own."""
    own = Image(python_path="/opt/venv/bin/python").pip_install("torch")
    assert texts(own) == [("pip", "/opt/venv/bin/python -m pip install torch")]
    other = Image(install_cmd="uv pip install --system").pip_install("torch")
    assert texts(other) == [("pip", "uv pip install --system torch")]


def test_variables_are_set_one_after_the_other() -> None:
    """Numbers become text, and names of other variables stay for the container."""
    image = Image().set_env_vars({"N": 1, "X": 0.5, "P": "$HOME/bin:$PATH", "E": ""})
    assert texts(image) == [
        ("env", "N=1"),
        ("env", "X=0.5"),
        ("env", "P=$HOME/bin:$PATH"),
        ("env", "E="),
    ]


def test_files_are_copied_with_their_meaning() -> None:
    """Without a destination a thing keeps its name in the working folder."""
    image = Image().copy("./src").copy("a.txt", "/etc/a.txt").copy("conf", "app", contents=True)
    assert [parse_copy(step) for step in image.steps] == [
        Copy(source="./src", dest="./"),
        Copy(source="a.txt", dest="/etc/a.txt"),
        Copy(source="conf", dest="app", contents=True),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image().pip_install(["", "x"]), "image.pip_install: '' is not text"),
        (lambda: Image().pip_install(['"x']), "image.pip_install: .* is not a list of words"),
        (lambda: Image().pip_install([5]), "image.pip_install: 5 is not text"),  # type: ignore[list-item]
        (lambda: Image().run_bash(" "), "image.run_bash: ' ' is not text"),
        (lambda: Image().copy(""), "image.copy: '' is not text"),
        (lambda: Image().copy("a", ""), "image.copy: '' is not text"),
        (lambda: Image().copy("a", filter_options="--exclude=b"), "image.copy: filter_options"),
        (lambda: Image().set_env_vars({"A B": "x"}), "image.set_env_vars: 'A B'"),
        (lambda: Image().set_env_vars({"A": True}), "image.set_env_vars.A: True is not text"),
        (lambda: Image().set_env_vars(["A"]), "image.set_env_vars: .* is not a mapping"),  # type: ignore[arg-type]
        (lambda: Image(name=""), "image.name: '' is not text"),
        (lambda: Image(python_path="python"), "image.python_path: 'python' is not an absolute"),
        (lambda: Image().sync_package("mine"), "image.sync_package: 'mine' cannot be synced"),
    ],
)
def test_what_cannot_be_said_is_refused(make: Any, message: str) -> None:
    """Each refusal names what was called."""
    with pytest.raises(SpecError, match=f"^{message}"):
        make()


# Steps


def test_steps_are_plain_data() -> None:
    """Kind, text and digest; and whether it is done each time."""
    [step] = Image().run_bash("make", force=True).steps
    assert dataclasses.asdict(step) == {
        "kind": "run",
        "text": "make",
        "force": True,
        "digest": step.digest,
    }
    assert len(step.digest) == 32


def test_digests_are_stable() -> None:
    """They are compared with what another program wrote, so they never change by themselves."""
    image = BASE.pip_install("torch").run_bash("make")
    assert [step.digest for step in image.steps] == [
        "2335cbcd1021cbb4c326e517b71c4f24",
        "c1a60cbca1fa95ff99c39832f1981479",
    ]


def test_a_step_knows_all_that_came_before() -> None:
    """A change of one step changes all that follow it, and none before."""
    old = BASE.run_bash("a").run_bash("b").run_bash("c").steps
    new = BASE.run_bash("a").run_bash("B").run_bash("c").steps
    assert [one.digest == two.digest for one, two in zip(old, new, strict=True)] == [
        True,
        False,
        False,
    ]
    assert first_changed(old, new) == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", 0),
        ("", "abc", 0),
        ("abc", "abc", 3),
        ("abc", "abx", 2),
        ("abc", "abcd", 3),
        ("abc", "xbc", 0),
        ("abc", "ab", 2),
        ("abc", "", 0),
        ("ab", "ba", 0),
    ],
)
def test_replay_begins_at_the_first_change(old: str, new: str, expected: int) -> None:
    """What is the same up to there was done already."""

    def steps(words: str) -> tuple[Step, ...]:
        image = BASE
        for word in words:
            image = image.run_bash(word)
        return image.steps

    assert first_changed(steps(old), steps(new)) == expected


def test_another_base_changes_all() -> None:
    """Nothing was done yet in a container of another image."""
    image = Image().run_bash("a")
    assert first_changed(image.steps, image.from_docker("busybox").steps) == 0


def test_a_forced_step_is_always_replayed() -> None:
    """And with it all that follows."""
    steps = BASE.run_bash("a").run_bash("b", force=True).run_bash("c").steps
    assert first_changed(steps, steps) == 1


def test_kinds_tell_apart_what_reads_alike() -> None:
    """The same text as another kind of step is another step."""
    assert Image().run_bash("A=1").steps[0].digest != Image().set_env_vars({"A": 1}).steps[0].digest


# What is copied


def test_files_count_by_what_is_in_them() -> None:
    """A changed file is a changed step; where it lies is of no interest."""
    here, there = BASE.copy("/here/src", "app"), BASE.copy("/there/src", "app")
    files = {"a.py": b"1", "b/c.py": b"2"}
    read = reader({"/here/src": files, "/there/src": dict(reversed(files.items()))})
    assert here.steps_with(read)[0].digest == there.steps_with(read)[0].digest
    assert here.steps[0].digest != there.steps[0].digest
    changed = reader({"/here/src": {**files, "a.py": b"3"}})
    assert first_changed(here.steps_with(read), here.steps_with(changed)) == 0


@pytest.mark.parametrize(
    "other",
    [
        BASE.copy("src", "other"),
        BASE.copy("src", "app", contents=True),
        BASE.copy("lib", "app"),
    ],
)
def test_files_count_by_where_they_go(other: Image) -> None:
    """Another destination, or a folder of another name, is another step."""
    read = reader({"src": {"a": b""}, "lib": {"a": b""}})
    assert BASE.copy("src", "app").steps_with(read) != other.steps_with(read)


def test_a_moved_name_is_a_change() -> None:
    """Names and contents are not mixed up."""
    one = reader({"s": {"a": b"bc", "d": b""}})
    two = reader({"s": {"ab": b"c", "d": b""}})
    image = BASE.copy("s")
    assert first_changed(image.steps_with(one), image.steps_with(two)) == 0


def test_nothing_is_read_for_other_steps() -> None:
    """Only what is copied is looked at."""
    image = BASE.run_bash("a").set_env_vars({"B": "c"})
    assert image.steps_with(reader({})) == image.steps


# As plain data


def test_an_image_survives_a_record() -> None:
    """What was said is read back from JSON, steps and all."""
    image = (
        Image(name="x", python_path="/usr/bin/python3", install_cmd="uv pip install")
        .from_docker("busybox")
        .pip_install("a", force=True)
        .copy("b", contents=True)
        .set_env_vars({"C": 1})
    )
    image = dataclasses.replace(image, entrypoint=("a",), cmd=("b", "c"))
    again = Image.from_json(json.loads(json.dumps(image.to_json())))
    assert again == image
    assert again.steps == image.steps
    assert Image().to_json() == {}
    assert Image.from_json({}) == Image()


def test_a_dockerfile_is_read_from_the_disk(tmp_path: Path) -> None:
    """Its folder is where COPY looks, and errors name the file."""
    path = tmp_path / "Dockerfile"
    path.write_text("FROM busybox\nCOPY a /a\n")
    image = Image.from_dockerfile(str(path), name="mine")
    assert (image.name, image.image) == ("mine", "busybox")
    assert parse_copy(image.steps[0]).source == str(tmp_path / "a")
    with pytest.raises(SpecError, match="cannot be read"):
        Image.from_dockerfile(str(tmp_path / "missing"))


def test_a_dockerfile_is_read_by_whoever_can() -> None:
    """A reader is given where there is no disk."""
    image = Image.from_dockerfile(
        "there/Dockerfile", read_text={"there/Dockerfile": "RUN a"}.__getitem__
    )
    assert texts(image) == [("run", "a")]


def test_a_dockerfile_comes_before_other_steps() -> None:
    """Behind them it would have to undo them, so it is refused; what an image has otherwise stays."""
    text = "FROM busybox\nRUN a\n"

    def read(image: Any, *name: str) -> Image:
        return image.from_dockerfile("Dockerfile", *name, read_text=lambda _path: text)

    with pytest.raises(SpecError, match="this image has steps already"):
        read(Image("x").pip_install(["numpy"]))
    made = read(Image("mine", python_path="/opt/python"))
    assert (made.name, made.image, made.python_path) == ("mine", "busybox", "/opt/python")
    assert texts(made) == [("run", "a")]
    assert read(Image("mine"), "yours").name == "yours"
    assert read(Image).name is None
    assert read(Image).pip_install("b").lines[1].kind == "pip"
    with pytest.raises(SpecError, match="cannot be 'busybox', too"):
        read(Image().from_docker("alpine"))


@given(
    st.lists(
        st.text(min_size=1, max_size=12).filter(lambda text: text.strip() and "\0" not in text)
    )
)
def test_any_requirement_is_safe_in_a_shell(names: list[str]) -> None:
    """What comes out for a shell are the very words that went in, and nothing is run."""
    image = Image().pip_install([shlex.quote(name) for name in names])
    for step, name in zip(image.steps, names, strict=True):
        assert shlex.split(step.text) == ["python", "-m", "pip", "install", name]

"""Backends by name."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from milkweed import backends
from milkweed.backends import BUILT_IN, GROUP, backend_names, load_backend, option_table
from milkweed.backends.base import Backend, Capabilities, Connects, Controls, Lists, Resizes
from milkweed.backends.fake import FakeBackend
from milkweed.errors import BackendError, UnknownBackendError
from milkweed.option_tables import BUILTIN_OPTIONS, FAKE_OPTIONS

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What other packages bring."""
    found: dict[str, str] = {}

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        assert group == GROUP
        return [importlib.metadata.EntryPoint(name, where, group) for name, where in found.items()]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return found


def test_built_in_backends_are_declared_like_all_others() -> None:
    """The list in the code is the one in pyproject.toml."""
    declared = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"][GROUP]
    assert declared == BUILT_IN


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_backend_can_be_made(name: str) -> None:
    """Each name makes a backend of that name, with everything the seam asks for and its options."""
    made = load_backend(name)
    assert isinstance(made, Backend)
    assert made.name == name
    assert isinstance(made.capabilities, Capabilities)
    assert option_table(name) is BUILTIN_OPTIONS[name]


def test_what_a_backend_adds_can_be_asked() -> None:
    """Resizing, connecting, listing and controlling are seen by their methods."""
    fake, process = load_backend("fake"), load_backend("process")
    assert isinstance(fake, Resizes)
    assert isinstance(fake, Connects)
    assert isinstance(fake, Lists)
    assert not isinstance(fake, Controls)
    assert isinstance(process, Controls)
    assert not isinstance(process, Resizes)
    assert not isinstance(process, Lists)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("proces", "did you mean 'process'?"),
        ("PROCESS", "known: "),
        ("", "known: "),
        ("milkweed.backends.fake:FakeBackend", "known: "),
    ],
)
def test_an_unknown_backend_is_answered_with_the_nearest(name: str, hint: str) -> None:
    """A slip is an error that suggests the right word."""
    with pytest.raises(UnknownBackendError, match=f"there is no backend called '{name}'") as caught:
        load_backend(name)
    assert caught.value.hint.startswith(hint)
    assert option_table(name) is None


def test_plugins_come_in_by_the_same_door(plugins: dict[str, str]) -> None:
    """A backend that another package declares is found by its name."""
    plugins["mine"] = "milkweed.backends.fake:FakeBackend"
    assert isinstance(load_backend("mine"), FakeBackend)
    assert option_table("mine") is FAKE_OPTIONS
    assert "mine" in backend_names()
    assert set(BUILT_IN) <= set(backend_names())


@pytest.mark.parametrize(
    ("where", "seen"),
    [
        ("no_such_module:X", "ModuleNotFoundError"),
        ("milkweed.backends.fake:Nobody", "AttributeError"),
        ("milkweed.backends.fake", "AttributeError|TypeError|ValueError"),
        ("math:sqrt", "TypeError"),
    ],
)
def test_a_broken_plugin_breaks_only_itself(plugins: dict[str, str], where: str, seen: str) -> None:
    """A plugin that cannot be loaded is reported by name, and all others work."""
    plugins["broken"] = where
    with pytest.raises(BackendError, match="the backend 'broken' is broken") as caught:
        load_backend("broken")
    assert where in caught.value.seen
    assert any(word in caught.value.seen for word in seen.split("|"))
    assert load_backend("fake").name == "fake"
    assert "broken" in backend_names()


def test_a_plugin_does_not_take_a_built_in_name(plugins: dict[str, str]) -> None:
    """No package can put itself in the place of a built-in backend."""
    plugins["process"] = "milkweed.backends.fake:FakeBackend"
    assert load_backend("process").name == "process"


def test_a_backend_without_options_has_an_empty_block(
    plugins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin need not declare options."""
    monkeypatch.delattr(FakeBackend, "OPTIONS")
    plugins["mine"] = "milkweed.backends.fake:FakeBackend"
    assert option_table("mine") == {}


def test_finding_a_built_in_backend_reads_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of every installed package is read only for names that are not built in."""
    monkeypatch.setattr(backends, "_plugins", lambda: pytest.fail("metadata was read"))
    assert load_backend("fake").name == "fake"

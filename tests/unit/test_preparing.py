"""What hosts should have before they are used: which folders, where they come to be, and which hosts wait."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.image import Image
from milkweed.job import preparing
from milkweed.job.imaging import Folder
from milkweed.job.preparing import (
    CODE_FOLDER,
    choose_sync_dirs,
    find_repository,
    make_folders,
    make_image,
    prepare_hosts,
)
from milkweed.spec import JobSpec, make_meshes


@pytest.fixture
def repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program is started in a folder of a Git repository."""
    (folder / ".git").mkdir()
    inner = folder / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return folder


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What people are told."""
    lines: list[str] = []
    monkeypatch.setattr(preparing, "say", lines.append)
    return lines


# Which folders


def test_the_repository_of_the_program_is_synced(repository: Path, said: list[str]) -> None:
    """From its root, wherever in it the program is started."""
    assert choose_sync_dirs(None) == [str(repository)]
    assert said == []


def test_a_work_tree_is_a_repository(repository: Path) -> None:
    """There `.git` is a file."""
    inner = repository / "src"
    (inner / ".git").write_text("gitdir: elsewhere\n")
    assert find_repository(inner / "deep") == inner


def test_outside_of_a_repository_nothing_is_synced(folder: Path, said: list[str]) -> None:
    """A home folder is nothing to send, so nobody guesses."""
    if find_repository(folder):
        pytest.skip("the folder of tests is in a repository")
    assert choose_sync_dirs(None) == []
    assert said == []


def test_too_many_files_are_told(
    repository: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not sent: a person did not name them."""
    monkeypatch.setattr(preparing, "MOST_FILES", 2)
    for number in range(3):
        (repository / f"{number}.txt").touch()
    assert choose_sync_dirs(None) == []
    [line] = said
    assert f"{repository} is not synced: it has more than 2 files" in line
    assert "sync_dirs" in line


def test_too_large_a_repository_is_told(
    repository: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size counts, not what it points to, nor what is never sent."""
    monkeypatch.setattr(preparing, "MOST_BYTES", 1024**2)
    (repository / "link").symlink_to("/bin/sh")
    os.symlink("/no/such/file", repository / "broken")
    for name in (".git/objects", ".venv/lib", "node_modules/x", "__pycache__/y"):
        path = repository / name
        path.mkdir(parents=True)
        (path / "big").write_bytes(bytes(1024**2))
    assert choose_sync_dirs(None) == [str(repository)]
    (repository / "big").write_bytes(bytes(1024**2 + 1))
    assert choose_sync_dirs(None) == []
    assert "more than 1 MiB" in said[0]


def test_folders_that_are_named_are_taken_as_they_are(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large; none is none."""
    monkeypatch.setattr(preparing, "MOST_FILES", 0)
    monkeypatch.setenv("HOME", str(repository))
    assert choose_sync_dirs([".", "~/src"]) == [str(Path.cwd()), str(repository / "src")]
    assert choose_sync_dirs([]) == []


@pytest.mark.parametrize("name", ["nosuch", "file"])
def test_a_folder_that_is_not_there_is_told(folder: Path, name: str) -> None:
    """When it is declared, and not when all hosts are there."""
    (folder / "file").touch()
    with pytest.raises(SpecError, match=f"sync_dirs: there is no folder '{name}'"):
        choose_sync_dirs([name])


def test_a_text_is_no_list_of_folders(folder: Path) -> None:
    """Its letters are not meant."""
    with pytest.raises(SpecError, match="sync_dirs"):
        choose_sync_dirs("src")


# Where they come to be


def test_folders_lie_side_by_side() -> None:
    """By their own names."""
    assert make_folders(["/a/one", "/b/two"]) == [
        Folder(source="/a/one", dest=f"{CODE_FOLDER}/one"),
        Folder(source="/b/two", dest=f"{CODE_FOLDER}/two"),
    ]


def test_two_folders_of_one_name_are_refused() -> None:
    """One would overwrite the other."""
    with pytest.raises(SpecError, match="have one name"):
        make_folders(["/a/one", "/b/one"])


def test_programs_import_from_folders() -> None:
    """Before anything else that the image says; and an image that does nothing is one, then."""
    folders = make_folders(["/a/one", "/b/two"])
    said = Image("base").pip_install(["numpy"])
    made = make_image(said.to_json(), folders)
    assert made is not None
    path = f"PYTHONPATH={CODE_FOLDER}/one:{CODE_FOLDER}/two:$PYTHONPATH"
    assert [line.text for line in made.lines] == [*[line.text for line in said.lines], path]
    alone = make_image(None, folders)
    assert alone is not None
    assert [line.text for line in alone.lines] == [path]


def test_without_folders_an_image_is_what_was_said() -> None:
    """And nothing is nothing."""
    said = Image("base").run_bash("make")
    assert make_image(said.to_json(), []) == said
    assert make_image(None, []) is None


# Which hosts


def door(label: str) -> str:
    """Where a host's keeper takes orders."""
    return f"tls://m:1/{label}@job#/keys"


def prepared(monkeypatch: pytest.MonkeyPatch, **client: Any) -> tuple[Any, Any]:
    """What hosts of two meshes are brought to."""
    found: list[tuple[Any, Any]] = []

    def ensure(images: Any, **more: Any) -> None:
        found.append((images, more))

    monkeypatch.setattr(preparing, "ensure_images", ensure)
    meshes = make_meshes({"a": 1, "b": 1})
    spec = JobSpec(name="demo", backend="kubernetes", meshes=meshes, client=client)
    prepare_hosts(spec, [door("a/0"), door("b/0")], deadline_s=7.0)
    return found[0] if found else (None, None)


def test_hosts_without_anything_to_do_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have started by themselves."""
    assert prepared(monkeypatch) == (None, None)
    assert prepared(monkeypatch, images={}, sync_dirs=[]) == (None, None)


def test_an_image_is_for_the_hosts_of_its_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for nothing."""
    image = Image().run_bash("make")
    images, more = prepared(monkeypatch, images={"a": image.to_json()})
    assert images == {door("a/0"): image}
    assert (more["job"], more["deadline_s"], more["folders"]) == ("demo", 7.0, [])


def test_folders_are_for_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without an image."""
    image = Image().run_bash("make")
    images, more = prepared(monkeypatch, images={"a": image.to_json()}, sync_dirs=["/a/one"])
    assert set(images) == {door("a/0"), door("b/0")}
    assert [len(each.lines) for each in images.values()] == [2, 1]
    assert [folder.source for folder in more["folders"]] == ["/a/one"]


def test_where_a_folder_is_on_hosts(tmp_path: Path) -> None:
    """What was sent is found by its own path; what was not is nowhere."""
    project = tmp_path / "project"
    sent = preparing.find_sent([str(project)], str(project / "src" / "deep"))
    assert sent == f"{preparing.CODE_FOLDER}/project/src/deep"
    assert not preparing.find_sent([str(project)], str(tmp_path / "other"))
    assert not preparing.find_sent([], str(project))

"""Files that travel to pods, and the settings beside a graph."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import SpecError
from milkweed.jobspec.graph import Stage, Write
from milkweed.jobspec.transformers.kubernetes_files import (
    MAX_BYTES,
    MAX_MAP_BYTES,
    File,
    make_data,
    make_source,
    pack,
    read_files,
    read_path,
    render_placing,
)
from milkweed.jobspec.transformers.kubernetes_settings import (
    Settings,
    read_own,
    read_settings,
    resolve,
)

KUBECONFIG = {
    "current-context": "work",
    "contexts": [
        {"name": "work", "context": {"cluster": "c", "namespace": "team"}},
        {"name": "play", "context": {"cluster": "c"}},
    ],
    "clusters": [{"name": "c", "cluster": {"server": "https://here:6443"}}],
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cluster."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def unpack(files: list[File], texts: dict[str, str]) -> dict[str, tuple[bytes, int]]:
    """What a pod sees of packed files: path, content and mode."""
    found: dict[str, tuple[bytes, int]] = {}
    for files_of_map in pack(files, texts):
        data: Any = make_data(files_of_map)
        content = {key: text.encode() for key, text in data.get("data", {}).items()}
        content |= {key: base64.b64decode(text) for key, text in data.get("binaryData", {}).items()}
        source: Any = make_source("m", files_of_map)
        for item in source["configMap"]["items"]:
            found[item["path"]] = content.pop(item["key"]), item["mode"]
        assert content == {}
    return found


# Files


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(NAMES, st.tuples(st.binary(max_size=20), st.booleans()), max_size=6))
def test_every_name_and_content_travels(said: dict[str, tuple[bytes, bool]]) -> None:
    """Whatever a file is called and holds, the pod sees the same, with its mode."""
    files = [File(name, content, executable) for name, (content, executable) in said.items()]
    found = unpack(files, {"start.sh": "x", "file-0": "y"})
    assert found.pop("start.sh") == (b"x", 0o644)
    assert found.pop("file-0") == (b"y", 0o644)
    expected = {name: (data, 0o755 if mode else 0o644) for name, (data, mode) in said.items()}
    assert {path.removeprefix("files/"): each for path, each in found.items()} == expected


def test_text_is_shown_as_text() -> None:
    """Only what is no text is encoded, and a plain name is its own key."""
    data = make_data([File("files/a.sh", b"echo\n"), File("files/b", b"\xff")])
    assert data == {"data": {"a.sh": "echo\n"}, "binaryData": {"b": "/w=="}}


def test_many_files_take_several_objects() -> None:
    """None is larger than Kubernetes takes."""
    files = [File(str(number), bytes(MAX_MAP_BYTES // 2)) for number in range(5)]
    packs = pack(files, {"start.sh": "x"})
    assert [len(each) for each in packs] == [2, 2, 2]  # the first has the script, too
    assert all(sum(len(one.content) for one in each) <= MAX_MAP_BYTES for each in packs)


def test_a_large_file_travels_in_pieces() -> None:
    """None is larger than Kubernetes takes, and together they are the file."""
    content = bytes(range(256)) * 8000
    large = File("x", content, executable=True)
    packs = pack([large, File("small", b"s")], {"start.sh": "x"})
    assert all(sum(len(one.content) for one in each) <= MAX_MAP_BYTES for each in packs)
    pieces = [one for each in packs for one in each if one.path.startswith("pieces/")]
    assert [one.path for one in pieces] == ["pieces/0/0", "pieces/0/1", "pieces/0/2"]
    assert b"".join(one.content for one in pieces) == content


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    """One file, which is not even read, or all together; the hint says what else can be done."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(SpecError, match=r"32,400,001 bytes of files") as caught:
        read_path(str(tmp_path / "big"))
    assert "image" in caught.value.hint
    count = MAX_BYTES // MAX_MAP_BYTES + 1
    writes = [
        Write(id=f"w{i}", filename=f"f{i}", content=bytes(MAX_MAP_BYTES)) for i in range(count)
    ]
    with pytest.raises(SpecError, match="33,300,000 bytes of files; at most 32,400,000"):
        read_files(writes)


def test_the_last_of_a_name_wins() -> None:
    """A file that is written twice has what was written last."""
    first = Write(id="a", filename="x", content=b"1")
    second = Write(id="b", filename="x", content=b"2", executable=True)
    assert read_files([first, second]) == [File("x", b"2", executable=True)]


def test_a_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is in it comes under its last name: files, links as links, and folders, empty ones too."""
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "run").write_text("x")
    (tmp_path / "d" / "sub" / "run").chmod(0o755)
    (tmp_path / "d" / "link").symlink_to("sub/run")
    (tmp_path / "d" / "to").symlink_to("sub")
    (tmp_path / "d" / "void").mkdir()
    names = ["d", "d/link", "d/sub", "d/sub/run", "d/to", "d/void"]
    found = read_files([Stage(id="s", path=str(tmp_path / "d"))])
    assert [each.path for each in found] == names
    assert [each.path for each in found if each.executable] == ["d/sub/run"]
    assert {each.path: each.target for each in found if each.target} == {
        "d/link": "sub/run",
        "d/to": "sub",
    }
    assert [each.path for each in found if each.is_folder] == ["d", "d/sub", "d/void"]
    monkeypatch.chdir(tmp_path / "d")
    assert [each.path for each in read_path(".")] == names
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [each.path for each in read_path("~/d/")] == names


@pytest.mark.e2e
def test_everything_is_put_to_its_place(tmp_path: Path) -> None:
    """What the script in the pod does with the volume gives the folder back, whatever its names are."""
    origin, volume, target = (tmp_path / name for name in ("o'r $(x)", "volume", "target"))
    (origin / "in ner" / "deep").mkdir(parents=True)
    (origin / "in ner" / "-x").write_text("x")
    (origin / "in ner" / "link").symlink_to("-x")
    (origin / "to").symlink_to("in ner")
    (origin / "away").symlink_to("/nowhere; rm")
    (origin / "void").mkdir()
    (origin / "big").write_bytes(bytes(range(256)) * 8000)
    (origin / "big").chmod(0o755)
    files = read_path(str(origin))
    for path, (content, mode) in unpack(files, {}).items():
        (volume / path).parent.mkdir(parents=True, exist_ok=True)
        (volume / path).write_bytes(content)
        (volume / path).chmod(mode)
    target.mkdir()
    script = "\n".join(["set -e", *render_placing(files, str(volume), str(target))])
    subprocess.run(["/bin/sh", "-c", script], check=True)
    placed = target / origin.name
    subprocess.run(["diff", "-r", "--no-dereference", origin, placed], check=True)
    assert (placed / "void").is_dir()
    assert (placed / "in ner" / "deep").is_dir()
    assert os.access(placed / "big", os.X_OK)


def test_names_that_no_text_can_hold(tmp_path: Path) -> None:
    """Kubernetes takes texts only."""
    (tmp_path / os.fsdecode(b"\xff")).write_text("x")
    with pytest.raises(SpecError, match="is not UTF-8"):
        read_path(str(tmp_path))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """No file, a broken link, a pipe: each is named."""
    (tmp_path / "broken").symlink_to("nothing")
    for name in ("missing", "broken"):
        with pytest.raises(SpecError, match="cannot be read: No such file"):
            read_path(str(tmp_path / name))
    with pytest.raises(SpecError, match="'/dev/null' is neither a file nor a folder"):
        read_path("/dev/null")
    with pytest.raises(SpecError, match="has no last name"):
        read_path("/")


# Settings


def test_settings_that_are_said() -> None:
    """Texts as they come from a command line."""
    found = read_settings({"image": "a/b:1", "keep": "yes", "memory": "2Gi", "context": None})
    assert found == Settings(image="a/b:1", keep=True, memory="2Gi")
    assert read_settings({"keep": "0"}).keep is False


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"imgae": "x"}, "'imgae': is not known\n  do:   did you mean 'image'?"),
        ({"image": 3}, "'image': 3 is not text"),
        ({"image": "a b"}, "'a b' is no name of an image"),
        ({"namespace": "A_b"}, "namespace"),
        ({"service_account": "A b"}, "service_account"),
        ({"pull_secret": "/"}, "pull_secret"),
        ({"pull_policy": "Sometimes"}, "one of: Always, IfNotPresent, Never"),
        ({"memory": "much"}, "memory"),
        ({"gpu": "a b"}, "gpu"),
        ({"keep": "perhaps"}, "'perhaps' is neither true nor false"),
        ({"keep": []}, "neither true nor false"),
    ],
)
def test_settings_that_are_wrong(said: dict[str, Any], words: str) -> None:
    """Each is named, with what would be right."""
    with pytest.raises(SpecError) as caught:
        read_settings(said)
    assert words in str(caught.value)


def test_what_a_file_says_of_its_work() -> None:
    """A person's word beside the file wins."""
    user = {"kubernetes": {"image": "file:1", "memory": "1Gi"}}
    assert read_own({}, user).image == "file:1"
    assert read_own({"image": "mine:1"}, user) == Settings(image="mine:1", memory="1Gi")
    assert read_own({}, None) == Settings()


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"slurm": {}}, "attributes.user.slurm: the transformer 'kubernetes' does not know it"),
        ({"kubernetes": "x"}, "attributes.user.kubernetes: is no mapping"),
        ({"kubernetes": {"namespace": "x"}}, "attributes.user.kubernetes.namespace: is not known"),
        ("x", "attributes.user.kubernetes: is no mapping"),
    ],
)
def test_what_a_file_cannot_say(user: Any, words: str) -> None:
    """A run is in one namespace of one cluster; other keys are nobody's."""
    with pytest.raises(SpecError) as caught:
        read_own({}, user)
    assert words in str(caught.value)


def test_a_run_stays_with_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context and namespace that are meant now are written down; what was said wins."""
    path = tmp_path / "config"
    path.write_text(json.dumps(KUBECONFIG))
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = {"kubeconfig": str(path), "context": "work", "namespace": "team"}
    assert resolve({"image": "x", "memory": ""}) == {"image": "x", **found}
    play = {"context": "play", "namespace": "default", "kubeconfig": str(path)}
    assert resolve({"context": "play"}) == play
    assert resolve({"namespace": "mine"})["namespace"] == "mine"
    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path / 'other'}")
    assert resolve({}) == {"context": "work", "namespace": "team"}


def test_a_plan_can_be_made_without_a_cluster() -> None:
    """It is only looked at."""
    assert resolve({}) == {"namespace": "default"}

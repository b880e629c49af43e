"""Declarations: what is refused, what defines an allocation, and the way to JSON and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.spec import (
    MAX_NAME,
    RESERVED_MESH_NAMES,
    Admin,
    CodeSpec,
    GatherMount,
    JobSpec,
    Lifetime,
    MeshSpec,
    RemoteMount,
    Resources,
    Services,
    Telemetry,
    check_job_name,
    check_mesh_name,
    make_meshes,
    suggest,
)


def spec(sizes: Any = None, **more: Any) -> JobSpec:
    meshes = make_meshes(sizes or {"trainers": 2, "dataloaders": 1})
    return JobSpec(**{"name": "demo", "backend": "fake", "meshes": meshes, **more})


FULL = JobSpec(
    name="demo",
    backend="process",
    meshes=(
        MeshSpec(
            name="a",
            hosts=2,
            resources=Resources(cpus=1, gpus=0, gpu_type="H100", memory_bytes=2, disk_bytes=3),
            env={"A": "1"},
        ),
        MeshSpec(name="b", hosts=1),
    ),
    options={"transport": "tls", "list": [1, {"x": None}]},
    client={"stream_logs": False},
    env={"MODE": "fast"},
    code=CodeSpec(workdir=".", include=("*.py",), exclude=("x",)),
    lifetime=Lifetime(idle_timeout_s=1.5, time_limit_s=9.0),
    services=Services(
        telemetry=Telemetry(include_dashboard=True),
        admin=Admin(admin_addr="[::1]:1"),
        remote_mounts=(RemoteMount(source="/a", mntpoint="/b", meshes=("a",), options={"x": [1]}),),
        gather_mounts=(GatherMount(remote_mount_point="/r", local_mount_point="/l"),),
    ),
    run=("python", "train.py"),
)


# Names and sizes


@pytest.mark.parametrize("size", [0, -1, True, False, 1.5, 2.0, "2", None, [2], float("nan")])
def test_a_mesh_has_a_whole_number_of_hosts(size: Any) -> None:
    """Sizes are whole numbers from one; anything else is refused before anything starts."""
    with pytest.raises(SpecError, match=r"^meshes\.workers: "):
        spec({"workers": size})


@pytest.mark.parametrize("meshes", [(), []])
def test_a_job_has_at_least_one_mesh(meshes: Any) -> None:
    """A job without hosts is refused."""
    with pytest.raises(SpecError, match="at least one mesh"):
        spec(meshes=meshes)
    with pytest.raises(SpecError, match="at least one mesh"):
        JobSpec(name="x", backend="fake", meshes=make_meshes({}))


@pytest.mark.parametrize("sizes", [None, ["a"], "a", 3, {"a", "b"}])
def test_meshes_are_a_mapping(sizes: Any) -> None:
    """What is not a mapping of names to sizes is refused, and an example is shown."""
    with pytest.raises(SpecError, match="not a mapping of names to sizes") as caught:
        make_meshes(sizes)
    assert caught.value.hint == 'write meshes={"workers": 2}'


BAD_NAMES = [
    *("", " ", "a b", "a\n", "\na", "a\nb", "a/b", "../a", ".", "..", "-a", "_a", "a\0b", "a:b"),
    *("x" * 100, "x" * (MAX_NAME + 1), "größe", "名", "a²", "🦋", "a\u200bb", None, 3, True, b"a"),
]


@pytest.mark.parametrize("name", [*BAD_NAMES, "1a", "a.b", "9"])
def test_bad_mesh_names_are_refused(name: Any) -> None:
    """A mesh's name must be fit for an attribute, a file and a label."""
    with pytest.raises(SpecError, match=r"^meshes: the name ") as caught:
        spec({name: 1})
    assert "start with a letter" in caught.value.hint
    assert len(caught.value.what) < 150


@pytest.mark.parametrize("name", sorted(RESERVED_MESH_NAMES))
def test_reserved_words_are_no_mesh_names(name: str) -> None:
    """A mesh that `state.<name>` could not reach is refused."""
    with pytest.raises(SpecError, match="reserved word"):
        check_mesh_name(name)


def test_words_that_python_and_job_states_use_are_reserved() -> None:
    """Keywords, and what a job's state has itself."""
    assert {
        "class",
        "import",
        "None",
        "keys",
        "items",
        "get",
        "query_engine",
    } <= RESERVED_MESH_NAMES


@pytest.mark.parametrize("name", ["a", "A", "trainers", "a-b", "a_1", "x" * MAX_NAME, "match"])
def test_good_mesh_names_pass(name: str) -> None:
    """Letters, digits, `_` and `-`, from a letter, up to the limit."""
    assert spec({name: 1}).sizes == {name: 1}


@pytest.mark.parametrize("name", [*BAD_NAMES, ".a"])
def test_bad_job_names_are_refused(name: Any) -> None:
    """A job's name must be fit for schedulers and file systems."""
    with pytest.raises(SpecError, match=r"^name: "):
        spec(name=name)


@pytest.mark.parametrize("name", ["a", "1", "9-a.b_c", "class", "keys", "x" * MAX_NAME])
def test_good_job_names_pass(name: str) -> None:
    """What a mesh may not be called, a job may."""
    check_job_name(name)


def test_a_mesh_is_declared_once() -> None:
    """Two meshes of one name are refused."""
    mesh = MeshSpec(name="a", hosts=1)
    with pytest.raises(SpecError, match="'a' is declared twice"):
        spec(meshes=(mesh, mesh))


@pytest.mark.parametrize(
    "more",
    [{"cpus": 0}, {"cpus": -1}, {"gpus": -1}, {"memory_bytes": 0}, {"disk_bytes": -5}],
)
def test_resources_are_not_negative(more: dict[str, int]) -> None:
    """Nothing can be asked for less than there can be; no GPUs is fine."""
    meshes = make_meshes({"a": 1}, resources={"a": Resources(**more)})
    with pytest.raises(SpecError, match=rf"^meshes\.a\.{next(iter(more))}: "):
        spec(meshes=meshes)
    spec(meshes=make_meshes({"a": 1}, resources={"a": Resources(gpus=0)}))


# Variables


@pytest.mark.parametrize("key", ["", "1A", "A B", "A=B", "A\0", "Ä", "a-b", 3, None])
def test_variables_have_names(key: Any) -> None:
    """What no operating system could carry as a variable's name is refused."""
    with pytest.raises(SpecError, match="is not a name of a variable"):
        spec(env={key: "x"})


@pytest.mark.parametrize("value", [1, None, True, "a\0b", b"x", ["x"]])
def test_variables_are_text(value: Any) -> None:
    """Values are text; numbers are not guessed at."""
    with pytest.raises(SpecError, match=r"^env\.A: .* is not text"):
        spec(env={"A": value})


def test_one_environment_for_all_or_one_per_mesh() -> None:
    """`env` is variables for all meshes, or meshes with variables, never both."""
    sizes = {"a": 1, "b": 1}
    assert [mesh.env for mesh in make_meshes(sizes, {"X": "1"})] == [{"X": "1"}, {"X": "1"}]
    assert [mesh.env for mesh in make_meshes(sizes, {"b": {"X": "1"}})] == [{}, {"X": "1"}]
    with pytest.raises(SpecError, match="both variables and meshes"):
        make_meshes(sizes, {"X": "1", "b": {"X": "1"}})


@pytest.mark.parametrize("where", ["env", "resources"])
def test_a_mesh_that_is_not_there_is_named_with_the_nearest(where: str) -> None:
    """A slip in a mesh's name is found, and the right name suggested."""
    more: dict[str, Any] = {where: {"trainer": Resources() if where == "resources" else {"A": "1"}}}
    with pytest.raises(SpecError, match=f"{where}: 'trainer' is not a mesh of this job") as caught:
        make_meshes({"trainers": 1, "b": 1}, **more)
    assert caught.value.hint == "did you mean 'trainers'?"


def test_a_meshs_own_variables_win() -> None:
    """The job's variables reach every mesh, and a mesh's own come on top."""
    made = spec(env={"A": "1", "B": "1"}, meshes=make_meshes({"a": 1}, {"B": "2"}))
    assert made.mesh_env(made.meshes[0]) == {"A": "1", "B": "2"}


# What defines an allocation


def test_client_side_settings_are_not_in_the_fingerprint() -> None:
    """A changed time-out, lifetime, service, name or command is no other allocation."""
    other = replace(
        FULL,
        name="other",
        client={"start_timeout": 3},
        lifetime=Lifetime(),
        services=Services(),
        code=CodeSpec(),
        run=(),
    )
    assert other.fingerprint() == FULL.fingerprint()
    assert other.identity() == FULL.identity()


def test_the_order_of_meshes_and_options_does_not_matter() -> None:
    """The same things said in another order are the same allocation."""
    one = spec({"a": 1, "b": 2}, options={"x": 1, "y": {"p": 1, "q": 2}})
    other = spec({"b": 2, "a": 1}, options={"y": {"q": 2, "p": 1}, "x": 1})
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize(
    "more",
    [
        {"sizes": {"a": 2}},
        {"sizes": {"b": 1}},
        {"backend": "process"},
        {"env": {"A": "1"}},
        {"options": {"x": 1}},
        {"meshes": make_meshes({"a": 1}, {"A": "1"})},
        {"meshes": make_meshes({"a": 1}, resources={"a": Resources(gpus=1)})},
    ],
)
def test_what_defines_an_allocation_is_in_the_fingerprint(more: dict[str, Any]) -> None:
    """Another size, name, backend, variable, resource or option is another allocation."""
    assert spec(**{"sizes": {"a": 1}, **more}).fingerprint() != spec({"a": 1}).fingerprint()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": (1, 2)}, {"x": [1, 2]}),
        ({"x": 60}, {"x": 60.0}),
        ({"x": {1: "a"}}, {"x": {"1": "a"}}),
        ({"x": None}, {}),
    ],
)
def test_values_that_mean_the_same_are_the_same(one: Any, other: Any) -> None:
    """What JSON cannot tell apart, and what is not said, makes no other allocation."""
    assert spec(options=one).fingerprint() == spec(options=other).fingerprint()
    assert spec(options=one).identity() == spec(options=other).identity()


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", float("nan"), float("inf"), lambda: 0])
@pytest.mark.parametrize("block", ["options", "client"])
def test_options_are_plain_data(value: Any, block: str) -> None:
    """What a state file could not carry is refused when it is declared, not when it is saved."""
    with pytest.raises(SpecError, match=r"^fake\.x: .* is not plain data"):
        spec(**{block: {"x": value}})


def test_the_fingerprint_is_pinned() -> None:
    """A new milkweed must not take the allocations of an older one for changed."""
    assert spec({"a": 1}, env={"X": "1"}).fingerprint() == "c6a31712b62736fad0892d53d518a23f"


# JSON, sizes, suggestions


@pytest.mark.parametrize("made", [FULL, spec()], ids=["full", "small"])
def test_a_spec_survives_json(made: JobSpec) -> None:
    """Written as JSON and read back, a spec is equal, and defines the same allocation."""
    again = JobSpec.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.fingerprint() == made.fingerprint()


def test_a_spec_is_not_changed_by_what_it_was_made_of() -> None:
    """Variables that are changed after the declaration do not reach it."""
    env = {"A": "1"}
    meshes = make_meshes({"a": 1}, env)
    env["A"] = "2"
    assert meshes[0].env == {"A": "1"}


def test_sizes_can_be_changed() -> None:
    """The same job with other sizes; a size that makes no sense is refused here, too."""
    made = spec({"a": 1, "b": 2})
    assert made.resized({"b": 3}).sizes == {"a": 1, "b": 3}
    assert made.host_count == 3
    with pytest.raises(SpecError):
        made.resized({"b": 0})


@pytest.mark.parametrize(
    ("word", "known", "text"),
    [
        ("trainrs", ["trainers", "b"], "did you mean 'trainers'?"),
        ("zzz", ["b", "a"], "known: a, b"),
        ("zzz", [], "none are known"),
    ],
)
def test_the_nearest_word_is_suggested(word: str, known: list[str], text: str) -> None:
    """A slip is answered with the nearest word, anything else with all of them."""
    assert suggest(word, known) == text

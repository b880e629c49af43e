"""Values keep their promises for everything that can be declared, listed or written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from milkweed.errors import MilkweedError, SpecError, StateError
from milkweed.hosts import Host, cut_hosts, natural_key
from milkweed.plan import Action, Observed, diff_specs, make_plan
from milkweed.spec import CodeSpec, JobSpec, Lifetime, MeshSpec, Resources, check_mesh_name
from milkweed.state import Record, parse_record
from milkweed.status import Liveness, Status
from milkweed.units import parse_duration, parse_size, render_duration, render_size


def _is_allowed(name: str) -> bool:
    try:
        check_mesh_name(name)
    except SpecError:
        return False
    return True


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True).filter(_is_allowed)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
ENV = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True), TEXT, max_size=3
)
COUNT = st.none() | st.integers(1, 2**40)
RESOURCES = st.builds(
    Resources, cpus=COUNT, gpus=COUNT, gpu_type=st.none() | TEXT, memory_bytes=COUNT
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OPTIONS = st.dictionaries(NAMES, PLAIN, max_size=3)
MESHES = st.lists(
    st.builds(MeshSpec, name=NAMES, hosts=st.integers(1, 9), resources=RESOURCES, env=ENV),
    min_size=1,
    max_size=3,
    unique_by=lambda mesh: mesh.name,
).map(tuple)
SPECS = st.builds(
    JobSpec,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
    backend=st.sampled_from(["fake", "process"]),
    meshes=MESHES,
    options=OPTIONS,
    client=OPTIONS,
    env=ENV,
    code=st.builds(CodeSpec, include=st.lists(TEXT, max_size=2).map(tuple)),
    lifetime=st.builds(Lifetime, idle_timeout_s=st.floats(1, 1e6)),
    run=st.lists(TEXT, max_size=3).map(tuple),
)


def through_json(spec: JobSpec) -> JobSpec:
    return JobSpec.from_json(json.loads(json.dumps(spec.to_json())))


# Declarations


@given(SPECS)
def test_a_file_changes_nothing(spec: JobSpec) -> None:
    """A spec that went through a file is equal, and defines the same allocation."""
    again = through_json(spec)
    assert again == spec
    assert again.fingerprint() == spec.fingerprint()
    assert diff_specs(again, spec) == ()


@given(SPECS, SPECS)
def test_the_fingerprint_and_the_difference_agree(one: JobSpec, other: JobSpec) -> None:
    """Two specs have one fingerprint exactly if no changed field can be shown."""
    assert (one.fingerprint() == other.fingerprint()) == (diff_specs(one, other) == ())


@given(SPECS, OPTIONS, OPTIONS)
def test_options_differ_exactly_if_the_fingerprints_do(
    spec: JobSpec, options: dict[str, Any], others: dict[str, Any]
) -> None:
    """The same, for specs that differ in little."""
    one, other = replace(spec, options=options), replace(spec, options={**options, **others})
    assert (one.fingerprint() == other.fingerprint()) == (diff_specs(one, other) == ())


@given(SPECS)
def test_order_defines_nothing(spec: JobSpec) -> None:
    """Meshes, variables and options may be said in any order."""
    turned = replace(
        spec,
        meshes=spec.meshes[::-1],
        options=dict(reversed(spec.options.items())),
        env=dict(reversed(spec.env.items())),
    )
    assert turned.fingerprint() == spec.fingerprint()


@given(SPECS, OPTIONS, st.floats(1, 1e6), st.lists(TEXT).map(tuple))
def test_what_is_the_clients_defines_nothing(
    spec: JobSpec, client: dict[str, Any], idle_s: float, run: tuple[str, ...]
) -> None:
    """Client-side settings never make a living allocation look changed."""
    other = replace(spec, client=client, lifetime=Lifetime(idle_timeout_s=idle_s), run=run)
    observed = Observed(spec=spec, status=Status(liveness=Liveness.RUNNING), apply_id="x")
    assert make_plan(other, observed).action is Action.REUSE


HABITS = st.fixed_dictionaries(
    {
        "can_resize": st.booleans(),
        "queued": st.booleans(),
        "on_change": st.sampled_from([None, "ask", "replace", "new"]),
    }
)


@given(SPECS, SPECS, st.sampled_from(Liveness), HABITS)
def test_a_plan_never_ends_what_it_may_not(
    before: JobSpec, after: JobSpec, live: Liveness, habits: dict[str, Any]
) -> None:
    """What is alive is replaced only with a word, and what is unknown is never touched."""
    word, queued = habits["on_change"], habits["queued"]
    observed = Observed(spec=before, status=Status(liveness=live), apply_id="x")
    plan = make_plan(after, observed, **habits)
    if live is Liveness.UNKNOWN:
        assert plan.blocked
        assert plan.action is Action.NOTHING
    if live.alive and plan.action is Action.REPLACE and plan.approved:
        assert word == "replace" or (word is None and not queued)
    if live.alive and plan.action is Action.CREATE:
        assert plan.keeps_old
        assert word == "new"
    if plan.action is Action.RESIZE:
        assert after.sizes.keys() == before.sizes.keys()
    assert json.loads(json.dumps(plan.to_json()))["action"] == plan.action.value
    assert plan.render()


# Records


@given(SPECS, st.none() | OPTIONS)
def test_a_record_comes_back(spec: JobSpec, handle: dict[str, Any] | None) -> None:
    """Every record is read back as it was written."""
    record = Record(spec=spec, phase="intent", apply_id="id-1")
    if handle is not None:
        record = record.submitted(handle)
    assert parse_record(record.to_bytes(), "x") == record


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
def test_any_bytes_are_refused_with_an_explanation(data: bytes) -> None:
    """Whatever is in a file, reading it ends in an error of milkweed's."""
    with pytest.raises(StateError) as caught:
        parse_record(data, "x")
    assert caught.value.hint


WHOLE = Record(
    spec=JobSpec(name="x", backend="fake", meshes=(MeshSpec(name="a", hosts=1),)), apply_id="id-1"
).to_bytes()


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4))
def test_a_damaged_record_is_refused_or_read(at: int, damage: bytes) -> None:
    """Bytes that were changed on a disk never cause anything but a record or an explained error."""
    try:
        record = parse_record(WHOLE[:at] + damage + WHOLE[at + len(damage) :], "x")
    except MilkweedError as error:
        assert isinstance(error, StateError)  # noqa: PT017  both outcomes are looked at
    else:
        assert isinstance(record, Record)


@given(st.integers(0, len(WHOLE) - 2))
def test_a_truncated_record_is_refused(at: int) -> None:
    """A file that was cut off anywhere is not taken for a whole one."""
    with pytest.raises(StateError):
        parse_record(WHOLE[:at], "x")


# Hosts


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 4), min_size=1),
    st.data(),
)
def test_hosts_are_cut_alike_in_any_order(sizes: dict[str, int], data: st.DataObject) -> None:
    """However a scheduler lists them, each host gets the same mesh and rank, and ranks have no gaps."""
    count = sum(sizes.values())
    names = data.draw(st.lists(TEXT, min_size=count, max_size=count, unique=True))
    hosts = [Host(name=name) for name in names]
    cut = cut_hosts(sizes, hosts)
    assert cut == cut_hosts(sizes, data.draw(st.permutations(hosts)))
    for mesh, size in sizes.items():
        assert [(host.mesh, host.rank) for host in cut[mesh]] == [(mesh, n) for n in range(size)]
    assert {host.name for found in cut.values() for host in found} == set(names)
    again = [host for found in cut.values() for host in found]
    assert cut_hosts(sizes, data.draw(st.permutations(again))) == cut


@given(st.lists(st.tuples(TEXT, st.integers(0, 10**6), TEXT), max_size=5))
def test_names_can_always_be_sorted(parts: list[tuple[str, int, str]]) -> None:
    """Any names have an order."""
    names = [f"{before}{number}{after}" for before, number, after in parts]
    once = sorted(names, key=natural_key)
    assert sorted(once, key=natural_key) == once


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_numbers_in_names_count(one: int, other: int) -> None:
    """Names that differ in a number are sorted by it."""
    assume(one != other)
    assert (natural_key(f"n{one}") < natural_key(f"n{other}")) == (one < other)


# Units


@given(st.integers(1, 2**63 - 1))
def test_sizes_survive_being_written(size: int) -> None:
    """What is written as a size is read back, to the byte."""
    assert parse_size(render_size(size), field="x") == size


@given(st.integers(60, 10**9))
def test_durations_survive_being_written(seconds: int) -> None:
    """A duration of a minute or more is written as it can be read."""
    assert parse_duration(render_duration(float(seconds)), field="x") == seconds


@given(
    TEXT
    | st.from_regex(r"[0-9.:\-smhdKMGTiB ]{1,12}", fullmatch=True)
    | st.floats()
    | st.integers()
)
def test_any_value_is_read_or_refused(value: Any) -> None:
    """Whatever stands in a job file, it is a positive number afterwards, or an error that names the field."""
    for parse in (parse_size, parse_duration):
        if parse is parse_size and isinstance(value, float):
            continue
        try:
            assert parse(value, field="x") > 0
        except SpecError as error:
            assert error.what.startswith("x: ")  # noqa: PT017  both outcomes are looked at

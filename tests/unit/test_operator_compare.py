"""Whether something is as it should be: what the cluster fills in or writes otherwise is no difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.operator.compare import find_differences, parse_amount


def differ(seen: Any, wanted: Any) -> list[str]:
    return list(find_differences(seen, wanted))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON)
def test_anything_is_as_itself(value: Any) -> None:
    """Nothing differs from itself."""
    assert differ(value, value) == []


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_what_others_add_is_no_difference(wanted: dict[str, Any]) -> None:
    """Keys that nobody asked for do not count, at any depth."""
    assert differ({**wanted, "another": {"x": 1}}, wanted) == []
    assert differ({"deep": {**wanted, "another": 1}}, {"deep": wanted}) == []


@pytest.mark.parametrize(
    ("seen", "wanted", "places"),
    [
        ({"a": 1}, {"a": 2}, ["a"]),
        ({}, {"a": {"b": 1}}, ["a.b"]),
        (None, {"a": {"b": 1}}, ["a.b"]),
        ({"a": "text"}, {"a": {"b": 1}}, ["a.b"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"a": [1, 3]}, {"a": [1, 2]}, ["a[1]"]),
        ({"a": "x"}, {"a": [1]}, ["a"]),
        ({"a": True}, {"a": 1}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": "x", "b": "y"}, {"a": "X", "b": "Y"}, ["a", "b"]),
        ({"a": "x"}, {"a": None}, ["a"]),
        ({"a": "x"}, {"a": ""}, ["a"]),
    ],
)
def test_differences_have_their_places(seen: Any, wanted: Any, places: list[str]) -> None:
    """Each thing that is not as wanted is named by its path."""
    assert differ(seen, wanted) == places


def test_lists_of_named_things_are_compared_by_name() -> None:
    """Containers in another order, and one more of somebody else's, are fine; another image is not."""
    wanted = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}
    seen = {
        "containers": [
            {"name": "sidecar", "image": "9"},
            {"name": "b", "image": "2", "resources": {}},
            {"name": "a", "image": "1"},
        ]
    }
    assert differ(seen, wanted) == []
    seen["containers"][1]["image"] = "3"
    assert differ(seen, wanted) == ["containers[b].image"]
    del seen["containers"][1]
    assert differ(seen, wanted) == ["containers[b].name", "containers[b].image"]


def test_ports_are_named_by_their_number() -> None:
    """Ports without a name are told apart by what they are."""
    wanted = {"ports": [{"containerPort": 80}, {"containerPort": 81}]}
    seen = {"ports": [{"containerPort": 81, "protocol": "TCP"}, {"containerPort": 80}]}
    assert differ(seen, wanted) == []


@pytest.mark.parametrize("empty", [None, "", 0, False, {}, []])
def test_the_cluster_leaves_out_what_is_empty(empty: Any) -> None:
    """An empty value that was asked for and is not there is as it should be."""
    assert differ({}, {"a": empty}) == []


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ("1Gi", "1024Mi"),
        ("4", 4),
        ("500m", 0.5),
        ("500m", "0.5"),
        ("1500m", "1.5"),
        ("2k", "2000"),
        ("1e3", "1k"),
    ],
)
def test_amounts_are_the_same_however_they_are_written(seen: Any, wanted: Any) -> None:
    """The cluster writes amounts in its own way."""
    assert differ({"limits": {"x": seen}}, {"limits": {"x": wanted}}) == []


@pytest.mark.parametrize(("seen", "wanted"), [("1Gi", "1G"), ("4", "5"), ("4", "four"), ("x", "y")])
def test_other_amounts_are_other_amounts(seen: Any, wanted: Any) -> None:
    """What is not the same is told."""
    assert differ({"x": seen}, {"x": wanted}) == ["x"]


@pytest.mark.parametrize("word", ["", "x", True, None, [], "+1", "1 Gi", "latest"])
def test_what_is_no_amount(word: Any) -> None:
    """Other texts are not taken for amounts."""
    assert parse_amount(word) is None

"""What things may be called in Kubernetes: names, labels, selectors, and amounts."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.kubernetes.names import (
    MAX_NAME,
    MAX_SET_NAME,
    Requirement,
    check_mesh_name,
    check_namespace,
    make_object_name,
    make_selector,
    parse_selector,
    render_selector,
)
from milkweed.errors import SpecError
from milkweed.labels import (
    check_annotation_key,
    check_annotations,
    check_dns_subdomain,
    check_label_key,
    check_label_value,
    check_labels,
)
from milkweed.quantities import parse_quantity, render_quantity, tidy_quantity
from milkweed.spec import check_job_name

# Names


@pytest.mark.parametrize("name", ["a", "trainers", "mesh1", "a" * 63])
def test_names_of_meshes(name: str) -> None:
    """Lowercase letters and digits, a letter first, at most 63 of them."""
    assert check_mesh_name(name) == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "is empty"),
        ("a" * 64, "has 64 characters: an RFC 1123 label has at most 63"),
        ("Trainers", "more than lowercase letters and digits"),
        ("my-mesh", "more than lowercase letters and digits"),
        ("my_mesh", "more than lowercase letters and digits"),
        ("mésh", "more than lowercase letters and digits"),
        ("1mesh", "does not start with a letter"),
        ("mesh\n", "more than lowercase letters and digits"),
        (7, "is not text"),
    ],
)
def test_a_mesh_name_that_cannot_be_says_which_rule_it_breaks(name: Any, rule: str) -> None:
    """The error is a ValueError, and names the rule."""
    with pytest.raises(ValueError, match=re.escape(rule)) as caught:
        check_mesh_name(name)
    assert isinstance(caught.value, SpecError)


@pytest.mark.parametrize("name", ["default", "team-a", "7", "a" * 63])
def test_namespaces(name: str) -> None:
    """A namespace is an RFC 1123 label."""
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "Team", "a.b", "-a", "a-", "a" * 64, "a_b", None, "a\n"])
def test_what_is_no_namespace(name: Any) -> None:
    """The field and the rule are named."""
    with pytest.raises(SpecError, match=r"^namespace: .* is not an RFC 1123 label"):
        check_namespace(name)


def test_subdomains() -> None:
    """Objects may have dots in their names, and longer ones."""
    assert check_dns_subdomain("a.b-c.d", field="x")
    assert check_dns_subdomain("a" * 253, field="x")
    for name in ("a..b", ".a", "a.", "A", "a" * 254):
        with pytest.raises(SpecError, match=r"^x: .* is not an RFC 1123 subdomain"):
            check_dns_subdomain(name, field="x")


# The names of objects


def test_a_name_that_fits_is_kept() -> None:
    """What can be the name of an object is one, with what is put behind it."""
    assert make_object_name("demo-2") == "demo-2"
    assert make_object_name("demo", suffix="-svc") == "demo-svc"


@pytest.mark.parametrize("name", ["My_Job", "my.job", "monarch_job", "7up", "a" * 64, "x-", "a--b"])
def test_a_name_that_is_changed_gets_a_hash(name: str) -> None:
    """What is cut or replaced is told apart by a short hash of the whole."""
    made = make_object_name(name)
    assert re.fullmatch(r"[a-z][-a-z0-9]*-[0-9a-f]{8}", made)
    assert made == make_object_name(name)


def test_names_that_differ_give_names_that_differ() -> None:
    """Also where all that differs cannot be written, or was cut."""
    names = ["my-job", "my_job", "my.job", "My-Job", "a" * 63 + "b", "a" * 63 + "c", "-", ".", "_"]
    assert len({make_object_name(name) for name in names}) == len(names)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True),
    st.sampled_from(["", "-svc", "-hosts"]),
    st.sampled_from([MAX_NAME, MAX_SET_NAME]),
)
def test_every_name_of_a_job_gives_the_name_of_an_object(name: str, end: str, longest: int) -> None:
    """Whatever a job may be called, its objects can be made: a service's name is the strictest."""
    check_job_name(name)
    made = make_object_name(name, suffix=end, longest=longest)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)
    assert len(made) <= longest
    assert made.endswith(end)


# Labels and annotations


@pytest.mark.parametrize(
    "key", ["team", "a.b_c-D", "example.com/team", "x" * 63, "a.b.c/" + "x" * 63]
)
def test_keys_of_labels(key: str) -> None:
    """A name, or a domain, a slash and a name."""
    assert check_label_key(key, field="labels") == key


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a/b/c", "Example.com/a", "-a", "a-", "a b", "x" * 64, 5, "a\n"]
)
def test_what_is_no_key_of_a_label(key: Any) -> None:
    """The error names the field and a key's rule."""
    with pytest.raises(SpecError, match=r"^labels: .* is not (the |a )?.*label key"):
        check_label_key(key, field="labels")


@pytest.mark.parametrize("value", ["", "a", "A.b_c-9", "x" * 63])
def test_values_of_labels(value: str) -> None:
    """An empty one is fine."""
    assert check_label_value(value, field="x") == value


@pytest.mark.parametrize("value", ["-a", "a b", "x" * 64, 5, None, "ä", "a/b"])
def test_what_is_no_value_of_a_label(value: Any) -> None:
    """The field is the key, so that a person finds it."""
    with pytest.raises(SpecError, match=r"^labels.team: .* is not a label value"):
        check_labels({"team": value}, field="labels")


def test_annotations_have_any_text() -> None:
    """Values are free, and prefixes may have capitals; there is an end to it all."""
    given_values = {"Example.com/Note": "any text: {} \n"}
    assert check_annotations(given_values, field="notes") == given_values
    assert check_annotation_key("Example.com/Note", field="notes")
    for wrong in ({"a b": ""}, {"a": 1}, "a=b", {"a": "x" * (256 * 1024)}):
        with pytest.raises(SpecError, match=r"^notes"):
            check_annotations(wrong, field="notes")


# Selectors


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("a=b", [Requirement("a", "=", ("b",))]),
        ("a==b", [Requirement("a", "=", ("b",))]),
        (" a != b ", [Requirement("a", "!=", ("b",))]),
        ("a=", [Requirement("a", "=", ("",))]),
        ("a", [Requirement("a", "exists")]),
        ("!a", [Requirement("a", "!")]),
        ("! a", [Requirement("a", "!")]),
        ("a in (x, y)", [Requirement("a", "in", ("x", "y"))]),
        ("a in(x)", [Requirement("a", "in", ("x",))]),
        ("a notin (x,)", [Requirement("a", "notin", ("x", ""))]),
        ("a>5", [Requirement("a", ">", ("5",))]),
        (
            "a=b,c in (x,y),!d",
            [
                Requirement("a", "=", ("b",)),
                Requirement("c", "in", ("x", "y")),
                Requirement("d", "!"),
            ],
        ),
        ("in in (in)", [Requirement("in", "in", ("in",))]),
        ("app.kubernetes.io/name=w", [Requirement("app.kubernetes.io/name", "=", ("w",))]),
    ],
)
def test_selectors_are_read(text: str, requirements: list[Requirement]) -> None:
    """All that the API takes is read, and written back in one way."""
    found = parse_selector(text)
    assert list(found) == requirements
    assert parse_selector(render_selector(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "  ",
            ",",
            "a,",
            ",a",
            "a,,b",
            "a=b c",
            "a b",
            "(a)",
            "a in x",
            "a in ()",
            "a in (x",
            "a in x)",
        ),
        *(
            "a=b=c",
            "=b",
            "!",
            "!a=b",
            "a>x",
            "a>",
            "a!b",
            "-a=b",
            "a=-b",
            "a in (x y)",
            "a = (x)",
            None,
            5,
        ),
    ],
)
def test_what_is_no_selector(text: Any) -> None:
    """The part that is wrong is refused, with the field; an empty one would mean every pod."""
    with pytest.raises(SpecError, match=r"^label_selector: "):
        parse_selector(text)


def test_a_selector_of_labels() -> None:
    """Labels as a mapping are the selector of what has all of them."""
    text = make_selector({"b": "2", "a": "1"})
    assert text == "a=1,b=2"
    for wrong in ({}, {"a b": ""}, {"a": "-"}):
        with pytest.raises(SpecError, match=r"^selector"):
            make_selector(wrong)


words = st.from_regex(r"[a-z]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True)
requirements_of = st.one_of(
    st.builds(Requirement, words, st.sampled_from(["exists", "!"])),
    st.builds(Requirement, words, st.sampled_from(["=", "!="]), st.tuples(words)),
    st.builds(
        Requirement,
        words,
        st.sampled_from(["in", "notin"]),
        st.lists(words, min_size=1, max_size=3, unique=True).map(tuple),
    ),
)


@given(st.lists(requirements_of, min_size=1, max_size=4).map(tuple))
def test_what_is_written_is_read_back(selector: tuple[Requirement, ...]) -> None:
    """A selector survives being written and read."""
    assert parse_selector(render_selector(selector)) == selector


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_a_spec_error(text: str) -> None:
    """Nothing else is ever raised."""
    try:
        parse_selector(text)
    except SpecError:
        return


# Amounts


@pytest.mark.parametrize(
    ("value", "amount", "tidy"),
    [
        ("256Gi", 256 * 2**30, "256Gi"),
        ("1024Mi", 2**30, "1Gi"),
        ("1.5Gi", 3 * 2**29, "1536Mi"),
        ("500m", Fraction(1, 2), "500m"),
        ("0.5", Fraction(1, 2), "500m"),
        (0.5, Fraction(1, 2), "500m"),
        (".5", Fraction(1, 2), "500m"),
        (32, 32, "32"),
        ("32", 32, "32"),
        ("1e3", 1000, "1k"),
        ("1E3", 1000, "1k"),
        ("1E", 10**18, "1E"),
        ("200G", 200 * 10**9, "200G"),
        ("1000M", 10**9, "1G"),
        ("0", 0, "0"),
        ("0Gi", 0, "0"),
        ("100u", Fraction(1, 10**4), "100u"),
        ("1n", Fraction(1, 10**9), "1n"),
        (1e-12, Fraction(1, 10**12), "1n"),
        ("0.1Ki", Fraction(1024, 10), "102400m"),
    ],
)
def test_amounts_are_read_and_written_in_one_way(value: Any, amount: Any, tidy: str) -> None:
    """As Kubernetes writes them: whole numbers with the largest unit of their family."""
    assert parse_quantity(value, field="x") == amount
    assert tidy_quantity(value, field="x") == tidy


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("64GB", "did you mean '64G'"),
        ("64gi", "did you mean '64Gi'"),
        ("2K", "did you mean '2k'"),
        ("64 Gi", "write a number"),
        ("", "write a number"),
        ("-1", "write a number"),
        ("Gi", "write a number"),
        ("1.2.3", "write a number"),
        ("1" * 50, "write a number"),
        ("\u0661", "write a number"),
        (None, "write a number"),
        (True, "write a number"),
        (float("nan"), "write a number"),
        (float("inf"), "write a number"),
        ([1], "write a number"),
        (-1, ""),
        ("10E", ""),
    ],
)
def test_what_is_no_amount(value: Any, hint: str) -> None:
    """The field is named, and frequent mistakes are recognised."""
    with pytest.raises(SpecError, match=r"^memory: ") as caught:
        parse_quantity(value, field="memory")
    assert hint in caught.value.hint


@given(st.integers(0, 2**63 - 1), st.booleans())
def test_what_is_rendered_is_the_same_amount(amount: int, binary: bool) -> None:
    """No whole number is changed by writing it."""
    assert parse_quantity(render_quantity(amount, binary=binary), field="x") == amount

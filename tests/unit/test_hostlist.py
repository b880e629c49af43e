"""Slurm's short form for many names: reading it, writing it, and refusing what is not one."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, strategies as st

from milkweed.backends.hostlist import MAX_NAMES, expand_hostlist, fold_hostlist


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ", []),
        ("n1", ["n1"]),
        ("login", ["login"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        (" n[1-2]\n", ["n1", "n2"]),
        ("n[1,3,5-6]", ["n1", "n3", "n5", "n6"]),
        ("n[3,1]", ["n3", "n1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[7-7]", ["n7"]),
        ("n[1],m[2-3],login", ["n1", "m2", "m3", "login"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("gpu-a100-[1-2].site.example", ["gpu-a100-1.site.example", "gpu-a100-2.site.example"]),
        ("a[b[1-2],c]x", ["ab1x", "ab2x", "acx"]),
        ("[a,b]1", ["a1", "b1"]),
        ("[1-2]", ["1", "2"]),
        ("n[1-1,1]", ["n1", "n1"]),
    ],
)
def test_lists_are_expanded(text: str, expected: list[str]) -> None:
    """A list gives its names in its order, with the zeros that were written."""
    assert expand_hostlist(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n[1-2", "leaves a bracket open"),
        ("n1-2]", "closes a bracket that was not opened"),
        ("n]1[", "closes a bracket that was not opened"),
        ("n[]", "has an empty name"),
        ("n[1,]", "has an empty name"),
        ("n[,1]", "has an empty name"),
        (",", "has an empty name"),
        ("n1,", "has an empty name"),
        ("n1,,n2", "has an empty name"),
        ("n[3-1]", "ends before it begins"),
        ("n[1-]", "where a range belongs"),
        ("n[-1]", "where a range belongs"),
        ("n[a-c]", "where a range belongs"),
        ("n[1-2-3]", "where a range belongs"),
        ("n[1 2]", "where a range belongs"),
        ("[" * 9 + "1" + "]" * 9, "has too many brackets inside brackets"),
        ("[" * 5000 + "]" * 5000, "has too many brackets inside brackets"),
        ("n1 n2", "has a space in a name"),
        ("n\u00b2[1-2] x", "has a space in a name"),
    ],
)
def test_what_is_not_a_list_is_refused(text: str, why: str) -> None:
    """A malformed list is an error that shows the text and says what is wrong with it."""
    with pytest.raises(ValueError, match="is not a list of hosts") as caught:
        expand_hostlist(text)
    assert repr(text[:70])[:-1] in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-999999999999]",
        "n[0-99999],m",
        "a[1-1000]b[1-1000]",
        "a[1-300]b[1-300]c[1-300]d[1-300]e[1-300]",
        ",".join(["n[1-60000]"] * 2),
        "n[" + ",".join(["1-60000"] * 5000) + "]",
        ",".join(["n[1-60000]"] * 5000),
    ],
)
def test_lists_of_too_many_names_are_refused_at_once(text: str) -> None:
    """A short text cannot make milkweed write millions of names."""
    begin = time.monotonic()
    with pytest.raises(ValueError, match=f"more than {MAX_NAMES} names"):
        expand_hostlist(text)
    assert time.monotonic() - begin < 5


def test_the_largest_list_is_read() -> None:
    """As many names as the limit are fine."""
    assert len(expand_hostlist(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


def test_a_long_text_is_cut_in_the_error() -> None:
    """An error stays readable, whatever was read."""
    with pytest.raises(ValueError, match="…") as caught:
        expand_hostlist("n[" + "1," * 500)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["login"], "login"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n1", "n3"], "n[1,3]"),
        (["n3", "n1"], "n[3,1]"),
        (["n1", "n2", "n4", "m1"], "n[1-2,4],m1"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n09", "n9"], "n[09,9]"),
        (["n9", "n010"], "n[9,010]"),
        (["n099", "n100"], "n[099-100]"),
        (["n99", "n100"], "n[99-100]"),
        (["n1", "n1"], "n[1,1]"),
        (["a", "b"], "a,b"),
        (["a", "a1", "a2", "a"], "a,a[1-2],a"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
        (["1", "2"], "[1-2]"),
    ],
)
def test_names_are_folded(names: list[str], expected: str) -> None:
    """Neighbours that count up become a range; nothing changes its place."""
    assert fold_hostlist(names) == expected
    assert expand_hostlist(expected) == names


@pytest.mark.parametrize("name", ["", " ", "a b", "a,b", "a[1]", "a]", "a\n"])
def test_what_is_not_a_name_is_not_folded(name: str) -> None:
    """A name that would be read back as something else is refused."""
    with pytest.raises(ValueError, match="is not the name of a host"):
        fold_hostlist(["n1", name])


def test_folding_takes_any_iterable() -> None:
    """Names may come from a generator."""
    assert fold_hostlist(f"n{number}" for number in range(3)) == "n[0-2]"


plain = st.text(st.characters(codec="utf-8", exclude_characters=",[] "), min_size=1, max_size=8)
names = st.one_of(
    st.builds(
        lambda prefix, number, width: f"{prefix}{number:0{width}d}",
        st.sampled_from(["n", "r1n", "gpu-a", ""]),
        st.integers(0, 12),
        st.integers(1, 3),
    ),
    st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True),
    plain.filter(lambda text: not any(char.isspace() for char in text)),
)


@given(st.lists(names, max_size=40))
@example(["9" * 40, "9" * 39 + "8"])
@example(["n" + "9" * 18, "n1" + "0" * 18])
@example(["n0", "n1", "n01", "n02", "n001"])
def test_folding_and_expanding_gives_the_names_back(found: list[str]) -> None:
    """What is folded expands to the same names in the same order, twins and zeros included."""
    assert expand_hostlist(fold_hostlist(found)) == found


@given(st.text(alphabet="n01-,[] x\n", max_size=24))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    """Reading never fails in any other way, and what was read can be folded."""
    try:
        found = expand_hostlist(text)
    except ValueError:
        return
    assert expand_hostlist(fold_hostlist(found)) == found


@given(st.integers(0, 2000), st.integers(0, 50), st.integers(1, 5))
def test_runs_fold_into_one_range(begin: int, more: int, width: int) -> None:
    """A run of names becomes one range, however its numbers are padded."""
    found = [f"n{number:0{width}d}" for number in range(begin, begin + more + 1)]
    assert fold_hostlist(found).count("-") <= 1
    assert fold_hostlist(found).count(",") == 0

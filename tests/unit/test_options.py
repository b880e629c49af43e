"""Tables of keys, and the reading of values by them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.option_tables import (
    BUILTIN_OPTIONS,
    FAKE_OPTIONS,
    LOCAL_OPTIONS,
    MESH_OPTIONS,
    PROCESS_OPTIONS,
    SLURM_OPTIONS,
)
from milkweed.options import (
    MAX_INT,
    OptionField,
    OptionType,
    Problem,
    Problems,
    check_options,
    describe,
    read_table,
    read_value,
    render_path,
    split_options,
    suggest_key,
    with_defaults,
)


def read(type_: OptionType, value: Any, **more: Any) -> tuple[Any, list[tuple[str, str]]]:
    """Read one value; what came out, and (problem, hint) pairs."""
    problems = Problems()
    found = read_value(OptionField(type_, "Help.", **more), value, ("key",), problems)
    return found, [(str(problem), problem.hint) for problem in problems]


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("text", "no", "no"),
        ("folder", "/a/../b", "/b"),
        ("folder", Path("/a"), "/a"),
        ("int", 3, 3),
        ("int", -3, -3),
        ("int", MAX_INT, MAX_INT),
        ("number", 3, 3.0),
        ("number", 0.5, 0.5),
        ("bool", False, False),
        ("size", "64Gi", 64 * 2**30),
        ("size", 4096, 4096),
        ("duration", "1h30m", 5400.0),
        ("duration", "1-12:00:00", 129600.0),
        ("duration", 1.5, 1.5),
        ("texts", [], []),
        ("texts", ["a", ""], ["a", ""]),
        ("words", "python 'a b' c", ["python", "a b", "c"]),
        ("words", ["python", "", "$x"], ["python", "", "$x"]),
        ("env", {"A": "1", "B": ""}, {"A": "1", "B": ""}),
        ("env", None, {}),
        ("data", {"a": [1, 0.5, None, True, {"b": "c"}]}, {"a": [1, 0.5, None, True, {"b": "c"}]}),
        ("data", None, None),
    ],
)
def test_good_values_come_out_checked(type_: OptionType, value: Any, expected: Any) -> None:
    """A value that fits its type is read without a problem."""
    found, problems = read(type_, value)
    assert problems == []
    assert found == expected
    assert type(found) is type(expected)


QUOTE = "put it in quotes"
NUMBER = "write one, such as 2"
CLOSE = "close what is quoted, or give a list of words"
SIZE = "write a number with a unit, such as 512Mi, 16Gi or 200GB"
DURATION = "write a number with a unit, such as 90s, 5m or 1h30m, or a time such as 12:00:00"
NO_CHARACTER = "has a character that no program can be given"


@pytest.mark.parametrize(
    ("type_", "value", "problem", "hint"),
    [
        ("text", 8, "key: 8 is not text", QUOTE),
        ("text", 0.5, "key: 0.5 is not text", QUOTE),
        ("text", True, "key: true is not text", QUOTE),
        ("text", ["a"], "key: a list is not text", "write text"),
        ("text", {}, "key: a mapping is not text", "write text"),
        ("text", "", "key: is empty", "give it one, or take the key out"),
        ("text", None, "key: has no value", "give it one, or take the key out"),
        ("text", "a\0b", rf"key: 'a\x00b' {NO_CHARACTER}", "leave it out"),
        ("text", "\ud800", rf"key: '\ud800' {NO_CHARACTER}", "leave it out"),
        ("int", "two", "key: 'two' is not a whole number", NUMBER),
        ("int", "2", "key: '2' is not a whole number", "take it out of the quotes"),
        ("int", 2.0, "key: 2.0 is not a whole number", NUMBER),
        ("int", False, "key: false is not a whole number", NUMBER),
        ("int", 2**63, "key: 9223372036854775808 is too large", "give a smaller number"),
        ("number", "1.5x", "key: '1.5x' is not a number", NUMBER),
        ("number", math.inf, "key: inf is too large", "give a smaller number"),
        ("number", math.nan, "key: nan is not a number", NUMBER),
        ("number", True, "key: true is not a number", NUMBER),
        ("bool", "no", "key: 'no' is not true or false", "write true or false"),
        ("bool", 1, "key: 1 is not true or false", "write true or false"),
        ("size", "64Q", "key: '64Q' is not a size", SIZE),
        ("size", 1.5, "key: 1.5 is not a size", SIZE),
        ("size", True, "key: true is not a size", SIZE),
        ("size", [], "key: a list is not a size", SIZE),
        ("size", 0, "key: 0 is not more than zero", "give a larger number, or leave it out"),
        ("duration", "soon", "key: 'soon' is not a duration", DURATION),
        ("duration", math.nan, "key: nan is not a duration", DURATION),
        ("duration", False, "key: false is not a duration", DURATION),
        (
            "duration",
            -1,
            "key: -1.0 is not more than zero",
            "give a larger number, or leave it out",
        ),
        ("texts", "a", "key: 'a' is not a list", "write a list: [first, second]"),
        ("texts", ["a", 1], "key[1]: 1 is not text", QUOTE),
        ("words", "a 'b", 'key: "a \'b" is not a command line: no closing quotation', CLOSE),
        ("words", "", "key: is empty", "write a command, or take the key out"),
        ("words", [], "key: is empty", "write a command, or take the key out"),
        ("words", ["a", 0.1], "key[1]: 0.1 is not text", QUOTE),
        ("words", 5, "key: 5 is not text", QUOTE),
        ("env", ["A"], "key: a list is not a mapping", 'write variables: {NAME: "text"}'),
        ("env", {"A": 1}, "key.A: 1 is not text", QUOTE),
        ("env", {"A": None}, "key.A: has no value", 'write "" for an empty text'),
        (
            "env",
            {"1A": "x"},
            "key.1A: '1A' is not a name of a variable",
            "use letters, digits and _, and no digit first",
        ),
        ("env", {"A": "\0"}, rf"key.A: '\x00' {NO_CHARACTER}", "leave it out"),
        ("data", {"a": [1, math.inf]}, "key.a[1]: inf is too large", "give a smaller number"),
        ("data", {"a": "\0"}, rf"key.a: '\x00' {NO_CHARACTER}", "leave it out"),
    ],
)
def test_bad_values_are_named(type_: OptionType, value: Any, problem: str, hint: str) -> None:
    """A value that does not fit gives one problem that names key and value, and the way out."""
    _, problems = read(type_, value)
    assert problems == [(problem, hint)]


@pytest.mark.parametrize("type_", ["size", "duration", "int", "number"])
@pytest.mark.parametrize("value", ["9" * 5000, "9" * 400 + "s", 10**400, -(10**400)], ids="abcd")
def test_huge_values_are_a_problem(type_: OptionType, value: Any) -> None:
    """A number no machine could mean is a problem, never a crash."""
    _, problems = read(type_, value)
    assert len(problems) == 1
    assert len(problems[0][0]) < 120


def test_a_list_names_all_its_bad_items() -> None:
    """Every bad item of a list is named, not just the first."""
    _, problems = read("texts", ["a", 1, "b", None])
    assert [text for text, _ in problems] == [
        "key[1]: 1 is not text",
        "key[3]: nothing is not text",
    ]


def test_choices_are_listed_and_the_near_one_suggested() -> None:
    """A word that is not a choice is answered with all choices, and the nearest."""
    field = {"choices": ("ipc", "tls")}
    assert read("text", "tls", **field) == ("tls", [])
    assert read("text", "tlss", **field)[1] == [
        ("key: 'tlss' is not one of: ipc, tls", "did you mean 'tls'?")
    ]
    assert read("text", "carrier", **field)[1] == [
        ("key: 'carrier' is not one of: ipc, tls", "write ipc or tls")
    ]


def test_minimum_is_told() -> None:
    """A number under the minimum is answered with the minimum."""
    assert read("int", 1, minimum=1) == (1, [])
    assert read("int", 0, minimum=1)[1] == [("key: 0 is too small", "give at least 1")]
    assert read("number", 0.5, minimum=1)[1] == [("key: 0.5 is too small", "give at least 1")]


def test_a_table_names_unknown_and_missing_keys() -> None:
    """Unknown keys and missing required ones are all named, at their keys."""
    table = {
        "hosts": OptionField("int", "How many.", required=True),
        "cpus": OptionField("int", ""),
    }
    problems = Problems()
    assert read_table(table, {"cpu": 1, "cpus": 2}, ("m",), problems) == {"cpus": 2}
    assert problems == [
        Problem(("m", "cpu"), "unknown key", "did you mean 'cpus'?", at_key=True),
        Problem(("m", "hosts"), "is missing", "add `hosts: …`: How many.", at_key=True),
    ]


def test_a_table_wants_a_mapping() -> None:
    """Anything but a mapping is one problem; nothing at all is an empty mapping."""
    problems = Problems()
    assert read_table(LOCAL_OPTIONS, None, ("local",), problems) == {}
    assert problems == []
    assert read_table(LOCAL_OPTIONS, [1], ("local",), problems) == {}
    assert read_table(FAKE_OPTIONS, 1, ("fake",), problems) == {}
    assert [(str(problem), problem.hint) for problem in problems] == [
        ("local: a list is not a mapping", "write keys and values; known: stream_logs"),
        ("fake: 1 is not a mapping", ""),
    ]


def test_unknown_keys_get_a_way_out() -> None:
    """A key nobody knows is answered with the near one, all of them, or why there is none."""
    known = {"hosts": 1, "cpus": 1}
    assert suggest_key("host", known) == "did you mean 'hosts'?"
    assert suggest_key("zzz", known) == "known: cpus, hosts"
    assert suggest_key("zzz", {}) == "nothing can be set here"
    assert suggest_key("<<", known) == "merge keys are not part of YAML 1.2; write the keys out"


def test_checks_of_the_spec_become_problems() -> None:
    """What a check raises is noted at the path it was run for, without the check's own prefix."""
    problems = Problems()
    with problems.at(("a", "b"), at_key=True):
        raise SpecError("where: wrong: very", hint="fix it")
    with problems.at(("c",)):
        raise SpecError("no prefix")
    assert problems == [
        Problem(("a", "b"), "wrong: very", "fix it", at_key=True),
        Problem(("c",), "no prefix"),
    ]


def test_other_errors_pass() -> None:
    """Only a SpecError is a problem of the declaration."""
    with pytest.raises(KeyError), Problems().at(("a",)):
        raise KeyError("x")


def test_paths_are_written_as_people_point() -> None:
    """A path reads like an expression, and never grows without bound."""
    assert render_path(("meshes", "trainers", "hosts")) == "meshes.trainers.hosts"
    assert render_path(("code", "include", 2)) == "code.include[2]"
    assert render_path(("x" * 500,)) == "x" * 60 + "…"
    assert str(Problem((), "all wrong")) == "all wrong"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "nothing"), (True, "true"), (1, "1"), ("a", "'a'"), ([], "a list"), ({}, "a mapping")],
)
def test_values_are_described_briefly(value: Any, shown: str) -> None:
    """An error shows a value as it would be written, or names its kind."""
    assert describe(value) == shown


def test_long_values_are_cut() -> None:
    """An error never repeats a whole novel."""
    assert len(describe("x" * 10_000)) < 80


def test_client_options_are_apart() -> None:
    """What only the client cares about is kept out of what defines an allocation."""
    values = {"transport": "tls", "start_timeout": 5.0, "stream_logs": False}
    assert split_options(PROCESS_OPTIONS, values) == (
        {"transport": "tls"},
        {"start_timeout": 5.0, "stream_logs": False},
    )


def test_saying_a_default_is_saying_nothing() -> None:
    """A default in the file gives the same job as leaving it out."""
    values = {"transport": "ipc", "stream_logs": True}
    assert split_options(PROCESS_OPTIONS, values) == ({}, {})


def test_defaults_come_back() -> None:
    """A backend sees the value of every option that has one."""
    assert with_defaults(PROCESS_OPTIONS, {"log_dir": "x"}, {"stream_logs": False}) == {
        "transport": "ipc",
        "log_dir": "x",
        "stream_logs": False,
    }


def test_checked_options_are_split() -> None:
    """Values given in Python are read like those of a job file; None means not said."""
    values = {"transport": "tls", "start_timeout": "90s", "log_dir": None}
    assert check_options(PROCESS_OPTIONS, values, where="process") == (
        {"transport": "tls"},
        {"start_timeout": 90.0},
    )


def test_checked_options_name_all_mistakes() -> None:
    """All mistakes of values given in Python are in one error."""
    with pytest.raises(SpecError) as caught:
        check_options(PROCESS_OPTIONS, {"transport": "tcp", "logdir": "x"}, where="process")
    assert str(caught.value) == (
        "process.transport: 'tcp' is not one of: ipc, tls\n"
        "process.logdir: unknown key\n"
        "  do:   write ipc or tls\n"
        "        did you mean 'log_dir'?"
    )


def test_builtin_tables() -> None:
    """The backends that come with milkweed declare exactly these keys."""
    assert {name: sorted(table) for name, table in BUILTIN_OPTIONS.items()} == {
        "fake": [],
        "flux": [
            *("bank", "cpus_per_host", "exclusive", "gpus_per_host", "log_dir", "meshes"),
            *("monarch_port", "on_interrupt", "properties", "python_exe", "queue"),
            *("start_timeout", "stream_logs", "survive_node_failure", "time_limit", "uri"),
        ],
        "kubernetes": [
            *("client_resources", "context", "image", "images", "kubeconfig", "meshes"),
            *("namespace", "on_interrupt"),
            *("port", "provision", "reach", "renew", "start_timeout", "stream_logs", "sync_dirs"),
        ],
        "local": ["stream_logs"],
        "process": ["log_dir", "python_exe", "start_timeout", "stream_logs", "transport"],
        "slurm": [
            *("account", "constraint", "cpus_per_task", "exclusive", "gpus_per_node", "log_dir"),
            *("mem", "meshes", "monarch_port", "ntasks_per_node", "on_interrupt", "partition"),
            *("python_exe", "qos", "renew", "slurm_args", "start_timeout", "stream_logs"),
            *("survive_node_failure", "time_limit"),
        ],
    }


def test_what_a_mesh_may_say_is_what_the_job_may_say() -> None:
    """The keys for single meshes are keys of the whole job too, and mean the same; none is the client's own."""
    assert set(MESH_OPTIONS) < set(SLURM_OPTIONS)
    assert all(SLURM_OPTIONS[key] == field for key, field in MESH_OPTIONS.items())
    assert not [key for key, field in MESH_OPTIONS.items() if field.client]


def test_what_only_the_client_cares_about() -> None:
    """Time-outs, output and what Ctrl-C does change no allocation; everything else defines one."""
    own = {key for key, field in SLURM_OPTIONS.items() if field.client}
    assert own == {"start_timeout", "stream_logs", "on_interrupt", "renew"}


@pytest.mark.parametrize("name", sorted(BUILTIN_OPTIONS))
def test_builtin_defaults_fit_their_fields(name: str) -> None:
    """Every default could have been written by a person, and every key is explained."""
    for key, field in BUILTIN_OPTIONS[name].items():
        assert field.help.endswith(".")
        if field.default is not None:
            problems = Problems()
            assert read_value(field, field.default, (key,), problems) == field.default
            assert problems == []

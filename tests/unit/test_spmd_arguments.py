"""torchrun's command line, as it is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import SpecError
from milkweed.spmd.arguments import (
    OWN,
    HelpAsked,
    Unsaid,
    make_parser,
    parse_namespace,
    render_help,
)
from milkweed.spmd.launch import parse

DEFAULTS: dict[str, Any] = {
    "nnodes": "1:1",
    "nproc_per_node": "1",
    "rdzv_backend": "static",
    "rdzv_endpoint": "",
    "rdzv_id": "none",
    "rdzv_conf": "",
    "standalone": False,
    "max_restarts": 0,
    "monitor_interval": 0.1,
    "start_method": "spawn",
    "event_log_handler": "null",
    "role": "default",
    "module": False,
    "no_python": False,
    "run_path": False,
    "log_dir": None,
    "redirects": "0",
    "tee": "0",
    "local_ranks_filter": "",
    "duplicate_stdout_filters": [],
    "duplicate_stderr_filters": [],
    "node_rank": 0,
    "master_addr": "127.0.0.1",
    "master_port": None,
    "local_addr": None,
    "logs_specs": None,
    "numa_binding": None,
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "shutdown_timeout": None,
    "virtual_local_rank": False,
    "training_script": "t.py",
    "training_script_args": [],
    "job": None,
    "mesh": None,
    "set_env": [],
}


def changed(argv: list[str], environ: dict[str, str]) -> dict[str, Any]:
    found = vars(parse_namespace(argv, environ))
    assert found.keys() == DEFAULTS.keys()
    return {key: value for key, value in found.items() if value != DEFAULTS[key]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t.py", {}),
        ("--nnodes 2 t.py", {"nnodes": "2"}),
        ("--nn=2:4 t.py", {"nnodes": "2:4"}),
        ("--nproc-per-node gpu t.py", {"nproc_per_node": "gpu"}),
        ("--nproc_per_node=8 t.py", {"nproc_per_node": "8"}),
        ("--nproc-p 8 t.py", {"nproc_per_node": "8"}),
        ("-m pkg.train", {"module": True, "training_script": "pkg.train"}),
        ("-mr3 t.py", {"module": True, "redirects": "3"}),
        ("-r 1 -t2 t.py", {"redirects": "1", "tee": "2"}),
        ("--node-rank -1 t.py", {"node_rank": -1}),
        ("--monitor-interval 2 t.py", {"monitor_interval": 2.0}),
        ("--duplicate-stdout-filters a,b,,c t.py", {"duplicate_stdout_filters": ["a", "b,c"]}),
        ("t.py --nnodes 2", {"training_script_args": ["--nnodes", "2"]}),
        ("t.py --help -m", {"training_script_args": ["--help", "-m"]}),
        ("-- t.py -- x", {"training_script_args": ["--", "x"]}),
        ("--job train --mesh gpus t.py", {"job": "train", "mesh": "gpus"}),
        ("--set-env A=1 --set-env B=2 t.py", {"set_env": ["A=1", "B=2"]}),
        ("--node-rank ${replica_id} t.py", {}),
        ("--node_rank=${replica_id} t.py", {}),
        ("t.py --node-rank=${replica_id}", {"training_script_args": ["--node-rank=${replica_id}"]}),
    ],
)
def test_lines_are_read(line: str, expected: dict[str, Any]) -> None:
    """Options end where the script begins; spellings and unique abbreviations are torchrun's."""
    assert changed(line.split(), {}) == expected


@pytest.mark.parametrize(
    ("environ", "argv", "expected"),
    [
        ({"PET_NNODES": "3"}, [], {"nnodes": "3"}),
        ({"PET_NNODES": "3"}, ["--nnodes", "4"], {"nnodes": "4"}),
        ({"PET_NNODES": ""}, [], {"nnodes": ""}),
        ({"PET_NPROC_PER_NODE": "auto"}, [], {"nproc_per_node": "auto"}),
        ({"PET_MAX_RESTARTS": " 3 "}, [], {"max_restarts": 3}),
        ({"PET_MAX_RESTARTS": "x"}, ["--max-restarts=1"], {"max_restarts": 1}),
        ({"PET_MONITOR_INTERVAL": "1"}, [], {"monitor_interval": 1.0}),
        ({"PET_STANDALONE": "1"}, [], {"standalone": True}),
        ({"PET_STANDALONE": "-2"}, [], {"standalone": True}),
        ({"PET_STANDALONE": "0"}, ["--standalone"], {"standalone": True}),
        ({"PET_MODULE": "0"}, [], {}),
        ({"PET_START_METHOD": "bogus"}, [], {"start_method": "bogus"}),
        ({"PET_DUPLICATE_STDERR_FILTERS": "a,b"}, [], {"duplicate_stderr_filters": ["a", "b"]}),
        ({"PET_NODE_RANK": "${replica_id}"}, [], {}),
        ({"PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "node"}, [], {}),
        ({"PET_JOB": "x", "PET_MESH": "y", "PET_SET_ENV": "z", "NNODES": "2"}, [], {}),
    ],
)
def test_variables_give_defaults(
    environ: dict[str, str], argv: list[str], expected: dict[str, Any]
) -> None:
    """A `PET_` variable is a default, converted but never a choice; two options and our own have none."""
    assert changed([*argv, "t.py"], environ) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "the following arguments are required: SCRIPT"),
        ("--nnodes", "argument --nnodes: expected one argument"),
        ("--bogus t.py", "unrecognized arguments: --bogus"),
        ("--max-restarts x t.py", "argument --max-restarts/--max_restarts: invalid int value: 'x'"),
        (
            "--monitor-interval x t.py",
            "argument --monitor-interval/--monitor_interval: invalid float",
        ),
        ("--rdzv t.py", "ambiguous option: --rdzv could match --rdzv-backend, "),
        ("--standalone=1 t.py", "argument --standalone: ignored explicit argument '1'"),
        ("--start-method x t.py", "argument --start-method/--start_method: invalid choice: 'x'"),
        ("--numa-binding x t.py", "argument --numa-binding/--numa_binding: invalid choice: 'x'"),
        (
            "--node-rank ${rank} t.py",
            "argument --node-rank/--node_rank: invalid int value: '${rank}'",
        ),
    ],
)
def test_bad_lines_are_refused(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An error is raised in argparse's words; nobody prints, nobody exits, and the help is named."""
    with pytest.raises(SpecError) as caught:
        parse_namespace(line.split(), {})
    assert caught.value.what.startswith(text)
    assert "milkweed torchrun --help" in caught.value.hint
    assert caught.value.__suppress_context__
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PET_STANDALONE", "PET_STANDALONE: 'x' is not a whole number"),
        ("PET_VIRTUAL_LOCAL_RANK", "PET_VIRTUAL_LOCAL_RANK: 'x' is not a whole number"),
        ("PET_MAX_RESTARTS", "argument --max-restarts/--max_restarts: invalid int value: 'x' "),
        ("PET_MONITOR_INTERVAL", "argument --monitor-interval/--monitor_interval: invalid float "),
        ("PET_NODE_RANK", "argument --node-rank/--node_rank: invalid int value: 'x' "),
    ],
)
def test_bad_variables_are_named(variable: str, text: str) -> None:
    """Who never wrote the flag learns which variable did."""
    with pytest.raises(SpecError) as caught:
        parse_namespace(["t.py"], {variable: "x"})
    assert caught.value.what.startswith(text)
    assert variable in caught.value.what


@pytest.mark.parametrize("line", ["-h", "--help", "--he", "--nnodes 2 --help t.py", "-mh t.py"])
def test_help_can_be_asked_for(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help before the script is a wish, not an error, and is left to the command to show."""
    with pytest.raises(HelpAsked):
        parse_namespace(line.split(), {})
    assert capsys.readouterr() == ("", "")


def test_help_shows_every_option_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is explained with dashes; spellings with underscores are left out."""
    monkeypatch.setenv("COLUMNS", "100")
    text = render_help()
    assert text.startswith("Usage: milkweed torchrun [options] SCRIPT [ARG ...]\n")
    for name in (*DEFAULTS, "help"):
        if not name.startswith("training_script"):
            assert f"--{name.replace('_', '-')}" in text
    assert "_per_" not in text
    assert "-r, --redirects STREAMS" in text


def test_own_options_leave_abbreviations_alone() -> None:
    """Whatever short form torchrun understands still means the same with milkweed's own options."""
    names = [n for n in make_parser({})._option_string_actions if n.startswith("--")]
    own = {f"--{name.replace('_', '-')}" for name in OWN}
    theirs = [name for name in names if name not in own]
    for name in theirs:
        for length in range(3, len(name)):
            short = name[:length]
            if [n for n in theirs if n.startswith(short)] == [name]:
                assert [n for n in names if n.startswith(short)] == [name]


def test_nobody_shares_lists() -> None:
    """What one caller does to a list is not seen by the next."""
    parse_namespace(["t.py"], {}).duplicate_stdout_filters.append("x")
    parse_namespace(["t.py"], {}).set_env.append("x")
    assert changed(["t.py"], {}) == {}


def test_only_a_default_is_unsaid() -> None:
    """Whether an address was given can be seen, even if it is the same."""
    addresses = [
        parse_namespace(["t.py"], {}).master_addr,
        parse_namespace(["--master-addr", "127.0.0.1", "t.py"], {}).master_addr,
        parse_namespace(["t.py"], {"PET_MASTER_ADDR": "127.0.0.1"}).master_addr,
    ]
    assert [isinstance(address, Unsaid) for address in addresses] == [True, False, False]
    assert {*addresses} == {"127.0.0.1"}


@given(st.lists(st.sampled_from(["--nnodes", "-m", "-r", "--", "2", "t.py", "--x", "-h", "--r="])))
def test_nothing_but_spec_errors(argv: list[str]) -> None:
    """Any line gives a value, help or a SpecError."""
    try:
        found = parse(argv, {})
    except (SpecError, HelpAsked):
        return
    assert found.script in argv

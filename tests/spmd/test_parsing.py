"""The real torchrun and milkweed read the same command lines: each must answer as the other does."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.spmd.arguments import OWN, HelpAsked, make_parser, parse_namespace
from milkweed.spmd.launch import parse, parse_streams
from milkweed.spmd.rendezvous import parse_conf, parse_endpoint
from spmd.oracle import lack, why_missing
from spmd.torchrun import Env, Reference, find_python, open_reference

pytestmark = pytest.mark.torch

UUID_LENGTH = 36
Case = tuple[Sequence[str], Env]


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Reference]:
    if missing := why_missing():
        lack(missing)
    python = find_python()
    with open_reference(python) as reference:
        version = tuple(reference.ask("about", None)["value"]["version"])
        if version != sys.version_info[:2]:
            lack(f"{python} is Python {version}, whose argparse may be another")
        yield reference


def plain(answer: object) -> str:
    """A text that tells 1 from 1.0 and True, and compares nan."""
    return json.dumps(answer, sort_keys=True)


def ours(read: Callable[[], object]) -> dict[str, Any]:
    try:
        return {"value": read()}
    except HelpAsked:
        return {"help": True}
    except SpecError as error:
        return {"error": str(error)}


def parsed(argv: Sequence[str], env: Env) -> dict[str, Any]:
    """What milkweed reads, without its own options."""
    answer = ours(lambda: vars(parse_namespace(argv, env)))
    if "value" in answer:
        answer["value"] = {k: v for k, v in answer["value"].items() if k not in OWN}
    return answer


def agree(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    return ("error" in theirs and "error" in mine) or plain(theirs) == plain(mine)


def differences(torchrun: Reference, cases: Sequence[Case]) -> list[object]:
    """The cases that are not read alike, with both answers."""
    asked = (
        (argv, env, torchrun.ask("parse", argv, env), parsed(argv, env)) for argv, env in cases
    )
    return [case for case in asked if not agree(case[2], case[3])]


def lines(*texts: str) -> list[Case]:
    return [(text.split(), {}) for text in texts]


VALUES = {
    "nnodes": ["1", "2:4", "x", ""],
    "nproc-per-node": ["4", "auto", "gpu", "-1"],
    "rdzv-backend": ["static", "c10d", "etcd"],
    "rdzv-endpoint": ["host:29400", "[::1]:1", ""],
    "rdzv-id": ["run7", "none"],
    "rdzv-conf": ["timeout=3", "a=b,c=d", ","],
    "max-restarts": ["3", "-1", " 7 ", "x", "1.5", "1_0", ""],
    "monitor-interval": ["1", "0.5", "nan", "-inf", "1e3", "x", ""],
    "start-method": ["spawn", "fork", "forkserver", "bogus"],
    "event-log-handler": ["null", "console"],
    "role": ["trainer", ""],
    "log-dir": ["logs", "/dev/null", ""],
    "redirects": ["3", "0:1,1:2", "9"],
    "tee": ["3", "0:1"],
    "local-ranks-filter": ["0,1", "x"],
    "duplicate-stdout-filters": ["a,b", "a,,b", ",", ",,,", "", "a,,,b"],
    "duplicate-stderr-filters": ["a,b", "a,,b,,,,c"],
    "node-rank": ["0", "1", "-1", "x"],
    "master-addr": ["127.0.0.1", "host", "[::1]"],
    "master-port": ["29500", "0", "x"],
    "local-addr": ["10.0.0.1", ""],
    "logs-specs": ["default", "mine"],
    "numa-binding": ["node", "socket", "exclusive", "core-complex", "none"],
    "signals-to-handle": ["SIGTERM", "SIGUSR1,SIGINT", "x"],
    "shutdown-timeout": ["5", "-5", "1.5"],
}
SWITCHES = ["standalone", "module", "no-python", "run-path", "virtual-local-rank"]
SHORT = ["-m", "-r", "-t", "-h"]


def spellings(name: str) -> list[str]:
    return sorted({f"--{name}", f"--{name.replace('-', '_')}"})


FLAGS: list[Case] = [
    case
    for name, values in VALUES.items()
    for value in values
    for flag in spellings(name)
    for case in (([flag, value, "t.py"], {}), ([f"{flag}={value}", "t.py", flag, value], {}))
] + [
    case
    for name in SWITCHES
    for flag in spellings(name)
    for case in (([flag, "t.py"], {}), ([f"{flag}=1", "t.py"], {}), (["t.py", flag], {}))
]
VARIABLES: list[Case] = [
    (argv, {f"PET_{name.replace('-', '_').upper()}": value})
    for name, values in {
        **VALUES,
        **{name: ["0", "1", "-1", " 1 ", "x", ""] for name in SWITCHES},
    }.items()
    for value in values
    for argv in (["t.py"], [f"--{name}", "1", "t.py"])
]
PLACES: list[Case] = [
    *lines(
        "", "--", "-- --", "-- t.py", "-- t.py -- a", "t.py --", "t.py -- a", "t.py a -- b -- c"
    ),
    *lines("--nnodes 2 -- t.py", "--nnodes -- 2 t.py", "--nnodes -- t.py", "-- --nnodes 2 t.py"),
    *lines("-m -- pkg.mod --x", "-m pkg.mod -m", "--standalone -- -m", "-- -h", "t.py -h", "-h"),
    *lines(
        "--help t.py", "--he", "--h", "-mh t.py", "--nnodes x --help", "--max-restarts x --help"
    ),
    *lines(
        "--nnodes", "--nnodes 2", "--nnodes 2 --bogus t.py", "--bogus", "--bogus 1 t.py", "-x t.py"
    ),
    *lines(
        "t.py --bogus", "t.py --nnodes 2 --nproc-per-node", "t.py -r -t -m", "t.py --standalone"
    ),
    *lines(
        "--nnodes 2 --nnodes 3 t.py", "-r 1 --redirects 2 t.py", "-m -m pkg", "--nnodes=2=3 t.py"
    ),
    *lines(
        "-r3 t.py", "-r=3 t.py", "-t3 -r0:1 t.py", "-mr3 t.py", "-mr 3 t.py", "-rm t.py", "-m3 t.py"
    ),
    *lines(
        "-mm pkg",
        "-mx pkg",
        "-rt 3 t.py",
        "- t.py",
        "t.py -",
        "-1 t.py",
        "-1",
        "--node-rank -1 t.py",
    ),
    *lines(
        "--role -1 t.py",
        "--role -x t.py",
        "--role --tee t.py",
        "--role=--tee t.py",
        "-redirects 3 t.py",
    ),
    *lines(
        "t.py --job a",
        "t.py --mesh b --set-env C=1",
        "--standalone t.py --standalone=1",
        "--=1 t.py",
    ),
    *lines(
        "--nnodes= t.py", "--nnodes == t.py", "--standalone= t.py", "--NNODES 2 t.py", "-M t.py"
    ),
    (["--role", "", "t.py"], {}),
    (["--role", "two words", "t.py"], {}),
    (["--role two", "t.py"], {}),
    (["--bogus two", "t.py"], {}),
    (["", "a"], {}),
    ([" t.py", " "], {}),
    (["--role", "--x y", "t.py"], {}),
    (["@file"], {}),
    (["t.py", "%s", "${rank}", "ü", "\n"], {}),
    (["--nnodes", "2", "t.py"], {"PET_STANDALONE": "x"}),
    (["-h"], {"PET_STANDALONE": "x"}),
    (["-h"], {"PET_MAX_RESTARTS": "x"}),
    ([], {"PET_TRAINING_SCRIPT": "t.py"}),
    (["t.py"], {"PET_M": "1", "PET_R": "3", "NNODES": "2", "pet_nnodes": "2"}),
    (["t.py"], {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_RDZV_BACKEND": "c10d"}),
]

OUR_OWN = "torchrun has no such option"
DIFFERENCES: list[tuple[list[str], Env, str]] = [
    (["--job", "a", "t.py"], {}, OUR_OWN),
    (["--job=a", "t.py"], {}, OUR_OWN),
    (["--mesh", "m", "t.py"], {}, OUR_OWN),
    (["--set-env", "A=1", "t.py"], {}, OUR_OWN),
    (["--me", "m", "t.py"], {}, "it is short for --mesh"),
    (["--set", "A=1", "t.py"], {}, "it is short for --set-env"),
    (["--jo", "a", "t.py"], {}, "it is short for --job"),
    (["--node-rank", "${replica_id}", "t.py"], {}, "AppDefs carry it; a scheduler writes a number"),
    (["t.py"], {"PET_NODE_RANK": "${replica_id}"}, "the same in a variable"),
    (
        ["--duplicate-stdout-filters", "<COMMA_PLACEHOLDER>", "t.py"],
        {},
        "torchrun marks doubled commas with this very text, and then takes it for one",
    ),
]


@pytest.mark.parametrize("cases", [FLAGS, VARIABLES, PLACES], ids=["flags", "variables", "places"])
def test_lines_are_read_alike(torchrun: Reference, cases: list[Case]) -> None:
    """Both give the same attributes with the same values and types, or both refuse."""
    assert len(cases) > 60
    assert differences(torchrun, cases) == []


@pytest.mark.parametrize(("argv", "env", "reason"), DIFFERENCES)
def test_differences_are_known(torchrun: Reference, argv: list[str], env: Env, reason: str) -> None:
    """What is read differently is in one list with its reason, and the list holds nothing else."""
    assert reason
    assert "value" in parsed(argv, env)
    assert not agree(torchrun.ask("parse", argv, env), parsed(argv, env))


def test_options_are_the_same(torchrun: Reference) -> None:
    """Every spelling of torchrun's is ours, and only three options are more."""
    theirs = set(torchrun.ask("about", None)["value"]["options"])
    assert set(make_parser({})._option_string_actions) - theirs == {"--job", "--mesh", "--set-env"}
    assert theirs == {flag for name in (*VALUES, *SWITCHES, "help") for flag in spellings(name)} | {
        *SHORT
    }


def test_abbreviations_are_read_alike(torchrun: Reference) -> None:
    """Every prefix of every option means the same, or is ambiguous for both."""
    names = [flag for name in (*VALUES, *SWITCHES) for flag in spellings(name)]
    shorts = sorted({name[:length] for name in names for length in range(2, len(name) + 1)})
    assert differences(torchrun, [([short, "1", "t.py"], {}) for short in shorts]) == []
    assert differences(torchrun, [([f"{short}=1", "t.py", "a"], {}) for short in shorts]) == []


def make_case(chosen: random.Random) -> Case:
    """Any words that belong to a command line, in any order."""
    words: list[str] = []
    for _ in range(chosen.randint(0, 5)):
        name = chosen.choice([*VALUES, *SWITCHES])
        flag = chosen.choice([*spellings(name)] * 4 + SHORT[:3])
        flag = flag[: chosen.randint(2, len(flag))] if chosen.random() < 0.2 else flag
        value = chosen.choice(
            VALUES.get(name, ["1"])[:2] if chosen.random() < 0.8 else ["", "-x", "--"]
        )
        words += chosen.choice([[flag, value], [flag, value], [f"{flag}={value}"], [flag]])
    rest = chosen.choices(
        ["t.py", "--", "--lr", "1", "-m", "--nnodes=3", "-", "-h"], k=chosen.randint(0, 4)
    )
    words += ["t.py", *rest] if chosen.random() < 0.8 else rest
    names = chosen.sample([*VALUES, *SWITCHES], k=chosen.choice([0, 0, 0, 1, 2]))
    env = {
        f"PET_{n.replace('-', '_').upper()}": chosen.choice(VALUES.get(n, ["1", "0"]))
        for n in names
    }
    return words, env


def test_random_lines_are_read_alike(torchrun: Reference) -> None:
    """Of a thousand chosen lines none is read differently, and many are read at all."""
    chosen = random.Random(2130)
    cases = [make_case(chosen) for _ in range(1000)]
    assert differences(torchrun, cases) == []
    assert sum("value" in parsed(argv, env) for argv, env in cases) > 300


def texts(alphabet: str, count: int) -> list[str]:
    chosen = random.Random(alphabet)
    return ["".join(chosen.choices(alphabet, k=chosen.randint(0, 9))) for _ in range(count)]


def test_small_grammars_are_read_alike(torchrun: Reference) -> None:
    """Streams, endpoints and rendezvous settings are the same texts for both."""
    readers: dict[str, tuple[list[str], Callable[[str], object]]] = {
        "streams": (texts("0123:,", 600), lambda text: parse_streams("--tee", text)),
        "conf": (texts("ab=, ", 400), lambda text: list(parse_conf(text).items())),
        "endpoint": (texts("ab.:[]0129 -", 800), endpoint),
    }
    for call, (inputs, reader) in readers.items():
        for text in inputs:
            mine = ours(lambda reader=reader, text=text: reader(text))
            assert agree(torchrun.ask(call, text), mine), (call, text)


def endpoint(text: str) -> tuple[str, int]:
    """As torchrun gives it: -1 for no port, and a host for no text."""
    host, port = parse_endpoint("--x", text) if text.strip() else ("localhost", None)
    return host, -1 if port is None else port


LAUNCHES = [
    *("", "--nproc-per-node 4", "--nproc-per-node 0x4", "--nnodes 2", "--nnodes 1:3", "--nnodes 0"),
    *(
        "--nnodes 3:2",
        "--nnodes 1:2:3",
        "--standalone",
        "--standalone --rdzv-id x --rdzv-backend etcd",
    ),
    *(
        "--rdzv-id x",
        "--rdzv-id x --nnodes 2",
        "--master-port 1234",
        "--master-addr h --master-port 12",
    ),
    *("--master-addr h", "--master-addr h --nnodes 2 --master-port 12", "--rdzv-endpoint a:1"),
    *(
        "--rdzv-endpoint a:1 --master-addr b --master-port 2",
        "--rdzv-backend c10d --rdzv-endpoint a:1",
    ),
    *("--rdzv-backend c10d --rdzv-id x", "-m", "--no-python", "--no-python -m", "--run-path"),
    *("--run-path --no-python -m", "--role trainer --max-restarts 3", "--max-restarts -1"),
    *(
        "--shutdown-timeout 5",
        "--shutdown-timeout -1",
        "--local-ranks-filter 0,x",
        "--logs-specs mine",
    ),
    *("--redirects 4", "--rdzv-conf a", "--rdzv-conf timeout=3,join_timeout=4"),
]


@pytest.mark.parametrize("line", LAUNCHES)
def test_launches_are_alike(torchrun: Reference, line: str) -> None:
    """What torchrun would start on each node is what milkweed starts on all of them."""
    argv = ["--log-dir", os.devnull, *line.split(), "t.py", "--lr", "1"]
    theirs = torchrun.ask("launch", argv)
    mine = ours(lambda: parse(argv, {}, new_id=lambda: "fresh"))
    assert ("error" in theirs) == ("error" in mine), (theirs, mine)
    if "value" not in theirs:
        return
    found, want = mine["value"], theirs["value"]
    assert [found.min_nodes, found.max_nodes] == want["nodes"]
    assert (found.nproc, found.role, found.form) == (want["nproc"], want["role"], want["form"])
    assert (found.max_restarts, found.shutdown_timeout_s) == (want["restarts"], want["shutdown"])
    assert found.rdzv_backend == want["backend"]
    assert found.run_id in {want["run_id"], "fresh"}
    assert (found.run_id == "fresh") == (len(want["run_id"]) == UUID_LENGTH)
    assert want["args"][-len(found.args) :] == [*found.args]
    if found.rdzv_backend == "static":
        host, port = want["endpoint"].split(":")
        assert found.master_addr in {host, None if found.max_nodes > 1 else host}
        assert found.master_port in {int(port), None if found.max_nodes > 1 else int(port)}

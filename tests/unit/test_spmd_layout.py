"""Which rank runs where, with which variables, command, prefix and streams: what torchrun would give it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.spmd.launch import Launch, parse
from milkweed.spmd.layout import (
    PASSED_ON,
    PREFIX,
    Gathering,
    Group,
    lay_out,
    make_command,
    make_environment,
    make_prefix,
    make_ranks,
    passed_on,
    pick_known,
)

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
MASKS = st.one_of(
    st.integers(0, 3), st.dictionaries(st.integers(0, 3), st.integers(0, 3), min_size=1)
)


def read(line: str = "", script: str = "t.py", *args: str) -> Launch:
    return parse([*line.split(), script, *args], {}, new_id=lambda: "fresh")


def gather(*counts: int, restarts: int = 0, attempt: int = 0) -> Gathering:
    return Gathering(
        groups=lay_out([(f"w/{number}", count) for number, count in enumerate(counts)]),
        master_addr="n0",
        master_port=4000,
        attempt=attempt,
        restarts=restarts,
    )


# Who is where


def test_hosts_may_have_different_numbers_of_ranks() -> None:
    """Ranks are numbered host by host, however many each host takes."""
    assert lay_out([("w/0", 2), ("w/7", 4), ("w/3", 1)]) == (
        Group(host="w/0", rank=0, first=0, count=2),
        Group(host="w/7", rank=1, first=2, count=4),
        Group(host="w/3", rank=2, first=6, count=1),
    )


def test_no_host_gives_no_rank() -> None:
    """Nobody is nobody."""
    assert lay_out([]) == ()
    assert gather().size == 0


@given(COUNTS)
def test_every_rank_is_somewhere_once(counts: list[int]) -> None:
    """The numbers of all ranks are 0 to the size, in the order of hosts, and agree with one another."""
    all_ = gather(*counts)
    told = [
        make_environment(read(), all_, group, local)
        for group in all_.groups
        for local in range(group.count)
    ]
    assert [int(env["RANK"]) for env in told] == list(range(sum(counts)))
    assert {env["WORLD_SIZE"] for env in told} == {str(sum(counts))}
    assert {env["GROUP_WORLD_SIZE"] for env in told} == {str(len(counts))}
    for env in told:
        host = int(env["GROUP_RANK"])
        assert int(env["LOCAL_WORLD_SIZE"]) == counts[host]
        assert 0 <= int(env["LOCAL_RANK"]) < counts[host]
        assert int(env["RANK"]) == sum(counts[:host]) + int(env["LOCAL_RANK"])


def test_all_variables_of_a_rank() -> None:
    """The third rank of the second host, of hosts that differ: everything that torchrun sets."""
    launch = read("--nnodes=2 --role=trainer --max-restarts=3 --signals-to-handle=SIGUSR1,SIGTERM")
    all_ = gather(2, 4, restarts=1, attempt=5)
    assert make_environment(launch, all_, all_.groups[1], 2) == {
        "RANK": "4",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "trainer",
        "ROLE_RANK": "4",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "n0",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR1,SIGTERM",
    }


def test_attempts_that_are_no_restarts_are_not_told() -> None:
    """More or fewer hosts give another attempt, and a program still counts its failures only."""
    all_ = gather(1, restarts=0, attempt=4)
    env = make_environment(read(), all_, all_.groups[0], 0)
    assert env["TORCHELASTIC_RESTART_COUNT"] == "0"


# What runs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [None, "-u", "t.py", "--nnodes", "7"]),
        ("-m", [None, "-u", "-m", "t.py", "--nnodes", "7"]),
        ("--no-python", ["t.py", "--nnodes", "7"]),
    ],
)
@pytest.mark.parametrize("wrapper", [(), ("env.sh", "--quiet")])
def test_commands(line: str, words: list[str | None], wrapper: tuple[str, ...]) -> None:
    """Scripts and modules run with the host's own Python, anything else as it is; a wrapper stands before."""
    launch = read(line, "t.py", "--nnodes", "7")
    assert make_command(launch, wrapper) == [*wrapper, *words]


def test_a_wrapper_brings_its_python() -> None:
    """The Python of the environment that a wrapper sets up is found by its name."""
    assert make_command(read(), ("env.sh",), python="python") == ["env.sh", "python", "-u", "t.py"]
    assert make_command(read("--no-python"), ("env.sh",), python="python") == ["env.sh", "t.py"]


def test_a_path_is_run_as_the_main_program(tmp_path: Path) -> None:
    """`--run-path` gives the program its own arguments, and the name of a main program."""
    script = tmp_path / "it.py"
    script.write_text("import sys; print(__name__, sys.argv)")
    launch = read("--run-path", str(script), "-x", "1")
    command = [sys.executable if word is None else word for word in make_command(launch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"__main__ {[str(script), '-x', '1']}\n"


# What stands before lines


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        (PREFIX, "[actor5]:"),
        ("[${role_name}${local_rank}]:", "[actor1]:"),
        ("$rank/${local_rank} ", "5/1 "),
        ("${unknown} $$ ${rank", "${unknown} $ ${rank"),
        ("plain", "plain"),
    ],
)
def test_prefixes(template: str, prefix: str) -> None:
    """A template names the role and the rank; what it does not know stays as it is."""
    assert make_prefix(read("--role=actor"), template, 5, 1) == prefix


# What is shown, and what is written


def streams(line: str, local: int) -> dict[str, Any]:
    all_ = gather(local + 1)
    rank = make_ranks(read(line), all_, all_.groups[0], PREFIX)[local]
    files = "".join(name[0] for name in ("out", "err") if rank["files"][name])
    shown = "".join(name[0] for name in ("out", "err") if rank["shown"][name])
    return {"files": files, "shown": shown}


@pytest.mark.parametrize(
    ("line", "files", "shown"),
    [
        ("", ["", ""], ["oe", "oe"]),
        ("-r 3", ["oe", "oe"], ["", ""]),
        ("-r 1", ["o", "o"], ["e", "e"]),
        ("-r 2", ["e", "e"], ["o", "o"]),
        ("-t 3", ["oe", "oe"], ["oe", "oe"]),
        ("-r 3 -t 1", ["oe", "oe"], ["o", "o"]),
        ("-r 0:3", ["oe", ""], ["", "oe"]),
        ("-r 3 -t 1:2", ["oe", "oe"], ["", "e"]),
        ("-t 0:1,1:2", ["o", "e"], ["oe", "oe"]),
        ("--local-ranks-filter 1", ["", ""], ["", "oe"]),
        ("--local-ranks-filter 0 -t 3", ["oe", "oe"], ["oe", ""]),
        ("--local-ranks-filter 0 -r 3", ["oe", "oe"], ["", ""]),
        ("--local-ranks-filter 5", ["", ""], ["", ""]),
        ("--log-dir /dev/null -r 3", ["", ""], ["oe", "oe"]),
        ("--log-dir /dev/null -t 3 --local-ranks-filter 0", ["", ""], ["oe", "oe"]),
        ("--log-dir logs -t 1", ["o", "o"], ["oe", "oe"]),
    ],
)
def test_streams(line: str, files: list[str], shown: list[str]) -> None:
    """What goes to files and what is shown, for the first two local ranks."""
    for local in range(2):
        assert streams(line, local) == {"files": files[local], "shown": shown[local]}


def flag(name: str, masks: int | dict[int, int]) -> str:
    if isinstance(masks, int):
        return f"{name} {masks}"
    return f"{name} {','.join(f'{rank}:{mask}' for rank, mask in masks.items())}"


@given(MASKS, MASKS, st.none() | st.sets(st.integers(0, 3), min_size=1), st.integers(0, 3))
def test_streams_are_those_of_torch(
    redirects: Any, tee: Any, wanted: set[int] | None, local: int
) -> None:
    """For every combination: as `DefaultLogsSpecs.reify` of torch 2.13 puts it, step by step."""
    line = f"{flag('-r', redirects)} {flag('-t', tee)}"
    if wanted is not None:
        line += f" --local-ranks-filter {','.join(map(str, wanted))}"
    ours = streams(line, local)
    for name, bit in (("o", 1), ("e", 2)):
        teed = bool(bit & (tee if isinstance(tee, int) else tee.get(local, 0)))
        one = bool(bit & (redirects if isinstance(redirects, int) else redirects.get(local, 0)))
        where = "file" if one or teed else "terminal"
        tailed = teed
        if wanted and local not in wanted:
            tailed = False
            where = "nowhere" if where == "terminal" else where
        assert (name in ours["files"]) == (where == "file")
        assert (name in ours["shown"]) == (where == "terminal" or tailed)


def test_what_a_host_is_told() -> None:
    """Each rank with its numbers, variables, prefix and streams, of its own host only."""
    all_ = gather(2, 3)
    told = make_ranks(read("--nnodes=2 --role=r"), all_, all_.groups[1], PREFIX)
    assert [(rank["rank"], rank["local"], rank["prefix"]) for rank in told] == [
        (2, 0, "[r2]:"),
        (3, 1, "[r3]:"),
        (4, 2, "[r4]:"),
    ]
    assert [rank["env"]["RANK"] for rank in told] == ["2", "3", "4"]
    assert set(told[0]) == {"rank", "local", "env", "prefix", "files", "shown"}


def test_little_of_a_person_s_environment_goes_to_ranks() -> None:
    """Only the variables that torchrun reads itself, and only those that are set."""
    assert passed_on({"PATH": "/bin", "OMP_NUM_THREADS": "3", "RANK": "9"}) == {
        "OMP_NUM_THREADS": "3"
    }
    assert passed_on({}) == {}
    assert passed_on(dict.fromkeys([*PASSED_ON, *os.environ], "x")) == dict.fromkeys(PASSED_ON, "x")


def test_well_known_variables() -> None:
    """Those of which people expect that ranks have them, unless somebody gives them already."""
    shell = dict.fromkeys(["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "TORCH_HOME", "PYTHONPATH"], "x")
    others = dict.fromkeys(
        ["HOME", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCHELASTIC_X", "PET_A"], "x"
    )
    assert pick_known({**shell, **others}, {"TORCH_HOME": "y"}) == {
        key: "x" for key in shell if key != "TORCH_HOME"
    }

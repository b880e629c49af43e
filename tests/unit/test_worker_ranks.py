"""Ranks of one host: how many, with which variables, and what keeps them from starting."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed.worker import devices, ranks, serve
from milkweed.worker.rank_env import find_cpus, own_environment, virtual_rank
from unit.gangs import Machine

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SOURCE = str(Path(serve.__file__).parents[2])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Machine]:
    for name in ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTHON_EXEC"):
        monkeypatch.delenv(name, raising=False)
    made = Machine(tmp_path, COLOUR="host", SHAPE="host")
    yield made
    made.close()


# Preparing


def prepare(machine: Machine, **more: Any) -> Mapping[str, Any]:
    order = {"id": "T.0", "host": "w/0", "nproc": 2, "env": {}, "port": False, **more}
    machine.do(machine.gangs.prepare, "me", order)
    [(client, answer)] = machine.told[-1:]
    assert client == "me"
    return answer


def test_a_number_is_taken_as_it_is(machine: Machine) -> None:
    """The host says what it was told, and holds no port that nobody asked for."""
    expected = {"ev": "prepared", "id": "T.0", "host": "w/0", "nproc": 2, "port": 0}
    assert prepare(machine) == {**expected, "unlike": []}


def test_a_word_is_counted_with_the_variables_of_ranks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the host, and over them those of the program."""
    seen: list[Any] = []

    def count(word: str, env: Mapping[str, str]) -> int:
        seen.append((word, env["COLOUR"], env["SHAPE"], "PATH" in env))
        return 5

    monkeypatch.setattr(devices, "count_procs", count)
    assert prepare(machine, nproc="gpu", env={"COLOUR": "program"})["nproc"] == 5
    assert seen == [("gpu", "program", "host", True)]


def test_what_cannot_be_counted_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without the device says so, and holds no port."""
    monkeypatch.setattr(devices, "ROOT", Path("/nowhere"))
    answer = prepare(machine, nproc="many", port=True)
    assert answer["error"].startswith("'many' does not say how many processes")
    assert "port" not in answer
    assert not machine.gangs._ports


def test_a_port_is_held_until_the_end_of_the_attempt(machine: Machine) -> None:
    """As long as it is held, nobody else binds it; then it is free."""
    port = prepare(machine, port=True)["port"]
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    machine.order("done")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


# Variables


def run_env(machine: Machine, **more: Any) -> dict[str, str]:
    """The variables that the last of the ranks sees."""
    machine.launch("env >env.$RANK.part; mv env.$RANK.part env.$RANK", **more)
    count = more.get("ranks", 1)
    assert set(machine.codes(count).values()) == {0}
    text = (machine.folder / f"env.{count - 1}").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_variables_of_a_rank(machine: Machine) -> None:
    """The host's, over them the program's, over them the rank's own; and the mark of its gang."""
    env = run_env(machine, ranks=2, env={"COLOUR": "program", "RANK": "9"})
    found = {key: env.get(key) for key in ("COLOUR", "SHAPE", "RANK", "LOCAL_RANK")}
    assert found == {"COLOUR": "program", "SHAPE": "host", "RANK": "1", "LOCAL_RANK": "1"}
    assert env["MILKWEED_GANG"] == "T.0@w/0"
    assert env["MILKWEED_HOST"] == "w/0"
    error_file = machine.folder / "ranks/run_w_0/attempt_0/1/error.json"
    assert env["TORCHELASTIC_ERROR_FILE"] == str(error_file)


@pytest.mark.parametrize(
    ("count", "env", "expected"),
    [(1, {}, None), (2, {}, "1"), (2, {"OMP_NUM_THREADS": "7"}, "7")],
)
def test_threads(machine: Machine, count: int, env: dict[str, str], expected: str | None) -> None:
    """As torchrun does: one thread for each of several ranks, unless somebody says otherwise."""
    assert run_env(machine, ranks=count, env=env).get("OMP_NUM_THREADS") == expected


def test_variables_of_a_person_s_shell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On their own machine ranks have what the person has now, below what the job says, and no more."""
    monkeypatch.setenv("BEFORE", "keeper")
    shell = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{SOURCE}:/mine", "COLOUR": "shell"}
    found = run_env(machine, shell=shell, env={"SIZE": "order"})
    assert (found["COLOUR"], found["SIZE"]) == ("host", "order")
    assert found["PYTHONPATH"] == f"{SOURCE}:/mine"
    assert "BEFORE" not in found


def test_variables_that_ranks_have_otherwise(machine: Machine) -> None:
    """A host tells which of a person's variables are unset there, or something else."""
    known = {"COLOUR": "host", "SHAPE": "mine", "NCCL_X": "1", "NCCL_Y": "2"}
    assert prepare(machine, known=known, env={"NCCL_Y": "2"})["unlike"] == ["NCCL_X", "SHAPE"]


@pytest.mark.parametrize("word", ["", "0"])
def test_defaults_of_torchrun(machine: Machine, word: str) -> None:
    """What it sets itself unless somebody does, and no file for errors where no files are wanted."""
    said = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": word} if word else {}
    env = run_env(machine, errors=False, env=said)
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == (word or "1")
    assert env["TORCHELASTIC_ERROR_FILE"] == ""


def test_a_person_s_own_path_is_what_ranks_see(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that only the keeper needs to import itself is not in their PYTHONPATH."""
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}:/mine")
    assert run_env(machine)["PYTHONPATH"] == "/mine"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, None),
        (SOURCE, None),
        (f"{SOURCE}:/a:/b", "/a:/b"),
        (f"/a:{SOURCE}", f"/a:{SOURCE}"),
        (f"{SOURCE}:{SOURCE}", SOURCE),
        ("/a", "/a"),
        ("", ""),
    ],
)
def test_paths(path: str | None, expected: str | None) -> None:
    """Only the first entry is the keeper's; what a person put there stays, though it be the same."""
    before = {"A": "1"} if path is None else {"A": "1", "PYTHONPATH": path}
    after = {"A": "1"} if expected is None else {"A": "1", "PYTHONPATH": expected}
    assert own_environment(before) == after


@pytest.mark.parametrize("named", [False, True])
def test_python(machine: Machine, named: bool) -> None:
    """The host's own Python, or the one that PYTHON_EXEC names."""
    env = {"PYTHON_EXEC": "/bin/echo"} if named else {}
    argv = [None, "-c", "import sys; print(sys.executable)"]
    machine.launch(argv=argv, env=env)
    machine.exits()
    said = shlex.join(argv[1:]).replace("'", "") if named else sys.executable
    assert machine.lines() == [("0", said)]


def test_arguments_may_name_the_local_rank(machine: Machine) -> None:
    """As torchrun fills it in: in arguments, and never in what runs them; other names stay."""
    argv = ["sh", "-c", 'echo "$0" "$@"', "${local_rank}", "x${local_rank}", "$HOME", "$$"]
    machine.launch(argv=argv, fixed=4, ranks=2, first=3)
    machine.exits(2)
    assert sorted(machine.lines()) == [
        ("3", "${local_rank} x0 $HOME $"),
        ("4", "${local_rank} x1 $HOME $"),
    ]


# One device for each rank


@pytest.mark.parametrize(
    ("visible", "local", "expected"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("4,5,6", 0, "4"),
        ("4, 5 ,6", 1, "5"),
        ("GPU-a,GPU-b", 1, "GPU-b"),
        ("7", 0, "7"),
    ],
)
def test_virtual_ranks(visible: str | None, local: int, expected: str) -> None:
    """Every rank is the first one, and sees its own device only."""
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert virtual_rank(local, env) == {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": expected}


@pytest.mark.parametrize("visible", ["4", ""])
def test_more_virtual_ranks_than_devices(visible: str) -> None:
    """A rank without a device is an error, and never shares another's."""
    with pytest.raises(ValueError, match=f"local rank 1 has no device: .*={visible}$"):
        virtual_rank(1, {"CUDA_VISIBLE_DEVICES": visible})


def test_virtual_ranks_of_a_gang(machine: Machine) -> None:
    """What the program says is visible counts."""
    env = run_env(machine, ranks=2, virtual=True, env={"CUDA_VISIBLE_DEVICES": "6,7"})
    assert (env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"]) == ("0", "7")
    assert env["RANK"] == "1"


# CPUs


def test_ranks_may_run_anywhere() -> None:
    """Without a word of the person nobody is bound."""
    assert find_cpus(None, [0, 1], {}) == {}


def test_bound_ranks(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may run where it is told to, from its first instruction on."""
    cpu = min(os.sched_getaffinity(0))
    monkeypatch.setattr(ranks, "find_cpus", lambda *_: {0: {cpu}})
    machine.launch("grep Cpus_allowed_list /proc/self/status", numa="node")
    machine.exits()
    assert machine.lines() == [("0", f"Cpus_allowed_list:\t{cpu}")]


# What cannot be started


def test_a_host_that_is_not_here(machine: Machine) -> None:
    """It is told, and nothing is started."""
    answer = machine.launch("touch up", host="w/7")
    error = "there is no host w/7 here"
    assert answer == {"ev": "launched", "id": "T.0", "host": "w/7", "error": error}


def test_a_folder_that_is_not_here(machine: Machine) -> None:
    """Ranks start where the person is, and that must be on every host."""
    answer = machine.launch("touch up", cwd="/no/such/folder")
    assert answer["error"] == "the folder /no/such/folder is not on host w/0"
    assert not machine.processes


def test_a_folder_for_logs_that_cannot_be_made(machine: Machine) -> None:
    """The system's own words."""
    (machine.folder / "file").touch()
    answer = machine.launch("touch up", log_dir=str(machine.folder / "file"))
    assert "Not a directory" in answer["error"]


def test_no_rank_is_started_when_one_cannot_be(machine: Machine) -> None:
    """The first has its device, the second has none: that is known before the first one runs."""
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    answer = machine.launch("touch up$RANK; exec sleep 60", ranks=2, virtual=True, env=env)
    assert answer["error"] == "local rank 1 has no device: CUDA_VISIBLE_DEVICES=0"
    assert machine.fleet._children == {}
    assert [message["ev"] for _, message in machine.told] == ["launched"]


def test_nothing_is_left_of_a_gang_that_cannot_start(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that has no room for the second rank ends the first one, too."""
    forks = iter([os.fork])

    def fork() -> int:
        try:
            return next(forks)()
        except StopIteration:
            raise OSError("no more processes") from None

    monkeypatch.setattr("milkweed.worker.children.os.fork", fork)
    answer = machine.launch("exec sleep 60", ranks=2)
    assert answer["error"] == "no more processes"
    [exit_] = machine.exits()
    assert exit_["rank"] == 0
    assert exit_["code"] in {-signal.SIGKILL, -signal.SIGTERM}
    machine.until(lambda: not machine.processes)
    outputs = machine.gangs._find("T.0")[0].outbox._outputs
    machine.until(lambda: all(output.read_fd < 0 for output in outputs))


@pytest.mark.parametrize(
    ("word", "code", "reason"),
    [("no-such-program", 127, "No such file or directory"), ("/etc", 126, "Permission denied")],
)
def test_a_program_that_cannot_run(machine: Machine, word: str, code: int, reason: str) -> None:
    """It fails as a shell would let it, and says why."""
    machine.launch(argv=[word, "x"])
    [exit_] = machine.exits()
    assert (exit_["code"], exit_["tail"]) == (code, [f"{word}: {reason}"])


# What is told


def test_what_a_launch_tells(machine: Machine) -> None:
    """The process of each rank, and where the files are."""
    answer = machine.launch("exec sleep 60", ranks=2, first=4)
    assert sorted(answer["pids"]) == ["4", "5"]
    assert answer["logs"] == str(machine.folder / "ranks/run_w_0/attempt_0")
    assert set(answer["pids"].values()) <= {*machine.processes, *machine.fleet._children}


def test_what_an_end_tells(machine: Machine) -> None:
    """Which rank, where, how, when, and its last lines if it failed."""
    answer = machine.launch("echo fine; echo oh >&2; exit $RANK", ranks=2)
    first, second = sorted(machine.exits(2), key=lambda message: message["rank"])
    assert {key: second[key] for key in second if key != "at"} == {
        "ev": "rank-exit",
        "id": "T.0",
        "host": "w/0",
        "rank": 1,
        "local": 1,
        "pid": answer["pids"]["1"],
        "code": 1,
        "halted": False,
        "error": "",
        "tail": ["oh"],
        "number": second["number"],
    }
    assert (first["code"], first["tail"]) == (0, [])
    assert {client for client, _ in machine.told} == {"me"}

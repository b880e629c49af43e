"""What a torchrun command line asks for: what counts, what is refused, and what has no effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import SpecError
from milkweed.spmd.arguments import parse_namespace
from milkweed.spmd.launch import Launch, make_launch, parse, parse_streams
from milkweed.spmd.rendezvous import parse_conf, parse_endpoint

NO_SERVICE = "milkweed itself brings the hosts together, and no rendezvous service is used"


def read(line: str, script: str = "t.py", **environ: str) -> Launch:
    return parse([*line.split(), script], environ, new_id=lambda: "fresh")


def test_plain_launch() -> None:
    """One script on one node: what torchrun starts when nothing is said."""
    found = parse(["t.py", "--lr", "1"], {}, new_id=lambda: "fresh")
    assert (found.min_nodes, found.max_nodes, found.nproc, found.elastic) == (1, 1, 1, False)
    assert (found.form, found.script, found.args) == ("script", "t.py", ("--lr", "1"))
    assert (found.rdzv_backend, found.run_id) == ("c10d", "fresh")
    assert (found.master_addr, found.master_port) == (None, None)
    assert (found.join_timeout_s, found.last_call_timeout_s) == (None, None)
    assert found.shutdown_timeout_s == 30.0
    assert found.signals == ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    assert (found.local_ranks_filter, found.log_dir, found.keeps_logs) == (None, None, True)
    assert (found.job, found.mesh, found.env, found.notes) == (None, None, {}, ())


def test_ids_are_fresh() -> None:
    """Without an id of its own, each launch has another one."""
    assert parse(["t.py"], {}).run_id != parse(["t.py"], {}).run_id
    assert read("--nnodes=2 --rdzv-id=").run_id == "fresh"


FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("--nnodes 3", {"min_nodes": 3, "max_nodes": 3, "elastic": False, "run_id": "none"}),
    ("--nnodes 1:4", {"min_nodes": 1, "max_nodes": 4, "elastic": True}),
    ("--nproc-per-node 8", {"nproc": 8}),
    *((f"--nproc-per-node {word}", {"nproc": word}) for word in ("auto", "cpu", "gpu", "xpu")),
    ("-m", {"form": "module"}),
    ("--no-python", {"form": "command"}),
    ("--run-path", {"form": "path", "script": "t.py"}),
    ("--max-restarts 3 --monitor-interval 0.1", {"max_restarts": 3, "monitor_interval_s": 0.1}),
    ("--shutdown-timeout 0", {"shutdown_timeout_s": 0.0}),
    ("--signals-to-handle SIGUSR1,SIGTERM", {"signals": ("SIGUSR1", "SIGTERM")}),
    ("--local-ranks-filter 0,2,2", {"local_ranks_filter": frozenset({0, 2})}),
    ("--duplicate-stdout-filters a,b", {"stdout_filters": ("a", "b"), "stderr_filters": ()}),
    ("--log-dir /dev/null", {"log_dir": os.devnull, "keeps_logs": False}),
    ("--log-dir logs", {"log_dir": "logs", "keeps_logs": True}),
    ("--log-dir=", {"log_dir": None}),
    ("--event-log-handler console --logs-specs default", {"event_log_handler": "console"}),
    ("--local-addr 10.0.0.1 --role=", {"local_addr": "10.0.0.1", "role": ""}),
    ("--numa-binding socket --virtual-local-rank", {"numa_binding": "socket"}),
    ("--rdzv-conf timeout=5", {"join_timeout_s": 5.0, "last_call_timeout_s": None}),
    ("--rdzv-conf join_timeout=1.5,last_call_timeout=2", {"join_timeout_s": 1.5}),
    ("--set-env A=1 --set-env B=x=y --set-env A=", {"env": {"A": "", "B": "x=y"}}),
    ("--nnodes 2 --rdzv-backend c10d --rdzv-id run7", {"rdzv_backend": "c10d", "run_id": "run7"}),
    ("--nnodes 2 --node-rank 0", {"node_rank": 0}),
    ("--nnodes 2 --node-rank ${replica_id}", {"node_rank": 0}),
    # where rank 0 listens
    ("--master-port 1234", {"master_addr": "127.0.0.1", "master_port": 1234, "run_id": "none"}),
    ("--master-port 0 --master-addr h", {"master_addr": "h", "master_port": None}),
    ("--nnodes 2", {"rdzv_backend": "static", "master_addr": None, "master_port": None}),
    ("--nnodes 2 --master-port 1234", {"master_addr": None, "master_port": 1234}),
    ("--nnodes 2 --master-addr node7", {"master_addr": "node7", "master_port": None}),
    ("--nnodes 2 --master-addr 127.0.0.1", {"master_addr": "127.0.0.1"}),
    ("--master-addr [::1] --master-port 99", {"master_addr": "::1", "master_port": 99}),
    ("--rdzv-endpoint h:1 --nnodes 2", {"master_addr": "h", "master_port": 1, "rdzv_host": "h"}),
]


@pytest.mark.parametrize(("line", "expected"), FIELDS)
def test_flags_become_fields(line: str, expected: dict[str, Any]) -> None:
    """Every flag that counts is a field, and nothing is noted about it."""
    found = read(line)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.notes == ()


NOTES = [
    (
        "--monitor-interval 5",
        ["--monitor-interval 5: has no effect, since a rank's end is seen when it happens"],
    ),
    (
        "--standalone --rdzv-backend etcd",
        ["--rdzv-backend etcd: has no effect, since --standalone"],
    ),
    (
        "--standalone --rdzv-endpoint a:1 --rdzv-id x --master-port 1 --master-addr b",
        [
            "--rdzv-endpoint a:1: has no effect, since --standalone chooses it",
            "--rdzv-id x: has no effect, since --standalone chooses it",
            "--master-addr b: has no effect, since --standalone chooses it",
            "--master-port 1: has no effect, since --standalone chooses it",
        ],
    ),
    (
        "--standalone --nnodes 1:3",
        ["--nnodes 1:3: has no effect, since --standalone means one node"],
    ),
    (
        "--rdzv-id x",
        ["--rdzv-id x: has no effect, since one node without --master-port chooses it"],
    ),
    ("--master-addr h", ["--master-addr h: has no effect, since one node without --master-port"]),
    (
        "--rdzv-backend c10d --master-addr 127.0.0.1 --master-port 1 --node-rank 2",
        [
            "--master-addr 127.0.0.1: has no effect, since only the static rendezvous uses it",
            "--master-port 1: has no effect, since only the static rendezvous uses it",
            "--node-rank 2: has no effect, since only the static rendezvous uses it",
        ],
    ),
    ("--node-rank 2", ["--node-rank 2: has no effect, since only the static rendezvous uses it"]),
    (
        "--rdzv-backend c10d --rdzv-endpoint h:29400",
        [f"--rdzv-endpoint h:29400: has no effect, since {NO_SERVICE}"],
    ),
    (
        "--rdzv-backend c10d --rdzv-endpoint /shared/store --rdzv-conf store_type=file",
        [
            f"--rdzv-endpoint /shared/store: has no effect, since {NO_SERVICE}",
            f"--rdzv-conf store_type=file: has no effect, since {NO_SERVICE}",
        ],
    ),
    (
        "--nnodes 2 --rdzv-endpoint h:1 --master-addr a --master-port 2",
        [
            "--master-addr a: has no effect, since --rdzv-endpoint says it",
            "--master-port 2: has no effect, since --rdzv-endpoint says it",
        ],
    ),
    (
        "--nnodes 2 --rdzv-endpoint ${TORCHX_RANK0_HOST:=localhost}:1",
        [
            "--rdzv-endpoint ${TORCHX_RANK0_HOST:=localhost}: has no effect, since no shell filled it in"
        ],
    ),
    (
        "--nnodes 2 --master-addr $HOST",
        ["--master-addr $HOST: has no effect, since no shell filled"],
    ),
    (
        "--rdzv-conf is_host=1,use_libuv=0,timeout=3,join_timeout=4",
        [
            f"--rdzv-conf is_host=1: has no effect, since {NO_SERVICE}",
            f"--rdzv-conf use_libuv=0: has no effect, since {NO_SERVICE}",
            "--rdzv-conf timeout=3: has no effect, since join_timeout is given",
        ],
    ),
    (
        "--run-path -m --no-python",
        [
            "--module: has no effect beside --run-path",
            "--no-python: has no effect beside --run-path",
        ],
    ),
    (
        "--start-method fork",
        ["--start-method fork: has no effect, since every process is a program"],
    ),
]


@pytest.mark.parametrize(("line", "expected"), NOTES)
def test_what_has_no_effect_is_noted(line: str, expected: list[str]) -> None:
    """Nothing that was said is dropped without a word, and the word gives the reason."""
    notes = read(line).notes
    assert len(notes) == len(expected)
    assert all(note.startswith(text) for note, text in zip(notes, expected, strict=True)), notes


def test_standalone_is_one_node() -> None:
    """Whatever else was said, --standalone is one node with everything chosen."""
    line = "--standalone --nnodes 1:3 --rdzv-backend etcd --rdzv-endpoint a:1 --rdzv-id x"
    found = read(f"{line} --master-port 1")
    assert (found.min_nodes, found.max_nodes, found.elastic) == (1, 1, False)
    assert (found.rdzv_backend, found.run_id) == ("c10d", "fresh")
    assert (found.rdzv_host, found.master_addr, found.master_port) == (None, None, None)


def test_macros_of_a_shell_are_kept() -> None:
    """What only a shell could fill in is kept as text, and is nobody's address."""
    found = read("--nnodes 2 --rdzv-endpoint ${TORCHX_RANK0_HOST:=localhost}:29500")
    assert (found.rdzv_host, found.rdzv_port) == ("${TORCHX_RANK0_HOST:=localhost}", 29500)
    assert (found.master_addr, found.master_port) == (None, 29500)
    found = read("--rdzv-backend c10d --rdzv-endpoint ${TORCHX_RANK0_HOST:=localhost}")
    assert (found.rdzv_host, found.rdzv_port) == ("${TORCHX_RANK0_HOST:=localhost}", None)


BAD = [
    *((f"--nnodes {text}", "--nnodes: ") for text in ("0", "-1", "3:2", "0:2", "x", "1:2:3", ":")),
    ("--nnodes=", "--nnodes: '' is not a number of nodes"),
    ("--nproc-per-node 0", "--nproc-per-node: 0 is not more than zero"),
    ("--nproc-per-node -3", "--nproc-per-node: -3 is not more than zero"),
    ("--nproc-per-node tpu", "--nproc-per-node: 'tpu' is not a number of processes"),
    ("--standalone --nnodes 2", "--standalone: is for one node, but --nnodes asks for 2"),
    ("-m --no-python", "--no-python and --module: a module needs Python"),
    *(
        (f"--rdzv-backend={name}", f"--rdzv-backend: '{name}' cannot be used: {NO_SERVICE}")
        for name in ("etcd", "etcd-v2", "mine", "")
    ),
    (
        "--nnodes 2 --node-rank 1",
        "--node-rank: 1 cannot be chosen: milkweed starts all nodes itself",
    ),
    ("--master-port 1 --node-rank -1", "--node-rank: -1 cannot be chosen"),
    ("--nnodes 1:2 --local-addr h", "--local-addr: h can be the address of one node only"),
    ("--master-port 70000", "--master-port: 70000 is not a port"),
    ("--nnodes 2 --master-port -1", "--master-port: -1 is not a port"),
    ("--nnodes 2 --master-addr a/b", "--master-addr: 'a/b:29500' has neither a host's name nor"),
    ("--nnodes 2 --rdzv-endpoint h", "--rdzv-endpoint: 'h' has no port"),
    ("--rdzv-backend c10d --rdzv-endpoint h:x", "--rdzv-endpoint: 'h:x' has no number as its port"),
    ("--rdzv-conf a", "--rdzv-conf: 'a' is not a list of keys with values"),
    ("--rdzv-conf timeout=1,", "--rdzv-conf: 'timeout=1,' is not a list of keys with values"),
    ("--rdzv-conf timeouts=1", "--rdzv-conf: 'timeouts' is not known"),
    ("--rdzv-conf timeout=x", "--rdzv-conf: timeout=x is not a number of seconds"),
    ("--rdzv-conf join_timeout=0", "--rdzv-conf join_timeout: 0 is not a number of seconds above"),
    ("--rdzv-conf last_call_timeout=nan", "--rdzv-conf last_call_timeout: nan is not a number"),
    ("--max-restarts -1", "--max-restarts: -1 is less than zero"),
    *(
        (f"--monitor-interval {s}", f"--monitor-interval: {s} is not")
        for s in ("0", "-1", "nan", "inf")
    ),
    ("--event-log-handler file", "--event-log-handler: 'file' is not known"),
    ("--logs-specs mine", "--logs-specs: 'mine' is a plugin of torch"),
    ("--redirects 4", "--redirects: '4' does not say which streams"),
    ("--tee 10:1", "--tee: '10:1' does not say which streams"),
    ("--local-ranks-filter a", "--local-ranks-filter: 'a' is not a list of local ranks"),
    ("--local-ranks-filter 1,", "--local-ranks-filter: '1,' is not a list of local ranks"),
    ("--signals-to-handle SIGTREM", "--signals-to-handle: 'SIGTREM' is not a signal"),
    ("--signals-to-handle=", "--signals-to-handle: '' is not a signal"),
    ("--signals-to-handle SIG_DFL", "--signals-to-handle: 'SIG_DFL' is not a signal"),
    ("--signals-to-handle SIGTERM,SIGKILL", "--signals-to-handle: no program can handle SIGKILL"),
    ("--shutdown-timeout -1", "--shutdown-timeout: -1 is less than zero"),
    ("--set-env A", "--set-env: 'A' is not KEY=VALUE"),
    ("--set-env =1", "--set-env: '' is not a name of a variable"),
]


@pytest.mark.parametrize(("line", "text"), BAD)
def test_bad_values_are_refused(line: str, text: str) -> None:
    """What torchrun would trip over later is refused at once, and the flag is named."""
    with pytest.raises(SpecError) as caught:
        read(line)
    assert caught.value.what.startswith(text)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"PET_START_METHOD": "bogus"}, "--start-method: 'bogus' is not known"),
        ({"PET_NNODES": ""}, "--nnodes: '' is not a number of nodes"),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x' is not"),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-1"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: -1 is less"),
    ],
)
def test_bad_variables_are_refused(environ: dict[str, str], text: str) -> None:
    """A variable's value is checked as a flag's is."""
    with pytest.raises(SpecError) as caught:
        read("", **environ)
    assert caught.value.what.startswith(text)


def test_a_script_has_a_name() -> None:
    """Nobody can run the empty text."""
    with pytest.raises(SpecError, match=r"^SCRIPT: is empty$"):
        read("--no-python", script="")


def test_shutdown_timeout_has_a_variable() -> None:
    """The flag comes before the variable, which nobody reads when there is a flag."""
    variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    assert read("", **{variable: "7"}).shutdown_timeout_s == 7.0
    assert read("--shutdown-timeout 5", **{variable: "x"}).shutdown_timeout_s == 5.0
    assert make_launch(parse_namespace(["t.py"], {})).shutdown_timeout_s == 30.0


def test_streams_of_each_rank() -> None:
    """A number is for all local ranks; in a list, ranks that are not named keep their streams."""
    found = read("-r 0:1,1:3,0:2 -t 1")
    assert found.streams(0) == {"out": (False, True), "err": (True, False)}
    assert found.streams(1) == {"out": (True, True), "err": (True, False)}
    assert found.streams(2) == {"out": (False, True), "err": (False, False)}


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 3), min_size=1))
def test_streams_are_read_back(streams: dict[int, int]) -> None:
    """Every list of ranks and streams is read as it was written."""
    text = ",".join(f"{rank}:{mask}" for rank, mask in streams.items())
    assert parse_streams("--tee", text) == streams


@pytest.mark.parametrize(
    "text", ["", "00", "0:4", "0:1,", ",0:1", "0:", "a:1", "0:1 ,1:1", "-1", "0:1;1:2"]
)
def test_bad_streams_are_refused(text: str) -> None:
    """What is not the grammar is an error that names the flag."""
    with pytest.raises(SpecError, match=r"^--tee: "):
        parse_streams("--tee", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", ("h", None)),
        (" h:1 ", ("h", 1)),
        ("node-7.example.org:65535", ("node-7.example.org", 65535)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]", ("::1", None)),
        ("[::1]:29500", ("::1", 29500)),
        ("::1:29500", ("::1", 29500)),
        ("$HOST:29500", ("$HOST", 29500)),
        ("$HOST:$PORT", ("$HOST:$PORT", None)),
        ("${A:=b}", ("${A:=b}", None)),
        ("${A:=b}:5", ("${A:=b}", 5)),
    ],
)
def test_endpoints_are_read(text: str, expected: tuple[str, int | None]) -> None:
    """A host with or without a port, brackets around an address, and variables as they are."""
    assert parse_endpoint("--x", text) == expected


@pytest.mark.parametrize(
    "text", ["", " ", ":1", "h:", "h:x", "h:65536", "h:123456", "a b:1", "h:[1]", "a/b"]
)
def test_bad_endpoints_are_refused(text: str) -> None:
    """What is no host or no port is an error that names the flag."""
    with pytest.raises(SpecError, match=r"^--x: "):
        parse_endpoint("--x", text)


WORDS = st.text("abc_019", min_size=1)


@given(st.dictionaries(WORDS, WORDS))
def test_conf_is_read_back(conf: dict[str, str]) -> None:
    """Every list of keys and values is read as it was written, spaces aside."""
    text = " , ".join(f" {key} = {value}" for key, value in conf.items())
    assert parse_conf(text) == conf


def test_all_signals_have_names() -> None:
    """Every signal that a program can handle may be named."""
    names = [s.name for s in signal.Signals if s not in {signal.SIGKILL, signal.SIGSTOP}]
    assert read(f"--signals-to-handle {','.join(names)}").signals == tuple(names)


def test_a_launch_is_a_value() -> None:
    """Equal lines are equal launches, and nobody changes one."""
    assert read("--nnodes 2 -r 0:1") == read("--nnodes=2 --redirects 0:1")
    with pytest.raises(AttributeError):
        read("").script = "other.py"  # type: ignore[misc]


def test_reading_needs_neither_torch_nor_the_engine() -> None:
    """The modules import nothing outside the standard library, and nothing heavy of it."""
    code = (
        "import sys; before = set(sys.modules); import milkweed.spmd.launch; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - {"milkweed"} <= set(sys.stdlib_module_names)
    assert not {"asyncio", "socket", "subprocess", "uuid", "torch"} & set(done.stdout.split())

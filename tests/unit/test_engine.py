"""What the engine is told before it connects: a transport, an address, a gateway. It only listens here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import milkweed
from milkweed import failures
from milkweed.errors import AllocationError
from milkweed.hosts import Host

Calls = list[tuple[Any, ...]]


class Mesh:
    """What the engine makes of addresses."""

    def __init__(self, workers: list[str] | None = None, name: str = "") -> None:
        self.workers, self.name = workers, name


def make_module(name: str, **words: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(words)
    return made


@pytest.fixture
def calls() -> Calls:
    """Everything that the engine was told."""
    return []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Iterator[Any]:
    """Our side of the engine, fresh; the engine itself starts threads, and is left out."""

    def note(word: str) -> Any:
        return lambda *args, **more: calls.append((word, *args, *more.values()))

    def attach_to_workers(ca: str, workers: list[str], name: str) -> Mesh:
        calls.append(("workers", *workers))
        return Mesh(workers, name)

    def fail(_result: Any, _timeout: float | None = None) -> None:
        raise RuntimeError

    actor = make_module(
        "monarch.actor",
        Actor=object,
        HostMesh=Mesh,
        ProcMesh=type("ProcMesh", (), {}),
        Future=type("Future", (), dict.fromkeys(("get", "__await__", "as_asyncio"), fail)),
        unhandled_fault_hook=note("fault"),
        default_bootstrap_cmd=object,
        attach=note("gateway"),
        enable_transport=note("transport"),
        attach_to_workers=attach_to_workers,
        shutdown_context=note("shut down"),
    )
    config = make_module(
        "monarch.config", configure=lambda **_more: None, get_global_config=dict[str, Any]
    )
    bindings = "monarch._rust_bindings"
    names = [
        make_module("monarch", actor=actor, config=config),
        actor,
        config,
        make_module(bindings),
        make_module(f"{bindings}.monarch_hyperactor"),
        make_module(f"{bindings}.monarch_hyperactor.config", reload_config_from_env=note("reload")),
    ]
    for each in names:
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.delitem(sys.modules, "milkweed.engine", raising=False)
    before = milkweed.__dict__.get("engine")
    yield importlib.import_module("milkweed.engine")
    milkweed.__dict__.pop("engine", None)
    if before is not None:
        milkweed.__dict__["engine"] = before
    sys.modules.pop("milkweed.engine", None)


def host(address: str, control: str = "") -> dict[str, list[Host]]:
    """A mesh of one host."""
    return {"w": [Host(name="h", mesh="w", rank=0, address=address, control=control)]}


def attach(engine: Any, address: str, **more: Any) -> Any:
    return engine.attach(host(address), client="c", **more)["w"]


@pytest.mark.parametrize(
    ("address", "listen", "expected"),
    [
        ("tcp://10.0.0.7:5", "10.0.0.1", "tcp://10.0.0.1:0"),
        ("one@tcp://10.0.0.7:5", "10.0.0.1", "tcp://10.0.0.1:0"),
        ("tcp://[fd00::7]:5", "fd00::1", "tcp://[fd00::1]:0"),
        ("tls://m:5", "localhost", "tls://localhost:0"),
    ],
)
def test_hosts_elsewhere_dial_back(
    engine: Any, calls: Calls, address: str, listen: str, expected: str
) -> None:
    """Over the transport that they speak, to the address at which they reach this client."""
    attach(engine, address, listen=listen)
    assert calls == [("transport", expected), ("workers", address)]


def test_hosts_of_this_machine_need_no_transport(engine: Any, calls: Calls) -> None:
    """Unix sockets are what the engine speaks by itself."""
    attach(engine, "ipc:///x")
    assert calls == [("workers", "ipc:///x")]


def test_a_program_speaks_one_transport(engine: Any, calls: Calls) -> None:
    """Another one is an error at once, instead of a time-out; the same is told once."""
    attach(engine, "tcp://a:1")
    attach(engine, "name@tcp://b:1")
    with pytest.raises(AllocationError, match="over tcp, and these need tls"):
        attach(engine, "tls://c:1")
    assert [call[0] for call in calls] == ["transport", "workers", "workers"]


def test_hosts_of_one_job_speak_one_transport(engine: Any, calls: Calls) -> None:
    """Workers of others speak plain TCP, ours speak TLS: one program cannot have both."""
    with pytest.raises(AllocationError, match="different transports: tcp, tls"):
        engine.attach({**host("tcp://a:1"), "x": host("tls://b:1")["w"]}, client="c")
    assert calls == []


def test_a_gateway_comes_before_its_hosts(engine: Any, calls: Calls) -> None:
    """It is attached to once, and carries every job of the program after that."""
    for _ in range(2):
        attach(engine, "tls://w-0:5", gateway="tls://localhost:4711")
    assert calls == [
        ("transport", "tls://localhost:0"),
        ("gateway", "tls://localhost:4711"),
        ("workers", "tls://w-0:5"),
        ("workers", "tls://w-0:5"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("", "tls://localhost:1", "directly, and these hosts need tls://localhost:1"),
        ("tls://localhost:1", "", "tls://localhost:1, and these hosts need no gateway"),
        ("tls://localhost:1", "tls://localhost:2", "need tls://localhost:2"),
    ],
)
def test_a_program_has_one_way(engine: Any, first: str, second: str, words: str) -> None:
    """Another one is an error that says both."""
    attach(engine, "tls://a:5", gateway=first)
    with pytest.raises(AllocationError, match="by another way") as caught:
        attach(engine, "tls://a:5", gateway=second)
    assert words in caught.value.seen
    assert "second program" in caught.value.hint


def test_calls_to_lost_hosts_say_so(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a result of the engine hears what is known, once for all jobs of a program."""
    monkeypatch.setattr(failures, "knowing", [])
    monkeypatch.setattr(engine, "knowing", failures.knowing)
    for words in ("host a/0 is lost", "host b/0 is lost"):
        knows = SimpleNamespace(left=False, describe_loss=lambda _s, it=words: [it])
        engine.forgive_faults(knows)
    with pytest.raises(RuntimeError) as caught:
        engine.actor_api().Future().get()
    assert caught.value.__notes__ == ["host a/0 is lost", "host b/0 is lost"]


@pytest.mark.parametrize("troubled", [True, False])
def test_a_fault_ends_the_program_unless_it_was_told(
    engine: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch, *, troubled: bool
) -> None:
    """A person who was told of lost hosts needs no interrupted program; any other fault is the engine's."""
    monkeypatch.setattr(engine, "knowing", [])
    monkeypatch.setattr(failures, "knowing", engine.knowing)
    engine.forgive_faults(SimpleNamespace(left=False, is_troubled=lambda: troubled))
    engine.actor_api().unhandled_fault_hook("a fault")
    assert calls == ([] if troubled else [("fault", "a fault")])


def test_procs_are_forked_only_where_a_keeper_is(engine: Any) -> None:
    """Hosts that others made start procs as the engine does."""
    kept = engine.attach(host("ipc:///x", "unix:///y"), client="me")["w"]
    assert "me" in kept._milkweed_env.values()
    assert attach(engine, "ipc:///x")._milkweed_env is None


def test_the_engine_is_ended_where_it_was_used(engine: Any, calls: Calls) -> None:
    """A program that never had hosts has nothing to wait for; what fails at its end concerns nobody."""
    engine.shut_down(1.0)
    assert "shut down" not in [call[0] for call in calls]
    attach(engine, "tcp://10.0.0.7:5", listen="10.0.0.1")
    engine.shut_down(1.0)
    assert calls[-1][0] == "shut down"

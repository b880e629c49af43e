"""The client's side of the engine: from addresses of hosts to host meshes. Nothing else imports monarch here."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import AllocationError
from .failures import Knows, are_known, explain_failures, knowing, learn_from
from .hosts import Host
from .worker import wire

# How often the engine looks whether procs live. Its own default of 10 s is most of the time it takes to
# notice a proc that died. Read when the engine is first imported.
os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "2s")

from monarch import actor as _monarch

# Private: the engine reads the paths of certificates once, when it is imported, and has no public way to be
# told later. A test fails when the name moves.
from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env
from monarch.actor import Actor, HostMesh, ProcMesh, default_bootstrap_cmd
from monarch.config import configure, get_global_config

if TYPE_CHECKING:
    from monarch.actor import Point

TLS_CA_ENV = "HYPERACTOR_TLS_CA"
_lock = threading.Lock()
_transports: list[str] = []
"""The transport this process speaks, once it speaks one."""

# What tells the engine to give up on a host that is certainly gone, instead of its minute of patience.
_IMPATIENT = {
    "get_proc_state_max_idle": "1s",
    "get_actor_state_max_idle": "1s",
    "message_delivery_timeout": "1s",
    "channel_reconnect_timeout": "1s",
}


# The engine reads these when it begins to wait for something: telling it once a host is known to be gone is too
# late for what it waits for then. A broken cable does not close a connection, so one that was closed is opened
# again at once or never; and a host that does not answer for this long is not merely busy.
_NETWORKED = {
    "channel_reconnect_timeout": "2s",
    "get_proc_state_max_idle": "10s",
    "get_actor_state_max_idle": "10s",
}


class Hosts(HostMesh):
    """The engine's HostMesh, on which actors can be spawned directly and procs start from a warm parent."""

    _milkweed_mesh: str
    _milkweed_env: Mapping[str, str] | None
    """What procs carry for the keeper; None where hosts have no keeper."""

    def spawn(self, name: str, actor_class: type[Actor], *args: Any, **kwargs: Any) -> Any:
        """Spawn one actor on a new proc of every host."""
        return self.spawn_procs(name=name).spawn(name, actor_class, *args, **kwargs)

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], None] | Callable[[], Awaitable[None]] | None = None,
        name: str | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        bootstrap_command: Any = None,
    ) -> ProcMesh:
        """Spawn procs on every host, as the engine does, but forked from the host's warm parent.

        A command or a binding of your own is passed on as it is: such procs start as fresh interpreters.
        """
        if bootstrap_command is None and proc_bind is None and self._milkweed_env is not None:
            bootstrap_command = make_bootstrap(self._milkweed_env)
        procs = super().spawn_procs(per_host, bootstrap, name, proc_bind, bootstrap_command)
        procs.__class__ = Procs
        _procs.append(procs)
        return procs

    # The engine makes slices and renamed meshes by naming its own class, so they would lose `spawn`.
    # Private, and covered by a test that fails when it moves.
    def _new_with_shape(self, shape: Any) -> Hosts:
        return adopt(super()._new_with_shape(shape), self._milkweed_mesh, self._milkweed_env)


class Procs(ProcMesh):
    """The engine's ProcMesh, which remembers its actors so that a program's end can wait for them."""

    def spawn(self, name: str, Class: type[Actor], *args: Any, **kwargs: Any) -> Any:  # noqa: N803  the engine's word
        """Spawn an actor on every proc, as the engine does."""
        actors: Any = super().spawn(name, Class, *args, **kwargs)
        _actors.append(actors)
        return actors


def adopt_foreign(mesh: Any, name: str) -> Any:
    """Give a mesh that somebody else attached what all of ours have; anything else is passed on."""
    return adopt(mesh, name, None) if type(mesh) is HostMesh else mesh


def adopt(mesh: HostMesh, name: str, env: Mapping[str, str] | None) -> Hosts:
    """Make a mesh of the engine one of ours, in place."""
    mesh.__class__ = Hosts
    made: Any = mesh
    made._milkweed_mesh = name
    made._milkweed_env = env
    return made


def make_bootstrap(env: Mapping[str, str]) -> Callable[[Point], Any]:
    """The command the engine runs for each proc: ask the host's keeper to fork it."""
    command_class = type(default_bootstrap_cmd())
    base = {**env, wire.PATH_ENV: os.pathsep.join(own_path())}

    def command(point: Point) -> Any:
        return command_class(
            "/bin/sh", None, ["-c", wire.LAUNCHER], {**base, wire.RANK_ENV: str(point.rank)}
        )

    return command


@functools.cache
def own_path() -> list[str]:
    """The folders this program imports from, besides the interpreter's own."""
    own = tuple({sys.prefix, sys.base_prefix})
    return [
        str(Path(entry or ".").resolve())
        for entry in sys.path
        if not entry.startswith(own) or not entry
    ]


def client_environment(client: str) -> dict[str, str]:
    """What procs of this client carry, so that they can be told from those of others."""
    return {wire.CLIENT_ENV: client}


def attach(
    meshes: Mapping[str, Sequence[Host]],
    *,
    client: str,
    credentials: Mapping[str, str] | None = None,
    listen: str = "localhost",
    gateway: str = "",
) -> dict[str, Hosts]:
    """Connect to every host's worker; returns at once, the engine connects in the background.

    `credentials` are the variables that name the certificates to show, where hosts ask for one. `listen` is
    the address at which hosts reach this client. `gateway` is the address of a host that carries everything
    for a client which cannot reach the others, nor be reached by them.
    """
    addresses = [host.address for hosts in meshes.values() for host in hosts]
    _use_transport(addresses, credentials or {}, listen)
    _use_gateway(gateway)
    _be_patient()
    return {name: _attach_mesh(name, hosts, client) for name, hosts in meshes.items()}


def _attach_mesh(name: str, hosts: Sequence[Host], client: str) -> Hosts:
    workers = [host.address for host in hosts]
    mesh = _monarch.attach_to_workers(ca="trust_all_connections", workers=workers, name=name)
    kept = all(host.control for host in hosts)
    return adopt(mesh, name, client_environment(client) if kept else None)


def own_host(names: Sequence[str], *, run: str, client: str) -> dict[str, Hosts]:
    """This process's own host, under every name."""
    env = {**client_environment(client), wire.RUN_ENV: run}
    return {name: adopt(_own_host(), name, {**env, wire.HOST_ENV: f"{name}/0"}) for name in names}


def _own_host() -> HostMesh:
    """A mesh object of its own each time: what is adopted must not be shared with the engine."""
    mesh = _monarch.this_host()
    return copy.copy(mesh)


def _use_transport(addresses: Sequence[str], credentials: Mapping[str, str], listen: str) -> None:
    """A process speaks one transport for its life, with one certificate; say so instead of hanging."""
    wanted = {address.partition("://")[0].rpartition("@")[2] for address in addresses}
    if len(wanted) != 1:
        raise AllocationError(f"hosts with different transports: {', '.join(sorted(wanted))}")
    transport = wanted.pop()
    with _lock:
        if _transports and _transports != [transport]:
            raise AllocationError(
                f"this process already talks to hosts over {_transports[0]}, and these need {transport}",
                hint="use one transport for all jobs of a program, or a program per job",
            )
        if credentials:
            _use_credentials(credentials)
        if not _transports and transport in {"tls", "tcp"}:
            # Hosts dial back, to the address that the client's certificate carries, if there is one.
            own = f"[{listen}]" if ":" in listen else listen
            _monarch.enable_transport(f"{transport}://{own}:0")
            configure(**_NETWORKED)
        _transports[:] = [transport]


def _use_credentials(credentials: Mapping[str, str]) -> None:
    """Show these certificates to hosts; must come before the first connection of the process.

    They are copied: the engine reads the files whenever it connects, and a job's own go with the job.
    """
    authority = Path(credentials[TLS_CA_ENV]).read_bytes()
    if _credentials and _credentials[0] != authority:
        raise AllocationError(
            "this process already shows another job's certificate",
            hint="a program can use one job with certificates; run the other in a second program",
        )
    if not _credentials:
        folder = tempfile.mkdtemp(prefix="milkweed-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        copies = {key: shutil.copy(path, folder) for key, path in credentials.items()}
        os.environ.update(copies)
        reload_config_from_env()
        _credentials.append(authority)


def _use_gateway(gateway: str) -> None:
    """Have one host carry everything; a process has one gateway for its life, or none."""
    if _gateways and _gateways != [gateway]:
        raise AllocationError(
            "this process already reaches hosts by another way",
            seen=f"{_gateways[0] or 'directly'}, and these hosts need {gateway or 'no gateway'}",
            hint="run the other job in a second program",
        )
    if gateway and not _gateways:
        _monarch.attach(gateway)
    _gateways[:] = [gateway]


_gateways: list[str] = []
"""The gateway of this process, once it is connected; empty for none."""

_credentials: list[bytes] = []
"""The authority whose certificate this process shows, once it shows one."""


def forgive_faults(knows: Knows) -> None:
    """A fault of hosts whose loss a person was told of does not end the program; calls to them fail, and say why.

    The engine would interrupt the program for every fault that nobody handles, though it may go on with other
    hosts, or with the same ones once a scheduler has given them anew.
    """
    if not knowing:
        _monarch.unhandled_fault_hook = functools.partial(
            _take_fault, _monarch.unhandled_fault_hook
        )
        explain_failures(_monarch.Future)
    learn_from(knows)


def _take_fault(otherwise: Callable[[Any], None], failure: Any) -> None:
    if not are_known():
        otherwise(failure)


_patience: dict[str, Any] = {}
"""What the engine was told before it was told to give up."""


def give_up_on_lost_hosts() -> None:
    """A host is certainly gone: have the engine say so to waiting calls within seconds."""
    if not _patience:
        known: Mapping[str, Any] = get_global_config()
        _patience.update({key: known[key] for key in _IMPATIENT})
    configure(**_IMPATIENT)


def _be_patient() -> None:
    """There are new hosts: what the lost ones deserved is not for them."""
    configure(**_patience)
    _patience.clear()


_procs: list[ProcMesh] = []
_actors: deque[Any] = deque(maxlen=1024)
_SEND_GRACE_S = 0.05
"""Calls made before their actors were spawned are sent in the moment after; nothing public tells when."""


def stop_procs(timeout_s: float) -> None:
    """Let all procs of this client do what they were told so far, then end them."""
    deadline_s = time.monotonic() + timeout_s
    for actors in _actors:
        _settle(actors.initialized, deadline_s)
    if _actors:
        time.sleep(_SEND_GRACE_S)
    for stopping in [procs.stop() for procs in _procs]:
        _settle(stopping, deadline_s)
    _procs.clear()
    _actors.clear()


_FLUSH_S = 0.3
"""How long the engine waits for hosts to take what it sent last; those that are gone never do."""


def shut_down(timeout_s: float) -> None:
    """End this client's part of the engine, where it was used.

    At the end of a program the engine does so by itself, but gives up after a second: a busy machine shows a
    traceback then, and what the engine's threads still do may end the program with another exit code than its own.
    """
    if _gateways:
        _settle(_monarch.shutdown_context(host_timeout=_FLUSH_S), time.monotonic() + timeout_s)


def _settle(future: Any, deadline_s: float) -> None:
    """Wait for the engine; the client is leaving, and whatever fails now is reaped with it."""
    with contextlib.suppress(Exception):  # the engine's errors have no common class
        future.get(timeout=max(0.01, deadline_s - time.monotonic()))


def actor_api() -> Any:
    """The engine's public actor module, which `milkweed.actor` hands on."""
    return _monarch

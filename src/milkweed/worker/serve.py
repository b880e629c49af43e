"""What forked children run; the only part of the worker that reaches the engine."""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from . import deferral, tls
from .wire import PATH_ENV

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent() -> None:
    """Ask the kernel to end this process when the keeper ends."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Show in `ps -e` and `top` which host or proc this is.

    Without a space: Slurm's proctrack/linuxproc passes over a process that has one, and neither counts nor signals
    it.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.replace(" ", ".").encode()[:15])


def become(env: Mapping[str, str], cwd: str, out_fd: int, err_fd: int, keep_fd: int = -1) -> int:
    """Turn a fresh fork into its own process: signals, files, environment, folder, randomness."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    if keep_fd >= 0:
        os.dup2(keep_fd, 3)
    os.closerange(4 if keep_fd >= 0 else 3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if made := sys.modules.get("random"):
        made.seed()
    return 3 if keep_fd >= 0 else -1


def serve_host(host: Mapping[str, Any], ready_fd: int) -> int:
    """Serve the engine as one host; tell the keeper the address once it is served."""
    # The engine puts the sockets of its procs into a folder of its own making: closed to others.
    os.umask(0o077)
    gc.disable()  # nothing made by imports is garbage; looking for some takes a tenth of the time
    try:
        # Private: `monarch.actor.start_worker_loop_forever` is this with a check of its arguments, and to import
        # it takes as long as all the rest of starting a host. A test fails when the name moves.
        from monarch._rust_bindings.monarch_hyperactor.bootstrap import start_worker_loop_forever
    except ImportError as error:
        raise SystemExit(
            f"the engine cannot be imported by {sys.executable}: {error}\n"
            f"install it there: {sys.executable} -m pip install torchmonarch"
        ) from error

    gc.enable()
    _wait_for_name(host.get("name") or "")
    served, dialled = _choose_address(host)
    with _Listening() as heard:
        server = start_worker_loop_forever(served)
        heard.wait(server)
    os.write(ready_fd, json.dumps({"address": dialled}).encode())
    os.close(ready_fd)
    server.get(None)
    return 0


def _wait_for_name(name: str, timeout_s: float = 60.0) -> None:
    """A scheduler may start a machine before its name is known; the engine would give up at once."""
    deadline_s = time.monotonic() + timeout_s
    while name:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise SystemExit(
                    f"this machine's name {name} is not known after {timeout_s:g} s: {error}"
                ) from error
            time.sleep(0.2)
        else:
            return


class _Listening:
    """What the engine says on standard error while it starts to serve.

    It returns at once, and for a while its socket takes messages that it then has nobody to give to: a client
    that is told the address too early loses its first message, and with it the program. The one sign that the
    host is whole is the first line it prints, so that is waited for; a test fails when there is none.
    """

    def __enter__(self) -> Self:
        self.said = b""
        self.heard_fd, said_fd = os.pipe()
        self.stderr_fd = os.dup(2)
        os.dup2(said_fd, 2)
        os.close(said_fd)
        return self

    def wait(self, server: Any, timeout_s: float = 5.0) -> None:
        """Return when the engine has said a whole line; raises what kept it from serving."""
        deadline_s = time.monotonic() + timeout_s
        while not self.said.endswith(b"\n") and time.monotonic() < deadline_s:
            if select.select([self.heard_fd], [], [], 0.1)[0]:
                self.said += os.read(self.heard_fd, 4096)
            else:
                server.poll()

    def __exit__(self, *_: object) -> None:
        os.dup2(self.stderr_fd, 2)
        os.close(self.stderr_fd)
        # The pipe's last writing end is gone now, so this comes to an end.
        with open(self.heard_fd, "rb") as heard:
            os.write(2, self.said + heard.read())


def _choose_address(host: Mapping[str, Any]) -> tuple[str, str]:
    """What the engine serves and what clients dial; a port is taken here, never chosen beforehand."""
    if host["transport"] == "ipc":
        return host["address"], host["address"]
    name = host.get("name")
    listener = tls.listen(tls.engine_ports(host["port"], host["turn"])) if name else _listen_here()
    port = listener.getsockname()[1]
    base = f"{host['transport']}://{name or 'localhost'}"
    return f"{base}:fd{listener.detach()}", f"{base}:{port}"


def _listen_here() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def run_proc() -> int:
    """Be a proc, as the engine's own bootstrap command would."""
    gc.disable()
    with deferral.deferred():
        give_ranks(importlib.import_module("monarch.actor"))
    spare_torch()
    gc.enable()
    module = _bootstrap_module()
    extend_path(os.environ.get(PATH_ENV, ""))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


class _Rank:
    """An actor's own rank in its mesh; an actor that has an attribute of this name keeps it."""

    def __init__(self, current_rank: Callable[[], Any]) -> None:
        self._current_rank = current_rank

    def __get__(self, actor: object, kind: type[object] | None = None) -> Any:
        return self if actor is None else self._current_rank().rank


def give_ranks(engine: Any) -> None:
    """Let actors say `self.rank`; in the engine it is `current_rank().rank`."""
    if not hasattr(engine.Actor, "rank"):
        engine.Actor.rank = _Rank(engine.current_rank)


def spare_torch() -> None:
    """Let actors import torch in an endpoint, where the file that they are written in is not on this host.

    On its way in torch looks at the stack, whose lines the engine then asks the client for; and it cannot read the
    answer, for that it uses torch, of which there is only half. The stack does without those lines.
    """
    try:
        # Private; a test fails when the name moves.
        from monarch._src.actor.source_loader import RemoteImportLoader
    except ImportError:
        return  # another version of the engine, which may need no help
    ask = RemoteImportLoader.get_source

    def get_source(self: RemoteImportLoader, _module_name: str) -> str:
        if _is_half_imported("torch"):
            raise ImportError(f"no source of {_module_name} while torch is being imported")
        return ask(self, _module_name)

    RemoteImportLoader.get_source = get_source


def _is_half_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _bootstrap_module() -> str:
    """The module that the engine's bootstrap command runs.

    The command object tells its arguments only in its repr, so the module is named here; a test compares
    the two and fails when it moves.
    """
    return "monarch._src.actor.bootstrap_main"


def extend_path(entries: str) -> None:
    """Let a proc import what its client can import: the client's own folders first, where they exist here."""
    asked = [entry for entry in entries.split(os.pathsep) if entry and os.path.exists(entry)]
    # A fork does not read PYTHONPATH, which an image's steps may have set since its parent was started.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [os.getcwd(), *given, *sys.path[1:]]
    sys.path[:] = list(dict.fromkeys([*asked, *(entry for entry in rest if entry)]))

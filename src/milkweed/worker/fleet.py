"""A machine's hosts and everything that runs on them, as children of the keeper."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from . import children, serve, wire
from .children import Child, HostLog, Lines, Output, describe_exit
from .clients import Client, Stream
from .procs import Launcher, read_launcher, renew

STOP_GRACE_S = 2.0
STOP_RACE_S = 0.1
Tell = Callable[[Mapping[str, Any]], None]
Env = Mapping[str, str]


class HostEntry:
    """One host: what was asked for, and what became of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.label = f"{config['mesh']}/{config['rank']}"
        self.state = "starting"
        self.address = ""
        self.reason = ""
        self.exit_code: int | None = None
        self.born_with: tuple[dict[str, str], str] = ({}, "")
        """The environment and the folder in which its server was started."""
        self.log = HostLog(config["log"])

    def snapshot(self) -> dict[str, Any]:
        """The host as a client sees it."""
        return {
            "host": self.label,
            "state": self.state,
            "address": self.address,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "tail": self.log.tail if self.state == "failed" else [],
        }


class Fleet:
    """Starts, watches and ends children; tells clients what happens."""

    def __init__(self, run: Path, start: Mapping[str, Any], tell: Tell) -> None:
        self._run = run
        self._tell = tell
        self.cwd: str = start["cwd"]
        """The folder that everything starts in, unless it is told another."""
        self.image_env: dict[str, str] = {}
        """What an image's steps have set."""
        umask = int(start["umask"], 8) if start.get("umask") else None
        self._fork = functools.partial(children.fork, umask=umask)
        self._hosts = {entry.label: entry for entry in map(HostEntry, start["hosts"])}
        self._children: dict[int, Child] = {}
        self._outputs: list[Output] = []
        self._stopping = False
        self._client_log = HostLog(str(run / wire.LOG_FOLDER / "client.log"))

    def snapshot(self) -> list[dict[str, Any]]:
        """All hosts, in the order they were asked for."""
        return [entry.snapshot() for entry in self._hosts.values()]

    def entry(self, label: str) -> HostEntry | None:
        """One of the hosts; None when it is not here."""
        return self._hosts.get(label)

    @property
    def labels(self) -> list[str]:
        """The names of all hosts."""
        return list(self._hosts)

    def log(self, lines: list[str]) -> None:
        """Write into the logs of all hosts."""
        for entry in self._hosts.values():
            entry.log.write("", lines)

    def read_log(self, label: str, offset: int) -> bytes:
        """A piece of a host's log from an offset on."""
        entry = self._hosts.get(label)
        try:
            with open(entry.log.path if entry else self._client_log.path, "rb") as file:
                file.seek(offset)
                return file.read(children.MAX_LINE_BYTES)
        except OSError:
            return b""

    def drain(self) -> None:
        """Hand on everything children have printed so far."""
        for output in self._outputs:
            output.drain()

    # Hosts

    def hold(self, reason: str) -> None:
        """Say why hosts are not started yet."""
        for entry in self._hosts.values():
            entry.reason = reason

    def start_hosts(self) -> None:
        """Fork every host's engine server."""
        for entry in self._hosts.values():
            entry.reason = ""
            self._start_host(entry)

    def _start_host(self, entry: HostEntry) -> None:
        ready_read, ready_write = os.pipe()
        config = dict(entry.config)
        env = self.host_env(entry)
        entry.born_with = (dict(env), self.cwd)
        env["HYPERACTOR_PROCESS_NAME"] = entry.label.replace("/", "_")
        child = Child("host", entry.label, 0)
        child.on_exit = lambda status: self._host_ended(entry, status)
        self._start(
            child,
            lambda fd: serve.serve_host(config, fd),
            env=env,
            cwd=self.cwd,
            log=entry.log,
            keep_fd=ready_write,
        )
        os.close(ready_write)
        loop = asyncio.get_running_loop()
        loop.add_reader(ready_read, self._host_ready, entry, ready_read)

    def host_env(self, entry: HostEntry, shell: Env | None = None) -> dict[str, str]:
        """What everything on a host has in its environment; a `shell` takes the place of the keeper's own."""
        return {
            **(os.environ if shell is None else shell),
            **self.image_env,
            **entry.config["env"],
            wire.RUN_ENV: str(self._run),
            wire.HOST_ENV: entry.label,
        }

    def _host_ready(self, entry: HostEntry, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        data = os.read(fd, 65536)
        os.close(fd)
        if data and entry.state == "starting":
            entry.state = "ready"
            entry.address = wire.decode(data)["address"]
            self._tell({"ev": "host", **entry.snapshot()})

    def _host_ended(self, entry: HostEntry, status: int) -> None:
        entry.exit_code = children.decode_status(status)
        if entry.exit_code == -signal.SIGTERM and not self._stopping:
            # A scheduler that ends a job tells all its processes at once: the keeper may hear it last.
            asyncio.get_running_loop().call_later(STOP_RACE_S, self._judge_end, entry)
        else:
            self._judge_end(entry)

    def _judge_end(self, entry: HostEntry) -> None:
        entry.reason = f"its worker ended: {describe_exit(entry.exit_code or 0)}"
        entry.state = "stopped" if self._stopping else "failed"
        if not self._stopping:
            self.drain()
            self._tell({"ev": "host", **entry.snapshot()})
            self.end(child for child in self._children.values() if child.host == entry.label)

    def revive(self, label: str) -> None:
        """Start the server of a host again whose machine is there."""
        entry = self._hosts.get(label)
        if entry is None or entry.state != "failed" or self._stopping:
            return
        if entry.config["transport"] == "ipc":
            Path(entry.config["address"].removeprefix("ipc://")).unlink(missing_ok=True)
        entry.state, entry.reason, entry.exit_code = "starting", "", None
        self._start_host(entry)

    # Procs

    def listen_for_procs(self) -> None:
        """Take requests of launchers: one process id a line."""
        (self._run / wire.PROC_FOLDER).mkdir(mode=0o700, exist_ok=True)
        path = self._run / wire.FORK_FIFO
        os.mkfifo(path, 0o600)
        # Opened for reading and writing, so that it never reads as ended between two launchers.
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(fd, self._take_launchers, fd)

    def _take_launchers(self, fd: int) -> None:
        for word in os.read(fd, 65536).split():
            with contextlib.suppress(OSError, ValueError):
                self._start_proc(read_launcher(int(word), self._run))

    def _start_proc(self, launcher: Launcher) -> None:
        label = launcher.env.get(wire.HOST_ENV, "")
        entry = self._hosts.get(label)
        child = Child(
            "proc",
            label,
            0,
            rank=launcher.env.get(wire.RANK_ENV, ""),
            client=launcher.env.get(wire.CLIENT_ENV, ""),
        )
        child.on_exit = lambda status: self._proc_ended(child, launcher, status)
        env, cwd = self._renew(entry, launcher) if entry else (launcher.env, launcher.cwd)
        self._start(
            child,
            lambda _fd: serve.run_proc(),
            env=env,
            cwd=cwd,
            log=entry.log if entry else self._client_log,
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(launcher.pidfd, self._launcher_gone, child, launcher)

    def _renew(self, entry: HostEntry, launcher: Launcher) -> tuple[dict[str, str], str]:
        """What steps have set since the host's server was started, new procs have."""
        before, folder = entry.born_with
        env = renew(launcher.env, before, self.host_env(entry))
        return env, self.cwd if launcher.cwd == folder else launcher.cwd

    def _launcher_gone(self, child: Child, launcher: Launcher) -> None:
        """The engine ends a proc by ending what it started, the launcher; or the proc ended and was told."""
        asyncio.get_running_loop().remove_reader(launcher.pidfd)
        launcher.close()
        if child.pid in self._children and not child.stopping and not self._stopping:
            self.end([child])

    def _proc_ended(self, child: Child, launcher: Launcher, status: int) -> None:
        code = children.decode_status(status)
        launcher.finish(code)
        if code == -signal.SIGTERM and not child.stopping:
            loop = asyncio.get_running_loop()
            loop.call_later(STOP_RACE_S, self._tell_proc_ended, child, code)
        elif code != 0:
            self._tell_proc_ended(child, code)

    def _tell_proc_ended(self, child: Child, code: int) -> None:
        if not child.stopping and not self._stopping:
            self.drain()
            message = {"ev": "proc", "host": child.host, "rank": child.rank, "exit_code": code}
            self._tell({**message, "client": child.client, "reason": describe_exit(code)})

    def reap_client(self, name: str, *, last: bool) -> None:
        """End the procs of a client that has gone; with the last client, all procs there are."""
        self.end(
            child
            for child in self._children.values()
            if child.kind == "proc" and (last or child.client == name)
        )
        if last:
            servers = {child.pid for child in self._children.values() if child.kind == "host"}
            self.end_pids([pid for pid in children.tree(servers) if pid not in servers])

    def end(self, found: Iterable[Child]) -> None:
        """End children, hosts excepted, and everything below them."""
        procs = [child for child in found if child.kind != "host"]
        for child in procs:
            child.stopping = True
        if procs:
            self.end_pids(children.tree(child.pid for child in procs))

    def end_pids(self, pids: list[int]) -> None:
        """Ask processes to end, and after a while make them."""
        children.send(pids, signal.SIGTERM)
        loop = asyncio.get_running_loop()
        mine = set(pids)
        loop.call_later(
            STOP_GRACE_S,
            lambda: children.send(mine & set(children.tree([os.getpid()])), signal.SIGKILL),
        )

    # Commands and the batch client

    def start_command(self, message: Mapping[str, Any], client: Client) -> None:
        """Run a command on a host for a client, and stream what it prints."""
        entry = self._hosts.get(str(message["host"]))
        number = message["id"]
        if entry is None:
            client.send({"ev": "exec-exit", "id": number, "code": 127, "what": "no such host"})
            return
        argv = [str(word) for word in message["argv"]]
        child = Child("exec", entry.label, 0, client=f"exec-{id(client)}")
        outputs = [Output(Stream(client, number, stream)) for stream in ("out", "err")]

        def ended(status: int) -> None:
            for output in outputs:
                output.drain()
            client.send({"ev": "exec-exit", "id": number, "code": children.decode_status(status)})

        child.on_exit = ended
        env = {**self.host_env(entry), **message.get("env", {})}
        cwd = message.get("cwd") or self.cwd
        self.fork(
            child,
            lambda _fd: children.execute(argv, env),
            (outputs[0], outputs[1]),
            env=env,
            cwd=cwd,
        )

    def end_commands(self, client: Client) -> None:
        """End the commands of a client that has gone."""
        name = f"exec-{id(client)}"
        self.end(c for c in self._children.values() if c.client == name)

    def start_batch(self, batch: Mapping[str, Any], ended: Callable[[int], None]) -> None:
        """Run the job's client here, detached."""
        env = {**os.environ, **batch["env"]}
        argv = list(batch["argv"])
        child = Child("batch", "client", 0, on_exit=ended)
        self._start(
            child,
            lambda _fd: children.execute(argv, env),
            env=env,
            cwd=self.cwd,
            log=self._client_log,
        )

    # Children in general

    def _start(
        self,
        child: Child,
        run: Callable[[int], int],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: HostLog,
        keep_fd: int = -1,
    ) -> None:
        prefix = f"[{child.rank}] " if child.rank else ""

        def take(stream: str) -> Callable[[list[str]], None]:
            def out(lines: list[str]) -> None:
                log.write(prefix, lines)
                message = {"ev": "out", "host": child.host, "rank": child.rank, "stream": stream}
                self._tell({**message, "client": child.client, "lines": lines, "kind": child.kind})

            return out

        outputs = (Output(Lines(take("out"))), Output(Lines(take("err"))))
        self.fork(child, run, outputs, env=env, cwd=cwd, keep_fd=keep_fd)

    def fork(
        self,
        child: Child,
        run: Callable[[int], int],
        outputs: tuple[Output, Output],
        *,
        env: Mapping[str, str],
        cwd: str,
        keep_fd: int = -1,
    ) -> None:
        """Fork a child that is watched from now on."""
        fds = (outputs[0].write_fd, outputs[1].write_fd)
        name = f"{child.host} r{child.rank}" if child.rank else child.host
        try:
            child.pid = self._fork(run, name=name, env=env, cwd=cwd, outputs=fds, keep_fd=keep_fd)
        finally:
            for output in outputs:
                output.close_writer()
        self._children[child.pid] = child
        self._outputs = [*(each for each in self._outputs if each.read_fd >= 0), *outputs]

    def reap(self) -> None:
        """Collect every child that has ended, adopted ones included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if child := self._children.pop(pid, None):
                child.on_exit(status)

    async def stop(self) -> None:
        """End everything below the keeper; return when nothing is left."""
        self._stopping = True
        deadline_s = time.monotonic() + STOP_GRACE_S
        children.send(self._below(), signal.SIGTERM)
        # Looking through /proc takes a while on a busy machine: own children are simply waited for.
        while self._children and time.monotonic() < deadline_s:
            await asyncio.sleep(0.005)
            self.reap()
        while pids := self._below():
            if time.monotonic() > deadline_s:
                children.send(pids, signal.SIGKILL)
            await asyncio.sleep(0.01)
            self.reap()
        self.drain()
        for log in (self._client_log, *(entry.log for entry in self._hosts.values())):
            log.close()

    def _below(self) -> list[int]:
        return [pid for pid in children.tree([os.getpid()]) if pid != os.getpid()]

"""The keeper: parent of a machine's hosts and procs, holder of the lease, taker of orders."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import identity
from . import bell, children, installing, leaving, ranks, steps, tls, warm, wire
from .clients import Client, Clients
from .fleet import Fleet
from .lease import Lease

_PR_SET_CHILD_SUBREAPER = 36
GANG_ORDERS = ("prepare", "launch", "halt", "report", "heard", "done")
IMAGE_ORDERS = ("claim", "step", "files", "release")
CLIENT_PATIENCE_S = 60
"""How long a client elsewhere may be silent before it counts as gone, and its procs end."""


def main(argv: Sequence[str]) -> int:
    """Keep the hosts of one run folder until the lease ends."""
    run = Path(argv[0])
    os.chdir(run)
    start = json.loads((run / wire.START_FILE).read_text())
    leaving.save(run / wire.KEEPER_FILE, identity.process(os.getpid()))
    become_subreaper()
    prepare(start)
    return asyncio.run(Keeper(run, start).keep())


def become_subreaper() -> None:
    """Adopt whatever a child leaves behind, so that it can be ended with the job."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prepare(start: Mapping[str, Any]) -> None:
    """Import what hosts need; where steps are to be done first, they may bring it."""
    if not start.get("held"):
        warm.warm_up()


def _spare_s(until: float | None) -> float | None:
    """How long it still is until a moment of the wall's clock."""
    return None if until is None else max(0.0, until - time.time())


class Keeper:
    """One machine's share of one job."""

    def __init__(self, run: Path, start: Mapping[str, Any]) -> None:
        self.name = os.urandom(8).hex()
        """Tells this keeper from one that takes its place."""
        self.run = run
        self.start = start
        self.clients = Clients()
        self.lease = Lease(
            keep=start["keep"],
            idle_timeout_s=start["idle_timeout_s"],
            time_limit_s=start["time_limit_s"],
            batch=start.get("with_client", False),
            queued=start.get("queued", False),
            met=start.get("met", False),
            age_s=start.get("age_s", 0.0),
            left=start.get("left", False),
            spare_s=_spare_s(start.get("follows_until")),
        )
        self.fleet = Fleet(run, start, self.clients.broadcast)
        self.steps = steps.Steps(run, self.fleet, lambda: self.held)
        self.held = bool(start.get("held"))
        """Whether hosts wait for the order to start, after the steps of their image."""
        self.gangs = ranks.Gangs(self.fleet, run, self.clients.tell)
        self.reason = ""
        self.exit_code: int | None = None
        self.lease_over = False
        self._end = asyncio.Event()
        self._serving: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    async def keep(self) -> int:
        """Start everything, serve until told to stop or nobody is left, and leave nothing running."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop, "it was asked to stop by SIGTERM")
        loop.add_signal_handler(signal.SIGCHLD, self.fleet.reap)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self.held:
            self.fleet.hold(steps.HELD)
        servers = await self._listen()
        self.fleet.listen_for_procs()
        if not self.held:
            self.fleet.start_hosts()
        self._start_batch()
        watch = asyncio.create_task(self._watch_lease())
        await self._end.wait()
        watch.cancel()
        await self.fleet.stop()
        for server in servers:
            server.close()
        self._leave()
        await self.clients.close()
        await self._hang_up()
        return 0

    async def _hang_up(self) -> None:
        """Close every connection that is left, and let those who serve them finish."""
        serving = dict(self._serving)
        for writer in serving.values():
            writer.close()
        if serving:
            await asyncio.wait([task for task in serving if task], timeout=1.0)

    async def _listen(self) -> list[asyncio.Server]:
        """Take orders from this machine, and with a certificate of the job from others."""
        path = str(self.run / wire.CONTROL_SOCKET)
        limit = wire.MAX_LINE_BYTES
        servers = [await asyncio.start_unix_server(self._serve, path, limit=limit)]
        if control := self.start.get("control"):
            door = tls.listen(tls.control_ports(control["port"]))
            context = tls.make_server_context(Path(control["folder"]))
            serve = self._serve_remote
            servers.append(await asyncio.start_server(serve, sock=door, ssl=context, limit=limit))
            with contextlib.suppress(OSError):
                up = Path(self.start["folder"]) / wire.up_file(self.start["share"])
                up.touch(mode=0o600)
                up.write_text(self.start.get("node", ""))
            bell.ring(self.start.get("bells", ()))
        return servers

    async def _serve_remote(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        tls.keep_alive(writer.get_extra_info("socket"), patience_s=CLIENT_PATIENCE_S)
        await self._serve(reader, writer, remote=True)

    def _start_batch(self) -> None:
        if batch := self.start.get("batch"):
            self.lease.batch = True
            self.fleet.start_batch(batch, self._batch_ended)

    def _batch_ended(self, status: int) -> None:
        self.exit_code = children.decode_status(status)
        self.stop(f"its client ended: {children.describe_exit(self.exit_code)}")

    def stop(self, reason: str) -> None:
        """End this job's share of the machine."""
        if not self._end.is_set():
            self.reason = reason
            self.clients.broadcast({"ev": "ending", "reason": reason})
            self._end.set()

    async def _watch_lease(self) -> None:
        while True:
            self._look_for_owner()
            self._look_at_lease()
            await asyncio.sleep(self.lease.next_check_s)

    def _look_at_lease(self) -> None:
        """End when the lease is over; who ends already hangs up on its clients, and that ends no lease."""
        if self._end.is_set():
            return
        if reason := self.lease.over(time.monotonic(), self.clients.count):
            self.lease_over = True
            self.stop(reason)

    def _look_for_owner(self) -> None:
        """The program that started hosts may end before it connects: the hosts have lost their owner then."""
        owner = self.start.get("owner")
        if owner and not self.lease.owner_seen and not identity.is_running(owner):
            self.lease.owner_lost = True

    def _leave(self) -> None:
        """Without a record nobody looks here again: leave nothing. With one, leave the reason and the logs."""
        if "control" in self.start:
            # A scheduler that ends the job may start it again: then its record must be there.
            keep = self.lease.keep or not self.lease_over
            used = self.lease.owner_seen
            leaving.leave_remote(self.run, self.start, self.reason, keep=keep, used=used)
            return
        if not self.lease.keep:
            leaving.remove_all(self.run, self.start["record_folder"])
            return
        ended = {"reason": self.reason, "exit_code": self.exit_code, "at": time.time()}
        leaving.save(self.run / wire.ENDED_FILE, ended)
        for name in (wire.CONTROL_SOCKET, wire.FORK_FIFO):
            (self.run / name).unlink(missing_ok=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, remote: bool = False
    ) -> None:
        client = Client(writer, remote=remote)
        self._serving[asyncio.current_task()] = writer
        try:
            while line := await reader.readline():
                client.line = line
                self._take(client, wire.decode(line))
        except (OSError, ValueError) as error:
            client.send({"ev": "error", "what": str(error)})
        finally:
            self._serving.pop(asyncio.current_task(), None)
            self._gone(client)
            client.close()

    def _take(self, client: Client, message: Mapping[str, Any]) -> None:
        orders = {
            "hello": self._hello,
            "status": self._status,
            "keep": self._keep,
            "leave": self._let_go,
            "renew": self._renew,
            "exec": self._exec,
            "sync": self._sync,
            "log": self._log,
            "stop": self._stop,
            "revive": self._revive,
            "start": self._start,
            **dict.fromkeys(IMAGE_ORDERS, self.steps.take),
            **dict.fromkeys(GANG_ORDERS, self._pass_on),
        }
        order = orders.get(str(message.get("op")))
        if order is None:
            client.send({"ev": "error", "what": f"unknown order {message.get('op')!r}"})
            return
        order(client, message)

    def _hello(self, client: Client, message: Mapping[str, Any]) -> None:
        client.name = str(message["client"])
        client.owner = bool(message.get("owner"))
        client.wants_output = bool(message.get("output", True))
        self.clients.add(client)
        self.gangs.saw_client(client.name)
        self.lease.saw_client(owner=client.owner)
        self._note_met()
        self._status(client, message)

    def _note_met(self) -> None:
        """Hosts that a scheduler starts anew in this place need not wait for a first client again."""
        if self.lease.queued and not self.lease.met:
            self.lease.met = True
            leaving.note_met(self.start)

    def _status(self, client: Client, _message: Mapping[str, Any]) -> None:
        client.send(
            {
                "ev": "status",
                "hosts": self.fleet.snapshot(),
                "clients": self.clients.count,
                "keep": self.lease.keep,
                "time_left_s": self.lease.time_left_s(time.monotonic()),
                "time_limit_s": self.lease.time_limit_s,
                "held": self.held,
                "stopping": self._end.is_set(),
                "pid": os.getpid(),
                "keeper": self.name,
                "node": self.start.get("node", ""),
                "job": self.start["apply_id"],
            }
        )

    def _start(self, client: Client, message: Mapping[str, Any]) -> None:
        """Steps are done: what they installed is seen, and hosts that were held start."""
        if self.steps.fresh:
            self.steps.fresh = False
            installing.notice_packages()
        if self.held and not self._end.is_set():
            self.held = False
            warm.warm_up()
            self.fleet.start_hosts()
        self._status(client, message)

    def _keep(self, client: Client, message: Mapping[str, Any]) -> None:
        self.lease.keep = True
        self.lease.idle_timeout_s = float(message["idle_timeout_s"])
        client.send({"ev": "kept"})

    def _let_go(self, client: Client, message: Mapping[str, Any]) -> None:
        """A client is about to go, and wants to come back."""
        client.back_s = float(message["back_s"])

    def _renew(self, client: Client, message: Mapping[str, Any]) -> None:
        """The time limit counts anew, also for who is started anew in this place."""
        limit_s = message.get("time_limit_s")
        self.lease.renew(time.monotonic(), None if limit_s is None else float(limit_s))
        if memory := self.start.get("memory"):
            with contextlib.suppress(OSError):
                os.utime(memory)
        client.send({"ev": "renewed"})

    def _exec(self, client: Client, message: Mapping[str, Any]) -> None:
        self.fleet.start_command(message, client)

    def _sync(self, client: Client, _message: Mapping[str, Any]) -> None:
        """Everything printed so far goes out before the answer."""
        self.fleet.drain()
        client.send({"ev": "synced"})

    def _log(self, client: Client, message: Mapping[str, Any]) -> None:
        """A piece of a log, for clients that do not see the file."""
        data = self.fleet.read_log(str(message["host"]), int(message["offset"]))
        client.send({"ev": "log", "data": base64.b64encode(data).decode()})

    def _pass_on(self, client: Client, message: Mapping[str, Any]) -> None:
        """An order about ranks."""
        getattr(self.gangs, message["op"])(client.name, message)

    def _revive(self, _client: Client, message: Mapping[str, Any]) -> None:
        self.fleet.revive(str(message["host"]))

    def _stop(self, _client: Client, message: Mapping[str, Any]) -> None:
        self.lease.keep = self.lease.keep and not message.get("forget", False)
        self.lease_over = self.lease_over or bool(message.get("for_good"))
        self.stop(str(message.get("reason", "it was killed")))

    def _gone(self, client: Client) -> None:
        self.clients.remove(client)
        self.steps.gone(client)
        self.fleet.end_commands(client)
        if not client.name:
            return
        if self.clients.has(client.name):
            return  # it has come back before its old connection was seen to be broken
        patience_s = ranks.CLIENT_PATIENCE_S if client.remote else 0.0
        self.gangs.lost_client(client.name, patience_s=patience_s)
        self.fleet.reap_client(client.name, last=self.clients.count == 0)
        owner = client.owner and not self.clients.has_owner
        self.lease.lost_client(time.monotonic(), owner=owner, back_s=client.back_s)
        self._look_at_lease()

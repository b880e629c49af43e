"""Joining a job whose folder this machine does not see: no key ever travels.

The keeper makes a key of its own and waits. Whoever may run processes in the scheduler's job, which is its
owner, fetches the request for a certificate and brings the certificate back, both of which may be read by
anybody. What must stay private comes afterwards, over TLS.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import bell, tls, wire

TIMEOUT_S = 900.0
"""How long a keeper waits to be let in where nobody will look for the job later."""

BRIDGE_MARK = "milkweed-bridge "
"""How each line begins that the bridge prints: a site may have every task of a job print something, too."""

# What the job's owner runs on every machine of the job: it passes on what the keeper and the owner say.
BRIDGE = f"""{wire.CLOSED_PATH}
import glob, json, os, socket
asked = json.loads(sys.stdin.readline())
index = os.environ.get(asked["index_env"], "0")
above = "/tmp/milkweed-%d" % os.getuid()
seen = os.lstat(above)
if seen.st_uid != os.getuid() or seen.st_mode & 0o77 or not os.path.isdir(above):
    sys.exit(above + " is not a folder of this user alone")
[path] = glob.glob("%s/%s/ctl" % (above, asked["share"])) or [""]
keeper = socket.socket(socket.AF_UNIX)
keeper.connect(path)
lines = keeper.makefile("rw")
def ask(message):
    lines.write(json.dumps(message) + "\\n")
    lines.flush()
    print("{BRIDGE_MARK}" + json.dumps({{"index": index, **json.loads(lines.readline())}}), flush=True)
ask({{"op": "request"}})
ask({{"op": "admit", **json.loads(sys.stdin.readline())[index]}})
""".strip()


def wait_for_start(invitation: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Wait until the job's owner lets this machine in, and tells it what it is: the host under `own`."""
    folder = run / wire.TLS_FOLDER
    folder.mkdir(mode=0o700)
    request = make_request(folder)
    return asyncio.run(Waiting(invitation, run, request).wait())


def make_request(folder: Path) -> str:
    """Make a key that never leaves this machine, and a request for a certificate."""
    try:
        return _make_request_here(folder)
    except ImportError:
        return _make_request_by_command(folder)


def _make_request_here(folder: Path) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    save(folder / tls.KEY_FILE, text)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _make_request_by_command(folder: Path) -> str:
    """The same with the machine's own OpenSSL."""
    if shutil.which("openssl") is None:
        raise SystemExit(
            "this machine does not see the job's folder, and can make no key of its own:\n"
            "install milkweed or openssl on it, or keep the job's records in a folder it sees (MILKWEED_HOME)"
        )
    key = folder / tls.KEY_FILE
    save(key, b"")
    command = ["openssl", "req", "-new", "-newkey", "ec", "-nodes", "-subj", "/CN=milkweed"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(key)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def save(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


class Waiting:
    """A keeper that is not let in yet."""

    def __init__(self, invitation: Mapping[str, Any], run: Path, request: str) -> None:
        self._invitation = invitation
        self._run = run
        self._request = request
        self._label = ""
        self._servers: list[asyncio.Server] = []
        self._start: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def wait(self) -> dict[str, Any]:
        """Serve this machine's own socket, then TLS, until it is told what it is."""
        path = str(self._run / wire.CONTROL_SOCKET)
        limit = wire.MAX_LINE_BYTES
        self._servers.append(await asyncio.start_unix_server(self._serve_here, path, limit=limit))
        bell.ring(self._invitation.get("bells", ()))
        try:
            # What took a queue to get waits for its first client, however long that takes to come.
            patience_s = None if self._invitation.get("keep") else TIMEOUT_S
            return await asyncio.wait_for(self._start.get(), patience_s)
        except TimeoutError:
            raise SystemExit("nobody let this machine into the job") from None
        finally:
            for server in self._servers:
                server.close()
            os.unlink(path)

    async def _serve_here(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if message["op"] == "request":
                names = [socket.gethostname(), socket.getfqdn()]
                answer: dict[str, Any] = {"ev": "request", "csr": self._request, "names": names}
            else:
                await self._admit(message)
                answer = {"ev": "admitted"}
            writer.write(wire.encode(answer))
        writer.close()

    async def _admit(self, message: Mapping[str, Any]) -> None:
        self._label = message["host"]
        folder = self._run / wire.TLS_FOLDER
        save(folder / tls.CERT_FILE, message["certificate"].encode())
        save(folder / tls.CA_FILE, message["authority"].encode())
        if len(self._servers) == 1:
            door = tls.listen(tls.control_ports(self._invitation["port"]))
            context = tls.make_server_context(folder)
            serve = self._serve_remote
            limit = wire.MAX_LINE_BYTES
            server = await asyncio.start_server(serve, sock=door, ssl=context, limit=limit)
            self._servers.append(server)

    async def _serve_remote(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            message = wire.decode(line)
            writer.write(wire.encode(self._status()))
            await writer.drain()
            if message.get("op") == "begin":
                self._start.put_nowait({**message["start"], "own": self._label})
        writer.close()

    def _status(self) -> dict[str, Any]:
        """As a keeper's, so that whoever looks for this host finds it."""
        host: dict[str, Any] = {"host": self._label, "state": "starting", "address": ""}
        host |= {"reason": "it waits to be let in", "exit_code": None, "tail": []}
        job = self._invitation["apply_id"]
        said = {"ev": "status", "hosts": [host], "stopping": False, "waiting": True}
        return {**said, "node": "", "job": job}

"""Machines that see no files of the job: they make their own key, and are let in by nobody but its owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from milkweed import pki
from milkweed.control import Connection
from milkweed.errors import AccessError, UnreachableError
from milkweed.worker import enrol, tls, wire
from unit.keepers import NAMES, WAIT_S, free_ports, make_credentials, move_runs

JOB = pki.make_authority("job")
OTHER_JOB = pki.make_authority("other job")
INVITATION: dict[str, Any] = {"apply_id": "id", "port": 1, "bells": []}


# Keys


def check_request(folder: Path, request: str) -> None:
    """A request is signed by the key that stayed in the folder, and nobody else can read that."""
    key = serialization.load_pem_private_key((folder / tls.KEY_FILE).read_bytes(), password=None)
    asked = x509.load_pem_x509_csr(request.encode())
    assert asked.is_signature_valid
    assert asked.public_key() == key.public_key()
    assert stat.S_IMODE((folder / tls.KEY_FILE).stat().st_mode) == 0o600
    assert "PRIVATE" not in request


def test_a_machine_makes_its_own_key(tmp_path: Path) -> None:
    """The key stays; what travels is a request that anybody may read."""
    request = enrol.make_request(tmp_path)
    check_request(tmp_path, request)
    assert JOB.certify(request.encode(), ["n1"]).startswith(b"-----BEGIN CERTIFICATE")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_a_bare_machine_makes_its_key_with_openssl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python without cryptography uses what the machine has; the result is as good."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    request = enrol.make_request(tmp_path)
    monkeypatch.undo()
    check_request(tmp_path, request)
    assert JOB.certify(request.encode(), ["n1"]).startswith(b"-----BEGIN CERTIFICATE")


def test_a_machine_that_can_make_no_key_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With neither of both, the log of its task has what to do."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="MILKWEED_HOME"):
        enrol.make_request(tmp_path)


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN CERTIFICATE REQUEST-----\nx\n"])
def test_what_is_no_request_is_not_signed(text: bytes) -> None:
    """The authority explains what it refuses."""
    with pytest.raises(AccessError):
        JOB.certify(text, ["n1"])


def test_a_request_that_was_changed_on_its_way_is_not_signed(tmp_path: Path) -> None:
    """A signature that does not fit the key is refused: nobody can have another's key certified."""
    request = enrol.make_request(tmp_path)
    asked = x509.load_pem_x509_csr(request.encode())
    bad = bytearray(asked.public_bytes(serialization.Encoding.DER))
    bad[-1] ^= 1
    forged = ssl_pem(bytes(bad))
    with pytest.raises(AccessError):
        JOB.certify(forged, ["n1"])


def ssl_pem(der: bytes) -> bytes:
    import base64

    body = base64.encodebytes(der).decode()
    kind = "CERTIFICATE REQUEST"
    return f"-----BEGIN {kind}-----\n{body}-----END {kind}-----\n".encode()


# Waiting

PROGRAM = """
import json, pathlib, sys
from milkweed.worker import enrol
start = enrol.wait_for_start(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(json.dumps(start))
"""


class Waiting:
    """A keeper that waits to be let in, in a process of its own; sockets need short names."""

    def __init__(self, run: Path) -> None:
        self.run = run
        run.mkdir(mode=0o700, exist_ok=True)
        [control] = free_ports(1)
        self.port = control - 1
        invitation = json.dumps({**INVITATION, "port": self.port})
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, invitation, str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.request: str = self.ask(op="request")["csr"]

    @property
    def told(self) -> dict[str, Any] | None:
        """What it was told to be, once it has ended; None while it waits."""
        out, _ = self.process.communicate(timeout=WAIT_S)
        return json.loads(out) if out else None

    @property
    def waits(self) -> bool:
        """Whether it still waits."""
        return self.process.poll() is None

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()

    def ask(self, **order: Any) -> dict[str, Any]:
        """Speak on the machine's own socket, as the owner's bridge does."""
        with self._dial() as made, made.makefile("rwb") as lines:
            lines.write(wire.encode(order))
            lines.flush()
            return wire.decode(lines.readline())

    def _dial(self) -> socket.socket:
        while True:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(WAIT_S)
            try:
                made.connect(str(self.run / wire.CONTROL_SOCKET))
            except (FileNotFoundError, ConnectionRefusedError):
                made.close()
                assert self.waits
                threading.Event().wait(0.005)
            else:
                return made

    def admit(self, authority: pki.Authority = JOB) -> dict[str, Any]:
        """Fetch its request and bring a certificate."""
        csr = self.ask(op="request")["csr"].encode()
        certificate = authority.certify(csr, NAMES).decode()
        said = {"certificate": certificate, "authority": authority.cert_pem.decode()}
        return self.ask(op="admit", host="w/1", **said)

    def door(self, credentials: Path, label: str = "w/1") -> str:
        """Where it takes orders over TLS."""
        return f"tls://127.0.0.1:{self.port}/{label}#{credentials}"


@pytest.fixture
def short() -> Generator[Path]:
    """A folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="mw-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def waiting(short: Path) -> Generator[Waiting]:
    with contextlib.closing(Waiting(short)) as made:
        yield made


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return make_credentials(tmp_path / "ours", JOB)


def test_a_machine_is_let_in_and_told_what_it_is(waiting: Waiting, ours: Path) -> None:
    """Request, certificate, and then over TLS what must stay private; afterwards nobody is served there."""
    assert waiting.ask(op="request") == {
        "ev": "request",
        "csr": waiting.request,
        "names": [socket.gethostname(), socket.getfqdn()],
    }
    assert waiting.admit() == {"ev": "admitted"}
    with Connection(waiting.door(ours), waiting=True) as connection:
        status = connection.ask({"op": "begin", "start": {"secret": "s3cret"}}, "status")
    assert status["hosts"][0]["reason"] == "it waits to be let in"
    assert waiting.told == {"secret": "s3cret", "own": "w/1"}
    assert not (waiting.run / wire.CONTROL_SOCKET).exists()
    folder = waiting.run / wire.TLS_FOLDER
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == (
        dict.fromkeys(tls.FILES, 0o600)
    )


def test_a_large_job_can_be_told(waiting: Waiting, ours: Path) -> None:
    """What a host is told names every node of the cluster: thousands of them fit."""
    start = {"addresses": {f"node{number:05d}": f"10.0.{number % 256}.1" for number in range(5000)}}
    waiting.admit()
    with Connection(waiting.door(ours), waiting=True) as connection:
        connection.ask({"op": "begin", "start": start}, "status")
    assert waiting.told == {**start, "own": "w/1"}


def test_looking_tells_it_nothing(waiting: Waiting, ours: Path) -> None:
    """Whoever only looks does not begin anything, and may come again."""
    waiting.admit()
    for _ in range(2):
        with Connection(waiting.door(ours), waiting=True) as connection:
            assert connection.ask({"op": "status"}, "status")["waiting"] is True
    assert waiting.waits


def test_a_host_that_waits_is_not_taken_for_one_that_serves(waiting: Waiting, ours: Path) -> None:
    """A client that wants a host passes it over until it is one."""
    waiting.admit()
    with pytest.raises(UnreachableError):
        Connection(waiting.door(ours), thorough=False)


def test_before_it_is_let_in_nobody_reaches_it(waiting: Waiting, ours: Path) -> None:
    """Without a certificate it has no door to others."""
    waiting.ask(op="request")
    with pytest.raises(UnreachableError):
        Connection(waiting.door(ours), waiting=True, thorough=False)


def test_a_stranger_cannot_tell_it_anything(waiting: Waiting, tmp_path: Path) -> None:
    """A certificate of another job opens nothing, though its holder trusts ours."""
    theirs = make_credentials(tmp_path / "theirs", OTHER_JOB, JOB)
    waiting.admit()
    with (
        contextlib.suppress(UnreachableError),
        Connection(waiting.door(theirs), waiting=True, thorough=False) as connection,
    ):
        connection.ask({"op": "begin", "start": {"evil": 1}}, "status")
    assert waiting.waits


def test_being_let_in_twice_is_fine(waiting: Waiting, ours: Path) -> None:
    """Two clients of the owner may come at once."""
    assert [waiting.admit(), waiting.admit()] == [{"ev": "admitted"}] * 2
    with Connection(waiting.door(ours), waiting=True):
        assert waiting.waits


def test_a_machine_that_nobody_lets_in_gives_up(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hold a node for ever, its log says why it ended, and its key was never open to others."""
    monkeypatch.setattr(enrol, "TIMEOUT_S", 0.01)
    with pytest.raises(SystemExit, match="nobody let this machine into the job"):
        enrol.wait_for_start(INVITATION, short)
    assert not (short / wire.CONTROL_SOCKET).exists()
    assert stat.S_IMODE((short / wire.TLS_FOLDER).stat().st_mode) == 0o700


@pytest.mark.parametrize(("keep", "patience_s"), [(True, None), (False, enrol.TIMEOUT_S)])
def test_a_machine_of_a_job_that_is_kept_waits_as_long_as_it_takes(
    short: Path, monkeypatch: pytest.MonkeyPatch, keep: bool, patience_s: float | None
) -> None:
    """A job that was asked for in the evening and begins in the night has its hosts in the morning."""
    waited: list[float | None] = []

    async def wait_for(asked: Coroutine[Any, Any, Any], timeout_s: float | None) -> None:
        waited.append(timeout_s)
        asked.close()
        raise TimeoutError

    monkeypatch.setattr(asyncio, "wait_for", wait_for)
    with pytest.raises(SystemExit):
        enrol.wait_for_start({**INVITATION, "keep": keep}, short)
    assert waited == [patience_s]


# The bridge


class Bridge:
    """The owner's own step on a machine, whose run folders are elsewhere for this test."""

    def __init__(self, runs: Path, uid: int) -> None:
        program = move_runs(enrol.BRIDGE, runs)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", f"import os; os.getuid = lambda: {uid}\n{program}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"SLURM_PROCID": "1"},
        )

    def say(self, message: object) -> None:
        """Send a line to the step."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def hear(self) -> dict[str, Any] | None:
        """The next line of the step; None at its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line.removeprefix(enrol.BRIDGE_MARK)) if line else None

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def bridge(runs: Path, uid: int) -> Generator[Bridge]:
    with contextlib.closing(Bridge(runs, uid)) as made:
        yield made


def test_the_bridge_brings_requests_and_certificates(short: Path, ours: Path) -> None:
    """With the number of its task, so that the owner knows which machine asks."""
    uid = os.getuid()
    runs = short / f"milkweed-{uid}"
    runs.mkdir(mode=0o700)
    with contextlib.closing(Waiting(runs / "abc.0.0.1")) as made, bridge(short, uid) as step:
        step.say({"share": "abc.0.0.*", "index_env": "SLURM_PROCID"})
        request = step.hear()
        assert request is not None
        assert (request["index"], request["csr"]) == ("1", made.request)
        certificate = JOB.certify(request["csr"].encode(), NAMES).decode()
        said = {"certificate": certificate, "authority": JOB.cert_pem.decode()}
        step.say({"1": {"host": "w/1", **said}})
        assert step.hear() == {"index": "1", "ev": "admitted"}
        Connection(made.door(ours), waiting=True).close()


def test_where_no_keeper_is_the_bridge_says_nothing(short: Path) -> None:
    """Its step on that machine just ends."""
    with bridge(short, os.getuid()) as step:
        step.say({"share": "abc.0.0.*", "index_env": "SLURM_PROCID"})
        assert step.hear() is None


def test_a_folder_of_somebody_else_is_not_asked(short: Path) -> None:
    """Whoever prepared it would have a key of his own certified, and be let into the job.

    A keeper refuses such a folder and ends, so whatever listens there is not ours.
    """
    victim = os.getuid() + 1
    runs = short / f"milkweed-{victim}"
    runs.mkdir(mode=0o755)
    with contextlib.closing(Waiting(runs / "abc.0.0.1")), bridge(short, victim) as step:
        step.say({"share": "abc.0.0.*", "index_env": "SLURM_PROCID"})
        assert step.hear() is None

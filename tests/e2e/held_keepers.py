"""A real keeper as a pod has it, on this machine: held until its image's steps are done."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from milkweed import control, pki
from milkweed.backends.packing import pack_worker
from milkweed.worker import wire
from unit.keepers import free_ports

WAIT_S = 60.0
# As in a pod, but the run folder is the test's own.
PROGRAM = """
import json, os, pathlib, sys
sys.path.insert(0, sys.argv[1])
from milkweed.worker import remote
remote.runs_folder = lambda: pathlib.Path(sys.argv[2])
code = remote.main(json.loads(sys.argv[3]))
sys.stderr.flush()
os._exit(code)
"""


class HeldKeeper:
    """The keeper of host `w/0`, which is reached over TLS."""

    def __init__(
        self,
        *,
        held: bool = True,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        path: str = "",
    ) -> None:
        # A short name: sockets lie in it.
        self.folder = Path(tempfile.mkdtemp(prefix="mw-held-"))
        self.apply_id = str(uuid.uuid4())
        self.home = self.folder / "home"
        self.home.mkdir()
        self.port = free_ports(4)[0] - 1
        (self.folder / "worker.zip").write_bytes(pack_worker())
        self._save_part(held, dict(env or {}))
        self.process = self._start(python, path)

    def _save_part(self, held: bool, env: dict[str, str]) -> None:
        authority = pki.make_authority(self.apply_id, days=1)
        for who in ("host", "client"):
            leaf = authority.issue(["localhost", "127.0.0.1"])
            pki.save_credentials(self.folder / who, leaf, authority.cert_pem)
        part = {
            "apply_id": self.apply_id,
            "keep": True,
            "idle_timeout_s": WAIT_S,
            "time_limit_s": None,
            "queued": True,
            "cwd": str(self.home),
            "logs": "",
            "record_folder": "",
            "port": self.port,
            "turn": 0,
            "addresses": {},
            "bells": [],
            "batch": None,
            "part": "0.0",
            "first": False,
            "envs": {"w": env},
            "hosts": [{"mesh": "w", "rank": 0}],
            "released": [],
            "certificates": [{"folder": str(self.folder / "host"), "nodes": ["localhost"]}],
            "held": held,
        }
        (self.folder / wire.part_file("0.0")).write_text(json.dumps(part))

    def _start(self, python: str, path: str) -> subprocess.Popen[bytes]:
        invitation = {
            "apply_id": self.apply_id,
            "part": "0.0",
            "folder": str(self.folder),
            "index_env": "MW_INDEX",
            "node_env": "MW_NODE",
            "restart_env": "MW_RESTARTS",
            "source": "",
            "end": [],
        }
        worker = str(self.folder / "worker.zip")
        argv = [python, "-c", PROGRAM, worker, str(self.folder / "r"), json.dumps(invitation)]
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        env = {**own, "MW_INDEX": "0", "MW_NODE": "localhost", "HOME": str(self.home)}
        env["PATH"] = path or own["PATH"]
        return subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder
        )

    @property
    def address(self) -> str:
        """Where it takes orders."""
        return f"tls://localhost:{self.port}/w/0@{self.apply_id}#{self.folder / 'client'}"

    @property
    def run(self) -> Path:
        """Its run folder."""
        return self.folder / "r" / f"{self.apply_id.replace('-', '')[:16]}.0.0.0"

    def connect(self) -> control.Connection:
        """A connection, once it is there."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return control.Connection(self.address)
            except control.UnreachableError:
                if time.monotonic() > deadline_s or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def status(self) -> dict[str, Any]:
        """What it tells of itself."""
        with self.connect() as connection:
            return connection.ask({"op": "status"}, "status")

    def host(self) -> dict[str, Any]:
        """What it tells of its host."""
        return self.status()["hosts"][0]

    def wait_until(self, fits: Callable[[], bool]) -> None:
        """Look until something holds."""
        deadline_s = time.monotonic() + WAIT_S
        while not fits():
            assert time.monotonic() < deadline_s, self.host()
            time.sleep(0.05)

    def run_command(self, *argv: str) -> str:
        """What a command on the host prints; it must end well."""
        *said, code = control.run_command(self.address, "w/0", argv)
        text = b"".join(each[1] for each in said if isinstance(each, tuple)).decode()
        assert code == 0, text
        return text.strip()

    def log(self) -> str:
        """The host's log so far."""
        return (self.run / wire.LOG_FOLDER / "w.0.log").read_text()

    def close(self) -> None:
        """End it, and leave nothing."""
        if self.process.poll() is None:
            with (
                contextlib.suppress(control.UnreachableError),
                control.Connection(self.address) as c,
            ):
                c.send({"op": "stop"})
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@contextlib.contextmanager
def several(count: int) -> Iterator[list[HeldKeeper]]:
    """Some of them."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(HeldKeeper()) for _ in range(count)]

"""Nobody in: what Flux and strangers on the network can see of a job, and that they stay outside."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from clusters import ask_as_stranger
from flux.instance import Instance
from milkweed.control import Connection, Door, parse_door
from milkweed.errors import UnreachableError
from milkweed.pki import make_authority, save_credentials
from programs import Client

START = """
    job = FluxJob(meshes={"w": 2}, env={"TOKEN": "s3cret-value"})
    job.state()
    for host in job._backend().hosts(job._held.record.handle): print("host", host.address, host.control)
"""


@pytest.fixture
def running(client: Client, instance: Instance) -> list[tuple[str, str]]:
    """A running job's hosts: where the engine serves, and where orders are taken."""
    out = client.run(START)
    lines = [line.split() for line in out.splitlines() if line.startswith("host ")]
    assert len(lines) == 2, out
    return [(line[1], line[2]) for line in lines]


def end(client: Client) -> None:
    """End the job."""
    client.run("job_load().kill()")


def test_no_secret_is_shown(
    client: Client, instance: Instance, running: list[tuple[str, str]]
) -> None:
    """Neither the arguments of any process nor what Flux keeps of the job holds a key or a variable's value."""
    [job] = instance.jobs()
    shown = "".join(
        instance.run("job", "info", str(job["id"]), key).stdout
        for key in ("jobspec", "eventlog", "R")
    )
    shown += subprocess.run(
        ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert "milkweed" in shown
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown
    end(client)


def test_strangers_are_refused(
    client: Client, instance: Instance, running: list[tuple[str, str]]
) -> None:
    """Neither the engine's port nor that of orders talks to somebody without a certificate."""
    for address, control in running:
        machine, _, port = address.removeprefix("tls://").rpartition(":")
        socket.create_connection((machine, int(port)), 5).close()  # somebody listens there
        assert ask_as_stranger(machine, int(port)) == b""
        door = parse_door(control)
        socket.create_connection((door.machine, door.port), 5).close()
        assert ask_as_stranger(door.machine, door.port) == b""
    assert "2/2 hosts ready" in client.run("print(job_load().status().describe())")
    end(client)


def test_another_jobs_certificate_is_refused(
    client: Client, instance: Instance, folder: Path, running: list[tuple[str, str]]
) -> None:
    """A client of another job of the same user does not get in either."""
    other = make_authority("another")
    save_credentials(folder / "other", other.issue(["127.0.0.1"]), other.cert_pem)
    door = parse_door(running[0][1])
    wrong = Door(door.path, door.machine, door.port, door.host, str(folder / "other"))
    with pytest.raises(UnreachableError, match="does not answer"):
        Connection(str(wrong), timeout_s=3)
    assert "2/2 hosts ready" in client.run("print(job_load().status().describe())")
    end(client)

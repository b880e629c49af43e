"""Nobody in: what Slurm, other users and strangers on the network can see of a job, and that they stay outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import ask_as_stranger
from milkweed.errors import UnreachableError
from milkweed.job import job_load
from programs import Client
from slurm.hosts import make_hosts
from slurm.lab import Lab


@pytest.fixture
def running(client: Client) -> Iterator[list[tuple[str, str]]]:
    """A running job's hosts: where the engine serves, and where orders are taken."""
    job = make_hosts(meshes={"w": 2}, env={"TOKEN": "s3cret-value"})
    hosts = job._backend().hosts(job._held.record.handle)
    yield [(host.address, host.control) for host in hosts]
    job.kill()


def test_no_secret_is_shown(client: Client, lab: Lab, running: list[tuple[str, str]]) -> None:
    """Neither argv of any process, nor what Slurm keeps and shows, holds a key or a variable's value."""
    [job] = lab.jobs()
    shown = lab.run("scontrol", "show", "job", "-dd", str(job.id)).stdout
    shown += lab.run("scontrol", "write", "batch_script", str(job.id), "-").stdout
    for node in job.nodes:
        shown += lab.on_node(int(node[1:]), "ps", "-eww", "-o", "args").stdout
    assert "milkweed" in shown
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown


@pytest.mark.once
def test_files_are_closed_to_others(
    client: Client, lab: Lab, running: list[tuple[str, str]]
) -> None:
    """Every file and folder of the job is its owner's alone: at home, and on the nodes."""
    paths = [client.home, *client.home.rglob("*")]
    assert len(paths) > 10
    for path in paths:
        assert path.stat().st_mode & 0o077 == 0, path
    [job] = lab.jobs()
    find = "find /tmp -path '/tmp/milkweed-*' -perm /077"
    found = lab.on_node(int(job.nodes[0][1:]), "sh", "-c", find)
    others = [line for line in found.stdout.split() if not Path(line).name.startswith("monarch")]
    assert others == []


@pytest.mark.once
def test_strangers_are_refused(client: Client, lab: Lab, running: list[tuple[str, str]]) -> None:
    """Neither the engine's port nor that of orders talks to somebody without a certificate."""
    for address, _control in running:
        machine, _, port = address.removeprefix("tls://").rpartition(":")
        assert ask_as_stranger(machine, int(port)) == b""
        assert ask_as_stranger(machine, int(port) + 1) == b""
    assert job_load().status().describe().count("2/2 hosts ready") == 1


@pytest.mark.once
def test_another_jobs_certificate_is_refused(
    client: Client, lab: Lab, folder: Path, running: list[tuple[str, str]]
) -> None:
    """A client of another job of the same user does not get in either."""
    from milkweed.control import Connection, Door, parse_door
    from milkweed.pki import make_authority, save_credentials

    other = make_authority("another")
    save_credentials(folder / "other", other.issue(["10.77.0.1"]), other.cert_pem)
    door = parse_door(running[0][1])
    wrong = Door(door.path, door.machine, door.port, door.host, str(folder / "other"))
    with pytest.raises(UnreachableError, match="does not answer"):
        Connection(str(wrong), timeout_s=3)

"""What hosts are told and the certificates they show: private files in the job's own folder."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from milkweed import pki
from milkweed.backends import parts as module
from milkweed.backends.base import Request
from milkweed.backends.credentials import ensure_authority, ensure_client
from milkweed.backends.parts import NAMES_PER_CERTIFICATE, save_part_data
from milkweed.backends.slurm.nodes import NodeRow
from milkweed.backends.slurm.shape import Part, Shape, make_parts
from milkweed.backends.slurm.start import (
    load_parts,
    make_start,
    save_part,
)
from milkweed.bell import Bell
from milkweed.errors import AccessError
from milkweed.spec import JobSpec, Lifetime, MeshSpec
from unit.slurm_fake import APPLY_ID, FakeSlurm, node, part

SPEC = JobSpec(
    name="demo",
    backend="slurm",
    meshes=(
        MeshSpec(name="w", hosts=2, env={"TOKEN": "s3cret"}),
        MeshSpec(name="v", hosts=1),
    ),
    env={"ALL": "1"},
    lifetime=Lifetime(idle_timeout_s=77.0),
)


def names_in(folder: Path) -> set[str]:
    """The names that a certificate is for."""
    found = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def modes(folder: Path) -> dict[str, int]:
    """The modes of everything in a folder."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
    }


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """An allocation's folder, with its authority."""
    folder = tmp_path / "job"
    ensure_authority(folder, APPLY_ID)
    return folder


@pytest.fixture(autouse=True)
def _cluster(slurm: FakeSlurm) -> None:
    """What is written down has the name of the cluster."""


@pytest.fixture(autouse=True)
def _own_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bell that nobody hears: no thread is started for it."""
    made = Bell()
    monkeypatch.setattr(made, "open", lambda: 4711)
    monkeypatch.setattr(module, "bell", made)


def start(folder: Path, rows: list[NodeRow], spec: JobSpec = SPEC, **more: Any) -> dict[str, Any]:
    request = Request(spec=spec, apply_id=APPLY_ID, **more)
    return make_start(request, folder, folder / "logs", rows)


def save(folder: Path, rows: list[NodeRow], *, chosen: Part | None = None) -> dict[str, Any]:
    [only] = make_parts(SPEC)
    authority = ensure_authority(folder, APPLY_ID)
    made = start(folder, rows)
    save_part(made, SPEC, chosen or only, "0.0", authority=authority, rows=rows)
    return load_parts(folder, 0)[0]


def test_hosts_know_whether_a_client_runs_beside_them(job: Path) -> None:
    """Then they end with it, and not when it is not connected for a while."""
    assert start(job, [])["with_client"] is False
    assert start(job, [], client_script=("python", "x"))["with_client"] is True


# The authority


def test_an_authority_is_made_once(job: Path) -> None:
    """Hosts that are added later are signed by the one that signed the others."""
    first = ensure_authority(job, APPLY_ID)
    assert ensure_authority(job, APPLY_ID) == first


def test_keys_are_closed_to_others(job: Path) -> None:
    """The folder and everything in it is the owner's alone."""
    assert stat.S_IMODE((job / "tls").stat().st_mode) == 0o700
    assert modes(job / "tls") == {"authority.pem": 0o600}


def test_an_authority_that_others_could_read_is_not_used(job: Path) -> None:
    """Nor is it replaced: whoever holds the old key could still come in."""
    (job / "tls" / "authority.pem").chmod(0o644)
    with pytest.raises(AccessError):
        ensure_authority(job, APPLY_ID)


# What is the same for all hosts


def test_hosts_are_told_how_long_to_stay(job: Path) -> None:
    """The lease of the declaration; in the queue nobody's patience runs out."""
    made = start(job, [node("n1")])
    assert (made["keep"], made["idle_timeout_s"], made["queued"]) == (True, 77.0, True)
    assert start(job, [], keep=False)["keep"] is False
    assert start(job, [], keep=False, client_script=("x",))["keep"] is True


def test_hosts_are_told_where_they_are(job: Path, folder: Path) -> None:
    """Ports, Python and folders: the declaration's, or the usual ones."""
    made = start(job, [])
    assert (made["port"], made["python"], made["cwd"]) == (22222, "python", str(folder))
    options = {"monarch_port": 30000, "python_exe": "/opt/py"}
    said = JobSpec(name="demo", backend="slurm", meshes=SPEC.meshes, options=options)
    made = start(job, [], said)
    assert (made["port"], made["python"]) == (30000, "/opt/py")


def test_nodes_are_dialled_by_the_address_that_slurm_has(job: Path) -> None:
    """Its address if there is one, else its host name, else its name."""
    rows = [
        node("n1", address="10.0.0.1", hostname="h1"),
        node("n2", address="", hostname="h2"),
        node("n3", address="", hostname=""),
    ]
    assert start(job, rows)["addresses"] == {"n1": "10.0.0.1", "n2": "h2", "n3": "n3"}


def test_hosts_know_whom_to_wake(job: Path) -> None:
    """The client's address as the nodes see it, and the port of its bell."""
    assert start(job, [node("n1", address="127.0.0.1")])["bells"] == [["127.0.0.1", 4711]]


@pytest.mark.parametrize("rows", [[], [node("n1", address="no-such-host.invalid")]])
def test_without_a_route_nobody_is_woken(job: Path, rows: list[NodeRow]) -> None:
    """A client that the nodes could not reach looks by itself."""
    assert start(job, rows)["bells"] == []


def test_without_a_port_nobody_is_woken(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a machine that lets nobody listen."""
    monkeypatch.setattr(module.bell, "open", lambda: 0)
    assert start(job, [node("n1", address="127.0.0.1")])["bells"] == []


# One part


def test_a_parts_file_is_private(job: Path) -> None:
    """Variables may be secrets: the file is the owner's alone."""
    save(job, [node("n1")])
    assert modes(job)["part-0.0.json"] == 0o600


def test_hosts_have_their_own_variables(job: Path) -> None:
    """The job's, then the mesh's own, host by host in the order of Slurm's tasks."""
    data = save(job, [node("n1")])
    assert [(host["mesh"], host["rank"]) for host in data["hosts"]] == [
        ("w", 0),
        ("w", 1),
        ("v", 0),
    ]
    assert [data["envs"][host["mesh"]] for host in data["hosts"]] == [
        {"ALL": "1", "TOKEN": "s3cret"},
        {"ALL": "1", "TOKEN": "s3cret"},
        {"ALL": "1"},
    ]


@pytest.mark.parametrize(
    ("name", "first"), [("0.0", True), ("2.0", True), ("0.1", False), ("0.10", False)]
)
def test_one_part_is_the_first(job: Path, name: str, first: bool) -> None:
    """Its first host tidies up after an allocation that nobody keeps."""
    [only] = make_parts(SPEC)
    rows = [node("n1")]
    authority = ensure_authority(job, APPLY_ID)
    save_part(start(job, rows), SPEC, only, name, authority=authority, rows=rows)
    data = json.loads((job / f"part-{name}.json").read_text())
    assert (data["part"], data["first"], data["released"]) == (name, first, [])


def test_every_node_that_may_be_given_has_a_certificate(job: Path) -> None:
    """With all the names it is dialled by, signed by the job."""
    rows = [node("n1", address="10.0.0.1", hostname="h1.cluster"), node("n2")]
    [certificate] = save(job, rows)["certificates"]
    assert certificate["nodes"] == ["n1", "n2"]
    folder = Path(certificate["folder"])
    assert names_in(folder) == {"10.0.0.1", "h1.cluster", "n1", "n2"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "ca.crt").read_bytes() == ensure_authority(job, APPLY_ID).cert_pem


def test_a_large_cluster_has_several_certificates(job: Path) -> None:
    """A certificate is sent at every connection, so none has more than two hundred nodes; each node is in one."""
    rows = [node(f"n{number}") for number in range(2 * NAMES_PER_CERTIFICATE + 1)]
    certificates = save(job, rows)["certificates"]
    assert [len(each["nodes"]) for each in certificates] == [200, 200, 1]
    listed = [name for each in certificates for name in each["nodes"]]
    assert sorted(listed) == sorted(row.name for row in rows)
    for each in certificates:
        assert set(each["nodes"]) == names_in(Path(each["folder"]))


def test_only_nodes_of_the_partition_are_named(job: Path) -> None:
    """A host cannot be elsewhere, and a node of two partitions is named once."""
    rows = [
        node("n1"),
        node("g1", partition="gpu"),
        node("g2", partition="gpu"),
        node("g1", partition="all"),
    ]
    gpu = Part(shape=Shape(partition="gpu"), hosts=(("w", 0),))
    [certificate] = save(job, rows, chosen=gpu)["certificates"]
    assert certificate["nodes"] == ["g1", "g2"]
    [certificate] = save(job, rows)["certificates"]
    assert certificate["nodes"] == ["g1", "g2", "n1"]


def test_where_the_partition_is_not_known_all_nodes_are_named(job: Path) -> None:
    """Several partitions with commas: any node may be given."""
    rows = [node("n1"), node("g1", partition="gpu")]
    either = Part(shape=Shape(partition="debug,gpu"), hosts=(("w", 0),))
    [certificate] = save(job, rows, chosen=either)["certificates"]
    assert certificate["nodes"] == ["g1", "n1"]


# Reading parts


def test_parts_of_a_generation_are_read_by_component(tmp_path: Path) -> None:
    """Other generations and other files are not among them; the tenth component is not the first."""
    for name in ("0.0", "0.10", "1.0", "10.0"):
        save_part_data(tmp_path, part("w/0", number=name))
    (tmp_path / "ended-0.0.0.json").write_text("{}")
    assert {number: data["part"] for number, data in load_parts(tmp_path, 0).items()} == {
        0: "0.0",
        10: "0.10",
    }
    assert list(load_parts(tmp_path, 1)) == [0]
    assert load_parts(tmp_path / "none", 0) == {}


# Certificates of clients


def test_a_client_has_a_certificate_for_where_it_is(job: Path) -> None:
    """One for each address it was ever at: hosts dial back, and check the name."""
    first = ensure_client(job, "127.0.0.1")
    assert names_in(first) == {"127.0.0.1", socket.gethostname().lower()}
    assert ensure_client(job, "10.0.0.9") != first
    assert "fd00::1" in names_in(ensure_client(job, "fd00::1"))


def test_a_clients_certificate_is_made_once(job: Path) -> None:
    """The second time it is found."""
    first = ensure_client(job, "127.0.0.1")
    before = (first / "tls.crt").read_bytes()
    assert ensure_client(job, "127.0.0.1") == first
    assert (first / "tls.crt").read_bytes() == before
    assert set(modes(first).values()) == {0o600}


def test_threads_that_come_at_once_get_one_certificate(job: Path) -> None:
    """All of them get the same whole folder, and nothing is left of what the others made."""
    barrier = threading.Barrier(8)
    found: list[tuple[Path, bytes, list[str]]] = []

    def come() -> None:
        barrier.wait()
        place = ensure_client(job, "127.0.0.1")
        listed = sorted(os.listdir(place))
        found.append((place, (place / "tls.key").read_bytes(), listed))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(place, key) for place, key, _ in found}) == 1
    assert len(found) == 8
    assert {tuple(listed) for _, _, listed in found} == {("ca.crt", "tls.crt", "tls.key")}
    assert sorted(os.listdir(job / "tls")) == ["authority.pem", "client-127.0.0.1"]
    pki.make_client_context(pki.Credentials.of_folder(found[0][0]))


def test_without_the_jobs_folder_there_is_no_certificate(tmp_path: Path) -> None:
    """Whoever lacks the authority's key is nobody's client."""
    with pytest.raises(AccessError):
        ensure_client(tmp_path / "gone", "127.0.0.1")

"""Mutual TLS end to end: the job's own certificates get in, and nobody else's."""

from __future__ import annotations

import pytest

from programs import Client

pytestmark = pytest.mark.e2e


def test_actors_answer_over_mutual_tls(client: Client) -> None:
    """Hosts, procs and calls work with the job's certificates, on a port that nobody chose."""
    out = client.run(
        """
        job = ProcessJob({"hosts": 2}, transport="tls")
        state = job.state(cached_path=None)
        addresses = [host.address for host in job._backend().hosts(job._held.record.handle)]
        print(addresses, len(values(state.hosts.spawn("a", Probe).pid.call().get())), "answer")
        """
    )
    assert "tls://localhost:" in out
    assert "2 answer" in out


def test_a_client_without_the_certificate_is_refused(client: Client) -> None:
    """Neither no certificate nor another job's gets past the handshake, and the error says why."""
    client.run(
        """
        import ssl, socket
        from pathlib import Path
        from milkweed import access, pki
        from milkweed.errors import AccessError
        job = ProcessJob({"hosts": 1}, transport="tls")
        job.state(cached_path=None)
        address = job._backend().hosts(job._held.record.handle)[0].address
        port = int(address.rpartition(":")[2])
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        with bare.wrap_socket(socket.create_connection(("127.0.0.1", port))) as tls:
            tls.settimeout(5)
            try:
                tls.recv(1)
            except ssl.SSLError as error:
                assert "CERTIFICATE_REQUIRED" in str(error), error
            else:
                raise SystemExit("a client without a certificate was let in")
        stranger = pki.make_authority("another job")
        theirs = pki.save_credentials(Path("theirs"), stranger.issue(["localhost"]), stranger.cert_pem)
        try:
            access.check_access(theirs, address)
        except AccessError as error:
            print(error)
        else:
            raise SystemExit("another job's certificate was let in")
        """
    )


def test_one_transport_for_the_life_of_a_program(client: Client) -> None:
    """A program that talks over unix sockets cannot turn to TLS, and is told so at once."""
    out = client.run(
        """
        ProcessJob({"a": 1}).state(cached_path=None)
        try:
            ProcessJob({"b": 1}, transport="tls").state(cached_path=None)
        except Exception as error:
            print(error)
        """
    )
    assert "already talks to hosts over ipc, and these need tls" in out

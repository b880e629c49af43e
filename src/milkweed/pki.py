"""A certificate authority for each job, and certificates for its hosts and its client.

A worker runs whatever it is sent, so both ends of every connection must hold a certificate of the
same job. The job's authority signs them and trusts nothing else: what another job's authority
signed, this job refuses. Secrets live in a folder that only their owner can enter.

Importing this module is cheap; `cryptography` is needed to sign, not to connect.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import AccessError, SpecError
from .private import StrPath, private_folder, read_private, replace_file
from .worker import wire

if TYPE_CHECKING:
    import ssl

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

Clock = Callable[[], float]
"""Seconds since 1970, such as `time.time`."""

BACKDATE_S = 300
"""Certificates begin this long before now, for hosts whose clock is behind."""

_DAY_S = 86_400
_AUTHORITY_FILE = "authority.pem"
_PEM_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)
_DNS_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_DNS_NAME_MAX = 253
_UNUSED = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A certificate for one host or client, and its private key."""

    cert_pem: bytes
    key_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The certificate authority of one job: who holds its key can add hosts and clients."""

    cert_pem: bytes
    key_pem: bytes = field(repr=False)

    def issue(self, names: Sequence[str], *, clock: Clock = time.time) -> Leaf:
        """Sign a certificate for the names its holder is dialled by; it ends with the authority."""
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        return Leaf(
            cert_pem=self._certify(key.public_key(), names, clock), key_pem=_render_key(key)
        )

    def certify(self, request: bytes, names: Sequence[str], *, clock: Clock = time.time) -> bytes:
        """Sign a certificate for a key that somebody else holds, and asked for with a PKCS#10 request."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            asked = x509.load_pem_x509_csr(request)
            key = asked.public_key()
        except ValueError as error:
            raise AccessError("this is not a request for a certificate", seen=str(error)) from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not asked.is_signature_valid:
            raise AccessError("the request for a certificate is not signed by the key it is for")
        return self._certify(key, names, clock)

    def _certify(self, key: ec.EllipticCurvePublicKey, names: Sequence[str], clock: Clock) -> bytes:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID as Use

        ca, ca_key = _parse_authority(self)
        now, end = clock(), ca.not_valid_after_utc
        if now >= end.timestamp():
            raise AccessError(
                "the job's certificate authority has expired",
                seen=f"it was valid until {end:%Y-%m-%d %H:%M} UTC",
                hint="end the job and apply it again, which makes a new authority",
            )
        uses = x509.ExtendedKeyUsage([Use.SERVER_AUTH, Use.CLIENT_AUTH])
        signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        builder = (
            _make_builder(key, now, end.timestamp(), signs=False)
            .subject_name(_make_subject("milkweed host"))
            .issuer_name(ca.subject)
            .add_extension(uses, critical=False)
            .add_extension(x509.SubjectAlternativeName(parse_names(names)), critical=False)
            .add_extension(signer_id, critical=False)
        )
        return _sign(builder, ca_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Where a host or client keeps its certificate, its key and the authorities it trusts."""

    cert: Path
    key: Path
    ca: Path

    @classmethod
    def of_folder(cls, folder: StrPath) -> Credentials:
        """Name the three files of a folder, whether or not they are there."""
        base = Path(folder)
        return cls(cert=base / "tls.crt", key=base / "tls.key", ca=base / "ca.crt")


def make_authority(apply_id: str, *, days: float = 30, clock: Clock = time.time) -> Authority:
    """Make the authority of a new job; after `days` it is worth nothing."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if days <= 0:
        raise SpecError("an authority must be valid for some time", seen=f"days={days!r}")
    key, now = ec.generate_private_key(ec.SECP256R1()), clock()
    name = _make_subject(f"milkweed job {apply_id}")
    builder = _make_builder(key.public_key(), now, now + days * _DAY_S, signs=True)
    cert_pem = _sign(builder.subject_name(name).issuer_name(name), key)
    return Authority(cert_pem=cert_pem, key_pem=_render_key(key))


def parse_names(names: Sequence[str]) -> list[x509.GeneralName]:
    """Tell DNS names from IP addresses, once each, in the order given."""
    if isinstance(names, str):
        raise SpecError("names must be a list of names, not one string", seen=repr(names))
    parsed = list(dict.fromkeys(_parse_name(name) for name in names))
    if not parsed:
        hint = "give the host name or the address by which its holder is dialled"
        raise SpecError("a certificate needs at least one name", hint=hint)
    return parsed


def _parse_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    with suppress(ValueError):
        if "%" not in name:
            return x509.IPAddress(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    dns = name.removesuffix(".").lower()
    labels = dns.split(".")
    fits = len(dns) <= _DNS_NAME_MAX and all(_DNS_LABEL.fullmatch(label) for label in labels)
    if not fits or labels[-1].isdigit():
        raise SpecError(
            "a certificate cannot carry this name",
            seen=repr(name),
            hint="use a host name such as n1.cluster or an IP address, no port and no wildcard",
        )
    return x509.DNSName(dns)


def _make_subject(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    except ValueError as error:
        raise SpecError(f"{common_name!r} fits into no certificate", seen=str(error)) from None


def _make_builder(
    key: ec.EllipticCurvePublicKey, now: float, end: float, *, signs: bool
) -> x509.CertificateBuilder:
    """Begin a certificate; `signs` is what an authority does and a leaf does not."""
    from cryptography import x509

    usage = x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, **dict.fromkeys(_UNUSED, False)
    )
    constraints = x509.BasicConstraints(ca=signs, path_length=0 if signs else None)
    return (
        x509.CertificateBuilder()
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(int(now) - BACKDATE_S, UTC))
        .not_valid_after(datetime.fromtimestamp(int(end), UTC))
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _render_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _parse_authority(authority: Authority) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Parse both halves and make sure that they belong together."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    what = "the job's certificate authority is damaged"
    try:
        cert = x509.load_pem_x509_certificate(authority.cert_pem)
        key = serialization.load_pem_private_key(authority.key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The parser's own words, and its exception, could quote the key.
        raise AccessError(what, seen="its certificate or its key cannot be parsed") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or cert.public_key() != key.public_key():
        raise AccessError(what, seen="its key does not belong to its certificate")
    return cert, key


def engine_environment(credentials: Credentials) -> dict[str, str]:
    """Tell the engine's `tls` transport where the files are: paths, never secrets."""
    return wire.engine_environment(str(credentials.cert.parent))


def make_server_context(credentials: Credentials) -> ssl.SSLContext:
    """Serve TLS 1.3, only to peers with a certificate of the job."""
    import ssl

    context = _make_context(ssl.PROTOCOL_TLS_SERVER, credentials)
    # No tickets: a peer proves who it is at every connection.
    context.num_tickets = 0
    return context


def make_client_context(credentials: Credentials) -> ssl.SSLContext:
    """Dial TLS 1.3, only to servers whose certificate is of the job and carries the dialled name.

    In TLS 1.3 a server that refuses us is heard at the first read, not in the handshake.
    """
    import ssl

    context = _make_context(ssl.PROTOCOL_TLS_CLIENT, credentials)
    context.hostname_checks_common_name = False
    return context


def _make_context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    try:
        # An empty password: with none, a key that asks for one would stop the program at a prompt.
        context.load_cert_chain(credentials.cert, credentials.key, password="")
        context.load_verify_locations(credentials.ca)
    except OSError as error:
        raise AccessError(
            f"the credentials in {credentials.cert.parent} cannot be used",
            seen=str(error),
            hint="apply the job again, or look whether its folder was emptied",
        ) from None
    return context


def save_credentials(folder: StrPath, leaf: Leaf, ca_cert_pem: bytes) -> Credentials:
    """Write a certificate, its key and the trusted authorities: three files, 0600, each atomic."""
    credentials = Credentials.of_folder(folder)
    with private_folder(Path(folder), make=True) as folder_fd:
        replace_file(folder_fd, credentials.ca.name, ca_cert_pem)
        replace_file(folder_fd, credentials.key.name, leaf.key_pem)
        replace_file(folder_fd, credentials.cert.name, leaf.cert_pem)
    return credentials


def ensure_trusted(credentials: Credentials, ca_cert_pem: bytes) -> None:
    """Trust one more authority in connections still to be made; one process per folder does so."""
    with private_folder(credentials.ca.parent, make=False) as folder_fd:
        trusted = read_private(folder_fd, credentials.ca)
        if ca_cert_pem not in trusted:
            replace_file(folder_fd, credentials.ca.name, trusted + ca_cert_pem)


def save_authority(folder: StrPath, authority: Authority) -> Path:
    """Write a job's authority, 0600; never over another, whose hosts would be out of reach."""
    path = Path(folder) / _AUTHORITY_FILE
    content = authority.key_pem + authority.cert_pem
    with private_folder(path.parent, make=True) as folder_fd:
        with suppress(FileNotFoundError):
            if read_private(folder_fd, path) == content:
                return path
            raise AccessError(f"{path} is another job's authority", hint="use a folder per job")
        replace_file(folder_fd, path.name, content)
    return path


def load_authority(folder: StrPath) -> Authority:
    """Read a job's authority back, unless somebody else could have read or changed it."""
    path = Path(folder) / _AUTHORITY_FILE
    with private_folder(path.parent, make=False) as folder_fd:
        content = read_private(folder_fd, path)
    blocks = {match[1]: match[0] for match in _PEM_BLOCK.finditer(content)}
    cert_pem, key_pem = (blocks.get(kind, b"") for kind in (b"CERTIFICATE", b"PRIVATE KEY"))
    authority = Authority(cert_pem=cert_pem, key_pem=key_pem)
    _parse_authority(authority)
    return authority

"""A job's certificates keep everybody else out, and its secrets stay in their folder."""

from __future__ import annotations

import ipaddress
import os
import stat
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings, strategies as st

from milkweed import pki, private
from milkweed.errors import AccessError, MilkweedError, SpecError

NOW = 1_800_000_000.0
DAY_S = 86_400
NAMES = ["localhost", "127.0.0.1"]
JOB = pki.make_authority("11111111-2222-3333-4444-555555555555")
OTHER_JOB = pki.make_authority("66666666-7777-8888-9999-000000000000")


def parse(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def keep(folder: Path, authority: pki.Authority = JOB) -> pki.Credentials:
    return pki.save_credentials(folder, authority.issue(NAMES), authority.cert_pem)


def explains(error: MilkweedError) -> bool:
    return all([error.what, error.seen, error.hint])


# --- certificates


def test_an_authority_can_sign_leaves_and_nothing_else() -> None:
    """An authority is a P-256 CA named after its job, with path length 0 and one key usage."""
    cert = parse(JOB.cert_pem)
    constraints = cert.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = cert.extensions.get_extension_for_class(x509.KeyUsage)
    (name,) = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    key = cert.public_key()
    assert name.value == "milkweed job 11111111-2222-3333-4444-555555555555"
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert not usage.value.crl_sign
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


@pytest.mark.parametrize("days", [30, 0.5])
def test_an_authority_is_valid_from_five_minutes_ago_until_its_days_are_over(days: float) -> None:
    """Validity follows the given clock and starts early, for hosts whose clock is behind."""
    cert = parse(pki.make_authority("a", days=days, clock=lambda: NOW).cert_pem)
    assert cert.not_valid_before_utc == utc(NOW - 300)
    assert cert.not_valid_after_utc == utc(NOW + days * DAY_S)


@pytest.mark.parametrize(("apply_id", "days"), [("a", 0), ("a", -1), ("x" * 80, 30)])
def test_an_authority_that_makes_no_sense_is_refused(apply_id: str, days: float) -> None:
    """No time to live, or an id that does not fit, is a mistake in the declaration."""
    with pytest.raises(SpecError):
        pki.make_authority(apply_id, days=days)


def test_a_leaf_tells_names_from_addresses() -> None:
    """Host names and IP addresses go into their own kinds of alternative name, once each."""
    names = ["N1.cluster.", "n1.cluster", "a_b", "127.0.0.1", "[::1]", "::1"]
    cert = parse(JOB.issue(names).cert_pem)
    found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == ["n1.cluster", "a_b"]
    assert found.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]


def test_a_leaf_serves_and_dials_but_signs_no_certificate() -> None:
    """A leaf is good for both ends of a connection, and is no authority."""
    extensions = parse(JOB.issue(NAMES).cert_pem).extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }


def test_a_leaf_ends_with_its_authority() -> None:
    """A leaf begins five minutes before it was made and never outlives who signed it."""
    authority = pki.make_authority("a", days=2, clock=lambda: NOW)
    cert = parse(authority.issue(["h"], clock=lambda: NOW + DAY_S).cert_pem)
    assert cert.not_valid_before_utc == utc(NOW + DAY_S - 300)
    assert cert.not_valid_after_utc == utc(NOW + 2 * DAY_S)


def test_an_expired_authority_signs_nothing() -> None:
    """The error says until when it was valid and what to do."""
    authority = pki.make_authority("a", days=1, clock=lambda: 0.0)
    with pytest.raises(AccessError, match="expired") as caught:
        authority.issue(["h"], clock=lambda: float(DAY_S))
    assert caught.value.seen == "it was valid until 1970-01-02 00:00 UTC"
    assert explains(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "*.cluster",
        "n1:80",
        "a b",
        "-a",
        "a-",
        "a..b",
        "1.2.3",
        "é",
        "fe80::1%eth0",
        "a" * 64,
    ],
)
def test_a_name_that_nobody_can_dial_is_refused(name: str) -> None:
    """Wildcards, ports and things that are no host name never get into a certificate."""
    with pytest.raises(SpecError, match="cannot carry") as caught:
        JOB.issue([name])
    assert repr(name) == caught.value.seen


@pytest.mark.parametrize("names", [[], "localhost"])
def test_names_must_be_a_list_with_something_in_it(names: list[str]) -> None:
    """One bare string would become a certificate for its letters."""
    with pytest.raises(SpecError):
        JOB.issue(names)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True), min_size=1))
def test_every_host_name_comes_back_from_its_certificate(names: list[str]) -> None:
    """Whatever plain host names are given, exactly those are in the certificate."""
    parsed = pki.parse_names(names)
    assert [name.value for name in parsed] == list(dict.fromkeys(names))


# --- private keys stay private


def test_no_text_shows_a_private_key() -> None:
    """Neither repr nor str of an authority or a leaf has the key in it."""
    leaf = JOB.issue(NAMES)
    for holder in (JOB, leaf):
        assert "PRIVATE" not in f"{holder!r} {holder}"
        assert "key_pem" not in repr(holder)


def test_a_damaged_authority_is_refused_without_showing_its_key() -> None:
    """Errors about a key, and what led to them, do not quote it."""
    key = JOB.key_pem.replace(b"PRIVATE KEY", b"PRIVATE KEX")
    with pytest.raises(AccessError, match="damaged") as caught:
        pki.Authority(cert_pem=JOB.cert_pem, key_pem=key).issue(NAMES)
    text = "".join(traceback.format_exception(caught.value))
    assert key.splitlines()[1].decode() not in text


# --- secrets on disk


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_credentials_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """Whatever the umask: files 0600, folder 0700, and the contents as issued."""
    leaf = JOB.issue(NAMES)
    credentials = pki.save_credentials(tmp_path / "a" / "b", leaf, JOB.cert_pem)
    assert mode_of(tmp_path / "a" / "b") == 0o700
    assert {mode_of(p) for p in (credentials.cert, credentials.key, credentials.ca)} == {0o600}
    assert credentials == pki.Credentials.of_folder(tmp_path / "a" / "b")
    assert credentials.cert.read_bytes() == leaf.cert_pem
    assert credentials.key.read_bytes() == leaf.key_pem
    assert credentials.ca.read_bytes() == JOB.cert_pem


def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A link where a secret goes does not send the secret to another file."""
    folder = private.ensure_private_folder(tmp_path / "c")
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (folder / "tls.key").symlink_to(victim)
    credentials = keep(folder)
    assert victim.read_text() == "untouched"
    assert not credentials.key.is_symlink()


def test_a_failed_write_leaves_the_old_files_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk says no, what was there before is still there, and only that."""
    credentials = keep(tmp_path / "c")
    before = credentials.ca.read_bytes()

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(AccessError, match="cannot be read or written") as caught:
        keep(tmp_path / "c", OTHER_JOB)
    assert "No space left" in caught.value.seen
    assert credentials.ca.read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Somebody may have prepared it, so it is neither used nor changed."""
    tmp_path.chmod(mode)
    with pytest.raises(AccessError, match="other users can write") as caught:
        private.ensure_private_folder(tmp_path)
    assert caught.value.seen == f"mode {mode:04o}"
    assert explains(caught.value)
    assert mode_of(tmp_path) == mode


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what we own is used for secrets."""
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(AccessError, match="belongs to another user") as caught:
        keep(tmp_path)
    assert "4242" in caught.value.seen
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    """A link can be pointed elsewhere later, so secrets are kept in real folders."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(AccessError, match="symbolic link") as caught:
        keep(tmp_path / "link")
    assert caught.value.seen == f"it points to {tmp_path / 'real'}"
    assert list((tmp_path / "real").iterdir()) == []


def test_a_file_in_place_of_the_folder_is_explained(tmp_path: Path) -> None:
    """A path that is no folder gives an error with what was seen."""
    (tmp_path / "f").write_text("")
    with pytest.raises(AccessError) as caught:
        private.ensure_private_folder(tmp_path / "f")
    assert explains(caught.value)


def test_a_folder_that_others_could_only_read_is_closed(tmp_path: Path) -> None:
    """Ours and written by nobody else: it is made 0700, and asking again changes nothing."""
    tmp_path.chmod(0o755)
    assert private.ensure_private_folder(str(tmp_path)) == tmp_path
    assert private.ensure_private_folder(tmp_path) == tmp_path
    assert mode_of(tmp_path) == 0o700


def test_an_authority_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    """Saving twice is the same as saving once, and the file is 0600."""
    path = pki.save_authority(tmp_path / "job", JOB)
    assert pki.save_authority(tmp_path / "job", JOB) == path
    assert mode_of(path) == 0o600
    assert pki.load_authority(tmp_path / "job") == JOB


def test_an_authority_never_replaces_another(tmp_path: Path) -> None:
    """Losing an authority would put its running hosts out of reach."""
    pki.save_authority(tmp_path, JOB)
    with pytest.raises(AccessError, match="another job"):
        pki.save_authority(tmp_path, OTHER_JOB)
    assert pki.load_authority(tmp_path) == JOB


def loosen(path: Path) -> None:
    path.chmod(0o640)


def link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("moved")))


def swap_for_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def mix(path: Path) -> None:
    path.write_bytes(JOB.key_pem + OTHER_JOB.cert_pem)


@pytest.mark.parametrize("harm", [Path.unlink, loosen, link, swap_for_pipe, truncate, mix])
def test_an_authority_that_was_touched_is_not_used(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """Gone, readable by others, a link, a pipe, cut off or mixed up: none is loaded."""
    harm(pki.save_authority(tmp_path, JOB))
    with pytest.raises(AccessError) as caught:
        pki.load_authority(tmp_path)
    assert caught.value.seen


def test_the_engine_is_told_paths_and_no_secrets(tmp_path: Path) -> None:
    """The environment of a worker names the three files."""
    credentials = keep(tmp_path)
    assert pki.engine_environment(credentials) == {
        "HYPERACTOR_TLS_CERT": str(tmp_path / "tls.crt"),
        "HYPERACTOR_TLS_KEY": str(tmp_path / "tls.key"),
        "HYPERACTOR_TLS_CA": str(tmp_path / "ca.crt"),
    }

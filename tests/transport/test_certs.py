"""Certificates: a party is known by its certificate, and others are refused."""

import os
import pickle
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from securevfl.errors import ConfigError, TransportError
from securevfl.transport import certificate_checks, pem_files
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.certificate_names import server_name
from securevfl.transport.certs import init, issue, show
from securevfl.transport.identity import Identity
from tests.builders import raises_code

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init(tmp_path / "certs")
    issue(tmp_path / "certs", "bank", ["localhost", "127.0.0.1"])
    issue(tmp_path / "certs", "shop")
    return tmp_path / "certs"


def identity(folder: Path, party: str) -> Identity:
    return Identity(folder / f"{party}.pem", folder / f"{party}.key", folder / "ca.pem")


def read(folder: Path, party: str) -> tuple[bytes, bytes]:
    return (folder / f"{party}.pem").read_bytes(), (folder / "ca.pem").read_bytes()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_party_is_known_by_its_certificate(folder: Path) -> None:
    peer, ca = read(folder, "bank")
    check_peer(peer, ca, "bank")
    check_peer(ssl.PEM_cert_to_DER_cert(peer.decode()), ca, "bank")


def test_wrong_name(folder: Path) -> None:
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(*read(folder, "shop"), "bank")


def test_unknown_authority(folder: Path, tmp_path: Path) -> None:
    init(tmp_path / "other")
    issue(tmp_path / "other", "bank")
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer((tmp_path / "other" / "bank.pem").read_bytes(), (folder / "ca.pem").read_bytes(), "bank")


def test_time(tmp_path: Path) -> None:
    init(tmp_path, now=NOW)
    issue(tmp_path, "bank", days=30, now=NOW)
    peer, ca = read(tmp_path, "bank")
    check_peer(peer, ca, "bank", NOW)
    check_peer(peer, ca, "bank", NOW + timedelta(days=30))
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(peer, ca, "bank", NOW + timedelta(days=30, seconds=1))
    check_peer(peer, ca, "bank", NOW - timedelta(minutes=59))
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(peer, ca, "bank", NOW - timedelta(minutes=61))


def test_a_certificate_is_refused_before_its_authority_is_valid(tmp_path: Path) -> None:
    init(tmp_path, now=NOW + timedelta(days=2))
    issue(tmp_path, "bank", now=NOW)
    peer, ca = read(tmp_path, "bank")
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(peer, ca, "bank", NOW + timedelta(days=1))
    check_peer(peer, ca, "bank", NOW + timedelta(days=2))


def test_a_certificate_ends_with_its_authority(tmp_path: Path) -> None:
    init(tmp_path, days=10, now=NOW)
    issue(tmp_path, "bank", days=30, now=NOW)
    assert show(tmp_path / "bank.pem", NOW).days_left == 10
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        issue(tmp_path, "shop", now=NOW + timedelta(days=10))


def forge(
    names: Sequence[x509.GeneralName],
    issuer: str = "bank",
    signer: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """Return a certificate for "bank" with chosen fields, signed by itself if there is no `signer`."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank")]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer or key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


BANK = x509.UniformResourceIdentifier("securevfl://party/bank")
SHOP = x509.UniformResourceIdentifier("securevfl://party/shop")


def authority_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def test_self_signed(tmp_path: Path) -> None:
    ca = init(tmp_path, now=NOW).read_bytes()
    for peer in (forge([BANK]), ca):
        with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
            check_peer(peer, ca, "bank", NOW)


def test_a_forged_issuer_name_is_not_enough(tmp_path: Path) -> None:
    ca = init(tmp_path, now=NOW).read_bytes()
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(forge([BANK], issuer="securevfl", signer=ec.generate_private_key(ec.SECP256R1())), ca, "bank", NOW)


def test_the_signature_is_what_catches_a_forgery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = init(tmp_path, now=NOW).read_bytes()
    forged = forge([BANK], issuer="securevfl", signer=ec.generate_private_key(ec.SECP256R1()))
    monkeypatch.setattr(certificate_checks, "_signed_by", lambda certificate, authority: certificate is not authority)
    check_peer(forged, ca, "bank", NOW)


def test_one_party_a_certificate(tmp_path: Path) -> None:
    ca = init(tmp_path, now=NOW).read_bytes()
    signer = authority_key(tmp_path)
    check_peer(forge([BANK], issuer="securevfl", signer=signer), ca, "bank", NOW)
    for names in ([BANK, SHOP], [x509.DNSName("bank")]):
        with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
            check_peer(forge(names, issuer="securevfl", signer=signer), ca, "bank", NOW)


def test_what_is_no_certificate(folder: Path) -> None:
    ca = (folder / "ca.pem").read_bytes()
    for junk in (b"", b"junk", (folder / "bank.key").read_bytes(), read(folder, "bank")[0][:200]):
        with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
            check_peer(junk, ca, "bank")
    with raises_code(ConfigError, "SVFL-FILE-WRONG-KIND"):
        check_peer(read(folder, "bank")[0], b"junk", "bank")


def test_files(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        *("bank.key", "bank.pem", "ca.key", "ca.pem", "shop.key", "shop.pem")
    ]
    assert {mode(path) for path in folder.glob("*.key")} == {0o600}
    assert mode(folder) == 0o700
    assert b"PRIVATE" not in b"".join(path.read_bytes() for path in folder.glob("*.pem"))


def test_nothing_is_overwritten_unasked(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with raises_code(ConfigError, "SVFL-FILE-EXISTS"):
        issue(folder, "bank")
    with raises_code(ConfigError, "SVFL-FILE-EXISTS"):
        init(folder)
    (folder / "shop.pem").rename(folder.parent / "shop.pem")
    with raises_code(ConfigError, "SVFL-FILE-EXISTS"):
        issue(folder, "shop")
    (folder.parent / "shop.pem").rename(folder / "shop.pem")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_file_that_appears_meanwhile_is_not_overwritten(folder: Path) -> None:
    path = folder / "bank.key"
    before = path.read_bytes()
    with raises_code(ConfigError, "SVFL-FILE-EXISTS"):
        pem_files.write_pem(path, b"other", 0o600, replace=False)
    assert path.read_bytes() == before
    assert not list(folder.glob(".new-*"))


def test_a_write_that_fails_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        pem_files.write_pem(folder / "bank.key", b"other", 0o600, replace=True)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_rotation_keeps_the_name_and_the_old_pair(folder: Path) -> None:
    old, ca = read(folder, "bank")
    old_key = (folder / "bank.key").read_bytes()
    issue(folder, "bank", replace=True)
    new, _ = read(folder, "bank")
    assert x509.load_pem_x509_certificate(new).public_key() != x509.load_pem_x509_certificate(old).public_key()
    for certificate in (old, new):
        check_peer(certificate, ca, "bank")
    assert identity(folder, "bank").party == "bank"
    (old_copy,) = folder.glob("bank.old-*.pem")
    assert old_copy.read_bytes() == old
    assert old_copy.with_suffix(".key").read_bytes() == old_key
    assert mode(old_copy.with_suffix(".key")) == 0o600
    issue(folder, "bank", replace=True)
    assert len(list(folder.glob("bank.old-*.pem"))) == len(list(folder.glob("bank.old-*.key"))) == 2


def test_old_certificates_of_one_key_do_not_replace_each_other(tmp_path: Path) -> None:
    """Each name after the first contains the serial number, and a certificate that is replaced again has one copy."""
    path, key, name = tmp_path / "bank.pem", ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    written = []
    for serial in (5, 255, 4096, 5):
        builder = x509.CertificateBuilder(name, name, key.public_key(), serial, NOW, NOW + timedelta(days=9))
        path.unlink(missing_ok=True)
        path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        written.append(path.read_bytes())
        pem_files.keep_old_copy(path)
    copies = {copy.stem.removeprefix("bank.old-")[8:]: copy.read_bytes() for copy in tmp_path.glob("bank.old-*.pem")}
    assert copies.keys() == {"", "-ff", "-1000", "-5"}
    assert [copies[end] for end in ("", "-ff", "-1000")] == written[:3]


def test_rotation_keeps_a_key_without_certificate(folder: Path) -> None:
    lonely = (folder / "bank.key").read_bytes()
    (folder / "bank.pem").unlink()
    issue(folder, "bank", replace=True)
    (old_copy,) = folder.glob("bank.old-*.key")
    assert old_copy.read_bytes() == lonely


def test_a_new_authority_beside_the_old(folder: Path) -> None:
    old_peer, old_ca = read(folder, "bank")
    init(folder, replace=True)
    issue(folder, "bank", replace=True)
    new_peer, new_ca = read(folder, "bank")
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(old_peer, new_ca, "bank")
    for peer in (old_peer, new_peer):
        check_peer(peer, old_ca + new_ca, "bank")


def test_show(tmp_path: Path) -> None:
    init(tmp_path, name="consortium", now=NOW)
    path = issue(tmp_path, "bank", ["vfl.bank.example", "10.0.0.7", "2001:db8::7"], days=90, now=NOW)
    summary = show(path, NOW + timedelta(days=80, hours=1))
    assert summary.name == "bank"
    assert summary.hosts == ("vfl.bank.example", "10.0.0.7", "2001:db8::7")
    assert summary.issuer == "consortium"
    assert summary.valid_until == NOW + timedelta(days=90)
    assert summary.days_left == 9
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    assert summary.fingerprint.replace(":", "") == certificate.fingerprint(hashes.SHA256()).hex()
    assert len(summary.lines()) == 10
    assert "expires in 9 days" in summary.lines()[-1]
    assert "valid until  2030-07-30 12:00 UTC" in summary.lines()
    assert show(path, NOW + timedelta(days=91)).days_left == -1
    assert show(tmp_path / "ca.pem", NOW).name == "consortium"


@pytest.mark.parametrize("party", ["", "-", "a/b", "../bank", "a b", "a.b", "CA", "x" * 65, "a\n"])
def test_names_that_cannot_be_used(folder: Path, party: str) -> None:
    with pytest.raises(ConfigError):
        issue(folder, party)


@pytest.mark.parametrize(
    "host",
    [
        *("", "bank.example:443", "https://bank", "*.bank.example", "b\u00e4nk.example", "-a", "a..b"),
        *(server_name("bank"), "any.PARTY.securevfl.internal"),
    ],
)
def test_hosts_that_cannot_be_used(folder: Path, host: str) -> None:
    with raises_code(ConfigError, "SVFL-ADDRESS"):
        issue(folder, "clinic", [host])
    assert not list(folder.glob("clinic*"))


def test_any_letters_name_a_party(folder: Path) -> None:
    for party in ("Bank", "b\u00e4nk_2"):
        issue(folder, party)
        check_peer(*read(folder, party), party)
        assert identity(folder, party).party == party
    assert server_name("Bank") != server_name("bank")


def test_days_are_positive(folder: Path) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        issue(folder, "clinic", days=0)


def test_no_authority(tmp_path: Path) -> None:
    with raises_code(ConfigError, "SVFL-FILE-UNUSABLE"):
        issue(tmp_path, "bank")


def test_authority_of_another_key(folder: Path) -> None:
    os.replace(folder / "bank.key", folder / "ca.key")
    with raises_code(ConfigError, "SVFL-TLS-KEY"):
        issue(folder, "clinic")


def test_an_identity_is_checked_when_read(folder: Path, tmp_path: Path) -> None:
    bank, key, ca = folder / "bank.pem", folder / "bank.key", folder / "ca.pem"
    with raises_code(ConfigError, "SVFL-TLS-KEY"):
        Identity(bank, folder / "shop.key", ca)
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        Identity(ca, folder / "ca.key", ca)
    with raises_code(ConfigError, "SVFL-TLS-KEY"):
        Identity(bank, tmp_path / "none", ca)
    with raises_code(ConfigError, "SVFL-TLS-KEY"):
        Identity(bank, bank_as_key(folder), ca)
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        Identity(bank, key, ca, datetime.now(UTC) + timedelta(days=400))
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        Identity(bank, key, init(tmp_path / "other"))
    for permission in (0o040, 0o020, 0o010, 0o004, 0o002, 0o001):
        key.chmod(0o600 | permission)
        with raises_code(ConfigError, "SVFL-FILE-READABLE-BY-OTHERS"):
            Identity(bank, key, ca)


def bank_as_key(folder: Path) -> Path:
    copy = folder / "copy.key"
    copy.write_bytes((folder / "bank.pem").read_bytes())
    copy.chmod(0o600)
    return copy


def test_only_ecdsa_keys_are_read(folder: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "bank.key").write_bytes(other)
    with raises_code(ConfigError, "SVFL-TLS-KEY"):
        identity(folder, "bank")


def test_an_identity_shows_no_key(folder: Path) -> None:
    credentials = identity(folder, "bank")
    secret = (folder / "bank.key").read_text().splitlines()[1]
    assert secret not in repr(credentials) + str(credentials)
    with pytest.raises(TypeError):
        pickle.dumps(credentials)


@pytest.mark.parametrize("cut", [60, 120, 200])
def test_errors_show_no_key(folder: Path, cut: int) -> None:
    path = folder / "bank.key"
    text = path.read_text()
    path.write_text(text[:cut])
    for read_it in (lambda: identity(folder, "bank"), lambda: show(path)):
        with pytest.raises(ConfigError) as caught:
            read_it()
        assert text[40:56] not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("days", [-1, 0, 36_501, 10_000_000, 10**30])
def test_a_validity_that_no_certificate_has_is_refused(days: int, folder: Path, tmp_path: Path) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        init(tmp_path / "other", days=days)
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        issue(folder, "telco", days=days)
    assert not list(folder.glob("telco*"))
    assert issue(folder, "telco", days=36_500).exists()


@pytest.mark.parametrize("letter", ["a", "\u00e4", "\u4e2d", "\U00020000"])
def test_names_are_as_long_as_certificates_permit(letter: str, tmp_path: Path) -> None:
    most = 64 // len(letter.encode())
    init(tmp_path, name=letter * most)
    issue(tmp_path, letter * most)
    for too_long in (letter * (most + 1), letter * 64 + "a"):
        with raises_code(ConfigError, "SVFL-PARTIES-NAME"):
            issue(tmp_path, too_long)
        with raises_code(ConfigError, "SVFL-PARTIES-NAME"):
            init(tmp_path / "other", name=too_long)

"""Lists of revoked certificates, created by openssl: who may sign them, and which parties are refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from securevfl.errors import ConfigError, CryptoError, TransportError
from securevfl.transport import pem_files
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.certs import init, issue, show
from securevfl.transport.identity import Identity
from securevfl.transport.tls import Credentials
from tests.builders import raises_code
from tests.transport.by_openssl import needs_openssl, revoke
from tests.transport.processes import together

pytestmark = needs_openssl


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    init(tmp_path / "authority")
    return tmp_path / "authority"


def test_a_list_grows(authority: Path) -> None:
    old, other = issue(authority, "bank").read_bytes(), issue(authority, "shop").read_bytes()
    clean = (authority / "ca.pem").read_bytes()
    ca = revoke(authority, "bank").read_bytes()
    assert show(authority / "ca.pem").name == "securevfl"
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(old, ca, "bank")
    check_peer(old, clean, "bank")
    check_peer(other, ca, "shop")
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        Identity(authority / "bank.pem", authority / "bank.key", authority / "ca.pem")
    new = issue(authority, "bank", replace=True).read_bytes()
    check_peer(new, ca, "bank")
    both = revoke(authority, "shop").read_bytes()
    check_peer(new, both, "bank")
    for certificate, party in ((old, "bank"), (other, "shop")):
        with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
            check_peer(certificate, both, party)


def test_a_list_of_somebody_else_is_no_list(authority: Path, tmp_path: Path) -> None:
    issue(authority, "bank")
    init(tmp_path / "other")  # the same name, another key
    issue(tmp_path / "other", "bank")
    theirs = revoke(tmp_path / "other", "bank").read_bytes()
    mixed = (authority / "ca.pem").read_bytes() + theirs[theirs.index(b"-----BEGIN X509 CRL") :]
    with raises_code(ConfigError, "SVFL-FILE-DAMAGED"):
        check_peer((authority / "bank.pem").read_bytes(), mixed, "bank")
    check_peer((authority / "bank.pem").read_bytes(), (authority / "ca.pem").read_bytes() + theirs, "bank")
    spoilt = theirs.replace(b"-----BEGIN X509 CRL-----\n", b"-----BEGIN X509 CRL-----\nAAAA")
    with raises_code(ConfigError, "SVFL-FILE-DAMAGED"):
        check_peer((tmp_path / "other" / "bank.pem").read_bytes(), spoilt, "bank")


@pytest.mark.parametrize(
    ("revoked", "hub"), [pytest.param("shop", None, marks=pytest.mark.slow), ("bank", None), ("telco", "shop")]
)
def test_who_was_revoked_is_refused_by_name(meet: Any, tmp_path: Path, revoked: str, hub: str | None) -> None:
    """A revoked party is refused whether it is called (bank), calls (shop), or is behind a hub."""
    meeting = meet(2, addressed=["bank"]) if hub is None else meet(3, hub)
    revoke(tmp_path / "authority", revoked)
    careful = "bank" if revoked != "bank" else "shop"
    shutil.copyfile(tmp_path / "authority" / "ca.pem", meeting.kit(careful) / "ca.pem")
    errors = together(meeting)
    assert all(isinstance(error, TransportError) for error in errors.values()), errors
    assert f"the authority revoked the certificate of {revoked} on" in str(errors[careful])
    if revoked == "shop":  # a caller is refused before any message is accepted
        assert str(errors[revoked]).startswith("bank refused the connection of shop: the authority revoked")


def test_a_stolen_key_cannot_show_the_new_certificate(
    meet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = meet(2, addressed=["bank"])
    authority = tmp_path / "authority"
    revoke(authority, "bank")
    new = pem_files.parse_certificate(issue(authority, "bank", replace=True).read_bytes()).public_bytes(
        serialization.Encoding.DER
    )
    shutil.copyfile(authority / "ca.pem", meeting.kit("shop") / "ca.pem")
    honest = Credentials.__init__

    def thief(self: Credentials, folder: Path, party: str) -> None:
        honest(self, folder, party)
        if party == "bank":
            self.certificate = new

    monkeypatch.setattr(Credentials, "__init__", thief)
    errors = together(meeting)
    assert isinstance(errors["shop"], CryptoError)
    assert "does not belong to the certificate that was presented" in str(errors["shop"])
    assert isinstance(errors["bank"], TransportError)


def test_a_key_file_is_read_once(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issue(authority, "bank")
    seen: list[str] = []
    read = Path.read_bytes

    def counted(self: Path) -> bytes:
        seen.append(self.name)
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", counted)
    Credentials(authority, "bank")
    assert sorted(seen) == ["bank.key", "bank.pem", "ca.pem"]

"""Several authorities with several revocation lists in one file, and validity at the exact second."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securevfl.errors import TransportError
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.certs import init, issue
from tests.builders import raises_code

PARTIES = ("bank", "shop", "telco", "insurer", "free")
NOW = datetime.now(UTC).replace(microsecond=0)


def revocation_list(folder: Path, *parties: str) -> bytes:
    """Return the list, in PEM, with which an authority revokes these parties' certificates."""
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
    builder = builder.last_update(NOW - timedelta(days=1)).next_update(NOW + timedelta(days=30))
    for party in parties:
        serial = x509.load_pem_x509_certificate((folder / f"{party}.pem").read_bytes()).serial_number
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW - timedelta(hours=1))
        builder = builder.add_revoked_certificate(revoked.build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two authorities, each with a certificate of every party."""
    folders = [tmp_path_factory.mktemp("authority") / name for name in ("first", "second")]
    for folder in folders:
        init(folder)
        for party in PARTIES:
            issue(folder, party)
    return folders


def test_any_list_of_the_authority_revokes_a_certificate(authorities: list[Path]) -> None:
    """Two authorities with two lists each, in every order; serial numbers count for their own authority alone."""
    certificates = b"".join((folder / "ca.pem").read_bytes() for folder in authorities)
    first, second = authorities
    lists = [
        revocation_list(first, "bank"),
        revocation_list(first, "shop", "telco"),
        revocation_list(second, "insurer"),
        revocation_list(second, "telco"),
    ]
    refused = {(0, "bank"), (0, "shop"), (0, "telco"), (1, "insurer"), (1, "telco")}
    for order in list(itertools.permutations(lists))[::3]:
        ca = certificates + b"".join(order)
        for number, folder in enumerate(authorities):
            for party in PARTIES:
                certificate = (folder / f"{party}.pem").read_bytes()
                if (number, party) in refused:
                    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE", party=party):
                        check_peer(certificate, ca, party)
                else:
                    check_peer(certificate, ca, party)


def test_a_certificate_is_valid_to_its_last_second(authorities: list[Path]) -> None:
    folder = authorities[0]
    path, ca = folder / "free.pem", (folder / "ca.pem").read_bytes()
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    authority = x509.load_pem_x509_certificate(ca)
    first = max(certificate.not_valid_before_utc, authority.not_valid_before_utc)
    last, second = certificate.not_valid_after_utc, timedelta(seconds=1)
    assert last < authority.not_valid_after_utc
    for now, valid in ((first, True), (last, True), (first - second, False), (last + second, False)):
        if valid:
            check_peer(path.read_bytes(), ca, "free", now)
        else:
            with raises_code(TransportError, "SVFL-TLS-CERTIFICATE", party="free"):
                check_peer(path.read_bytes(), ca, "free", now)
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        check_peer(path.read_bytes(), ca, "bank")

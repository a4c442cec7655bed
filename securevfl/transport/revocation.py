"""Certificates that the authority has taken back: a signed list (X.509 CRL) behind its certificate in ca.pem.

`revoke` puts every certificate of a party on it that the authority's folder still has. ca.pem then goes to all parties
again, and whoever has the new file refuses these certificates, as caller and as called, before any frame is taken. The
list has no date after which a party would miss a newer one: a party with an old ca.pem does not know.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securevfl.errors import ConfigError
from securevfl.transport import pem


def read_authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read the certificate and the key of the authority in a folder. Raises ConfigError if it is missing, its files do
    not fit, or it has expired."""
    authority, key = pem.parse(pem.read(folder / "ca.pem")), pem.read_key(folder / "ca.key")
    if key.public_key() != authority.public_key():
        raise ConfigError(f"{folder}: ca.key is not the key of ca.pem; bring the two files that were made together")
    if now >= authority.not_valid_after_utc:
        raise ConfigError(f"the authority in {folder} has expired; make a new one with init(..., replace=True)")
    return authority, key


def revoke(folder: Path, party: str, now: datetime | None = None) -> Path:
    """Revokes all certificates of a party that are in the authority's folder and its own; returns folder/ca.pem.

    ConfigError if there is none that was not revoked before, or no authority.
    """
    now = datetime.now(UTC) if now is None else now.astimezone(UTC)
    authority, key = read_authority(folder, now)
    ca = pem.read(folder / "ca.pem")
    theirs = [each for each in issued(folder, party) if signed_by(each, authority) and each != authority]
    new = {each.serial_number for each in theirs if revoked_on(each, authority, ca) is None}
    if not new:
        raise ConfigError(f"{folder} has no certificate of {party} that is not revoked yet; check the name")
    lists = pem.revocation_lists(ca)
    own = [each for each in lists if _by(each, authority)]
    numbers = [each.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number for each in own]
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(now)
        .next_update(authority.not_valid_after_utc)
        .add_extension(x509.CRLNumber(1 + max(numbers, default=0)), critical=False)
    )
    entries = {entry.serial_number: entry.revocation_date_utc for each in own for entry in each}
    for serial, since in (entries | dict.fromkeys(new, now)).items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
        builder = builder.add_revoked_certificate(entry.build())
    lists = [*(each for each in lists if each not in own), builder.sign(key, hashes.SHA256())]
    blocks = [each.public_bytes(serialization.Encoding.PEM) for each in pem.authorities(ca)]
    blocks += [each.public_bytes(serialization.Encoding.PEM) for each in lists]
    pem.write(folder / "ca.pem", b"".join(blocks), 0o644, replace=True)
    return folder / "ca.pem"


def issued(folder: Path, party: str) -> list[x509.Certificate]:
    """List the certificates that the authority's folder has of a party: its present one and those that were set
    aside."""
    own = [path for path in folder.glob("*.pem") if path.stem == party or path.stem.startswith(f"{party}.old-")]
    return [pem.parse(pem.read(path)) for path in own]


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority has issued the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def revoked_on(certificate: x509.Certificate, issuer: x509.Certificate, ca: bytes) -> datetime | None:
    """Since when a certificate is revoked by its issuer, according to ca.pem; None if it is not.

    ConfigError if a list in `ca` is signed by none of the authorities in it.
    """
    for each in pem.revocation_lists(ca):
        if _by(each, issuer):
            entry = each.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if entry is not None:
                return entry.revocation_date_utc
        elif not any(_by(each, authority) for authority in pem.authorities(ca)):
            raise ConfigError("a list of revoked certificates in ca.pem is of none of its authorities; get it again")
    return None


def _by(revoked: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return (
        isinstance(key, ec.EllipticCurvePublicKey)
        and revoked.issuer == authority.subject
        and revoked.is_signature_valid(key)
    )

"""Check whether a certificate identifies a party and is valid now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from securevfl.errors import ConfigError, TransportError
from securevfl.transport.certificate_names import certificate_fingerprint, party_of
from securevfl.transport.pem_files import parse_authorities, parse_certificate, revocation_lists


def check_peer(peer: bytes, ca: bytes, expected_party: str, now: datetime | None = None) -> None:
    """Whether the certificate `peer` (PEM or DER) is that of `expected_party`, signed by an authority in `ca` (PEM).

    Returns nothing if so; TransportError naming the cause if it is unreadable, self-signed, of an unknown authority,
    not yet valid, expired, revoked, or of another party.
    """
    now = utc_now(now)
    try:
        certificate = parse_certificate(peer)
        own = party_of(certificate)
    except ConfigError:
        raise TransportError(f"{expected_party} showed something that is not a certificate") from None
    authorities = parse_authorities(ca)
    issuer = next((authority for authority in authorities if _signed_by(certificate, authority)), None)
    if _signed_by(certificate, certificate):
        raise TransportError(
            f"the certificate shown for {expected_party} is self-signed; expected one signed by your authority"
        )
    if issuer is None:
        known = ", ".join(certificate_fingerprint(authority)[:23] for authority in authorities)
        raise TransportError(
            f"the certificate shown for {expected_party} is signed by an unknown authority; expected {known}...: "
            "compare ca.pem with the peer's"
        )
    for what, each in (("the certificate of", certificate), ("the authority behind", issuer)):
        if now < each.not_valid_before_utc:
            start = f"{each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise TransportError(f"{what} {expected_party} is not yet valid, only from {start}; check both clocks")
        if now > each.not_valid_after_utc:
            until = f"{each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            raise TransportError(f"{what} {expected_party} has expired, on {until}; issue a new one")
    if (since := _revoked_on(certificate, issuer, ca)) is not None:
        raise TransportError(
            f"the certificate of {expected_party} was revoked by its authority on {since:%Y-%m-%d %H:%M} UTC; "
            "issue a new one"
        )
    if own != expected_party:
        raise TransportError(
            f"wrong name: expected a certificate of {expected_party}, it is of {own or 'no party'}; check the address"
        )


def check_usable(path: Path, certificate: bytes, ca: bytes, party: str, now: datetime | None = None) -> None:
    """Whether peers would take a certificate, read from `path`. ConfigError with the cause if not."""
    try:
        check_peer(certificate, ca, party, now)
    except TransportError as error:
        raise ConfigError(f"{path}: peers would refuse it: {error}") from None


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority has issued the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _revoked_on(certificate: x509.Certificate, issuer: x509.Certificate, ca: bytes) -> datetime | None:
    """Since when a certificate is revoked by its issuer, according to ca.pem; None if it is not.

    ConfigError if a list in `ca` is signed by none of the authorities in it.
    """
    for revoked in revocation_lists(ca):
        if _is_list_of(issuer, revoked):
            entry = revoked.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if entry is not None:
                return entry.revocation_date_utc
        elif not any(_is_list_of(authority, revoked) for authority in parse_authorities(ca)):
            raise ConfigError("a list of revoked certificates in ca.pem is of none of its authorities; get it again")
    return None


def _is_list_of(authority: x509.Certificate, revoked: x509.CertificateRevocationList) -> bool:
    key = authority.public_key()
    return (
        isinstance(key, ec.EllipticCurvePublicKey)
        and revoked.issuer == authority.subject
        and revoked.is_signature_valid(key)
    )


def utc_now(now: datetime | None) -> datetime:
    return datetime.now(UTC) if now is None else now.astimezone(UTC)

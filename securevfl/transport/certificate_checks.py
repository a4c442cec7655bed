"""Check whether a certificate identifies a party and is valid now.

The parties' certificates are signed by an authority (CA) that all parties trust. The file ca.pem contains the
authority's certificate, and may contain revocation lists (CRLs) that it has signed.
"""

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
    """Check that a certificate belongs to a party and that a trusted authority signed it.

    Args:
        peer: the certificate, in PEM or DER.
        ca: certificates of the trusted authorities and their revocation lists, in PEM.
        expected_party: name of the party.
        now: time at which the certificate must be valid; the current time by default.

    Raises:
        TransportError: the certificate is malformed, self-signed, from an unknown authority, not yet valid, expired,
            revoked, or belongs to another party.
    """
    now = utc_now(now)

    def refusal(problem: str, remedy: str | None = None) -> TransportError:
        return TransportError(problem, remedy, code="SVFL-TLS-CERTIFICATE", party=expected_party)

    try:
        certificate = parse_certificate(peer)
        certified_party = party_of(certificate)
    except ConfigError:
        raise refusal(f"{expected_party} presented data that is not a certificate") from None
    authorities = parse_authorities(ca)
    issuer = next((authority for authority in authorities if _signed_by(certificate, authority)), None)
    if _signed_by(certificate, certificate):
        raise refusal(
            f"the certificate that {expected_party} presented is self-signed",
            "use a certificate that the parties' authority signed",
        )
    if issuer is None:
        known = ", ".join(certificate_fingerprint(authority)[:23] for authority in authorities)
        raise refusal(
            f"the certificate that {expected_party} presented is signed by an unknown authority; the trusted "
            f"authorities are {known}...",
            "compare ca.pem with the peer's copy",
        )
    for subject, checked in (("the certificate of", certificate), ("the authority of", issuer)):
        if now < checked.not_valid_before_utc:
            start = f"{checked.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise refusal(f"{subject} {expected_party} is not valid before {start}", "check the clocks of both sides")
        if now > checked.not_valid_after_utc:
            end = f"{checked.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            raise refusal(f"{subject} {expected_party} expired on {end}", "issue a new one")
    if (since := _revoked_on(certificate, issuer, ca)) is not None:
        raise refusal(
            f"the authority revoked the certificate of {expected_party} on {since:%Y-%m-%d %H:%M} UTC",
            "issue a new one",
        )
    if certified_party != expected_party:
        raise refusal(
            f"the certificate belongs to {certified_party or 'no party'}, not to {expected_party}", "check the address"
        )


def check_usable(path: Path, certificate: bytes, ca: bytes, party: str, now: datetime | None = None) -> None:
    """Check that peers would accept a certificate.

    Args:
        path: the file that contains it, for the error message.
        certificate: the certificate.
        ca: certificates of the trusted authorities and their revocation lists, in PEM.
        party: the party to which it must belong.
        now: time at which the certificate must be valid; the current time by default.

    Raises:
        ConfigError: peers would refuse it; the message states the cause.
    """
    try:
        check_peer(certificate, ca, party, now)
    except TransportError as error:
        raise ConfigError(
            f"peers would refuse {path}: {error.problem}", error.remedy, code="SVFL-TLS-CERTIFICATE", path=str(path)
        ) from None


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority issued the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _revoked_on(certificate: x509.Certificate, issuer: x509.Certificate, ca: bytes) -> datetime | None:
    """Return the time at which the issuer revoked a certificate according to ca.pem, or None.

    Args:
        certificate: the certificate to look up.
        issuer: the certificate of the authority that signed it.
        ca: content of ca.pem: the authorities and their revocation lists.

    Returns:
        The time of the revocation, or None.

    Raises:
        ConfigError: none of the authorities in `ca` signed one of its revocation lists.
    """
    for revocations in revocation_lists(ca):
        if _is_list_of(issuer, revocations):
            entry = revocations.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if entry is not None:
                return entry.revocation_date_utc
        elif not any(_is_list_of(authority, revocations) for authority in parse_authorities(ca)):
            raise ConfigError(
                "none of the authorities in ca.pem signed one of its revocation lists",
                "get ca.pem from the authority again",
                code="SVFL-FILE-DAMAGED",
            )
    return None


def _is_list_of(authority: x509.Certificate, revocations: x509.CertificateRevocationList) -> bool:
    key = authority.public_key()
    return (
        isinstance(key, ec.EllipticCurvePublicKey)
        and revocations.issuer == authority.subject
        and revocations.is_signature_valid(key)
    )


def utc_now(now: datetime | None) -> datetime:
    """Return `now` in UTC, or the current time if it is None."""
    return datetime.now(UTC) if now is None else now.astimezone(UTC)

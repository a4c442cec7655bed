"""When certificates end: said from SOON days before, so that nobody is refused unawares; and which are revoked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from securevfl.transport import pem

SOON = 30  # days


def warning(name: str, days_left: int) -> str:
    """Say what to do about a certificate that ends soon or has ended; empty if it does not."""
    if days_left > SOON:
        return ""
    when = "has ended" if days_left < 0 else f"ends in {days_left} days"
    return f"the certificate of {name} {when}, and peers refuse it then; issue another with --replace"


def ends_soon(folder: Path, party: str) -> list[str]:
    """Warnings of a party's own certificate and of the authorities it trusts, in the folder of its kit."""
    found = {party: [pem.parse(pem.read(folder / f"{party}.pem"))]}
    found["the authority"] = pem.authorities(pem.read(folder / "ca.pem"))
    days = {
        name: min((each.not_valid_after_utc - datetime.now(UTC)).days for each in own) for name, own in found.items()
    }
    return [line for name, left in days.items() if (line := warning(name, left))]


def revocations(ca: bytes) -> list[str]:
    """Return a line for each certificate that the lists of a ca.pem revoke."""
    entries = [entry for each in pem.revocation_lists(ca) for entry in each]
    return [f"{entry.serial_number:x} since {entry.revocation_date_utc:%Y-%m-%d %H:%M} UTC" for entry in entries]


def serial(certificate: x509.Certificate) -> str:
    """How a certificate is named in a list of revoked ones."""
    return f"{certificate.serial_number:x}"

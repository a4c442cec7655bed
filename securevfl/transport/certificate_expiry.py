"""Warnings about certificates that expire soon."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from securevfl.transport.pem_files import parse_authorities, parse_certificate, read_pem

WARNING_DAYS = 30  # certificates that expire within this number of days cause a warning


def expiry_warning(name: str, days_left: int) -> str:
    """Return a warning if a certificate has expired or expires within `WARNING_DAYS`, else an empty string."""
    if days_left > WARNING_DAYS:
        return ""
    when = "has expired" if days_left < 0 else f"expires in {days_left} days"
    remedy = "Issue a new one with `securevfl certs issue --replace`"
    return f"the certificate of {name} {when}; peers refuse expired certificates. {remedy}"


def expiry_warnings(folder: Path, party: str) -> list[str]:
    """Return warnings about the certificates of a party and of its authorities.

    Args:
        folder: the folder of <party>.pem and ca.pem.
        party: name of the party.

    Returns:
        One warning for each certificate that expires soon.
    """
    certificates = {party: [parse_certificate(read_pem(folder / f"{party}.pem"))]}
    certificates["the authority"] = parse_authorities(read_pem(folder / "ca.pem"))
    days_left = {
        name: min((certificate.not_valid_after_utc - datetime.now(UTC)).days for certificate in group)
        for name, group in certificates.items()
    }
    return [warning for name, days in days_left.items() if (warning := expiry_warning(name, days))]

"""Warnings about certificates that expire soon."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from securevfl.transport.pem_files import parse_authorities, parse_certificate, read_pem

WARNING_DAYS = 30  # days


def expiry_warning(name: str, days_left: int) -> str:
    """Say what to do about a certificate that ends soon or has ended; empty if it does not."""
    if days_left > WARNING_DAYS:
        return ""
    when = "has ended" if days_left < 0 else f"ends in {days_left} days"
    return f"the certificate of {name} {when}, and peers refuse it then; issue another with --replace"


def expiry_warnings(folder: Path, party: str) -> list[str]:
    """Warnings of a party's own certificate and of the authorities it trusts, in the folder of its kit."""
    found = {party: [parse_certificate(read_pem(folder / f"{party}.pem"))]}
    found["the authority"] = parse_authorities(read_pem(folder / "ca.pem"))
    days = {
        name: min((each.not_valid_after_utc - datetime.now(UTC)).days for each in own) for name, own in found.items()
    }
    return [line for name, left in days.items() if (line := expiry_warning(name, left))]

"""When certificates end: said from SOON days before, so that nobody is refused unawares."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

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

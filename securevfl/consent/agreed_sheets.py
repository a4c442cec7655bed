"""Consent sheets to which a party has agreed: a file next to its disclosure ledger, one line for each."""

from __future__ import annotations

from datetime import UTC, datetime

from securevfl.base.files import write_atomic
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import StorageError


class AgreedSheets:
    """The sheets to which the owner of a ledger has agreed, by digest.

    Args:
        ledger: the ledger.
    """

    def __init__(self, ledger: DisclosureLedger) -> None:
        self._path = ledger.path.with_name(f"{ledger.path.name}.agreed")

    def has_agreed(self, sheet: ConsentSheet) -> bool:
        """Return whether the owner has agreed to exactly this text."""
        return self.has_digest(sheet.digest)

    def has_digest(self, digest: str) -> bool:
        """Return whether the owner has agreed to a sheet with this digest."""
        return any(line.split()[:1] == [digest] for line in self._lines())

    def accepts(self, sheet: ConsentSheet, accept: str | None) -> bool:
        """Return whether the owner agrees to this text.

        Args:
            sheet: the sheet.
            accept: a digest to which the owner agrees now, or None. If it is the digest of the sheet, this is recorded.

        Returns:
            True if the owner agrees to this sheet now or agreed earlier; False if `accept` is another digest.
        """
        if accept == sheet.digest:
            self.add(sheet)
        return accept in (None, sheet.digest) and self.has_agreed(sheet)

    def add(self, sheet: ConsentSheet) -> None:
        """Record that the owner agrees to this text.

        Args:
            sheet: the consent sheet that the owner has accepted.

        Raises:
            StorageError: if the file cannot be written.
        """
        if not self.has_agreed(sheet):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            write_atomic(self._path, "\n".join([*self._lines(), f"{sheet.digest} {now}", ""]).encode())

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        except OSError as cause:
            raise StorageError(self._path, cause) from None

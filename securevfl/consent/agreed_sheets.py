"""Consent sheets to which a party has agreed, recorded in its disclosure ledger.

A consent sheet is a text that states what a job discloses to whom. A person agrees to it by its digest, 16 hex digits
computed from the text.
"""

from __future__ import annotations

from datetime import UTC, datetime

from securevfl.account.database import AccountDatabase
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.disclosure.ledger import DisclosureLedger

_TABLES = "CREATE TABLE IF NOT EXISTS agreed_sheets (digest TEXT PRIMARY KEY, time TEXT NOT NULL) WITHOUT ROWID;"


class AgreedSheets:
    """The sheets to which the owner of a ledger has agreed, stored by their digests.

    Args:
        ledger: the disclosure ledger of the party that agrees.
    """

    def __init__(self, ledger: DisclosureLedger) -> None:
        self._ledger = ledger

    def has_agreed(self, sheet: ConsentSheet) -> bool:
        """Return whether the owner has agreed to a sheet with exactly the text of this one."""
        return self.has_digest(sheet.digest)

    def has_digest(self, digest: str) -> bool:
        """Return whether the owner has agreed to a sheet with this digest."""
        if not self._ledger.path.exists():
            return False
        with self._database.reading() as tables:
            return tables.execute("SELECT 1 FROM agreed_sheets WHERE digest = ?", (digest,)).fetchone() is not None

    def accepts(self, sheet: ConsentSheet, accept: str | None) -> bool:
        """Return whether the owner agrees to this sheet, now or earlier.

        Args:
            sheet: the consent sheet.
            accept: a digest to which the owner agrees now, or None. If it is the digest of the sheet, this is recorded.

        Returns:
            True if the owner agrees to this sheet now or has agreed to it earlier. False otherwise, for example if
            `accept` is the digest of another sheet.
        """
        if accept == sheet.digest:
            self.add(sheet)
        return accept in (None, sheet.digest) and self.has_agreed(sheet)

    def add(self, sheet: ConsentSheet) -> None:
        """Record that the owner agrees to this sheet.

        Args:
            sheet: the consent sheet that the owner has accepted.

        Raises:
            StorageError: if the ledger cannot be written.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._database.changing() as tables:
            tables.execute("INSERT OR IGNORE INTO agreed_sheets VALUES (?, ?)", (sheet.digest, now))

    @property
    def _database(self) -> AccountDatabase:
        return AccountDatabase.shared(self._ledger.path, _TABLES)

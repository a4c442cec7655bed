"""Which consent sheets a party has agreed to: a file beside its disclosure ledger, a line each."""

from __future__ import annotations

from datetime import UTC, datetime

from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import StorageError
from securevfl.files import write_whole
from securevfl.privacy.consent import Sheet


class Agreed:
    """The sheets that the owner of this ledger has agreed to, by their digests."""

    def __init__(self, ledger: DisclosureLedger) -> None:
        self._path = ledger.path.with_name(f"{ledger.path.name}.agreed")

    def holds(self, sheet: Sheet) -> bool:
        """Whether it was agreed to this very text."""
        return any(line.split()[:1] == [sheet.digest] for line in self._lines())

    def add(self, sheet: Sheet) -> None:
        """It is agreed to this text from now on. StorageError."""
        if not self.holds(sheet):
            at = datetime.now(UTC).isoformat(timespec="seconds")
            write_whole(self._path, "\n".join([*self._lines(), f"{sheet.digest} {at}", ""]).encode())

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        except OSError as cause:
            raise StorageError(self._path, cause) from None

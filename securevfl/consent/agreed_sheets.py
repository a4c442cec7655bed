"""Which consent sheets a party has agreed to: a file beside its disclosure ledger, a line each."""

from __future__ import annotations

from datetime import UTC, datetime

from securevfl.base.files import write_atomic
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import StorageError


class AgreedSheets:
    """The sheets that the owner of this ledger has agreed to, by their digests."""

    def __init__(self, ledger: DisclosureLedger) -> None:
        self._path = ledger.path.with_name(f"{ledger.path.name}.agreed")

    def has_agreed(self, sheet: ConsentSheet) -> bool:
        """Whether it was agreed to this very text."""
        return self.has_digest(sheet.digest)

    def has_digest(self, digest: str) -> bool:
        """Whether it was agreed to a sheet of this digest."""
        return any(line.split()[:1] == [digest] for line in self._lines())

    def accepts(self, sheet: ConsentSheet, accept: str | None) -> bool:
        """Whether its owner agrees to this text: by `accept`, which must be its digest if it came, else by having
        agreed to it before. What `accept` names is recorded."""
        if accept == sheet.digest:
            self.add(sheet)
        return accept in (None, sheet.digest) and self.has_agreed(sheet)

    def add(self, sheet: ConsentSheet) -> None:
        """Record that this text is agreed to from now on. StorageError if that cannot be written."""
        if not self.has_agreed(sheet):
            at = datetime.now(UTC).isoformat(timespec="seconds")
            write_atomic(self._path, "\n".join([*self._lines(), f"{sheet.digest} {at}", ""]).encode())

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        except OSError as cause:
            raise StorageError(self._path, cause) from None

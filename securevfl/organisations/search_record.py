"""A party's record of a search on disk, so that the same command resumes it after an interruption.

The record exists from the party's consent until all parties have the chosen model. It contains the number of
measurements that the consent still covers and the choice, once it is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from securevfl.base.checked_files import DamagedFileError, read_checked_json, write_checked_json
from securevfl.data.party import Party
from securevfl.errors import DataError, StorageError


class SearchRecord:
    """The record of one search at one party.

    Args:
        folder: the folder of the party's checkpoints; None if an interrupted search is not resumed.
        party: the party and its table.
        handshake: the facts on which all parties agree. Another search has another record.

    Attributes:
        is_agreed: whether this party has agreed to the search, in this session or earlier.
        remaining: number of measurements that the consent still covers.
        chosen: the number of the chosen alternative; None before the choice.

    Raises:
        DataError: if the file is damaged.
        StorageError: if it cannot be read.
    """

    def __init__(self, folder: Path | None, party: Party, handshake: Mapping[str, Any]) -> None:
        facts = json.dumps(handshake, sort_keys=True).encode() + party.digest
        self.name = hashlib.sha256(facts).hexdigest()[:32]
        self._path = None if folder is None else folder / f"{party.name}.{self.name[:16]}.search.json"
        self.is_agreed, self.remaining = False, 0
        self.chosen: int | None = None
        if self._path is None or not self._path.exists():
            return
        try:
            content, has_digest = read_checked_json(self._path)
            if not has_digest:
                raise KeyError
            self.remaining, self.chosen = int(content["remaining"]), content["chosen"]
        except OSError as cause:
            raise StorageError(self._path, cause) from None
        except (DamagedFileError, KeyError, TypeError, ValueError):
            raise DataError(
                f"{self._path}: the record of the search is damaged",
                "remove it; the search then starts again, asks for consent and counts all measurements again",
                code="SVFL-CHECKPOINT",
                path=str(self._path),
            ) from None
        self.is_agreed = True

    def begin(self, measurements: int) -> None:
        """Record that this party has agreed to this number of measurements."""
        self.is_agreed = True
        self.store_remaining(measurements)

    def store_remaining(self, remaining: int) -> None:
        """Store the number of measurements that the consent still covers."""
        self.remaining = remaining
        self._write()

    def store_choice(self, index: int) -> None:
        """Store the number of the chosen alternative."""
        self.chosen = index
        self._write()

    def delete(self) -> None:
        """Remove the file, because all parties have the chosen model."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_checked_json(self._path, {"remaining": self.remaining, "chosen": self.chosen})

"""A party's record of a search, so that the same command resumes it after an interruption.

A *search* trains and measures a model for each *alternative* (combination of values of options), and chooses one
(`securevfl.organisations.tune`). The record exists from the party's consent until all parties have the chosen model. It
contains the number of measurements that each training may still make under this consent, the public sizes that the
party has agreed to, the alternatives whose trainings diverged, and the choice, once it is known. It is stored in the
party's account (`securevfl.account`: the SQLite file of its disclosures), where an older copy is noticed: a folder
that is restored from a backup cannot bring back measurements that were used. The folder of checkpoints has a file with
the random name of the record. Without this file the search starts again: the party asks for consent and counts all
measurements again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from securevfl.account.database import AccountDatabase, Tables
from securevfl.base.checked_files import DamagedFileError, read_checked_json, write_checked_json
from securevfl.data.party import Party
from securevfl.errors import DataError, StorageError
from securevfl.protocols.score_ledger.tables import SCORE_TABLES_SQL
from securevfl.training.public_sizes import PublicSizes

_TABLES = f"""CREATE TABLE IF NOT EXISTS search_records (name TEXT PRIMARY KEY, chosen INTEGER, sizes TEXT NOT NULL,
    diverged TEXT NOT NULL)
WITHOUT ROWID;
{SCORE_TABLES_SQL}"""
_NAME_BYTES = 16


class SearchRecord:
    """The record of one search at one party.

    Args:
        folder: the folder of the party's checkpoints; None if an interrupted search is not resumed.
        account: the file of the party's account.
        party: the party and its table.
        handshake: the facts on which all parties agree. The name of the file in `folder` contains a digest of them and
            of the table, so that each search has its own file.

    Attributes:
        name: the random name of the record, in hex digits.
        is_agreed: whether this party has agreed to the search, in this session or earlier.
        remaining: number of measurements that each training may still make under the consent, by its name.
        sizes: the public sizes of each alternative's training that this party has agreed to.
        diverged: names of the alternatives whose trainings diverged.
        chosen: index of the chosen alternative; None before the choice.

    Raises:
        DataError: if the file is damaged.
        StorageError: if it cannot be read.
    """

    def __init__(self, folder: Path | None, account: Path, party: Party, handshake: Mapping[str, Any]) -> None:
        facts = json.dumps(handshake, sort_keys=True).encode() + party.digest
        search = hashlib.sha256(facts).hexdigest()[:16]
        self._path = None if folder is None else folder / f"{party.name}.{search}.search.json"
        self._database = AccountDatabase.shared(account, _TABLES)
        self.name = os.urandom(_NAME_BYTES).hex()
        self.is_agreed, self.remaining = False, dict[str, int]()
        self.sizes: dict[str, PublicSizes] = {}
        self.diverged = set[str]()
        self.chosen: int | None = None
        if self._path is None or not self._path.exists():
            return
        stored = _stored_name(self._path)
        with self._database.reading() as tables:
            row = tables.execute(
                "SELECT chosen, sizes, diverged FROM search_records WHERE name = ?", (stored,)
            ).fetchone()
            reserved = tables.execute("SELECT training, remaining FROM reserved WHERE search = ?", (stored,)).fetchall()
        if row is not None:
            self.name, self.is_agreed = stored, True
            self.remaining, (self.chosen, sizes, diverged) = dict(reserved), row
            self.diverged = set(json.loads(diverged))
            self.sizes = {name: PublicSizes.read(plain) for name, plain in json.loads(sizes).items()}

    def begin(
        self, measurements: Mapping[str, int], sizes: Mapping[str, PublicSizes], tables: Tables | None = None
    ) -> None:
        """Record that this party has agreed to a search, in the transaction that counts the search's measurements.

        If the process ends before this transaction is on disk, the search starts again, and nothing has been counted.

        Args:
            measurements: number of measurements of each training.
            sizes: public sizes of each alternative's training.
            tables: the account's tables inside that transaction; None begins a transaction here.
        """
        if tables is None:
            with self._database.changing() as new_change:
                self.begin(measurements, sizes, new_change)
            return
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_checked_json(self._path, {"name": self.name})
        stored_sizes = json.dumps({name: size.plain() for name, size in sizes.items()})
        tables.execute("INSERT INTO search_records VALUES (?, NULL, ?, '[]')", (self.name, stored_sizes))
        reserved = [(self.name, training, count) for training, count in measurements.items()]
        tables.executemany("INSERT INTO reserved VALUES (?, ?, ?)", reserved)
        self.is_agreed, self.remaining = True, dict(measurements)
        self.sizes = dict(sizes)

    def use_measurement(self, training: str) -> bool:
        """Use up one measurement of a training, in the account.

        Args:
            training: the name of the training.

        Returns:
            False if the account has none left, as another process may have used it or ended the search.
        """
        select = "SELECT remaining FROM reserved WHERE search = ? AND training = ?"
        update = "UPDATE reserved SET remaining = ? WHERE search = ? AND training = ?"
        with self._database.changing() as tables:
            row = tables.execute(select, (self.name, training)).fetchone()
            if row is None or row[0] <= 0:
                return False
            tables.execute(update, (row[0] - 1, self.name, training))
        self.remaining[training] = row[0] - 1
        return True

    def store_divergence(self, name: str) -> None:
        """Store that the training of an alternative diverged."""
        self.diverged.add(name)
        with self._database.changing() as tables:
            update = "UPDATE search_records SET diverged = ? WHERE name = ?"
            tables.execute(update, (json.dumps(sorted(self.diverged)), self.name))

    def store_choice(self, index: int) -> None:
        """Store the index of the chosen alternative."""
        with self._database.changing() as tables:
            tables.execute("UPDATE search_records SET chosen = ? WHERE name = ?", (index, self.name))
        self.chosen = index

    def delete(self) -> None:
        """Remove the record and its file, because all parties have the chosen model."""
        with self._database.changing() as tables:
            tables.execute("DELETE FROM search_records WHERE name = ?", (self.name,))
            tables.execute("DELETE FROM reserved WHERE search = ?", (self.name,))
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _stored_name(path: Path) -> str:
    """Return the name of the record that a file contains."""
    try:
        content, has_digest = read_checked_json(path)
        if not has_digest:
            raise KeyError
        return str(content["name"])
    except OSError as cause:
        raise StorageError(path, cause) from None
    except (DamagedFileError, KeyError, TypeError, ValueError):
        raise DataError(
            f"{path}: the record of the search is damaged",
            "remove it; the search then starts again, asks for consent and counts all measurements again",
            code="SVFL-CHECKPOINT",
            path=str(path),
        ) from None

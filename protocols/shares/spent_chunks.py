"""The names of preprocessing chunks that a party has begun to use, recorded apart from the chunks themselves.

The folder of the chunks can be restored from a backup, at one party or at all of them. The names of used chunks are
therefore recorded in the party's account (`securevfl.account`): a chunk is begun at most once, whichever copy of it a
party has. Every party has an account, so a party whose folder was restored, and its peers, refuse chunks that they have
used. A name is a digest of nonces that all parties know, and not secret.

An account that is restored as well is refused by its commit counter. Nothing on the machine detects that folder,
account and counter are restored together, as by a snapshot of the whole machine.
"""

from __future__ import annotations

from pathlib import Path

from securevfl.account.database import AccountDatabase
from securevfl.errors import ProtocolError

_TABLES = "CREATE TABLE IF NOT EXISTS used_chunks (name BLOB PRIMARY KEY) WITHOUT ROWID;"


class SpentChunks:
    """The names of used chunks in a party's account, or in this object.

    Args:
        path: the account's file, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._names: set[bytes] = set()  # only without a file

    def contains(self, name: bytes) -> bool:
        """Return whether a chunk of this name was begun."""
        if self._path is None:
            return name in self._names
        with AccountDatabase.shared(self._path, _TABLES).reading() as tables:
            return tables.execute("SELECT 1 FROM used_chunks WHERE name = ?", (name,)).fetchone() is not None

    def spend(self, name: bytes) -> None:
        """Record that a chunk is begun; the record is on disk when this method returns.

        Args:
            name: the name of the chunk.

        Raises:
            ProtocolError: the chunk was begun before.
            StorageError: the account cannot be written.
        """
        if self._path is None:
            new = name not in self._names
            self._names.add(name)
        else:
            with AccountDatabase.shared(self._path, _TABLES).changing() as tables:
                new = tables.execute("INSERT OR IGNORE INTO used_chunks VALUES (?)", (name,)).rowcount == 1
        if not new:
            raise ProtocolError(
                "shares: this party has already used this preprocessing chunk (its folder was restored or copied)",
                "generate a new chunk",
                code="SVFL-PROTOCOL-REPEATED",
            )

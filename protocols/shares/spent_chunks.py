"""The names of the preprocessing chunks that a party has begun to use, recorded in its account.

A chunk is a file of random masks for a number of iterations, and using a mask twice would reveal residuals. Somebody
may restore the folder of the chunks from a backup, at one party or at all of them. The names of used chunks are
therefore recorded in the party's account (`securevfl.account`), next to its disclosures. A party refuses a chunk whose
name its account contains, whichever copy of the chunk it has. All parties of a chunk use the same name. It is a digest
of random numbers that all of them know, and not secret.

If the account is restored too, its commit counter detects it. If the folder, the account and the counter are restored
together, for example by a snapshot of the whole machine, nothing detects it.
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
        self._names: set[bytes] = set()  # the names of used chunks if there is no account file

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
                "shares: this party has already used the random numbers of this preprocessing chunk; its folder was "
                "restored or copied",
                "generate a new chunk",
                code="SVFL-PROTOCOL-REPEATED",
            )

"""The journal of a private alignment in a folder: completed work, so that an interrupted alignment can resume.

In an alignment, parties learn which of their rows' ids all of them have. The journal consists of streams: named lists
of chunks, where a chunk is one piece of completed work, such as 65,536 encrypted ids (psi_work.py). Each chunk is a
file. A journal serves one alignment only. It contains the secrets that a party needs to answer requests about its ids.
If an older copy of it answered again, a peer could ask about further ids under the same secrets. The party's account
(`securevfl.account`) therefore lists the chunks of the journal with their digests, and the list decides:

1. A chunk is written to its file, then entered in the account, and only then used. A chunk that is not in the account
   was never used and is overwritten.
2. A chunk that is in the account, but is missing in the folder or has another content there, is an error. The folder is
   an older copy then, or is damaged.
3. When the alignment ends, its list is deleted before its files. A journal without a list, such as a copy of a finished
   one or a journal that was moved to another path, is discarded, and the alignment starts again with new secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from pathlib import Path

from securevfl.account.database import AccountDatabase, Tables
from securevfl.base.checked_files import DamagedFileError, read_checked, write_checked
from securevfl.errors import DataError
from securevfl.protocols.alignment.psi_work import Journal

JOURNAL_TABLES = """
CREATE TABLE IF NOT EXISTS alignments (folder TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS alignment_chunks (folder TEXT, stream TEXT, number INTEGER, digest BLOB NOT NULL,
    PRIMARY KEY (folder, stream, number)) WITHOUT ROWID;
"""
"""The name of each journal, which is new whenever its secrets are, and the SHA-256 digest of each of its chunks."""


class FolderJournal(Journal):
    """Journal in a folder that only its owner may read, with one file for each chunk.

    Args:
        folder: the folder, which is created if it does not exist.
        account: the party's account, which lists the chunks.

    Raises:
        DataError: other users can read the folder.
    """

    def __init__(self, folder: str | Path, account: AccountDatabase) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_mode & 0o077:
            raise DataError(
                f"other users can read {self._folder}, which will contain secrets",
                "run `chmod 700` on it",
                code="SVFL-FILE-READABLE-BY-OTHERS",
                path=str(self._folder),
            )
        self._account = account
        self._path = str(self._folder.resolve())
        account.create_tables(JOURNAL_TABLES)
        if not any(self._folder.glob("*.chunk")):
            self._delete_list()  # the owner has removed the journal's files, so the list of its chunks is of no use
        self.check()

    @property
    def name(self) -> str:
        """A random name, which is new whenever the journal's secrets are."""
        with self._account.reading() as tables:
            record = tables.execute("SELECT name FROM alignments WHERE folder = ?", (self._path,)).fetchone()
        if record is None:
            name = os.urandom(16).hex()
            with self._account.changing() as tables:
                tables.execute("INSERT INTO alignments VALUES (?, ?)", (self._path, name))
            return name
        return str(record[0])

    def _file(self, stream: str, number: int) -> Path:
        return self._folder / f"{stream}.{number}.chunk"

    def count(self, stream: str) -> int:
        """Return how many chunks of this stream are stored."""
        select = "SELECT count(*) FROM alignment_chunks WHERE folder = ? AND stream = ?"
        with self._account.reading() as tables:
            return int(tables.execute(select, (self._path, stream)).fetchone()[0])

    def append(self, stream: str, chunk: bytes) -> None:
        """Write the next chunk of a stream, or raise DataError if another process has written it meanwhile."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        number = self.count(stream)
        write_checked(self._file(stream, number), chunk)
        with self._account.changing() as tables:
            if self._digest(tables, stream, number) is not None:
                raise self._not_usable(stream, number)
            entry = self._path, stream, number, hashlib.sha256(chunk).digest()
            tables.execute("INSERT INTO alignment_chunks VALUES (?, ?, ?, ?)", entry)

    def chunk(self, stream: str, number: int) -> bytes:
        """Read a chunk. Raises DataError if it is missing, or if its digest differs from the one in the account."""
        with self._account.reading() as tables:
            digest = self._digest(tables, stream, number)
        try:
            chunk = read_checked(self._file(stream, number))
        except (OSError, DamagedFileError):
            raise self._not_usable(stream, number) from None
        if digest is None or not hmac.compare_digest(digest, hashlib.sha256(chunk).digest()):
            raise self._not_usable(stream, number)
        return chunk

    def _digest(self, tables: Tables, stream: str, number: int) -> bytes | None:
        """Return the digest of a chunk in the account's list, or None if it is not listed."""
        select = "SELECT digest FROM alignment_chunks WHERE folder = ? AND stream = ? AND number = ?"
        record = tables.execute(select, (self._path, stream, number)).fetchone()
        return None if record is None else bytes(record[0])

    def _not_usable(self, stream: str, number: int) -> DataError:
        path = self._file(stream, number)
        return DataError(
            f"{path}, a file of an interrupted alignment, is missing, damaged or an older copy",
            f"remove {self._folder} at every party and align again",
            code="SVFL-FILE-DAMAGED",
            path=str(path),
        )

    def check(self) -> None:
        """Check every chunk that the account lists.

        Raises:
            DataError: a chunk is missing, or is not the one that the account lists.
        """
        select = "SELECT stream, number FROM alignment_chunks WHERE folder = ?"
        with self._account.reading() as tables:
            listed = tables.execute(select, (self._path,)).fetchall()
        for stream, number in listed:
            self.chunk(stream, number)

    def clear(self) -> None:
        """Remove the journal's list and files, secrets first, and the folder if it is empty then."""
        self._delete_list()
        self._file("secrets", 0).unlink(missing_ok=True)
        # incomplete files of processes that were killed while they wrote a chunk
        drafts = self._folder.glob(".*.chunk.*")
        for path in (*self._folder.glob("*.chunk"), *drafts):
            path.unlink()
        with suppress(OSError):
            self._folder.rmdir()

    def _delete_list(self) -> None:
        with self._account.changing() as tables:
            tables.execute("DELETE FROM alignment_chunks WHERE folder = ?", (self._path,))
            tables.execute("DELETE FROM alignments WHERE folder = ?", (self._path,))


def discard_journals(tables: Tables) -> None:
    """Delete the account's lists of all journals, so that no existing journal can be used again.

    Args:
        tables: the SQL tables of the account, inside a transaction.
    """
    for statement in filter(str.strip, JOURNAL_TABLES.split(";")):
        tables.execute(statement)
    tables.execute("DELETE FROM alignment_chunks")
    tables.execute("DELETE FROM alignments")

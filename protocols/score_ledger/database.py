"""A file of tables that processes share: what a ledger of scores knows, on disk before it counts.

SQLite keeps it: rows lie sorted by their keys in pages of a file, which are read where they are asked for, so that a
ledger of millions of rows opens at once and takes no memory. A change is whole and flushed, or never was; processes
and threads take turns. The file holds a key of its own.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from securevfl.base.checked_files import DamagedFileError
from securevfl.base.files import make_private_folder, sync_folder
from securevfl.errors import ConfigError, SecureVFLError, StorageError
from securevfl.protocols.score_ledger.sealed_file import SealedFile

KEY_BYTES = 32

_SCHEMA = 1

_SQLITE = b"SQLite format 3\0"

_WAIT = 60.0  # seconds for another process's change

_MAPPED = 1 << 30  # bytes of the file that are mapped at most

_META = "CREATE TABLE meta (schema INTEGER NOT NULL, key BLOB NOT NULL);"


class _Group:
    """Changes that go to disk together: how many have come to their end, and why they are not there if they failed."""

    def __init__(self) -> None:
        self.members, self.closed = 0, False
        self.error: SecureVFLError | None = None


class LedgerDatabase:
    """The tables of one file, or without a path those of one process. ConfigError if the file is none of ours.

    Threads that change it at once are flushed together: each waits until what it has changed is on disk.
    """

    def __init__(self, path: Path | None, tables: str) -> None:
        """tables: statements that make them."""
        self.path = path
        self._one = threading.Condition(threading.RLock())
        self._counting, self._coming = threading.Lock(), 0  # threads that are about to change it
        self._group = _Group()
        if path is None:
            self._connection, self.key = _opened(None, tables)
            return
        if not path.exists():
            _make(path, tables)
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) != _SQLITE:
                raise _no_ledger(path)
        try:
            rest = SealedFile(path)
        except DamagedFileError:
            raise _damaged(path) from None
        try:
            self._connection, self.key = _opened(path, tables, look=not rest.left)
        except BaseException:
            rest.drop()
            raise
        weakref.finalize(self, _leave, self._connection, rest)

    @classmethod
    def shared(cls, path: Path | None, tables: str) -> LedgerDatabase:
        """Return the one object of this process for a file, so that its threads take turns without asking the disk."""
        if path is None:
            return cls(None, tables)
        with _opening:
            shared = _shared.get(_identity(path)) if path.exists() else None
            if shared is None:
                shared = cls(path, tables)
                _shared[_identity(path)] = shared
            return shared

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Hand out the tables, which nobody else changes meanwhile. What the block changes is on disk when it ends, and
        nothing of it if the block raises. StorageError if it cannot be written."""
        with self._counting:
            self._coming += 1
        try:
            self._one.acquire()
        finally:
            with self._counting:
                self._coming -= 1
        try:
            self._one.notify_all()
            with self.reading() as tables:
                if not tables.in_transaction:
                    self._group = _Group()
                    tables.execute("BEGIN IMMEDIATE")
                group = self._group
                tables.execute("SAVEPOINT change")
                try:
                    yield tables
                except BaseException:
                    self._take_back(tables, group)
                    raise
                tables.execute("RELEASE change")
                group.members += 1
        finally:
            self._one.release()
        self._flush(group)

    def _take_back(self, tables: sqlite3.Connection, group: _Group) -> None:
        """Undo a change that failed, and no other; all of them where SQLite has done so."""
        if not tables.in_transaction:
            group.closed, group.error = True, self._failed(sqlite3.OperationalError("a change beside it failed"))
        elif group.members:
            tables.execute("ROLLBACK TO change")
            tables.execute("RELEASE change")
        else:
            tables.execute("ROLLBACK")

    def _flush(self, group: _Group) -> None:
        """Wait until a group of changes is on disk, or put it there, if no other thread is about to join it."""
        with self._one:
            while self._coming and not group.closed:
                self._one.wait()
            if not group.closed:
                group.closed = True
                try:
                    self._connection.execute("COMMIT")
                except sqlite3.Error as error:
                    group.error = self._failed(error)
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            self._one.notify_all()
            if group.error is not None:
                raise group.error

    def _failed(self, error: sqlite3.Error) -> SecureVFLError:
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return _damaged(self.path)
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return StorageError(self.path or "memory", OSError(errno.ENOSPC if full else errno.EIO, str(error)))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hand out the tables, to be read. StorageError if they cannot be."""
        with self._one:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._failed(error) from None


_shared: weakref.WeakValueDictionary[tuple[int, ...], LedgerDatabase] = weakref.WeakValueDictionary()

_opening = threading.Lock()


def _identity(path: Path) -> tuple[int, ...]:
    """Return what tells a file from any other that this process may have open."""
    found = path.stat()
    return os.getpid(), found.st_dev, found.st_ino


def _leave(connection: sqlite3.Connection, rest: SealedFile) -> None:
    connection.close()
    rest.close()


def _opened(path: Path | None, tables: str, *, look: bool = False) -> tuple[sqlite3.Connection, bytes]:
    """Open a file and return its key. look: whether all of it is looked through for damage first. ConfigError if it is
    another file, or damaged."""
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        if path is None:
            _fill(connection, tables)
        connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
        connection.execute("PRAGMA journal_mode = WAL")  # a change is one flush
        connection.execute("PRAGMA synchronous = FULL")
        if look and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise _damaged(path)
        schema, key = connection.execute("SELECT schema, key FROM meta").fetchone()
        if schema != _SCHEMA:
            raise _no_ledger(path)
    except (sqlite3.OperationalError, TypeError, ValueError):
        connection.close()
        raise _no_ledger(path) from None
    except sqlite3.DatabaseError:
        connection.close()
        raise _damaged(path) from None
    except BaseException:
        connection.close()
        raise
    return connection, bytes(key)


def _fill(connection: sqlite3.Connection, tables: str) -> None:
    """Make the tables in an empty file, with a key of its own."""
    for statement in filter(str.strip, (_META + tables).split(";")):
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES (?, ?)", (_SCHEMA, os.urandom(KEY_BYTES)))


def _make(path: Path, tables: str) -> None:
    """Make a file with these tables, whole or not at all; what another process has made meanwhile stays."""
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _fill(connection, tables)
            connection.execute("COMMIT")
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise StorageError(path, OSError(errno.EIO, str(error))) from None
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        draft.unlink(missing_ok=True)


def _no_ledger(path: Path | None) -> ConfigError:
    return ConfigError(
        f"{path}: a ledger of scores was expected, something else or one of an earlier version is there; put it "
        "back, or name another file"
    )


def _damaged(path: Path | None) -> ConfigError:
    return ConfigError(
        f"{path}: a ledger of scores as it was left was expected, the file is damaged, or an older copy was put back; "
        "put the newest copy back, and remove the .seal beside it to go on with that: rows that it does not know may "
        "be scored again then"
    )

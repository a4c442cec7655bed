"""The SQLite file of a score ledger, which several threads and processes can use at the same time.

A score ledger is the file in which a party records which scores and metrics about its rows other parties have received.
SQLite reads parts of the file on demand, so a ledger of millions of rows opens at once and takes little memory. Each
change is atomic, and on disk before the method returns. Processes and threads take turns. The file contains a random
key for the digests of ids and rows.
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
from securevfl.base.descriptor_reserve import RESERVE
from securevfl.base.files import make_private_folder, sync_folder
from securevfl.errors import ConfigError, SecureVFLError, StorageError
from securevfl.protocols.score_ledger.sealed_file import SealedFile

LEDGER_KEY_BYTES = 32
_SCHEMA_VERSION = 1
_SQLITE_MAGIC = b"SQLite format 3\0"
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process's change
_MAX_MAPPED_BYTES = 1 << 30
_TRIAL_BYTES = 1 << 16  # bytes that SQLite needs at least for its files next to the ledger
_META_TABLE = "CREATE TABLE meta (schema INTEGER NOT NULL, key BLOB NOT NULL);"


class _CommitGroup:
    """Changes of several threads that are written to disk together, by one commit.

    Attributes:
        members: number of changes in the group.
        closed: whether the group is complete, so that no further change may join it.
        error: the error of the commit, if it failed.
    """

    def __init__(self) -> None:
        self.members = 0
        self.closed = False
        self.error: SecureVFLError | None = None


class LedgerDatabase:
    """The tables of one file, or tables in memory.

    Concurrent changes by several threads are committed together. Each thread waits until its change is on disk.

    Args:
        path: the file, which is created if it does not exist. None creates the tables in memory.
        schema: the SQL statements that create the tables.

    Raises:
        ConfigError: the file is damaged, or is not a score ledger.
        StorageError: the file cannot be created or opened.
    """

    def __init__(self, path: Path | None, schema: str) -> None:
        self.path = path
        self._turn = threading.Condition(threading.RLock())
        self._arrivals_lock = threading.Lock()
        self._arrivals = 0  # number of threads that are about to change the tables
        self._group = _CommitGroup()
        if path is None:
            self._connection, self.key = _open(None, schema)
            return
        with RESERVE.lent():
            seal = self._open_file(path, schema)
        weakref.finalize(self, _close, self._connection, seal)

    def _open_file(self, path: Path, schema: str) -> SealedFile:
        """Open the file, which is created if it does not exist, and return its seal."""
        try:
            if not path.exists():
                _create(path, schema)
            with path.open("rb") as file:
                if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                    raise _not_a_ledger(path)
        except OSError as cause:
            raise StorageError(path, cause) from None
        try:
            seal = SealedFile(path)
        except DamagedFileError:
            raise _damaged(path) from None
        try:
            self._connection, self.key = _open(path, schema, check=not seal.left)
        except BaseException:
            seal.drop()
            raise
        return seal

    @classmethod
    def shared(cls, path: Path | None, schema: str) -> LedgerDatabase:
        """Return the object for a file; all calls in this process for the same file return the same object.

        Args:
            path: the file; None creates new tables in memory.
            schema: the SQL statements that create the tables.

        Returns:
            The object.
        """
        if path is None:
            return cls(None, schema)
        with _open_databases_lock:
            database = _open_databases.get(_identity(path)) if path.exists() else None
            if database is None:
                database = cls(path, schema)
                _open_databases[_identity(path)] = database
            return database

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Yield the tables for one change, while no other thread or process can change them.

        The change is on disk after the `with` block. If the block raises an error, nothing is changed.

        Yields:
            The connection to the tables, inside a transaction.

        Raises:
            StorageError: the change cannot be written.
        """
        with self._arrivals_lock:
            self._arrivals += 1
        try:
            self._turn.acquire()
        finally:
            with self._arrivals_lock:
                self._arrivals -= 1
        try:
            self._turn.notify_all()
            with RESERVE.lent(), self.reading() as tables:
                if not tables.in_transaction:
                    self._group = _CommitGroup()
                    tables.execute("BEGIN IMMEDIATE")
                group = self._group
                tables.execute("SAVEPOINT change")
                try:
                    yield tables
                except BaseException:
                    self._roll_back(tables, group)
                    raise
                tables.execute("RELEASE change")
                group.members += 1
        finally:
            self._turn.release()
        self._flush(group)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the tables for reading, while no other thread of this process changes them.

        Yields:
            The connection to the tables.

        Raises:
            StorageError: the file cannot be read.
        """
        with self._turn:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._error_of(error) from None

    def _roll_back(self, tables: sqlite3.Connection, group: _CommitGroup) -> None:
        """Undo a failed change. The other changes of the group remain, unless SQLite has rolled back all of them."""
        if not tables.in_transaction:
            group.closed, group.error = True, self._error_of(sqlite3.OperationalError("a concurrent change failed"))
        elif group.members:
            tables.execute("ROLLBACK TO change")
            tables.execute("RELEASE change")
        else:
            tables.execute("ROLLBACK")

    def _flush(self, group: _CommitGroup) -> None:
        """Wait until a group of changes is on disk. If no other thread is about to join the group, commit it here."""
        with self._turn:
            while self._arrivals and not group.closed:
                self._turn.wait()
            if not group.closed:
                group.closed = True
                try:
                    self._connection.execute("COMMIT")
                except sqlite3.Error as error:
                    group.error = self._error_of(error)
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            self._turn.notify_all()
            if group.error is not None:
                raise group.error

    def _error_of(self, error: sqlite3.Error) -> SecureVFLError:
        """Translate an error of SQLite into an error of this package."""
        return _error_of(self.path, error)


_open_databases: weakref.WeakValueDictionary[tuple[int, ...], LedgerDatabase] = weakref.WeakValueDictionary()
_open_databases_lock = threading.Lock()


def _identity(path: Path) -> tuple[int, ...]:
    """Return process id, device and inode, which identify a file that this process has opened."""
    status = path.stat()
    return os.getpid(), status.st_dev, status.st_ino


def _close(connection: sqlite3.Connection, seal: SealedFile) -> None:
    """Close the connection, then seal the file."""
    connection.close()
    seal.close()


def _open(path: Path | None, schema: str, *, check: bool = False) -> tuple[sqlite3.Connection, bytes]:
    """Open a file, or create tables in memory.

    Args:
        path: the file, or None for tables in memory.
        schema: the statements that create the tables in memory.
        check: whether to run SQLite's integrity check first.

    Returns:
        The connection, and the file's key for digests.

    Raises:
        ConfigError: the file is not a score ledger, or is damaged.
    """
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )
    try:
        if path is None:
            _create_tables(connection, schema)
        connection.execute(f"PRAGMA mmap_size = {_MAX_MAPPED_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")  # so that a commit needs only one flush to disk
        connection.execute("PRAGMA synchronous = FULL")
        if check and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise _damaged(path)
        version, key = connection.execute("SELECT schema, key FROM meta").fetchone()
        if version != _SCHEMA_VERSION:
            raise _not_a_ledger(path)
    except (TypeError, ValueError):
        connection.close()
        raise _not_a_ledger(path) from None
    except sqlite3.Error as error:
        connection.close()
        if _primary_code(error) == sqlite3.SQLITE_ERROR:  # it has no table or column of this name
            raise _not_a_ledger(path) from None
        raise _error_of(path, error) from None
    except BaseException:
        connection.close()
        raise
    return connection, bytes(key)


def _create_tables(connection: sqlite3.Connection, schema: str) -> None:
    """Create the tables in an empty file, and store a new random key in it."""
    for statement in filter(str.strip, (_META_TABLE + schema).split(";")):
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES (?, ?)", (_SCHEMA_VERSION, os.urandom(LEDGER_KEY_BYTES)))


def _create(path: Path, schema: str) -> None:
    """Create a file with these tables atomically. If another process creates it at the same time, that file stays."""
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _create_tables(connection, schema)
            connection.execute("COMMIT")
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise _error_of(path, error) from None
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        draft.unlink(missing_ok=True)


def _primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's result code without its extension."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)) & 0xFF


def _error_of(path: Path | None, error: sqlite3.Error) -> SecureVFLError:
    """Translate an error of SQLite into an error of this package that states the cause."""
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path)
    if code == sqlite3.SQLITE_FULL:
        return StorageError(path or "memory", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(path or "memory", OSError(errno.EBUSY, "another program has locked it"))
    if path is None:
        return StorageError("memory", OSError(errno.EIO, str(error)))
    return StorageError(path, _cause_on_disk(path) or OSError(errno.EIO, str(error)))


def _cause_on_disk(path: Path) -> OSError | None:
    """Return why files next to the ledger cannot be written, which SQLite does not report; None if they can."""
    trial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.trial")
    try:
        if path.exists():
            os.close(os.open(path, os.O_RDWR))
        with open(os.open(trial, os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        return cause
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
    return None


def _not_a_ledger(path: Path | None) -> ConfigError:
    return ConfigError(
        f"{path} is not a score ledger of this version of securevfl",
        "restore the score ledger, or name another file",
        code="SVFL-LEDGER-FOREIGN",
        path=str(path),
    )


def _damaged(path: Path | None) -> ConfigError:
    return ConfigError(
        f"the score ledger {path} is damaged, or was replaced by an older copy",
        "restore the newest backup. To accept an older copy, delete the .seal file next to it; rows that the copy does "
        "not list could then be scored a second time",
        code="SVFL-LEDGER-DAMAGED",
        path=str(path),
    )

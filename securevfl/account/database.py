"""The SQLite file of an account: several processes share it, and a change is on disk before it counts.

    database = AccountDatabase.shared(Path("bank.ledger"), SCHEMA)
    with database.changing() as tables:
        tables.execute("INSERT INTO ...", (...))

SQLite reads pages on demand, so an account of millions of rows opens quickly. Changes are atomic and flushed to disk;
processes and threads take turns. Concurrent changes of several threads form a *group*, which one commit writes. Each
commit is first written to the *commit counter*, by which an older copy of the file is noticed
(`securevfl.account.commit_counter`). Opening checks the whole file: against the digest of the last process (the
*seal*), or by SQLite's integrity check if that process was killed. The file uses a rollback journal and not a
write-ahead log, so that it is complete whenever no process changes it. It contains a random key, with which ids and
rows are hashed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from securevfl.account.account_errors import (
    damaged,
    error_of_sqlite,
    naming_file,
    not_an_account,
    older_copy,
    without_counter,
)
from securevfl.account.commit_counter import STATE_BYTES, CommitCounter, CommitRecord, Statement, Value
from securevfl.base.descriptor_reserve import RESERVE
from securevfl.base.files import make_private_folder, sync_folder
from securevfl.base.platform_files import read_at
from securevfl.errors import SecureVFLError, StorageError

ACCOUNT_KEY_BYTES = 32
_SCHEMA_VERSION = 2
_SQLITE_MAGIC = b"SQLite format 3\0"
_LOCK_TIMEOUT = 60.0  # maximum number of seconds to wait for a change by another process
_MAX_MAPPED_BYTES = 1 << 26
_HASHED_BYTES = 1 << 16  # number of bytes that are hashed at a time
# fields of SQLite's header that its backup command sets anew in a copy: two counters of changes, the number of changes
# to the schema, and the version of SQLite (https://www.sqlite.org/fileformat2.html#the_database_header)
_HEADER_BYTES = 100
_HEADER_FIELDS_OF_A_COPY = (slice(24, 28), slice(40, 44), slice(92, 100))
_META_TABLE = """CREATE TABLE meta
    (schema INTEGER NOT NULL, key BLOB NOT NULL, account TEXT NOT NULL, state BLOB NOT NULL)"""
_NEW = b""
"""The state of a file to which nothing has been committed."""


class Tables:
    """The SQL tables of an account inside one transaction. Statements that change them are recorded for the counter.

    Args:
        connection: the connection to the file.
        recorded: False for changes that may be lost, and are not repeated, if the process is killed.

    Attributes:
        changes: the recorded statements.
        changed: whether any statement has changed the tables.
    """

    def __init__(self, connection: sqlite3.Connection, *, recorded: bool = True) -> None:
        self._connection = connection
        self._recorded = recorded
        self.changes: list[Statement] = []
        self.changed = False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, so that statements may change the tables."""
        return self._connection.in_transaction

    def execute(self, statement: str, parameters: Sequence[Value] = ()) -> sqlite3.Cursor:
        """Execute a statement; see `sqlite3.Connection.execute`."""
        if not _is_query(statement):
            self.changed = True
            if self._recorded:
                self.changes.append((statement, [tuple(parameters)]))
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Value]]) -> None:
        """Execute a statement for each of several parameters; see `sqlite3.Connection.executemany`."""
        self.changed = True
        if self._recorded:
            recorded = [tuple(values) for values in parameters]
            self.changes.append((statement, recorded))
            parameters = recorded
        self._connection.executemany(statement, parameters)

    def undo(self) -> None:
        """Undo the statements that this change (`with` block) has executed so far."""
        self._connection.execute("ROLLBACK TO change")
        self.changes.clear()
        self.changed = False


def _is_query(statement: str) -> bool:
    return statement.lstrip()[:6].upper() == "SELECT"


class _CommitGroup:
    """Changes of several threads that one commit writes to disk.

    Attributes:
        members: number of changes in the group.
        changes: the SQL statements of these changes.
        changed: whether any of them has changed the tables.
        record: record of the commit counter before the group.
        state: state of the file before the group.
        closed: True once no further change may join.
        error: the reason why the commit failed, if it did.
    """

    def __init__(self) -> None:
        self.members = 0
        self.changes: list[Statement] = []
        self.changed = False
        self.record = CommitRecord(0, _NEW)
        self.state = _NEW
        self.closed = False
        self.error: SecureVFLError | None = None

    def without_changes(self, number: int) -> CommitRecord:
        """Return the counter's record after the group has failed; a change that was pending before stays pending."""
        if self.record.state != self.state:
            return CommitRecord(number, self.state)
        return CommitRecord(number, self.state, self.record.pending, self.record.changes)


class AccountDatabase:
    """The tables of one file, or tables in memory.

    Concurrent changes by several threads are committed together; each thread waits until its change is on disk.

    Args:
        path: the file; it is created if it does not exist. None keeps the tables in memory.
        adopt: True to accept an older copy, or a file without a commit counter. The first change then makes it the
            newest one.

    Raises:
        DataError: the file is damaged, is an older copy, or is not an account.
        StorageError: the file cannot be created, opened or locked.
    """

    def __init__(self, path: Path | None, *, adopt: bool = False) -> None:
        self.path = path
        self._turn = threading.Condition(threading.RLock())
        self._arrivals_lock = threading.Lock()
        self._arrivals = 0  # number of threads that are about to begin a change
        self._group = _CommitGroup()
        self._schemas: set[str] = set()
        self._counter: CommitCounter | None = None
        self._adopt = adopt
        self._closing = _Closing()
        self._descriptor = -1
        if path is None:
            self._connection = _connect(None)
            self.key, _ = _create_meta(self._connection)
            return
        with RESERVE.lent():
            with naming_file(path):
                if not path.exists():
                    _create(path)
                self._descriptor = os.open(path, os.O_RDONLY)
            try:
                if read_at(self._descriptor, len(_SQLITE_MAGIC), 0) != _SQLITE_MAGIC:
                    raise not_an_account(path)
                self._connection, self.key, account = _open(path)
                self._inode = _identity(path)
                self._counter = CommitCounter(account)
                try:
                    self._check_opened()
                except BaseException:
                    self._connection.close()
                    raise
            except BaseException:
                os.close(self._descriptor)
                raise
        weakref.finalize(self, self._closing.close, self._connection, self._descriptor, self._counter)

    @classmethod
    def shared(cls, path: Path | None, schema: str = "", *, adopt: bool = False) -> AccountDatabase:
        """Return the only object of this process for a file; its threads can then take turns without file locks.

        Args:
            path: the file; None for tables in memory that nobody shares.
            schema: statements that create the caller's tables if they do not exist yet.
            adopt: True to accept an older copy. No tables are created then, because the first change has to be the
                caller's.

        Returns:
            The database.
        """
        if path is None:
            database = cls(None)
        else:
            with _open_databases_lock, naming_file(path):
                known = _open_databases.get(_identity(path)) if path.exists() else None
                database = cls(path, adopt=adopt) if known is None or adopt else known
                _open_databases[_identity(path)] = database
        if not adopt:
            database.create_tables(schema)
        return database

    def create_tables(self, schema: str) -> None:
        """Create the tables of one module that stores data in the account if they do not exist.

        Args:
            schema: statements `CREATE TABLE IF NOT EXISTS`, separated by semicolons.
        """
        statements = [statement.strip() for statement in schema.split(";") if statement.strip()]
        names = {statement.split("(")[0].split()[-1] for statement in statements}
        if names <= self._schemas:
            return
        with self.reading() as tables:
            existing = {name for (name,) in tables.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not names <= existing:
            with self.changing() as change:
                for statement in statements:
                    change.execute(statement)
        self._schemas |= names

    def check_writable(self) -> None:
        """Commit a change without content, to test that the file and the commit counter can be written.

        Raises:
            DataError: the file was exchanged.
            StorageError: the file or the counter cannot be written, or another program has locked the file.
        """
        with self.changing() as tables:
            tables.changed = True

    @contextmanager
    def changing(self, *, recorded: bool = True) -> Iterator[Tables]:
        """Yield the tables for one exclusive change.

        The change is on disk when the block ends. If the block raises an error, nothing is changed.

        Args:
            recorded: False for a change of many rows that is safe to lose if the process is killed or the file is
                exchanged before the next change.

        Yields:
            The SQL tables, inside a transaction.

        Raises:
            DataError: the file was exchanged.
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
            with RESERVE.lent(), self._translating_errors():
                connection = self._connection
                if connection.in_transaction and not recorded:
                    self._close(self._group)  # a change that is not recorded does not share its commit with others
                if not connection.in_transaction:
                    self._group = _CommitGroup()
                    self._begin(self._group)
                group = self._group
                connection.execute("SAVEPOINT change")
                tables = Tables(connection, recorded=recorded)
                try:
                    yield tables
                except BaseException:
                    self._roll_back(group)
                    raise
                connection.execute("RELEASE change")
                group.members += 1
                group.changed |= tables.changed
                group.changes += tables.changes
                if not recorded:
                    self._close(group)
        finally:
            self._turn.release()
        self._flush(group)

    @contextmanager
    def reading(self) -> Iterator[Tables]:
        """Yield the tables for reading.

        Yields:
            The tables.

        Raises:
            StorageError: the file cannot be read.
        """
        with self._turn, self._translating_errors():
            yield Tables(self._connection)

    def _begin(self, group: _CommitGroup) -> None:
        """Begin a transaction: check that the file has the counter's state, and carry out a change that was pending."""
        self._connection.execute("BEGIN IMMEDIATE")
        if self._counter is None or self.path is None:
            return
        try:
            if _identity(self.path) != self._inode:
                raise older_copy(self.path)
            (state,) = self._connection.execute("SELECT state FROM meta").fetchone()
            record = self._counter.read()
            if self._adopt:
                record = CommitRecord(0 if record is None else record.number, state)
            elif record is None:
                if state != _NEW:
                    raise without_counter(self.path, self._counter.folder)
                record = group.record
            elif state == record.state and record.pending:
                for statement, parameters in record.changes:
                    self._connection.executemany(statement, parameters)
                group.changes += record.changes
                group.changed = bool(record.changes)
            elif state not in (record.pending, record.state) or (record.pending and state != record.pending):
                raise older_copy(self.path)
            group.record, group.state = record, state
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def _commit(self, group: _CommitGroup) -> None:
        """Commit a group's changes and end its transaction; a group that changed nothing is not committed."""
        connection = self._connection
        if not group.changed:
            connection.execute("ROLLBACK")
            return
        if self._counter is not None:
            pending = os.urandom(STATE_BYTES)
            connection.execute("UPDATE meta SET state = ?", (pending,))
            number = group.record.number + 1
            self._counter.write(CommitRecord(number, group.state, pending, group.changes))
            try:
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                # if writing the counter fails, a later session carries this group's changes out
                with suppress(StorageError):
                    self._counter.write(group.without_changes(number + 1))
                raise
            self._closing.state = pending
            self._adopt = False
        else:
            connection.execute("COMMIT")

    def _roll_back(self, group: _CommitGroup) -> None:
        """Undo the failed change of a group.

        The group's other changes remain, unless SQLite has ended the whole transaction. Then the group fails.
        """
        connection = self._connection
        if not connection.in_transaction:
            group.closed, group.error = True, self._error_of(sqlite3.OperationalError("a concurrent change failed"))
        elif group.members:
            connection.execute("ROLLBACK TO change")
            connection.execute("RELEASE change")
        else:
            connection.execute("ROLLBACK")

    def _flush(self, group: _CommitGroup) -> None:
        """Wait until the group is on disk; commit it here if no other thread is about to join it."""
        with self._turn:
            while self._arrivals and not group.closed:
                self._turn.wait()
            if not group.closed:
                self._close(group)
            self._turn.notify_all()
            if group.error is not None:
                raise group.error

    def _close(self, group: _CommitGroup) -> None:
        """Commit a group, which no further change may join; called by the thread that has its turn."""
        group.closed = True
        try:
            with RESERVE.lent():
                self._commit(group)
        except (sqlite3.Error, SecureVFLError) as error:
            group.error = self._error_of(error) if isinstance(error, sqlite3.Error) else error
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _check_opened(self) -> None:
        """Check the whole file against its seal, and carry out a change that was pending when a process ended."""
        assert self.path is not None
        with self.changing():
            sealed = self._group.record.seal  # empty if an older copy is adopted, because its digest is not known
            if sealed and not _fits_seal(sealed, self._descriptor):
                raise damaged(self.path)
            if not sealed and self._connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                raise damaged(self.path)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error_of(error) from None

    def _error_of(self, error: sqlite3.Error) -> SecureVFLError:
        return error_of_sqlite(error, self.path)


class _Closing:
    """Closes a connection, and seals the file if this process has changed it last.

    Attributes:
        state: the state after this process's last commit; empty if it has committed nothing.
    """

    def __init__(self) -> None:
        self.state = b""

    def close(self, connection: sqlite3.Connection, descriptor: int, counter: CommitCounter) -> None:
        """Close the connection, and store the file's digest if possible; without one the next opening takes longer."""
        with suppress(sqlite3.Error, OSError, StorageError), closing(connection):
            if self.state:
                connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("BEGIN IMMEDIATE")
                record = counter.read()
                if record is not None and record.pending == self.state:
                    counter.write(CommitRecord(record.number + 1, self.state, seal=_digest(descriptor)))
                connection.execute("ROLLBACK")
        os.close(descriptor)


_open_databases: weakref.WeakValueDictionary[tuple[int, ...], AccountDatabase] = weakref.WeakValueDictionary()
_open_databases_lock = threading.Lock()


def _identity(path: Path) -> tuple[int, ...]:
    """Return the process id, device and inode of a file: the key under which `_open_databases` stores its database."""
    try:
        status = path.stat()
    except OSError:
        return (os.getpid(),)
    return os.getpid(), status.st_dev, status.st_ino


def _fits_seal(seal: bytes, descriptor: int) -> bool:
    """Return whether an open file has the digest of a seal, which older versions computed of the whole file."""
    return any(hmac.compare_digest(seal, _digest(descriptor, whole=whole)) for whole in (False, True))


def _digest(descriptor: int, *, whole: bool = False) -> bytes:
    """Return the SHA-256 digest of an open file, without the header fields in which a copy by SQLite differs.

    The descriptor stays open as long as the connection: if a process closes any descriptor of a file, POSIX releases
    all its locks on that file, including those of SQLite.

    Args:
        descriptor: the descriptor of the file.
        whole: whether to include these fields.

    Returns:
        The digest.
    """
    digest, offset = hashlib.sha256(), 0
    if not whole:
        header = bytearray(read_at(descriptor, _HEADER_BYTES, 0))
        for field in _HEADER_FIELDS_OF_A_COPY:
            header[field] = bytes(field.stop - field.start)
        digest.update(header)
        offset = len(header)
    while block := read_at(descriptor, _HASHED_BYTES, offset):
        digest.update(block)
        offset += len(block)
    return digest.digest()


def _connect(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )
    connection.execute(f"PRAGMA mmap_size = {_MAX_MAPPED_BYTES}")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _open(path: Path) -> tuple[sqlite3.Connection, bytes, str]:
    """Open a file.

    Args:
        path: the file.

    Returns:
        The connection, the key of the file, and the identifier of the account.

    Raises:
        DataError: the file is not an account, or is damaged.
        StorageError: the file cannot be read.
    """
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path)
        version, key, account, _ = connection.execute("SELECT schema, key, account, state FROM meta").fetchone()
        if version != _SCHEMA_VERSION:
            raise ValueError
        return connection, bytes(key), str(account)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            raise (not_an_account if "no such table" in str(error) else damaged)(path) from None
        raise error_of_sqlite(error, path) from None
    except (TypeError, ValueError):
        if connection is not None:
            connection.close()
        raise not_an_account(path) from None


def _create_meta(connection: sqlite3.Connection) -> tuple[bytes, str]:
    """Create the table of the account's key and state in an empty file; return the key and the account's identifier."""
    key, account = os.urandom(ACCOUNT_KEY_BYTES), os.urandom(16).hex()
    connection.execute(_META_TABLE)
    connection.execute("INSERT INTO meta VALUES (?, ?, ?, ?)", (_SCHEMA_VERSION, key, account, _NEW))
    return key, account


def _create(path: Path) -> None:
    """Create an account's file atomically. If another process creates it at the same time, use that file."""
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _create_meta(connection)
            connection.execute("COMMIT")
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise error_of_sqlite(error, path) from None
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        draft.unlink(missing_ok=True)

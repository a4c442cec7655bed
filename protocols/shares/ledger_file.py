"""A file of tables that processes share: what a ledger of scores knows, on disk before it counts.

SQLite keeps it: rows lie sorted by their keys in pages of a file, which are read where they are asked for, so that a
ledger of millions of rows opens at once and takes no memory. A change is whole and flushed, or never was; processes
and threads take turns. The file holds a key of its own.

Ledgers of earlier versions were lines of JSON. One that is found is taken over whole, under a lock, and then takes the
old one's place.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from securevfl.base.files import keep_name, make_private
from securevfl.errors import ConfigError, StorageError

__all__ = ["LedgerFile", "Line"]

Line = dict[str, Any]

KEY_BYTES = 32
_SCHEMA = 1
_WAIT = 60.0  # seconds for another process's change
_MAPPED = 1 << 30  # bytes of the file that are mapped at most
_META = "CREATE TABLE meta (schema INTEGER NOT NULL, key BLOB NOT NULL);"


class LedgerFile:
    """The tables of one file, or without a path those of one process. ConfigError if the file is none of ours."""

    def __init__(
        self,
        path: Path | None,
        tables: str,
        take_over: Callable[[sqlite3.Connection, Line], None] = lambda tables, line: None,
    ) -> None:
        """tables: statements that make them. take_over: enters one line of JSON of an earlier version."""
        self.path = path
        self._one = threading.RLock()
        if path is not None and not path.exists():
            make_private(path.parent)
            _put(path, tables, os.urandom(KEY_BYTES), lambda made: None, anew=True)
        try:
            self._connection, self.key = _opened(path, tables)
        except sqlite3.DatabaseError:
            assert path is not None, "memory holds no other file"
            _take_over(path, tables, take_over)
            self._connection, self.key = _opened(path, tables)
        weakref.finalize(self, self._connection.close)

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Hand out the tables, which nobody else changes meanwhile. What the block changes is on disk when it ends, and
        nothing of it if the block raises. StorageError if it cannot be written."""
        with self.reading() as tables:
            tables.execute("BEGIN IMMEDIATE")
            try:
                yield tables
                if tables.in_transaction:  # the block may have taken it all back
                    tables.execute("COMMIT")
            except BaseException:
                if tables.in_transaction:
                    tables.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hand out the tables, to be read. StorageError if they cannot be."""
        with self._one:
            try:
                yield self._connection
            except sqlite3.Error as error:
                full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
                cause = OSError(errno.ENOSPC if full else errno.EIO, str(error))
                raise StorageError(self.path or "memory", cause) from None


def _opened(path: Path | None, tables: str) -> tuple[sqlite3.Connection, bytes]:
    """Open a file and return its key. sqlite3.DatabaseError if it is none of SQLite's, ConfigError if it is another."""
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        if path is None:
            _fill(connection, tables, os.urandom(KEY_BYTES))
        connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
        connection.execute("PRAGMA synchronous = FULL")
        schema, key = connection.execute("SELECT schema, key FROM meta").fetchone()
        if schema != _SCHEMA:
            raise _no_ledger(path)
    except (sqlite3.OperationalError, TypeError, ValueError):
        connection.close()
        raise _no_ledger(path) from None
    except BaseException:
        connection.close()
        raise
    return connection, bytes(key)


def _fill(connection: sqlite3.Connection, tables: str, key: bytes) -> None:
    """Make the tables in an empty file."""
    for statement in filter(str.strip, (_META + tables).split(";")):
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES (?, ?)", (_SCHEMA, key))


def _put(path: Path, tables: str, key: bytes, enter: Callable[[sqlite3.Connection], None], *, anew: bool) -> None:
    """Make a file with these tables and what `enter` puts into them, whole or not at all. anew: what is there stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _fill(connection, tables, key)
            enter(connection)
            connection.execute("COMMIT")
        if anew:
            with suppress(FileExistsError):
                os.link(draft, path)
        else:
            draft.replace(path)
        keep_name(path.parent)
    except sqlite3.Error as error:
        raise StorageError(path, OSError(errno.EIO, str(error))) from None
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        draft.unlink(missing_ok=True)


def _take_over(path: Path, tables: str, enter: Callable[[sqlite3.Connection, Line], None]) -> None:
    """Put a ledger of these tables in the place of one that holds lines of JSON, with all that these say."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # falls with the process
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and lines[0].startswith(b"SQLite format 3\0"):
            return  # another process was quicker
        if len(lines) > 1 and not lines[-1].endswith(b"\n") and _torn(lines[-1]):
            del lines[-1]  # cut off by a kill, it has let nothing out
        key = bytes.fromhex(json.loads(lines[0])["key"])

        def enter_lines(made: sqlite3.Connection) -> None:
            for line in lines[1:]:
                enter(made, json.loads(line))

        _put(path, tables, key, enter_lines, anew=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise _no_ledger(path) from None
    finally:
        os.close(lock)


def _no_ledger(path: Path | None) -> ConfigError:
    return ConfigError(
        f"{path}: a ledger of scores was expected, something else is there; put it back, or name another file"
    )


def _torn(line: bytes) -> bool:
    """Whether it is the beginning of a line alone."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False

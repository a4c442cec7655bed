"""Errors of an account's file (the disclosure ledger), with the cause that SQLite or the file system reports.

The commit counter is a small file in another folder. It names the last change of the account, so that an older copy of
the account is noticed.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from securevfl.errors import DataError, SecureVFLError, StorageError

_TRIAL_BYTES = 1 << 16  # number of bytes that are written to test whether the disk has space for SQLite's files


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turn errors of the file system inside the `with` block into errors that name the file."""
    try:
        yield
    except OSError as cause:
        raise StorageError(path, cause) from None


def error_of_sqlite(error: sqlite3.Error, path: Path | None) -> SecureVFLError:
    """Return the error of this package for an error of SQLite, with its cause.

    Args:
        error: the error that SQLite has raised.
        path: the file; None for tables in memory.

    Returns:
        An error for a damaged file, for a lock that another program holds, or for a disk that cannot be used.
    """
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path)
    if code == sqlite3.SQLITE_FULL:
        return StorageError(path or "memory", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(path or "memory", OSError(errno.EBUSY, "another program has locked it"))
    if path is None:
        return StorageError("memory", OSError(errno.EIO, str(error)))
    return StorageError(path, _cause_on_disk(path) or OSError(errno.EIO, str(error)))


def _cause_on_disk(path: Path) -> OSError | None:
    """Return why no file can be created next to the account, which SQLite does not report; None if one can."""
    trial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.trial")
    try:
        with open(os.open(trial, os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        return cause
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
    # permissions are checked by `os.access`: opening and closing the file would release SQLite's locks on it
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return OSError(errno.EACCES, os.strerror(errno.EACCES))
    return None


def not_an_account(path: Path | None) -> DataError:
    """Return the error for a file of another kind or version."""
    return DataError(
        f"{path}: this file is not a disclosure ledger of this version of securevfl",
        "restore the ledger, or name another file",
        code="SVFL-LEDGER-FOREIGN",
        path=str(path),
    )


def damaged(path: Path | None) -> DataError:
    """Return the error for an account whose content differs from what a process wrote last."""
    return DataError(
        f"{path}: the disclosure ledger is damaged",
        "restore the newest backup of this file",
        code="SVFL-LEDGER-DAMAGED",
        path=str(path),
    )


def older_copy(path: Path) -> DataError:
    """Return the error for an account that does not contain the newest changes."""
    return DataError(
        f"{path}: this disclosure ledger is an older copy or was exchanged; it lacks later disclosures",
        'restore the newest backup. To continue with this copy, run "securevfl ledger --adopt": everything about the '
        "tables that it lists then counts as disclosed",
        code="SVFL-LEDGER-DAMAGED",
        path=str(path),
    )


def without_counter(path: Path, folder: Path) -> DataError:
    """Return the error for a file whose commit counter is missing in this folder."""
    return DataError(
        f"{path}: the commit counter of this disclosure ledger is missing in {folder}",
        'restore that folder, or name it in SECUREVFL_STATE. To continue without it, run "securevfl ledger --adopt": '
        "everything about the tables that the ledger lists then counts as disclosed",
        code="SVFL-LEDGER-DAMAGED",
        path=str(path),
    )

"""Locks on files by path, so that no command changes a file that another command uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from securevfl.base.platform_files import lock_exclusive, lock_shared
from securevfl.errors import ConfigError, StorageError


@contextmanager
def shared_locks(*paths: Path) -> Iterator[None]:
    """Hold shared locks on files while the block runs. Missing files and pipes are skipped."""
    with ExitStack() as files:
        for path in paths:
            with suppress(OSError):
                if path.is_file():  # a pipe must not be opened twice: its data can be read only once
                    lock_shared(files.enter_context(path.open("rb")))
        yield


@contextmanager
def reserved_path(path: Path) -> Iterator[None]:
    """Reserve a path for this command while the block runs; the file itself may be written later.

    The reservation is a lock on the file `.<name>.lock` next to it, which is removed when the block ends.

    Args:
        path: the path; a file need not exist there.

    Yields:
        Nothing.

    Raises:
        ConfigError: another command has reserved the path.
        StorageError: its folder cannot be written.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as cause:
            raise StorageError(path, cause) from None
        try:
            lock_exclusive(lock, wait=False)
            if os.fstat(lock).st_ino == lock_path.stat().st_ino:
                break
        except FileNotFoundError:  # its previous owner removed the lock file after this process opened it
            pass
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"another command that is running writes {path}",
                "wait until that command has finished, or stop it",
                code="SVFL-FILE-IN-USE",
                path=str(path),
            ) from None
        os.close(lock)
    try:
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while the block runs; a missing file or a pipe is not locked.

    Args:
        path: the file.

    Yields:
        Nothing.

    Raises:
        ConfigError: if another command has a lock on the file.
    """
    with ExitStack() as files:
        try:
            if path.is_file():
                lock_exclusive(files.enter_context(path.open("rb")), wait=False)
        except BlockingIOError:
            raise ConfigError(
                f"{path} is in use by another command",
                "stop that command first",
                code="SVFL-FILE-IN-USE",
                path=str(path),
            ) from None
        except FileNotFoundError:
            pass
        yield

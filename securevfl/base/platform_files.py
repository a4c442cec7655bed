"""Locks on open files, and reads and writes at an offset: the only module that depends on the operating system.

All locks are advisory. They belong to the open file, are released when it is closed, and so do not outlive a process
that is killed.
"""

from __future__ import annotations

import os
import threading
from typing import IO

_seeking = threading.Lock()  # held by reads and writes at an offset on systems where these move the file's position


def lock_exclusive(file: int | IO[bytes], *, wait: bool = True) -> None:
    """Lock an open file so that no other open file has a lock on it.

    Args:
        file: a file object or a file descriptor.
        wait: False to fail at once if another open file has a lock.

    Raises:
        BlockingIOError: if the lock is not free and `wait` is False.
        OSError: if the file system has no locks.
    """
    _lock(file, exclusive=True, wait=wait)


def lock_shared(file: int | IO[bytes], *, wait: bool = True) -> None:
    """Lock an open file so that no other open file has an exclusive lock on it.

    Args:
        file: a file object or a file descriptor.
        wait: False to fail at once if another open file has an exclusive lock.

    Raises:
        BlockingIOError: if the lock is not free and `wait` is False.
        OSError: if the file system has no locks.
    """
    _lock(file, exclusive=False, wait=wait)


def _lock(file: int | IO[bytes], *, exclusive: bool, wait: bool) -> None:
    import portalocker  # imported late, because most processes lock nothing

    flags = portalocker.LockFlags.EXCLUSIVE if exclusive else portalocker.LockFlags.SHARED
    try:
        portalocker.lock(file, flags if wait else flags | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked as cause:
        raise BlockingIOError("the file is locked") from cause
    except portalocker.LockException as cause:
        raise cause.__cause__ if isinstance(cause.__cause__, OSError) else OSError(str(cause)) from None


if hasattr(os, "pread"):

    def read_at(file: int, count: int, offset: int) -> bytes:
        """Read up to `count` bytes at an offset; the file's position does not change."""
        return os.pread(file, count, offset)

    def write_at(file: int, data: bytes | memoryview, offset: int) -> int:
        """Write at an offset and return the number of bytes written; the file's position does not change."""
        return os.pwrite(file, data, offset)

    def read_into(file: int, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from an offset and return the number of bytes read; the file's position does not change."""
        return os.preadv(file, [buffer], offset)

else:

    def read_at(file: int, count: int, offset: int) -> bytes:
        """Read up to `count` bytes at an offset."""
        with _seeking:
            os.lseek(file, offset, os.SEEK_SET)
            return os.read(file, count)

    def write_at(file: int, data: bytes | memoryview, offset: int) -> int:
        """Write at an offset and return the number of bytes written."""
        with _seeking:
            os.lseek(file, offset, os.SEEK_SET)
            return os.write(file, data)

    def read_into(file: int, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from an offset and return the number of bytes read."""
        data = read_at(file, len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

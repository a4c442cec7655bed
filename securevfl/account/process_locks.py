"""Named locks that end with their process, even if it is killed.

The ledger uses them for reservations of a run and for rows that a session scores, which must not outlive their process.
Each lock is a file with a random name in one folder, locked by its process; the operating system ends the lock with the
process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from securevfl.base.descriptor_reserve import RESERVE
from securevfl.base.platform_files import lock_exclusive
from securevfl.errors import StorageError


class ProcessLocks:
    """Locks that are files in one folder, or that exist only in this object if there is no folder.

    Args:
        folder: the folder; None if only this object uses the locks.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._names: set[str] = set()  # names of the locks in use, if there is no folder

    @contextmanager
    def hold(self) -> Iterator[str]:
        """Yield the name of a new lock, which ends with the block or with this process."""
        if self._folder is None:
            name = os.urandom(16).hex()
            self._names.add(name)
            try:
                yield name
            finally:
                self._names.discard(name)
            return
        name, descriptor = self.create()
        try:
            yield name
        finally:
            self.remove(name)
            os.close(descriptor)

    def create(self) -> tuple[str, int]:
        """Create a lock that lasts until its descriptor is closed, at the latest when this process ends.

        Returns:
            The name of the lock and its file descriptor.

        Raises:
            StorageError: if the folder cannot be used.
        """
        if self._folder is None:
            raise ValueError("locks without a folder are held by a block")
        name = os.urandom(16).hex()
        try:
            with RESERVE.lent():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as cause:
            raise StorageError(self._folder / name, cause) from None
        lock_exclusive(descriptor)
        return name, descriptor

    def is_held(self, name: str) -> bool:
        """Return whether a process holds this lock; the file of a lock that nobody holds is removed."""
        if self._folder is None:
            return name in self._names
        path = self._folder / name
        try:
            with RESERVE.lent():
                descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        except OSError as cause:
            raise StorageError(path, cause) from None
        try:
            lock_exclusive(descriptor, wait=False)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove the file of a lock that is no longer needed, whether its process still holds it or not."""
        if self._folder is not None:
            (self._folder / name).unlink(missing_ok=True)

    def remove_stale(self, active: Collection[str]) -> None:
        """Remove the files of locks that no process holds, except those whose names are in `active`."""
        if self._folder is not None and self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in active:
                    self.is_held(path.name)

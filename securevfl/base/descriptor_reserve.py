"""A reserve of file descriptors for the ledgers of this process.

A ledger consists of files in which a party records what its runs disclose, before they disclose it.

A process may open a limited number of files and sockets (1,024 by default). If connections or other files take all of
them, a ledger could not record a disclosure, and the run would stop. A process that uses a ledger therefore holds some
descriptors open on the null device, and closes them while a ledger opens its files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RESERVED_DESCRIPTORS = 16
"""Maximum number of descriptors that a ledger needs: for its file, locks, row sets, drafts, folders and SQLite."""


class DescriptorReserve:
    """File descriptors that are open as a reserve, and are closed while a ledger needs descriptors.

    Args:
        size: number of descriptors.
    """

    def __init__(self, size: int = RESERVED_DESCRIPTORS) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._users = 0
        self._process = os.getpid()

    def fill(self) -> None:
        """Open the descriptors of the reserve, as far as this process may open files."""
        with self._lock:
            self._fill()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Close the reserve while the block runs, so that the block can open files, and fill it again afterwards."""
        with self._lock:
            self._users += 1
            self._release()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._fill()

    def _release(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        if self._process == os.getpid():
            for descriptor in descriptors:
                os.close(descriptor)

    def _fill(self) -> None:
        if self._process != os.getpid():  # a forked child must not close its copies of these descriptors
            self._process, self._descriptors = os.getpid(), []
        if self._users:
            return
        with suppress(OSError):
            while len(self._descriptors) < self._size:
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY))


RESERVE = DescriptorReserve()
"""The reserve of this process."""

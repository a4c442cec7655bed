"""Calls that do not get in: gRPC says that a handshake begins, not that it failed or why, so failures are counted."""

from __future__ import annotations

import threading
import time

SEVERAL = 3  # handshakes that failed; whoever calls with another certificate has made as many within a second
SETTLED = 1.0  # seconds after which a handshake that led to nothing has failed


class Callers:
    """Handshakes at a party's port, from the threads of gRPC."""

    def __init__(self) -> None:
        self._begun: list[float] = []
        self._lock = threading.Lock()

    def called(self) -> None:
        """Note that a handshake begins."""
        with self._lock:
            self._begun.append(time.monotonic())

    def came_in(self) -> None:
        """Note that one of the handshakes that began has led to a stream."""
        with self._lock:
            self._begun = self._begun[1:]

    def forget(self) -> None:
        """Forget all handshakes: they were our own."""
        with self._lock:
            self._begun = []

    def turned_away(self) -> int:
        """Count the handshakes that failed, if they are several; 0 while there may be another cause."""
        with self._lock:
            failed = sum(time.monotonic() - each > SETTLED for each in self._begun)
        return failed if failed >= SEVERAL else 0

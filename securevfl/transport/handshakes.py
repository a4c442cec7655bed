"""Count the TLS handshakes at a party's port that fail.

gRPC reports that a handshake begins, but not that it failed or why. A handshake without a stream after
`HANDSHAKE_SECONDS` counts as failed.
"""

from __future__ import annotations

import threading
import time

MIN_FAILED_HANDSHAKES = (
    3  # handshakes that failed; whoever calls with another certificate has made as many within a second
)

HANDSHAKE_SECONDS = 1.0  # seconds after which a handshake that led to nothing has failed


class HandshakeCounter:
    """Handshakes at a party's port, from the threads of gRPC."""

    def __init__(self) -> None:
        self._begun: list[float] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Note that a handshake begins."""
        with self._lock:
            self._begun.append(time.monotonic())

    def succeed(self) -> None:
        """Note that one of the handshakes that began has led to a stream."""
        with self._lock:
            self._begun = self._begun[1:]

    def forget(self) -> None:
        """Forget all handshakes: they were our own."""
        with self._lock:
            self._begun = []

    def count_failed(self) -> int:
        """Count the handshakes that failed, if they are several; 0 while there may be another cause."""
        with self._lock:
            failed = sum(time.monotonic() - each > HANDSHAKE_SECONDS for each in self._begun)
        return failed if failed >= MIN_FAILED_HANDSHAKES else 0

"""Count the TLS handshakes at a party's port that fail.

gRPC reports that a handshake begins, but not that it failed or why. A handshake without a stream after
`FAILED_HANDSHAKE_SECONDS` counts as failed.
"""

from __future__ import annotations

import threading
import time

# fewer failures are not reported, because a client with a wrong certificate tries again and again
MIN_FAILED_HANDSHAKES = 3
FAILED_HANDSHAKE_SECONDS = 1.0


class HandshakeCounter:
    """Counter of TLS handshakes at a party's port. gRPC's threads call it."""

    def __init__(self) -> None:
        self._started: list[float] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Record that a TLS handshake begins."""
        with self._lock:
            self._started.append(time.monotonic())

    def succeed(self) -> None:
        """Record that one of the handshakes led to a stream."""
        with self._lock:
            self._started = self._started[1:]

    def forget(self) -> None:
        """Forget all handshakes so far. This party calls it after it has connected to its own port for a test."""
        with self._lock:
            self._started = []

    def count_failed(self) -> int:
        """Return the number of failed handshakes, or 0 if they are so few that they may have other causes."""
        with self._lock:
            failed = sum(time.monotonic() - start > FAILED_HANDSHAKE_SECONDS for start in self._started)
        return failed if failed >= MIN_FAILED_HANDSHAKES else 0

"""A cache of prepared batches with a fixed capacity in bytes."""

from __future__ import annotations

from typing import Any

MAX_CACHED_BYTES = 1 << 30


class BatchCache:
    """Prepared batches, of at most `MAX_CACHED_BYTES` bytes; batches that fit are never evicted.

    Every epoch requests each batch once, in a new random order. If a fraction f of the batches is cached permanently,
    a fraction f of the requests is served. A cache of the fraction f used most recently would serve
    f + (1 - f) ln(1 - f), which is only f^2 / 2 for small f.
    """

    def __init__(self) -> None:
        self._batches: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._total = 0

    def get(self, batch: int) -> Any | None:
        """Return a prepared batch by its number, or None if it is not cached."""
        return self._batches.get(batch)

    @property
    def free_bytes(self) -> int:
        """The bytes that another batch may take."""
        return max(0, MAX_CACHED_BYTES - self._total)

    def put(self, batch: int, prepared: Any) -> None:
        """Cache a prepared batch if it fits; a cached batch that has grown too large is dropped."""
        self._total += prepared.nbytes - self._bytes.get(batch, 0)
        self._batches[batch], self._bytes[batch] = prepared, prepared.nbytes
        if self._total > MAX_CACHED_BYTES:
            del self._batches[batch]
            self._total -= self._bytes.pop(batch)

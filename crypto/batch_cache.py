"""A cache for data of batches, such as encoded matrices, that a training uses again in every epoch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

MAX_CACHED_BYTES = 1 << 30


class BatchCache:
    """Data of batches or of their blocks, `max_bytes` bytes at most. Data that fit are never evicted.

    Every epoch uses each batch once, in a new random order. If a fraction f of the batches stays in the cache, it
    answers a fraction f of the requests. A cache of the most recently used batches would answer only f + (1 - f) *
    ln(1 - f), which is about f^2 / 2 for small f.

    Args:
        max_bytes: number of bytes; `MAX_CACHED_BYTES` by default.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = MAX_CACHED_BYTES if max_bytes is None else max_bytes
        self._batches: dict[Hashable, Any] = {}
        self._bytes: dict[Hashable, int] = {}
        self._total = 0

    def get(self, batch: Hashable) -> Any | None:
        """Return the data of a batch, or None if they are not cached."""
        return self._batches.get(batch)

    @property
    def free_bytes(self) -> int:
        """The number of bytes that are free for further batches."""
        return max(0, self._max_bytes - self._total)

    def put(self, batch: Hashable, prepared: Any) -> None:
        """Cache the data of a batch if they fit; drop them if they were cached before and have grown too large."""
        self._total += prepared.nbytes - self._bytes.get(batch, 0)
        self._batches[batch], self._bytes[batch] = prepared, prepared.nbytes
        if self._total > self._max_bytes:
            del self._batches[batch]
            self._total -= self._bytes.pop(batch)

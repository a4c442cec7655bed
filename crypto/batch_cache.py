"""A cache for the encoded matrices of batches: products with ciphertexts use each of them again in every epoch."""

from __future__ import annotations

from typing import Any

MAX_CACHED_BYTES = 1 << 30


class BatchCache:
    """Encoded matrices of batches, `max_bytes` bytes at most. A batch that fits is never evicted.

    Every epoch uses each batch once, in a new random order. If a fraction f of the batches stays in the cache, it
    answers a fraction f of the requests. A cache of the most recently used batches would answer only f + (1 - f) *
    ln(1 - f), which is about f^2 / 2 for small f.

    Args:
        max_bytes: number of bytes; `MAX_CACHED_BYTES` by default.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = MAX_CACHED_BYTES if max_bytes is None else max_bytes
        self._batches: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._total = 0

    def get(self, batch: int) -> Any | None:
        """Return the encoded matrix of the batch with this number, or None if it is not cached."""
        return self._batches.get(batch)

    @property
    def free_bytes(self) -> int:
        """The number of bytes that are free for further batches."""
        return max(0, self._max_bytes - self._total)

    def put(self, batch: int, prepared: Any) -> None:
        """Cache the encoded matrix of a batch if it fits; drop it if it was cached before and has grown too large."""
        self._total += prepared.nbytes - self._bytes.get(batch, 0)
        self._batches[batch], self._bytes[batch] = prepared, prepared.nbytes
        if self._total > self._max_bytes:
            del self._batches[batch]
            self._total -= self._bytes.pop(batch)

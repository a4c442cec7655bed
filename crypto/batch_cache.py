"""A cache of what an engine has prepared from batches, with a fixed number of bytes."""

from __future__ import annotations

from typing import Any

MAX_CACHED_BYTES = 1 << 30  # bytes


class BatchCache:
    """Prepared batches, as many as fit in `MAX_CACHED_BYTES` bytes: those that came first, for good.

    Every epoch asks for each batch once, in a new random order. A share f of the batches kept for good serves a share
    f of the asks; the share f used last would serve f + (1 - f) ln(1 - f), half the square of it where f is small.
    """

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._total = 0

    def get(self, batch: int) -> Any | None:
        return self._held.get(batch)

    @property
    def free_bytes(self) -> int:
        """Bytes that one more may take."""
        return max(0, MAX_CACHED_BYTES - self._total)

    def put(self, batch: int, prepared: Any) -> None:
        """Keep what was prepared of a batch if there is room; a batch that has grown may have to go."""
        self._total += prepared.nbytes - self._bytes.get(batch, 0)
        self._held[batch], self._bytes[batch] = prepared, prepared.nbytes
        if self._total > MAX_CACHED_BYTES:
            del self._held[batch]
            self._total -= self._bytes.pop(batch)

"""Threads of linear algebra and freed memory of this process.

Products of thin matrices do not become faster with several BLAS threads, because the threads wait busily for each
other. If other threads or processes use the cores as well, such products take twice the time.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # parameters of mallopt
_MMAP_BYTES = 8 << 20  # larger arrays return to the system when they are freed; for smaller ones that costs too much

_lock = threading.Lock()
_active_blocks = 0
_limit: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Compute products of matrices of this process in the calling thread until all such blocks have ended."""
    global _active_blocks, _limit
    from threadpoolctl import threadpool_limits

    with _lock:
        _active_blocks += 1
        if _active_blocks == 1:
            _limit = threadpool_limits(1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _active_blocks -= 1
            if not _active_blocks:
                _limit.restore_original_limits()


def use_one_heap() -> None:
    """Let all threads allocate from one heap, and map large arrays outside of it, if the C library is glibc.

    With one heap for each thread, memory that a thread has freed is of no use to the others, and large arrays leave
    holes. A process then grows to a multiple of the memory that it uses.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)


def release_freed_memory() -> None:
    """Return memory to the system that the C library and Arrow have cached; without glibc, only that of Arrow."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

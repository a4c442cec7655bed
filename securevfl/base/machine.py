"""Settings of this process: the number of threads of linear algebra, and how freed memory is returned.

Products of thin matrices do not become faster with several BLAS threads, because the threads wait for each other in a
busy loop. If other threads or processes use the cores as well, such products take twice the time.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # numbers of two parameters of mallopt (malloc.h)
_MMAP_BYTES = 8 << 20  # memory of larger arrays is returned when they are freed; for smaller ones that costs too much

_lock = threading.Lock()
_active_blocks = 0
_limit: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Compute matrix products in the calling thread only, until all blocks of this kind in the process have ended."""
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
    """Let all threads allocate from one heap, and large arrays outside of it (with glibc only).

    With one heap for each thread, other threads cannot reuse the memory that a thread has freed, and large arrays leave
    holes. A process then grows to a multiple of the memory that it uses.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)


def release_freed_memory() -> None:
    """Return freed memory that glibc and Arrow have cached to the system; without glibc, only Arrow's."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

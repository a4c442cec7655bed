"""What a process takes of its machine: threads of linear algebra, and memory that it is done with.

Products of thin matrices gain nothing from several threads of one BLAS, which wait busily for each other: where other
threads or processes have the cores, they take twice the time and processor.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # of mallopt
_LARGE = 8 << 20  # bytes of what goes back to the system as soon as it is freed; of less that costs too much processor

_lock = threading.Lock()
_inside = 0
_limit: Any = None


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Compute products of matrices in the calling thread alone, in the whole process, until all such blocks end."""
    global _inside, _limit
    from threadpoolctl import threadpool_limits

    with _lock:
        _inside += 1
        if _inside == 1:
            _limit = threadpool_limits(1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _limit.restore_original_limits()


def use_one_heap() -> None:
    """Let all threads take their memory from one heap, and large arrays from none, where the C library is glibc: with a
    heap each, what one has freed serves no other, large arrays leave holes in it that nothing fits into, and a process
    grows to a multiple of what it uses."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def release_freed_memory() -> None:
    """Return freed memory to the system, which the C library and Arrow keep for later; elsewhere than on glibc, they
    keep it."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

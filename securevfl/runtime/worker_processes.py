"""A pool of worker processes that starts when it first receives work and restarts when it breaks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LazyPool(Executor):
    """An executor that is made when it is first given work, and anew when it breaks; and as many threads of this
    process, for work that leaves Python's lock to others."""

    def __init__(self, make: Callable[[], Executor], workers: int) -> None:
        self._make = make
        self._pool: Executor | None = None
        self._lock = threading.Lock()
        self.threads = ThreadPoolExecutor(workers, "pool")  # starts them when they are given work

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            if self._pool is None:
                self._pool = self._make()
            try:
                return self._pool.submit(fn, *args, **kwargs)
            except BrokenExecutor:
                self._pool.shutdown(wait=False)
                self._pool = self._make()
                return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.threads.shutdown(wait, cancel_futures=cancel_futures)
        if self._pool is None:
            return
        if cancel_futures:
            self._pool.shutdown(wait, cancel_futures=True)
        else:
            self._pool.shutdown(wait)  # loky cannot cancel


def process_pool(workers: int) -> LazyPool:
    """Clean processes of this computer, which end when this process does, even if it is killed."""

    def made() -> Executor:
        # loky starts them without running the caller's script again
        from joblib.externals.loky import ProcessPoolExecutor

        return ProcessPoolExecutor(max_workers=workers, initializer=_begin, initargs=(os.getpid(),))

    return LazyPool(made, workers)


def _begin(parent: int) -> None:
    """Make this process of a pool end soon after the process that it works for has ended, and no sooner: loky takes
    memory that grows for a leak, ends its process and warns that a worker stopped."""
    from joblib.externals.loky import process_executor

    process_executor._USE_PSUTIL = False

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on a terminal goes to all; who started this one ends it
    threading.Thread(target=watch, daemon=True).start()

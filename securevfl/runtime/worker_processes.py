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
    """A pool that is created when it receives its first task, and again when it breaks.

    Args:
        make: creates the pool.
        workers: number of the pool's workers.

    Attributes:
        threads: the same number of threads of this process, for functions that release Python's global lock.
    """

    def __init__(self, make: Callable[[], Executor], workers: int) -> None:
        self._make = make
        self._pool: Executor | None = None
        self._lock = threading.Lock()
        self.threads = ThreadPoolExecutor(workers, "pool")  # a thread starts only when it is needed

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call; see `concurrent.futures.Executor.submit`."""
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
        """Stop all workers; see `concurrent.futures.Executor.shutdown`."""
        self.threads.shutdown(wait, cancel_futures=cancel_futures)
        if self._pool is None:
            return
        if cancel_futures:
            self._pool.shutdown(wait, cancel_futures=True)
        else:
            self._pool.shutdown(wait)  # loky's method has no argument `cancel_futures`


def process_pool(workers: int) -> LazyPool:
    """Return a pool of processes of this computer that end with this process, even if it is killed."""

    def make() -> Executor:
        # unlike multiprocessing, loky starts processes without running the user's script again
        from joblib.externals.loky import ProcessPoolExecutor

        return ProcessPoolExecutor(max_workers=workers, initializer=_begin, initargs=(os.getpid(),))

    return LazyPool(make, workers)


def _begin(parent: int) -> None:
    """Initialise a worker process so that it ends soon after its parent process, and no earlier."""
    from joblib.externals.loky import process_executor

    process_executor._USE_PSUTIL = False  # otherwise loky takes growing memory for a leak and ends the process

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too; its parent process ends it
    threading.Thread(target=watch, daemon=True).start()

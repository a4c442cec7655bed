"""A party's heavy work on an executor of its choice: timed, kept out of logs, and never lost.

Any `concurrent.futures.Executor` will do: threads, processes, `distributed.Client(...).get_executor()`. Pieces of work
are pure functions, so a piece that comes back broken, or not at all, is done once more by whoever waits for it:

- a pool of processes whose worker was killed fails all that it holds; a cluster may lose its last worker and wait on;
- a cluster may log the call that failed with its arguments, a key among them; a piece shows nothing;
- a cluster may answer equal calls from memory, and would encrypt with the same randomness twice; no two pieces are
  equal.

Pieces hold secret keys: an executor belongs to one party, and the lines of a cluster need TLS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import uuid4

from securevfl.errors import SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.worker_processes import LazyPool

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 120.0  # seconds for a piece to come back before it is done here


class Task(Generic[T]):
    """One call. Shows neither function nor arguments; unlike any other, also when function and arguments are equal."""

    __slots__ = ("_args", "_kwargs", "_serial", "_work")

    def __init__(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> None:
        self._work, self._args, self._kwargs = work, args, kwargs
        self._serial = uuid4().bytes

    def __repr__(self) -> str:
        return "<a piece of work>"

    def run(self, *state: Any) -> tuple[T, float]:
        """Make the call, with what is there where it runs before its arguments, and return its result and its CPU
        seconds."""
        started = time.thread_time()
        result = self._work(*state, *self._args, **self._kwargs)
        return result, time.thread_time() - started


def run_task(piece: Task[T], *state: Any) -> tuple[T, float]:
    """Run a piece, by a function that an executor can be given."""
    return piece.run(*state)


class TaskFuture(Future[T]):
    """What becomes of a piece. `result` does it in the calling thread if it was lost on its way."""

    def __init__(self, piece: Task[T], book: Callable[[float], None], report: Callable[[str], None]) -> None:
        super().__init__()
        self._piece = piece
        self._book = book
        self._report = report
        self._back = threading.Event()
        self._once = threading.Lock()

    def came(self, inner: Future[tuple[T, float]]) -> None:
        """Take over the result or the error with which the executor is done."""
        try:
            result, seconds = inner.result()
        except SecureVFLError as error:
            self._settle(error=error)
        except Exception as error:  # each library has its own for a worker that is gone
            self._report(type(error).__name__)
        else:
            if self._settle(result):
                self._book(seconds)
        self._back.set()

    def refused(self, error: Exception) -> None:
        """Note that the executor did not take the work."""
        self._report(type(error).__name__)
        self._back.set()

    def result(self, timeout: float | None = None) -> T:
        back = self._back.wait(PATIENCE if timeout is None else timeout)
        if not back and timeout is not None:
            raise TimeoutError
        if not self.done():
            if not back:
                self._report("TimeoutError")
            try:
                result, _ = self._piece.run()  # in the caller's thread, whose clock runs
            except Exception as error:
                self._settle(error=error)
            else:
                self._settle(result)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self.result(timeout)
        except Exception as error:
            if not self.done():
                raise
            return error
        return None

    def _settle(self, result: T | None = None, error: Exception | None = None) -> bool:
        """Whether this is the first word on it."""
        with self._once:
            if self.done():
                return False
            if error is None:
                self.set_result(result)  # type: ignore[arg-type]
            else:
                self.set_exception(error)
            return True


class TimedExecutor(Executor):
    """Passes work on to another executor, learns how long each piece took there, and loses none.

    workers: how many pieces it works on at a time.
    """

    def __init__(self, inner: Executor, workers: int) -> None:
        self.workers = workers
        self._inner = inner
        self._mine = threading.local()
        self._reported: set[str] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        piece = Task(fn, *args, **kwargs)
        outcome = TaskFuture(piece, self._pieces().append, self._report)
        try:
            inner = self._inner.submit(run_task, piece)
        except Exception as error:  # broken, shut down or closed
            outcome.refused(error)
        else:
            inner.add_done_callback(outcome.came)
        return outcome

    def in_threads(self) -> TimedExecutor:
        """Return as many threads of this process if the other executor is a `LazyPool`, their pieces counted with its
        own;
        else this one, which somebody chose."""
        if not isinstance(self._inner, LazyPool):
            return self
        threads = TimedExecutor(self._inner.threads, self.workers)
        threads._mine = self._mine
        return threads

    def makespan(self) -> float:
        """Seconds that this thread's pieces since its last call take on `workers` machines; forgets them."""
        pieces, self._mine.pieces = self._pieces(), []
        return max(max(pieces), sum(pieces) / self.workers) if pieces else 0.0

    def _pieces(self) -> list[float]:
        """Seconds of each piece that came back for this thread."""
        return self._mine.__dict__.setdefault("pieces", [])

    def _report(self, error: str) -> None:
        if error not in self._reported:
            self._reported.add(error)
            eventlog.warn("", "work of an executor was lost and is done here", {"error": error})

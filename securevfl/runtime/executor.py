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

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast
from uuid import uuid4

from securevfl.base.arrays import Floats
from securevfl.crypto.scheme import AdditiveScheme, LinearScheme
from securevfl.crypto.secret import Secret
from securevfl.errors import SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.clock import Books, Clock, Kind

# A metering wrapper around the homomorphic engines.
#
# `Meter.linear` and `Meter.additive` wrap a `LinearScheme` or an `AdditiveScheme` and book seconds and counts of
# keygen, encode, encrypt, compute, mask and decrypt. The channel books bytes and messages; what remains is local
# compute.


class Meter:
    """Books an engine's calls with one party's books and clock."""

    def __init__(self, clock: Clock, books: Books, executor: Executor | None = None, workers: int = 1) -> None:
        self._clock = clock
        self._books = books
        self.executor = TimedExecutor(executor, workers) if executor is not None else None

    def __call__(self, op: str, fn: Callable[[], T]) -> T:
        self._clock.tick(Kind.LOCAL)
        before = self._clock.path()[self._clock.stage, Kind.ENCRYPTION]
        result = fn()
        self._clock.tick(Kind.ENCRYPTION)
        if self.executor is not None:
            self._clock.offloaded(Kind.ENCRYPTION, self.executor.makespan())
        after = self._clock.path()[self._clock.stage, Kind.ENCRYPTION]
        self._books.did(self._clock.stage, op, float(after - before))
        return result

    def elsewhere(self, seconds: float) -> None:
        """Books what processes of an engine have spent on the last call, where it has been waited for."""
        self._clock.offloaded(Kind.ENCRYPTION, seconds)
        self._books.did(self._clock.stage, "elsewhere", seconds)

    def linear(self, scheme: LinearScheme) -> LinearScheme:
        """Return the same engine with its calls booked."""
        return cast(LinearScheme, _Booked(scheme, self))

    def additive(self, scheme: AdditiveScheme) -> AdditiveScheme:
        """Return the same engine with its calls booked."""
        return cast(AdditiveScheme, _Booked(scheme, self))


MAKERS = frozenset({"keygen", "evaluator", "sum_keygen", "adder"})  # booked as keygen; what they make is booked too
OPERATIONS = {  # what a call of an engine, a holder, an evaluator or an adder is booked as; all others are not
    "encrypt": "encrypt",
    "prepare": "encode",
    "encode": "encode",
    "transpose_product": "compute",
    "add": "compute",
    "blind": "mask",
    "unblind": "mask",
    "open": "decrypt",
    "decrypt": "decrypt",
}


class _Booked(Secret):
    """An engine, or one side of it, with its calls booked."""

    def __init__(self, inner: Any, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def __getattr__(self, name: str) -> Any:
        value, meter = getattr(self._inner, name), self._meter
        if name in MAKERS:

            def make(*args: Any, **kwargs: Any) -> _Booked:
                return _Booked(meter("keygen", partial(value, *args, **kwargs | {"executor": meter.executor})), meter)

            return make
        if name in OPERATIONS:
            return lambda *args, **kwargs: meter(OPERATIONS[name], partial(value, *args, **kwargs))
        return value

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        pieces, last = self._inner.encrypt_pieces(g, bound=bound), False
        while not last:  # asking once more would count as an operation that there was not
            piece, last = self._meter("encrypt", lambda: next(pieces))
            yield piece, last


P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 120.0  # seconds for a piece to come back before it is done here


class Piece(Generic[T]):
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


def run_piece(piece: Piece[T], *state: Any) -> tuple[T, float]:
    """Run a piece, by a function that an executor can be given."""
    return piece.run(*state)


class TaskOutcome(Future[T]):
    """What becomes of a piece. `result` does it in the calling thread if it was lost on its way."""

    def __init__(self, piece: Piece[T], book: Callable[[float], None], report: Callable[[str], None]) -> None:
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
        piece = Piece(fn, *args, **kwargs)
        outcome = TaskOutcome(piece, self._pieces().append, self._report)
        try:
            inner = self._inner.submit(run_piece, piece)
        except Exception as error:  # broken, shut down or closed
            outcome.refused(error)
        else:
            inner.add_done_callback(outcome.came)
        return outcome

    def in_threads(self) -> TimedExecutor:
        """Return as many threads of this process if the other executor is a `Pool`, their pieces counted with its own;
        else this one, which somebody chose."""
        if not isinstance(self._inner, Pool):
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


class Pool(Executor):
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


def process_pool(workers: int) -> Pool:
    """Clean processes of this computer, which end when this process does, even if it is killed."""

    def made() -> Executor:
        # loky starts them without running the caller's script again
        from joblib.externals.loky import ProcessPoolExecutor

        return ProcessPoolExecutor(max_workers=workers, initializer=_begin, initargs=(os.getpid(),))

    return Pool(made, workers)


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

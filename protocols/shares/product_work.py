"""Where a party computes the products of a training on shares: in the calling thread, in threads or in other processes.

The kernel releases Python's global interpreter lock while it computes. Instead of a pool of processes, it therefore
uses threads. SEAL holds the lock, so threads would gain nothing, and its executor consists of processes or machines, as
does any executor that the user has chosen. Such an executor receives the input of one product, including a secret key,
so it has to belong to this party (`securevfl.runtime.executor`). Small products stay in the calling thread, because
starting a process takes longer. Other processes cannot reuse plaintexts that several chunks have in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from securevfl.crypto.share_ring import Integers, Words, narrowest_integers
from securevfl.crypto.share_scheme import (
    ShareEvaluator,
    ShareHolder,
    ShareScheme,
    encrypt_exported,
    multiply_once,
    open_exported,
)
from securevfl.runtime.meter import Meter

T = TypeVar("T")

MIN_EXECUTOR_SECONDS = 2.0
"""Products of fewer seconds are not worth an executor of processes."""

_MIN_THREAD_SECONDS = 0.2
_MAX_PENDING = 8  # calls submitted to processes at once
_MAX_PENDING_THREADS = 3  # fewer, because they keep their factors in memory


class ProductExecutor:
    """Runs one party's products for one purpose.

    Args:
        meter: measures the operations, and has the executor, if there is one.
        scheme: the encryption scheme.
        seconds: the estimated time of all products on one core.
    """

    def __init__(self, meter: Meter, scheme: ShareScheme, seconds: float) -> None:
        self._meter, self._scheme = meter, scheme
        configured: Executor | None = meter.executor
        executor = meter.executor.in_threads() if meter.executor is not None and scheme.unlocked else configured
        self.threads = executor is not configured
        min_seconds = _MIN_THREAD_SECONDS if self.threads else MIN_EXECUTOR_SECONDS
        self._executor = executor if seconds >= min_seconds else None

    @property
    def away(self) -> bool:
        """Whether the products are computed in other processes."""
        return self._executor is not None and not self.threads

    @property
    def here(self) -> bool:
        """Whether the products are computed in the calling thread."""
        return self._executor is None

    def in_order(self, op: str, calls: Iterable[Callable[[], T]], *, started: bool = False) -> Iterator[T]:
        """Yield the results of calls, in order; an executor has a few calls pending at a time.

        Args:
            op: the name of the operation, for the meter.
            calls: the calls, created when they are needed.
            started: True if creating a call already starts it at a worker, and calling it waits for the result.

        Yields:
            The results.
        """
        executor = None if started else self._executor
        pending: deque[Callable[[], T]] = deque()
        limit = 1
        if started or self.away:
            limit = _MAX_PENDING
        elif self.threads and executor is not None:
            limit = _MAX_PENDING_THREADS
        for call in calls:
            pending.append(call if executor is None else executor.submit(call).result)
            if len(pending) >= limit:
                yield self._meter(op, pending.popleft())
        while pending:
            yield self._meter(op, pending.popleft())

    def encrypting(self, holder: ShareHolder, V: Words, columns: int, uses: int) -> Callable[[], bytes]:
        """Return `ShareHolder.encrypt` as a call for `in_order`."""
        if self.away:
            return partial(encrypt_exported, self._scheme, holder.exported(), V, columns, uses)
        return partial(holder.encrypt, V, columns=columns, uses=uses)

    def multiplying(self, evaluator: ShareEvaluator, W: Integers, sealed: bytes) -> Callable[[], tuple[bytes, Words]]:
        """Return `ShareEvaluator.product` as a call for `in_order`."""
        if self.away:
            return partial(multiply_once, self._scheme, evaluator.public, evaluator.coin, narrowest_integers(W), sealed)
        return lambda: evaluator.product(evaluator.prepare(W, once=True), sealed)

    def opening(self, holder: ShareHolder, reply: bytes) -> Callable[[], Words]:
        """Return `ShareHolder.open` as a call for `in_order`."""
        if self.away:
            return partial(open_exported, self._scheme, holder.exported(), reply)
        return partial(holder.open, reply)


class RemoteFactor(ABC):
    """A factor W (n, d) of integers that other processes of this party store."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""

    @property
    @abstractmethod
    def T(self) -> RemoteFactor:
        """The transpose of the factor, (d, n)."""

    @abstractmethod
    def multiply(self, scheme: ShareScheme, sealed: bytes) -> Callable[[], list[bytes]]:
        """Start `ShareScheme.multiply` at the workers, for matrices whose sum is W.

        Args:
            scheme: the encryption scheme.
            sealed: the encrypted vectors.

        Returns:
            A function that waits for the results.
        """

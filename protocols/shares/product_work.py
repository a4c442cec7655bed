"""Where a party computes its products of a training on shares: here, or several at a time elsewhere.

The kernel leaves Python's lock to other threads while it computes, so where it would have a pool of processes of its
own it takes threads. SEAL holds that lock, so threads gain nothing: its executor is one of processes or of machines,
as is any that somebody chose. What travels there is one product's input, a secret key among it, so they are this
party's own (securevfl.runtime.executor). Little work stays here: a process takes longer to start. Plaintexts that
several chunks could share are made anew in other processes.
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

MIN_EXECUTOR_SECONDS = 2.0  # seconds of products that are worth an executor

_MIN_THREAD_SECONDS = 0.2  # and threads

_MAX_PENDING = 8  # calls that are on an executor at a time, or wait there

_MAX_PENDING_THREADS = 3  # and on threads of this process, which hold what they multiply


class ProductExecutor:
    """One party's products for some purpose, all known before the first: `seconds` of them about, on one core."""

    def __init__(self, meter: Meter, scheme: ShareScheme, seconds: float) -> None:
        self._meter, self._scheme = meter, scheme
        given: Executor | None = meter.executor
        threads = meter.executor.in_threads() if meter.executor is not None and scheme.unlocked else given
        self.threads = threads is not given
        self._executor = threads if seconds >= (_MIN_THREAD_SECONDS if self.threads else MIN_EXECUTOR_SECONDS) else None

    @property
    def away(self) -> bool:
        """Whether it is done in other processes."""
        return self._executor is not None and not self.threads

    @property
    def here(self) -> bool:
        """Whether it is done in the calling thread."""
        return self._executor is None

    def in_order(self, op: str, calls: Iterable[Callable[[], T]], *, started: bool = False) -> Iterator[T]:
        """Yield the results of calls, in order. On an executor a few are on their way while the first is waited for.

        started: whether calls wait for what workers do already, so that a few are asked for before the first is made.
        """
        executor = None if started else self._executor
        waiting: deque[Callable[[], T]] = deque()
        most = (
            _MAX_PENDING
            if started or self.away
            else _MAX_PENDING_THREADS
            if self.threads and executor is not None
            else 1
        )
        for call in calls:
            waiting.append(call if executor is None else executor.submit(call).result)
            if len(waiting) >= most:
                yield self._meter(op, waiting.popleft())
        while waiting:
            yield self._meter(op, waiting.popleft())

    def encrypting(self, holder: ShareHolder, V: Words, columns: int, uses: int) -> Callable[[], bytes]:
        """`ShareHolder.encrypt` as a call."""
        if self.away:
            return partial(encrypt_exported, self._scheme, holder.exported(), V, columns, uses)
        return partial(holder.encrypt, V, columns=columns, uses=uses)

    def multiplying(self, evaluator: ShareEvaluator, W: Integers, sealed: bytes) -> Callable[[], tuple[bytes, Words]]:
        """`ShareEvaluator.product` as a call for an executor."""
        if self.away:
            return partial(multiply_once, self._scheme, evaluator.public, evaluator.coin, narrowest_integers(W), sealed)
        return lambda: evaluator.product(evaluator.prepare(W, once=True), sealed)

    def opening(self, holder: ShareHolder, reply: bytes) -> Callable[[], Words]:
        """`ShareHolder.open` as a call."""
        if self.away:
            return partial(open_exported, self._scheme, holder.exported(), reply)
        return partial(holder.open, reply)


class RemoteFactor(ABC):
    """A factor W (n x d) of integers that lie in other processes of this party."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns, (n, d)."""

    @property
    @abstractmethod
    def T(self) -> RemoteFactor:
        """The transpose of the factor, (d x n)."""

    @abstractmethod
    def multiply(self, scheme: ShareScheme, sealed: bytes) -> Callable[[], list[bytes]]:
        """Start `ShareScheme.multiply` there of matrices whose sum is W; return what waits for the results."""

"""Runs the encrypted matrix products of a training on shares in the calling thread, in other threads or in processes.

A product has three parts: a share holder (one of two parties) encrypts its vectors V, another party multiplies the
ciphertexts by its matrix W and masks the result, and the holder decrypts ("opens") the reply. This package's arithmetic
(`securevfl.crypto.kernel`) releases Python's global interpreter lock while it computes, so threads suffice for it.
Microsoft SEAL does not release the lock, so its products need an executor of processes or machines, and so does any
executor that the user has chosen. Such an executor receives the input of one part, including a secret key, so it must
belong to this party (`securevfl.runtime.executor`). Small products are computed in the calling thread, because starting
a process takes longer. Other processes cannot reuse the encoding of a matrix that several products have in common.
Workers are processes of a cluster that store the party's rows. The meter adds up the time of operations for the report
of costs.
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
    encrypt_uniform_exported,
    multiply_once,
    multiply_part,
    open_exported,
)
from securevfl.runtime.meter import Meter

T = TypeVar("T")

MIN_EXECUTOR_SECONDS = 2.0
"""If all products take less time than this, starting processes for them would take longer."""

_MIN_THREAD_SECONDS = 0.2
_MAX_PENDING = 8  # number of calls that processes get before the first result is awaited
_MAX_PENDING_THREADS = 3  # the same number for threads; smaller, because each pending call has its matrix in memory


class ProductExecutor:
    """Runs one party's encrypted products in this thread, in other threads or in processes, by their estimated time.

    Args:
        meter: measures the time of the operations; its attribute `executor` is the executor for slow ones, or None.
        scheme: the encryption scheme of the products.
        seconds: the estimated time of all products on one core.

    Attributes:
        scheme: the encryption scheme of the products.
        threads: whether the executor runs threads of this process.
    """

    def __init__(self, meter: Meter, scheme: ShareScheme, seconds: float) -> None:
        self._meter, self.scheme = meter, scheme
        configured: Executor | None = meter.executor
        executor = meter.executor.in_threads() if meter.executor is not None and scheme.unlocked else configured
        self.threads = executor is not configured
        min_seconds = _MIN_THREAD_SECONDS if self.threads else MIN_EXECUTOR_SECONDS
        self._executor = executor if seconds >= min_seconds else None

    @property
    def away(self) -> bool:
        """Whether other processes compute the products."""
        return self._executor is not None and not self.threads

    @property
    def here(self) -> bool:
        """Whether the products are computed in the calling thread."""
        return self._executor is None

    def in_order(self, op: str, calls: Iterable[Callable[[], T]], *, started: bool = False) -> Iterator[T]:
        """Yield the results of calls in their order, while an executor works on the next few calls.

        Args:
            op: the name of the operation, under which the meter counts its time.
            calls: functions without arguments that compute one result each; the iterator is advanced only when an
                executor can accept the next call.
            started: whether `calls` contains calls that workers are already computing, so that each only waits for its
                result.

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
        """Return a call for `in_order` that encrypts vectors V; see `ShareHolder.encrypt`."""
        if self.away:
            return partial(encrypt_exported, self.scheme, holder.exported(), V, columns, uses)
        return partial(holder.encrypt, V, columns=columns, uses=uses)

    def encrypting_uniform(
        self, holder: ShareHolder, shape: tuple[int, int], columns: int, uses: int, rows: int
    ) -> Callable[[], tuple[bytes, Words]]:
        """Return a call for `in_order` that draws and encrypts V of a shape; see `ShareHolder.encrypt_uniform`."""
        if self.away:
            return partial(encrypt_uniform_exported, self.scheme, holder.exported(), *shape, columns, uses, rows)
        return partial(holder.encrypt_uniform, *shape, columns=columns, uses=uses, rows=rows)

    def multiplying(self, evaluator: ShareEvaluator, W: Integers, sealed: bytes) -> Callable[[], tuple[bytes, Words]]:
        """Return a call for `in_order` that multiplies W with encrypted vectors; see `ShareEvaluator.product`."""
        if self.away:
            return partial(multiply_once, self.scheme, evaluator.public, evaluator.coin, narrowest_integers(W), sealed)
        return lambda: evaluator.product(evaluator.prepare(W, once=True), sealed)

    def multiplying_part(self, W: Integers, sealed: bytes) -> Callable[[], bytes]:
        """Return a call for `in_order` that multiplies W in another process; see `ShareScheme.multiply`."""
        return partial(multiply_part, self.scheme, narrowest_integers(W), sealed)

    def opening(self, holder: ShareHolder, reply: bytes) -> Callable[[], Words]:
        """Return a call for `in_order` that decrypts a reply; see `ShareHolder.open`."""
        if self.away:
            return partial(open_exported, self.scheme, holder.exported(), reply)
        return partial(holder.open, reply)


class RemoteFactor(ABC):
    """An integer matrix W (n, d) of a product, stored by other processes of this party."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns of the matrix."""

    @property
    @abstractmethod
    def T(self) -> RemoteFactor:
        """The transpose of the matrix, (d, n)."""

    @abstractmethod
    def multiply(self, scheme: ShareScheme, sealed: bytes) -> Callable[[], list[bytes]]:
        """Start to multiply W with encrypted vectors at the workers that store it; see `ShareScheme.multiply`.

        Args:
            scheme: the encryption scheme of the products.
            sealed: the encrypted vectors V of a share holder.

        Returns:
            A function that waits for the products, one from each worker. Their sum is the product with W.
        """

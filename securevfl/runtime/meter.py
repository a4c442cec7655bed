"""Measure the time of operations with encryption schemes.

`Meter.linear` and `Meter.additive` wrap a `LinearScheme` or an `AdditiveScheme`. They count the calls and seconds of
key generation, encoding, encryption, computation, masking and decryption. The same meter counts oblivious transfers, as
a separate kind of work. The channel counts bytes and messages. All other time counts as local computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, cast

from securevfl.base.arrays import Floats
from securevfl.crypto.scheme import AdditiveScheme, LinearScheme
from securevfl.crypto.secret import Secret
from securevfl.runtime.clock import Clock
from securevfl.runtime.costs import CostCounters, Kind
from securevfl.runtime.executor import T, TimedExecutor

TRANSFER = "transfer"
"""The operation that counts as oblivious transfers; all others count as homomorphic encryption."""


class Meter:
    """Measures a party's calls of encryption schemes with its clock, and adds them to its cost counters.

    Args:
        clock: the party's clock.
        counters: the party's cost counters.
        executor: runs the expensive parts of encryption and decryption; None for the calling thread.
        workers: number of tasks that the executor runs at a time.
    """

    def __init__(
        self, clock: Clock, counters: CostCounters, executor: Executor | None = None, workers: int = 1
    ) -> None:
        self._clock = clock
        self._counters = counters
        self.executor = TimedExecutor(executor, workers) if executor is not None else None

    def __call__(self, op: str, fn: Callable[[], T]) -> T:
        """Call a function, add its time to the counters of operation `op`, and return its result."""
        kind = Kind.TRANSFERS if op == TRANSFER else Kind.ENCRYPTION
        self._clock.tick(Kind.LOCAL)
        before = self._clock.path()[self._clock.stage, kind]
        result = fn()
        self._clock.tick(kind)
        if self.executor is not None:
            self._clock.offloaded(kind, self.executor.makespan())
        after = self._clock.path()[self._clock.stage, kind]
        self._counters.add_seconds(self._clock.stage, op, float(after - before))
        return result

    def add_worker_seconds(self, seconds: float) -> None:
        """Add the seconds that other processes have computed for the last call while this thread waited."""
        self._clock.offloaded(Kind.ENCRYPTION, seconds)
        self._counters.add_seconds(self._clock.stage, "elsewhere", seconds)

    def linear(self, scheme: LinearScheme) -> LinearScheme:
        """Return the same scheme with its calls measured."""
        return cast(LinearScheme, _Measured(scheme, self))

    def additive(self, scheme: AdditiveScheme) -> AdditiveScheme:
        """Return the same scheme with its calls measured."""
        return cast(AdditiveScheme, _Measured(scheme, self))


FACTORIES = frozenset({"keygen", "evaluator", "sum_keygen", "adder"})
"""Methods that count as key generation, and whose results are measured as well."""

OPERATIONS = {  # for each method of a scheme or of its objects: the operation under which its time is counted
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


class _Measured(Secret):
    """A wrapper of a scheme, or of an object that a scheme creates, that measures its calls."""

    def __init__(self, inner: Any, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def __getattr__(self, name: str) -> Any:
        value, meter = getattr(self._inner, name), self._meter
        if name in FACTORIES:

            def make(*args: Any, **kwargs: Any) -> _Measured:
                return _Measured(meter("keygen", partial(value, *args, **kwargs | {"executor": meter.executor})), meter)

            return make
        if name in OPERATIONS:
            return lambda *args, **kwargs: meter(OPERATIONS[name], partial(value, *args, **kwargs))
        return value

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        """Yield the pieces of a ciphertext, as the scheme does, and measure each."""
        pieces, last = self._inner.encrypt_pieces(g, bound=bound), False
        while not last:  # a `for` loop would call `next` once more at the end, and that call would be counted
            piece, last = self._meter("encrypt", lambda: next(pieces))
            yield piece, last

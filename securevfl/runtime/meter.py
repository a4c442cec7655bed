"""A metering wrapper around the homomorphic engines.

`Meter.linear` and `Meter.additive` wrap a `LinearScheme` or an `AdditiveScheme` and book seconds and counts of
keygen, encode, encrypt, compute, mask and decrypt. The channel counters bytes and messages; what remains is local
compute.
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


class Meter:
    """Books an engine's calls with one party's counters and clock."""

    def __init__(
        self, clock: Clock, counters: CostCounters, executor: Executor | None = None, workers: int = 1
    ) -> None:
        self._clock = clock
        self._counters = counters
        self.executor = TimedExecutor(executor, workers) if executor is not None else None

    def __call__(self, op: str, fn: Callable[[], T]) -> T:
        self._clock.tick(Kind.LOCAL)
        before = self._clock.path()[self._clock.stage, Kind.ENCRYPTION]
        result = fn()
        self._clock.tick(Kind.ENCRYPTION)
        if self.executor is not None:
            self._clock.offloaded(Kind.ENCRYPTION, self.executor.makespan())
        after = self._clock.path()[self._clock.stage, Kind.ENCRYPTION]
        self._counters.add_seconds(self._clock.stage, op, float(after - before))
        return result

    def add_worker_seconds(self, seconds: float) -> None:
        """Books what processes of an engine have spent on the last call, where it has been waited for."""
        self._clock.offloaded(Kind.ENCRYPTION, seconds)
        self._counters.add_seconds(self._clock.stage, "elsewhere", seconds)

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

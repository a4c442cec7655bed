"""A metering wrapper around the homomorphic engines.

`Meter.linear` and `Meter.additive` wrap a `LinearScheme` or an `AdditiveScheme` and book seconds and counts of
keygen, encode, encrypt, compute, mask and decrypt. The channel books bytes and messages; what remains is local compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, TypeVar

from securevfl.base.arrays import Floats
from securevfl.base.tall import Tall
from securevfl.crypto.scheme import ROOM, Adder, AdditiveScheme, Evaluator, KeyHolder, LinearScheme, Shape, SumHolder
from securevfl.runtime.clock import Books, Clock, Kind
from securevfl.runtime.executor import TimedExecutor

T = TypeVar("T")


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
        return _MeteredScheme(scheme, self)

    def additive(self, scheme: AdditiveScheme) -> AdditiveScheme:
        """Return the same engine with its calls booked."""
        return _MeteredSums(scheme, self)


class _MeteredScheme(LinearScheme):
    def __init__(self, inner: LinearScheme, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._inner.name

    @property
    def strength(self) -> str:
        return self._inner.strength

    def distance_bits(self, values: int) -> float:
        return self._inner.distance_bits(values)

    @property
    def checks(self) -> int:
        return self._inner.checks

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        return self._inner.opened_bits(rows, columns, word)

    def opened_size(self, shape: Shape) -> int:
        return self._inner.opened_size(shape)

    @property
    def rotates(self) -> bool:
        return self._inner.rotates

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        executor = self._meter.executor
        made = self._meter("keygen", lambda: self._inner.keygen(executor, columns=columns, openings=openings))
        return _MeteredHolder(made, self._meter)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        inner = self._meter("keygen", lambda: self._inner.evaluator(public, self._meter.executor))
        return _MeteredEvaluator(inner, self._meter)


class _MeteredHolder(KeyHolder):
    def __init__(self, inner: KeyHolder, meter: Meter) -> None:
        self._inner, self._meter = inner, meter
        self.public = inner.public

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        return self._meter("encrypt", lambda: self._inner.encrypt(g, bound=bound))

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        pieces, last = self._inner.encrypt_pieces(g, bound=bound), False
        while not last:  # asking once more would count as an operation that there was not
            piece, last = self._meter("encrypt", lambda: next(pieces))
            yield piece, last

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        return self._meter("decrypt", lambda: self._inner.open(blinded, shape))


class _MeteredEvaluator(Evaluator):
    def __init__(self, inner: Evaluator, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def prepare(self, J: Floats | Tall, *, room: int = ROOM) -> Any:
        return self._meter("encode", lambda: self._inner.prepare(J, room=room))

    def encode(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> None:
        self._meter("encode", lambda: self._inner.encode(prepared, sealed, onto))

    def transpose_product(self, prepared: Any, sealed: bytes, onto: Any | None = None) -> Any:
        return self._meter("compute", lambda: self._inner.transpose_product(prepared, sealed, onto))

    def blind(self, product: Any) -> tuple[bytes, Any]:
        return self._meter("mask", lambda: self._inner.blind(product))

    def unblind(self, opened: bytes, mask: Any, word: int | None = None) -> Floats:
        return self._meter("mask", lambda: self._inner.unblind(opened, mask, word))


class _MeteredSums(AdditiveScheme):
    def __init__(self, inner: AdditiveScheme, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._inner.name

    def sum_keygen(self, executor: Executor | None = None) -> SumHolder:
        inner = self._meter("keygen", lambda: self._inner.sum_keygen(self._meter.executor))
        return _MeteredSumHolder(inner, self._meter)

    def adder(self, public: bytes, executor: Executor | None = None) -> Adder:
        inner = self._meter("keygen", lambda: self._inner.adder(public, self._meter.executor))
        return _MeteredAdder(inner, self._meter)


class _MeteredSumHolder(SumHolder):
    def __init__(self, inner: SumHolder, meter: Meter) -> None:
        self._inner, self._meter = inner, meter
        self.public = inner.public

    def decrypt(self, total: bytes) -> Floats:
        return self._meter("decrypt", lambda: self._inner.decrypt(total))


class _MeteredAdder(Adder):
    def __init__(self, inner: Adder, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def encrypt(self, v: Floats, *, bound: float, terms: int) -> bytes:
        return self._meter("encrypt", lambda: self._inner.encrypt(v, bound=bound, terms=terms))

    def size(self, values: int, *, terms: int) -> int:
        return self._inner.size(values, terms=terms)

    def add(self, *parts: bytes) -> bytes:
        return self._meter("compute", lambda: self._inner.add(*parts))

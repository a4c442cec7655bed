"""What a run costs: a ledger for each party, a metering wrapper around the homomorphic engines, one table.

Two seams only. The channel books bytes and messages; `metered` wraps a `LinearScheme` or an `AdditiveScheme` and
books seconds and counts of keygen, encode, encrypt, compute, mask and decrypt. What remains is local compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from securevfl.clock import Clock, Kind, Path, Phase
from securevfl.crypto.scheme import Adder, AdditiveScheme, Evaluator, Floats, KeyHolder, LinearScheme, Shape, SumHolder
from securevfl.offload import TimedExecutor

T = TypeVar("T")


@dataclass
class Tally:
    """Seconds and calls of one operation, or bytes and messages of one kind."""

    amount: float = 0.0
    count: int = 0

    def add(self, amount: float) -> None:
        self.amount += amount
        self.count += 1


@dataclass
class Ledger:
    """One party's books. `ops` by (phase, operation) in seconds; `traffic` by (phase, message) in bytes sent."""

    ops: dict[tuple[Phase, str], Tally] = field(default_factory=dict)
    traffic: dict[tuple[Phase, str], Tally] = field(default_factory=dict)

    def did(self, phase: Phase, op: str, seconds: float) -> None:
        self.ops.setdefault((phase, op), Tally()).add(seconds)

    def sent(self, phase: Phase, message: str, nbytes: int) -> None:
        self.traffic.setdefault((phase, message), Tally()).add(nbytes)

    def bytes_sent(self, phase: Phase | None = None) -> int:
        return int(sum(t.amount for (p, _), t in self.traffic.items() if phase in (None, p)))

    def messages_sent(self, phase: Phase | None = None) -> int:
        return sum(t.count for (p, _), t in self.traffic.items() if phase in (None, p))


class Meter:
    """Books an engine's calls with one party's ledger and clock."""

    def __init__(self, clock: Clock, ledger: Ledger, executor: Executor | None = None, workers: int = 1) -> None:
        self._clock = clock
        self._ledger = ledger
        self.executor = TimedExecutor(executor, workers) if executor is not None else None

    def __call__(self, op: str, fn: Callable[[], T]) -> T:
        self._clock.tick(Kind.LOCAL)
        before = self._clock.path()[self._clock.phase, Kind.ENCRYPTION]
        result = fn()
        self._clock.tick(Kind.ENCRYPTION)
        if self.executor is not None:
            self._clock.offloaded(Kind.ENCRYPTION, self.executor.makespan())
        after = self._clock.path()[self._clock.phase, Kind.ENCRYPTION]
        self._ledger.did(self._clock.phase, op, float(after - before))
        return result

    def linear(self, scheme: LinearScheme) -> LinearScheme:
        """The same engine, its calls booked."""
        return _MeteredScheme(scheme, self)

    def additive(self, scheme: AdditiveScheme) -> AdditiveScheme:
        """The same engine, its calls booked."""
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
    def rotates(self) -> bool:
        return self._inner.rotates

    def keygen(self, executor: Executor | None = None) -> KeyHolder:
        return _MeteredHolder(self._meter("keygen", lambda: self._inner.keygen(self._meter.executor)), self._meter)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        inner = self._meter("keygen", lambda: self._inner.evaluator(public, self._meter.executor))
        return _MeteredEvaluator(inner, self._meter)


class _MeteredHolder(KeyHolder):
    def __init__(self, inner: KeyHolder, meter: Meter) -> None:
        self._inner, self._meter = inner, meter
        self.public = inner.public

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        return self._meter("encrypt", lambda: self._inner.encrypt(g, bound=bound))

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        return self._meter("decrypt", lambda: self._inner.open(blinded, shape))


class _MeteredEvaluator(Evaluator):
    def __init__(self, inner: Evaluator, meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def prepare(self, J: Floats) -> Any:
        return self._meter("encode", lambda: self._inner.prepare(J))

    def transpose_product(self, prepared: Any, sealed: bytes) -> Any:
        return self._meter("compute", lambda: self._inner.transpose_product(prepared, sealed))

    def blind(self, product: Any) -> tuple[bytes, Any]:
        return self._meter("mask", lambda: self._inner.blind(product))

    def unblind(self, opened: bytes, mask: Any) -> Floats:
        return self._meter("mask", lambda: self._inner.unblind(opened, mask))


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

    def add(self, *parts: bytes) -> bytes:
        return self._meter("compute", lambda: self._inner.add(*parts))


@dataclass(frozen=True)
class Costs:
    """What one run cost.

    `path` is the critical path (phase x kind, seconds); `ledgers` are the parties' books; `rounds` counts exchanges.
    """

    algorithm: str
    protocol: str
    local_steps: int
    rounds: int
    path: Path
    ledgers: dict[str, Ledger]
    measured: bool = False

    def seconds(self, kind: Kind, phase: Phase = Phase.TRAIN) -> float:
        """Seconds of the critical path that went into `kind`."""
        return float(self.path[phase, kind])

    @property
    def total(self) -> float:
        """Seconds of training on the critical path."""
        return float(self.path[Phase.TRAIN].sum())

    @property
    def bytes(self) -> int:
        """Bytes of all frames of training, over all parties."""
        return sum(ledger.bytes_sent(Phase.TRAIN) for ledger in self.ledgers.values())

    def row(self) -> dict[str, str | int | float]:
        """One row of FedBCD Table 2, with the protocol and the bytes beside it."""
        return {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "Q": self.local_steps,
            "rounds": self.rounds,
            "encryption_s": self.seconds(Kind.ENCRYPTION),
            "local_s": self.seconds(Kind.LOCAL),
            "communication_s": self.seconds(Kind.COMMUNICATION),
            "total_s": self.total,
            "bytes": self.bytes,
        }

    def table(self, *others: Costs) -> str:
        """This run and others, one below the other, as text."""
        return format_table([costs.row() for costs in (self, *others)])


def format_table(rows: Sequence[dict[str, str | int | float]]) -> str:
    """Rows of equal keys as aligned text: words to the left, figures to the right."""
    cells = [[_cell(value) for value in row.values()] for row in rows]
    heads = [key.replace("_s", " s") if key.endswith("_s") else key for key in rows[0]]
    words = [isinstance(value, str) for value in rows[0].values()]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words, strict=True)).rstrip()
        for line in [heads, ["-" * width for width in widths], *cells]
    ]
    return "\n".join(lines)


def _cell(value: str | int | float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value

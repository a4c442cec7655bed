"""The encrypted sum of K parties' vectors of m floats: each encrypts, one adds up, the key holder decrypts.

Values are uniform in [-1, 1]. Times of the parties are added up, as if one computer did all of it; keys are made
beforehand. `bytes` are the K vectors and their total. `cpu_ms` is processor time (see `Stopwatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench import record
from securevfl.bench.he import engine_named
from securevfl.bench.record import Stopwatch, median_of, process_pool
from securevfl.errors import ConfigError
from securevfl.protocols.engines import Engine
from securevfl.runtime.executor import TimedExecutor

SCHEMA = "securevfl.bench.sum/1"
ENGINES = ("paillier", "ckks")
BASELINES = ("phe",)


@dataclass(frozen=True)
class SumRow:
    """One engine. `estimated`: measured on a slice and scaled."""

    engine: str
    parties: int
    size: int
    encrypt_ms: float
    add_ms: float
    decrypt_ms: float
    total_ms: float
    cpu_ms: float
    bytes: int
    max_abs_error: float
    ratio_to_phe: float | None = None
    cpu_ratio_to_phe: float | None = None
    repetitions: int = 1
    estimated: bool = False


def problem(parties: int, size: int) -> Floats:
    """Make the parts (K x m), the same at every call."""
    return np.random.default_rng([parties, size]).uniform(-1.0, 1.0, size=(parties, size))


def measure(
    name: str, engine: Engine, parties: int, size: int, pool: TimedExecutor | None, *, seconds: float = 8.0
) -> SumRow:
    """One of our engines, all parties in this process, one after the other."""
    parts = problem(parties, size)
    scheme = engine.sums()
    holder = scheme.sum_keygen(pool)
    adder = scheme.adder(holder.public, pool)
    last: dict[str, Any] = {}

    def once() -> Stopwatch:
        watch = Stopwatch(pool)
        sealed = watch("encrypt", lambda: [adder.encrypt(v, bound=1.0, terms=parties) for v in parts])
        total = watch("add", lambda: adder.add(*sealed))
        last["result"] = watch("decrypt", lambda: holder.decrypt(total))
        last["bytes"] = sum(map(len, sealed)) + len(total)
        return watch

    watch, count = median_of(once, seconds=seconds, most=31)
    return SumRow(
        name,
        parties,
        size,
        encrypt_ms=watch.steps["encrypt"],
        add_ms=watch.steps["add"],
        decrypt_ms=watch.steps["decrypt"],
        total_ms=watch.total,
        cpu_ms=watch.cpu,
        bytes=last["bytes"],
        max_abs_error=float(np.abs(last["result"] - parts.sum(axis=0)).max()),
        repetitions=count,
    )


def baseline(parties: int, size: int, bits: int) -> SumRow:
    """phe as its users call it."""
    figures = record.phe_sum(problem(parties, size), bits)
    steps = figures.watch.steps
    return SumRow(
        "phe",
        parties,
        size,
        encrypt_ms=steps["encrypt"],
        add_ms=steps["compute"],
        decrypt_ms=steps["open"],
        total_ms=figures.watch.total,
        cpu_ms=figures.watch.cpu,
        bytes=figures.bytes_up,
        max_abs_error=figures.max_abs_error,
        repetitions=figures.repetitions,
        estimated=figures.estimated,
    )


def run(
    parties: int,
    size: int,
    engines: Sequence[str],
    against: Sequence[str],
    *,
    bits: int,
    on_row: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """All rows, baselines first. ConfigError for an unknown name or a baseline that is not installed."""
    for name in against:
        if name not in BASELINES:
            raise ConfigError(f"--against: names among {', '.join(BASELINES)} were expected, {name!r} came; correct it")
    for name in engines:
        if name not in ENGINES:
            raise ConfigError(f"--engines: names among {', '.join(ENGINES)} were expected, {name!r} came; correct it")
    if "phe" in against:
        record.require_phe()
    schemes = {name: engine_named(name, bits) for name in engines}
    rows: list[SumRow] = []
    for name in against:
        on_row(name)
        rows.append(baseline(parties, size, bits))
    with process_pool() if "paillier" in schemes else nullcontext() as pool:
        for name, engine in schemes.items():
            on_row(name)
            rows.append(measure(name, engine, parties, size, pool))
    if "phe" in against:
        rows = [
            replace(row, ratio_to_phe=rows[0].total_ms / row.total_ms, cpu_ratio_to_phe=rows[0].cpu_ms / row.cpu_ms)
            for row in rows
        ]
    return [asdict(row) for row in rows]

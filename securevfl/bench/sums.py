"""The encrypted sum of K parties' vectors of m floats: each party encrypts, one adds, the key holder decrypts.

Values are uniform in [-1, 1]. Times of all parties are added up, as if one computer did everything. The generation of
keys is not measured. `bytes` is the size of the K encrypted vectors and of their encrypted sum. `cpu_ms` is processor
time (see `Stopwatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench import baselines, comparison_table
from securevfl.bench.he import ENGINE_OF_KEY_SIZE
from securevfl.bench.result_file import Row
from securevfl.bench.stopwatch import Stopwatch, median_of
from securevfl.protocols.engines import Engine
from securevfl.runtime.executor import TimedExecutor

SUM_SCHEMA = "securevfl.bench.sum/1"
SUMMING = ("paillier", "ckks")
SUM_LIBRARIES = ("phe",)


def problem(parties: int, size: int) -> Floats:
    """Return the summands (K, m), the same in every call."""
    return np.random.default_rng([parties, size]).uniform(-1.0, 1.0, size=(parties, size))


def measure(
    name: str, engine: Engine, parties: int, size: int, pool: TimedExecutor | None, *, seconds: float = 8.0
) -> Row:
    """Measure one of this library's engines, with all parties in this process.

    Args:
        name: name of the encryption scheme in the table.
        engine: the encryption scheme to measure.
        parties: number of parties K.
        size: number of values m.
        pool: worker processes for the expensive calls; None to compute in this process.
        seconds: time for all repetitions, of which there are at least three.

    Returns:
        The row of the table with the scheme's times and sizes.
    """
    parts = problem(parties, size)
    scheme = engine.sums()
    holder = scheme.sum_keygen(pool)
    adder = scheme.adder(holder.public, pool)
    latest: dict[str, Any] = {}

    def once() -> Stopwatch:
        watch = Stopwatch(pool)
        sealed = watch("encrypt", lambda: [adder.encrypt(v, bound=1.0, terms=parties) for v in parts])
        total = watch("add", lambda: adder.add(*sealed))
        latest["result"] = watch("decrypt", lambda: holder.decrypt(total))
        latest["bytes"] = sum(map(len, sealed)) + len(total)
        return watch

    watch, count = median_of(once, seconds=seconds, max_repetitions=31)
    error = float(np.abs(latest["result"] - parts.sum(axis=0)).max())
    results = {"bytes": latest["bytes"], "max_abs_error": error, "repetitions": count, "estimated": False}
    return {"engine": name, "parties": parties, "size": size} | watch.figures() | results


def baseline(bits: int, parties: int, size: int) -> Row:
    """Measure phe through its public interface."""
    figures = baselines.phe_sum(problem(parties, size), bits)
    return {"engine": "phe", "parties": parties, "size": size, "bytes": figures.bytes_up} | figures.row()


def run(
    parties: int,
    size: int,
    engines: Sequence[str],
    against: Sequence[str],
    *,
    bits: int,
    on_row: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measure all engines.

    Args:
        parties: number of parties.
        size: number of values.
        engines: names of this library's engines; an unknown one raises ConfigError.
        against: names of the baselines; one that is unknown or not installed raises ConfigError.
        bits: size of Paillier keys.
        on_row: called with a description of the next measurement.

    Returns:
        Rows, the baselines first.
    """
    comparison_table.check_names("--against", against, SUM_LIBRARIES)
    comparison_table.check_names("--engines", engines, SUMMING)
    baselines = {name: partial(baseline, bits) for name in against}
    ours = {name: partial(measure, name, ENGINE_OF_KEY_SIZE[name](bits)) for name in engines}
    return comparison_table.rows_of([(parties, size)], baselines, ours, on_row)

"""The encrypted gradient J^T [[g]] of one batch: encrypt, compute, blind, open; this library against phe and tenseal.

The key holder *encrypts* g, which [[g]] denotes. The owner of J *computes* the product without the key, and *blinds*
it: it adds random numbers. The key holder *opens* (decrypts) the sum, and the owner of J subtracts the random numbers.

J (n, d) is standard normal, g (n, 1) uniform in [-1, 1]. Errors are those of the sum over the n rows, which are n times
those of a mean gradient. The time and size of keys are not counted; preparing J has a separate column `prepare_ms`,
because J is prepared once. `blind_ms` contains blinding and unblinding, which the baselines do not do. `bytes_up` are
sent from the owner of J to the key holder, `bytes_down` in the other direction. `cpu_ms` and `cpu_ratio_to_phe` are
processor time (see `Stopwatch`), which sums tenseal's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench import baselines, comparison_table
from securevfl.bench.result_file import Row
from securevfl.bench.stopwatch import Stopwatch, median_of
from securevfl.crypto.scheme import OpeningShape
from securevfl.protocols.engines import Ckks, Engine, Paillier
from securevfl.runtime.executor import TimedExecutor

HE_SCHEMA = "securevfl.bench.he/1"
# for each name on the command line, a function that returns the engine for a key size in bits
ENGINE_OF_KEY_SIZE: dict[str, Callable[[int], Engine]] = {
    "paillier": lambda bits: Paillier(bits=bits),
    "ckks": lambda bits: Ckks(),
    "seal": lambda bits: Ckks(library="seal"),
}
HE_LIBRARIES = ("phe", "tenseal")


_STEPS = "encrypt_ms", "compute_ms", "blind_ms", "open_ms", "total_ms", "cpu_ms", "prepare_ms"
_RESULTS = "bytes_up", "bytes_down", "max_abs_error", "ratio_to_phe", "cpu_ratio_to_phe"
EMPTY: Row = dict.fromkeys((*_STEPS, *_RESULTS)) | {"repetitions": 0, "estimated": False, "error": None}
"""A row without figures. `estimated` is True if the figures were measured with a part of J and g and scaled. If a
baseline cannot compute the product, `error` is the reason, and there are no figures."""


def problem(n: int, d: int, c: int = 1) -> tuple[Floats, Floats]:
    """Return the matrix J (n, d) and c vectors g (n, c). Equal arguments give equal values."""
    generator = np.random.default_rng([n, d])
    return generator.normal(size=(n, d)), generator.uniform(-1.0, 1.0, size=(n, c))


def measure(name: str, engine: Engine, n: int, d: int, pool: TimedExecutor | None, *, seconds: float = 8.0) -> Row:
    """Measure one of this library's engines (encryption schemes), with both parties in this process.

    Args:
        name: name of the encryption scheme in the table.
        engine: the encryption scheme to measure.
        n: number of rows.
        d: number of columns.
        pool: worker processes for the expensive calls; None to compute in this process.
        seconds: time for all repetitions, of which there are at least three.

    Returns:
        The row of the table with the scheme's times and sizes.
    """
    J, g = problem(n, d)
    scheme = engine.scheme()
    holder = scheme.keygen(pool, columns=d)
    evaluator = scheme.evaluator(holder.public, pool)
    preparing, first = Stopwatch(), holder.encrypt(g, bound=1.0)
    prepared = preparing("prepare", lambda: evaluator.prepare(J))
    preparing("prepare", lambda: evaluator.encode(prepared, first))
    latest: dict[str, Any] = {}

    def once() -> Stopwatch:
        watch = Stopwatch(pool)
        sealed = watch("encrypt", lambda: holder.encrypt(g, bound=1.0))
        product = watch("compute", lambda: evaluator.transpose_product(prepared, sealed))
        blinded, mask = watch("blind", lambda: evaluator.blind(product))
        opened = watch("open", lambda: holder.open(blinded, OpeningShape(n, 1, d)))
        latest["result"] = watch("blind", lambda: evaluator.unblind(opened, mask))
        latest["up"], latest["down"] = len(blinded), len(sealed) + len(opened)
        return watch

    watch, count = median_of(once, seconds=seconds, max_repetitions=31)
    sent = {"bytes_up": latest["up"], "bytes_down": latest["down"], "repetitions": count}
    error = float(np.abs(latest["result"] - J.T @ g).max())
    figures = watch.figures() | {"prepare_ms": preparing.total, "max_abs_error": error} | sent
    return {"engine": name, "n": n, "d": d} | EMPTY | figures


def baseline(name: str, bits: int, n: int, d: int) -> Row:
    """Measure a baseline through its public interface."""
    J, g = problem(n, d)
    row = {"engine": name, "n": n, "d": d} | EMPTY
    try:
        figures = baselines.phe_product(J, g[:, 0], bits) if name == "phe" else baselines.tenseal_product(J, g[:, 0])
    except baselines.BaselineUnavailable as cause:
        return row | {"error": str(cause)}
    return row | figures.row() | {"bytes_up": figures.bytes_up, "bytes_down": figures.bytes_down}


def run(
    sizes: Sequence[tuple[int, int]],
    engines: Sequence[str],
    against: Sequence[str],
    *,
    bits: int,
    on_row: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measure all engines at all sizes.

    Args:
        sizes: rows and columns of each problem.
        engines: names of this library's engines; an unknown one raises ConfigError.
        against: names of the baselines; one that is unknown or not installed raises ConfigError.
        bits: size of Paillier keys.
        on_row: called with a description of the next measurement.

    Returns:
        Rows by size, the baselines first.
    """
    comparison_table.check_names("--against", against, HE_LIBRARIES)
    comparison_table.check_names("--engines", engines, [*ENGINE_OF_KEY_SIZE])
    baselines = {name: partial(baseline, name, bits) for name in against}
    ours = {name: partial(measure, name, ENGINE_OF_KEY_SIZE[name](bits)) for name in engines}
    return comparison_table.rows_of(sizes, baselines, ours, on_row)

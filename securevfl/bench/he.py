"""The encrypted gradient J^T [[g]] of one batch: encrypt, compute, blind, open; this library against phe and tenseal.

J (n x d) is standard normal, g (n x 1) uniform in [-1, 1]. Errors are those of the sum over the rows, n times those
of a mean gradient. What is made once and kept is not counted: keys, and J prepared (`prepare_ms`, its own column).
`blind_ms` holds blinding and unblinding; the baselines do neither. `bytes_up` go from the owner of J to the key
holder, `bytes_down` the other way; keys are not counted. `cpu_ms` and `cpu_ratio_to_phe` are in processor time (see
`Stopwatch`); tenseal's threads are added up there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench import baselines, comparison
from securevfl.bench.result_file import Row
from securevfl.bench.stopwatch import Stopwatch, median_of
from securevfl.crypto.scheme import OpeningShape
from securevfl.protocols.engines import Ckks, Engine, Paillier
from securevfl.runtime.executor import TimedExecutor

SCHEMA = "securevfl.bench.he/1"
ENGINES: dict[str, Callable[[int], Engine]] = {  # by their names on the command line, of so many bits
    "paillier": lambda bits: Paillier(bits=bits),
    "ckks": lambda bits: Ckks(),
    "seal": lambda bits: Ckks(library="seal"),
}
BASELINES = ("phe", "tenseal")


_STEPS = "encrypt_ms", "compute_ms", "blind_ms", "open_ms", "total_ms", "cpu_ms", "prepare_ms"
_MADE = "bytes_up", "bytes_down", "max_abs_error", "ratio_to_phe", "cpu_ratio_to_phe"
# One engine at one size. `estimated`: measured on a slice and scaled. With `error` there are no figures.
EMPTY: Row = dict.fromkeys((*_STEPS, *_MADE)) | {"repetitions": 0, "estimated": False, "error": None}


def problem(n: int, d: int, c: int = 1) -> tuple[Floats, Floats]:
    """J (n x d) and g (n x c), the same at every call."""
    generator = np.random.default_rng([n, d])
    return generator.normal(size=(n, d)), generator.uniform(-1.0, 1.0, size=(n, c))


def measure(name: str, engine: Engine, n: int, d: int, pool: TimedExecutor | None, *, seconds: float = 8.0) -> Row:
    """One of our engines, both sides in this process, one after the other."""
    J, g = problem(n, d)
    scheme = engine.scheme()
    holder = scheme.keygen(pool, columns=d)
    evaluator = scheme.evaluator(holder.public, pool)
    preparing, first = Stopwatch(), holder.encrypt(g, bound=1.0)
    prepared = preparing("prepare", lambda: evaluator.prepare(J))
    preparing("prepare", lambda: evaluator.encode(prepared, first))
    last: dict[str, Any] = {}

    def once() -> Stopwatch:
        watch = Stopwatch(pool)
        sealed = watch("encrypt", lambda: holder.encrypt(g, bound=1.0))
        product = watch("compute", lambda: evaluator.transpose_product(prepared, sealed))
        blinded, mask = watch("blind", lambda: evaluator.blind(product))
        opened = watch("open", lambda: holder.open(blinded, OpeningShape(n, 1, d)))
        last["result"] = watch("blind", lambda: evaluator.unblind(opened, mask))
        last["up"], last["down"] = len(blinded), len(sealed) + len(opened)
        return watch

    watch, count = median_of(once, seconds=seconds, most=31)
    made = {"bytes_up": last["up"], "bytes_down": last["down"], "repetitions": count}
    error = float(np.abs(last["result"] - J.T @ g).max())
    figures = watch.figures() | {"prepare_ms": preparing.total, "max_abs_error": error} | made
    return {"engine": name, "n": n, "d": d} | EMPTY | figures


def baseline(name: str, bits: int, n: int, d: int) -> Row:
    """Time a baseline as its users call it."""
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
    """All rows, size by size, baselines first. ConfigError for an unknown name or a baseline that is not installed.

    `on_row` is told what is measured next.
    """
    comparison.check_names("--against", against, BASELINES)
    comparison.check_names("--engines", engines, [*ENGINES])
    baselines = {name: partial(baseline, name, bits) for name in against}
    ours = {name: partial(measure, name, ENGINES[name](bits)) for name in engines}
    return comparison.rows_of(sizes, baselines, ours, on_row)

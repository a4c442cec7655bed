"""The encrypted gradient J^T [[g]] of one batch: encrypt, compute, blind, open; this library against phe and tenseal.

J (n x d) is standard normal, g (n x 1) uniform in [-1, 1]. Errors are those of the sum over the rows, n times those
of a mean gradient. What is made once and kept is not counted: keys, and J prepared (`prepare_ms`, its own column).
`blind_ms` holds blinding and unblinding; the baselines do neither. `bytes_up` go from the owner of J to the key
holder, `bytes_down` the other way; keys are not counted. `cpu_ms` and `cpu_ratio_to_phe` are in processor time (see
`Stopwatch`); tenseal's threads are added up there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench import record
from securevfl.bench.record import Stopwatch, median_of, process_pool
from securevfl.crypto.scheme import Shape
from securevfl.errors import ConfigError
from securevfl.protocols.engines import Ckks, Engine, Paillier
from securevfl.runtime.executor import TimedExecutor

SCHEMA = "securevfl.bench.he/1"
ENGINES = ("paillier", "ckks", "seal")
BASELINES = ("phe", "tenseal")


@dataclass(frozen=True)
class EngineRow:
    """One engine at one size. `estimated`: measured on a slice and scaled. With `error` there are no figures."""

    engine: str
    n: int
    d: int
    encrypt_ms: float | None = None
    compute_ms: float | None = None
    blind_ms: float | None = None
    open_ms: float | None = None
    total_ms: float | None = None
    cpu_ms: float | None = None
    prepare_ms: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    max_abs_error: float | None = None
    ratio_to_phe: float | None = None
    cpu_ratio_to_phe: float | None = None
    repetitions: int = 0
    estimated: bool = False
    error: str | None = None


def engine_named(name: str, bits: int) -> Engine:
    """Return the engine behind a name on the command line. ConfigError if there is none."""
    match name:
        case "paillier":
            return Paillier(bits=bits)
        case "ckks":
            return Ckks()
        case "seal":
            return Ckks(library="seal")
    raise ConfigError(f"--engines: names among {', '.join(ENGINES)} were expected, {name!r} came; correct it")


def problem(n: int, d: int, c: int = 1) -> tuple[Floats, Floats]:
    """J (n x d) and g (n x c), the same at every call."""
    generator = np.random.default_rng([n, d])
    return generator.normal(size=(n, d)), generator.uniform(-1.0, 1.0, size=(n, c))


def measure(
    name: str, engine: Engine, n: int, d: int, pool: TimedExecutor | None, *, seconds: float = 8.0
) -> EngineRow:
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
        opened = watch("open", lambda: holder.open(blinded, Shape(n, 1, d)))
        last["result"] = watch("blind", lambda: evaluator.unblind(opened, mask))
        last["up"], last["down"] = len(blinded), len(sealed) + len(opened)
        return watch

    watch, count = median_of(once, seconds=seconds, most=31)
    return EngineRow(
        name,
        n,
        d,
        encrypt_ms=watch.steps["encrypt"],
        compute_ms=watch.steps["compute"],
        blind_ms=watch.steps["blind"],
        open_ms=watch.steps["open"],
        total_ms=watch.total,
        cpu_ms=watch.cpu,
        prepare_ms=preparing.total,
        bytes_up=last["up"],
        bytes_down=last["down"],
        max_abs_error=float(np.abs(last["result"] - J.T @ g).max()),
        repetitions=count,
    )


def baseline(name: str, n: int, d: int, bits: int) -> EngineRow:
    """Time a baseline as its users call it."""
    J, g = problem(n, d)
    try:
        figures = record.phe_product(J, g[:, 0], bits) if name == "phe" else record.tenseal_product(J, g[:, 0])
    except record.Unable as cause:
        return EngineRow(name, n, d, error=str(cause))
    steps = figures.watch.steps
    return EngineRow(
        name,
        n,
        d,
        encrypt_ms=steps["encrypt"],
        compute_ms=steps["compute"],
        open_ms=steps["open"],
        total_ms=figures.watch.total,
        cpu_ms=figures.watch.cpu,
        bytes_up=figures.bytes_up,
        bytes_down=figures.bytes_down,
        max_abs_error=figures.max_abs_error,
        repetitions=figures.repetitions,
        estimated=figures.estimated,
    )


def run(
    sizes: Sequence[tuple[int, int]],
    engines: Sequence[str],
    against: Sequence[str],
    *,
    bits: int,
    on_row: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """All rows, size by size, baselines first. ConfigError for an unknown name or a baseline that is not installed.

    `on_row` is told what is measured next.
    """
    for name in against:
        if name not in BASELINES:
            raise ConfigError(f"--against: names among {', '.join(BASELINES)} were expected, {name!r} came; correct it")
    if "phe" in against:
        record.require_phe()
    schemes = {name: engine_named(name, bits) for name in engines}
    rows: list[EngineRow] = []
    with process_pool() if "paillier" in schemes else nullcontext() as pool:
        for n, d in sizes:
            at_size: list[EngineRow] = []
            for name in against:
                on_row(f"{name} {n} x {d}")
                at_size.append(baseline(name, n, d, bits))
            for name, engine in schemes.items():
                on_row(f"{name} {n} x {d}")
                at_size.append(measure(name, engine, n, d, pool))
            rows += _with_ratios(at_size)
    return [asdict(row) for row in rows]


def _with_ratios(rows: Sequence[EngineRow]) -> list[EngineRow]:
    phe = next((row for row in rows if row.engine == "phe"), None)
    return [
        row
        if phe is None or row.error is not None
        else replace(
            row, ratio_to_phe=_ratio(phe.total_ms, row.total_ms), cpu_ratio_to_phe=_ratio(phe.cpu_ms, row.cpu_ms)
        )
        for row in rows
    ]


def _ratio(phe: float | None, own: float | None) -> float | None:
    return None if phe is None or not own else phe / own

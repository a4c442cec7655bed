"""Target and measured figures of the kernel, this package's own encryption: products, trainings, gradients.

The kernel is compared with the library SEAL (engine "seal") and with phe.

    python -m benchmarks.kernel_bars --data ../shared/data
    python -m benchmarks.kernel_bars --data ../shared/data --only gradients trainings

Figures are medians of ratios of alternating runs, in processor time unless "by the clock" is stated. Run it on an idle
machine. Large tables are trained on in separate processes, whose memory is measured. A slow test checks that losses are
distributed alike on both engines: pytest -m slow tests/protocols/test_sealed_engines.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import product_costs, shares
from benchmarks.memory import MemoryHeld
from securevfl.bench import he
from securevfl.crypto.scheme import OpeningShape
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.engines import Ckks, Engine
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.protocols.shares.shares_options import Shares
from securevfl.training.simulate import simulate

SIZES = (256, 15), (256, 100), (4096, 100)
ALTERNATING_PAIRS = 3  # number of pairs of trainings, one on each engine
Row = tuple[str, str, str]  # name, target, figure


def iterations(data: Path) -> Iterator[Row]:
    """Compare an iteration on secret shares with a sealed round on SEAL, and the bytes of its products with SEAL's."""
    for (n, d), bar in zip(SIZES, (0.5, 0.45, 0.5), strict=True):
        result = shares.size(n, d)
        yield f"iteration on shares to sealed round, {n} x {d}", f"<= {bar}", f"{result['ratio_seal']:.2f}"
        products = product_costs.products(n, d, 16)
        yield f"bytes of its products to SEAL's, {n} x {d}", "<= 1.05", f"{products['bytes']:.2f}"


def default_credit(data: Path) -> Iterator[Row]:
    """Run twelve iterations of block descent on both engines alternately, evaluations included."""
    options = shares.TABLE_JOBS["default_credit/12"] | {"test_fraction": 0.25}
    parties = shares.read(data, "default_credit")
    chunk = options["epochs"]
    jobs = [
        Job(**options, protocol=Protocol(shares=Shares(chunk=chunk, library=share_scheme)))
        for share_scheme in SHARE_SCHEMES
    ]
    clock: list[list[float]] = [[], []]
    spent: list[list[float]] = [[], []]
    for turn in range(ALTERNATING_PAIRS + 1):
        for place, job in enumerate(jobs):
            before, started = shares._spent(), time.perf_counter()
            simulate(job, parties)
            if turn:  # the first one only loads modules
                clock[place].append(time.perf_counter() - started)
                spent[place].append(shares._spent() - before)
    for what, share_scheme in (("by the clock", clock), ("processor", spent)):
        ratio = median(local / seal for local, seal in zip(*share_scheme, strict=True))
        figures = f"{median(share_scheme[0]):.1f} s to {median(share_scheme[1]):.1f}, {ratio:.2f}"
        yield f"default_credit, block descent, 12 iterations, to SEAL, {what}", "<= .5", figures


def trainings(data: Path) -> Iterator[Row]:
    """Run one epoch and block descent on large tables, each in a separate process."""
    for train, what, bar in (
        (shares.one_epoch, "100,000 x (30 + 300), one epoch", "<= 8 s, <= 2 GB"),
        (descent, "200,000 x 60, block descent, 12 iterations, no evaluation", "<= 60 s, <= 1.5 GB"),
    ):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
            result = apart.submit(train).result()
        yield what, bar, f"{result['seconds']:.1f} s by the clock, {result['cpu_s']:.1f} s, {result['memory_mb']} MB"


def descent(rows: int = 200_000, count: int = 30) -> dict[str, Any]:
    """Run twelve iterations on all rows, and wait until the last one has ended."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(rows, count)) for _ in range(2)]
    y = (X[0][:, 0] + X[1][:, 0] + rng.normal(size=rows) > 0).astype(int)
    parties = [Party("bank", X[0], y, aligned=True), Party("shop", X[1], aligned=True)]
    shared = Protocol(shares=Shares(chunk=12))
    job = Job(model=Logistic(), optimizer=BlockDescent(), protocol=shared, batch_size="all", epochs=12)
    ends: list[float] = []
    before, started = shares._spent(), time.perf_counter()
    with MemoryHeld() as held_out:
        simulate(job, parties, on_round=lambda done, of: ends.append(time.perf_counter()))
    return {"seconds": ends[-1] - started, "cpu_s": shares._spent() - before, "memory_mb": held_out.megabytes}


def gradients(data: Path) -> Iterator[Row]:
    """Compare encrypted gradients with phe; compare those of ten outputs, and their bytes, with SEAL."""
    rows = he.run(SIZES, ("ckks",), ("phe",), bits=2048)
    for (n, d), bar in zip(SIZES, (1000, 2000, 8000), strict=True):
        result = next(row for row in rows if (row["n"], row["d"], row["engine"]) == (n, d, "ckks"))
        figures = f"{result['cpu_ratio_to_phe']:,.0f} ({result['cpu_ms']:.1f} ms)"
        yield f"sealed gradient, times phe, {n} x {d}", f">= {bar:,}", figures
    for (n, d), c, limit in [*((size, 1, "") for size in SIZES), (SIZES[-1], 10, ">= 4")]:
        (local, sent), (seal, sent_seal) = _gradients(n, d, c)
        yield f"sealed gradient, {c} outputs, to SEAL, {n} x {d}", limit, f"{seal / local:.1f} ({1e3 * local:.1f} ms)"
        yield f"bytes of it to SEAL's, {n} x {d}, {c} outputs", "<= 1.05", f"{sent / sent_seal:.2f}"


def _gradients(n: int, d: int, c: int, turns: int = 9) -> list[tuple[float, int]]:
    """Return processor seconds and bytes of a gradient at both parties, on both engines alternately."""
    ends = [_ends(engine, n, d, c) for engine in (Ckks(), Ckks(library="seal"))]
    results: list[list[tuple[float, int]]] = [[], []]
    for turn in range(turns + 1):
        for once, local in zip(ends, results, strict=True):
            started = time.process_time()
            sent = once()
            if turn:
                local.append((time.process_time() - started, sent))
    return [(median(seconds for seconds, _ in local), local[0][1]) for local in results]


def _ends(engine: Engine, n: int, d: int, c: int) -> Callable[[], int]:
    """Return a function that computes a gradient and returns its sent bytes; plaintexts are cached."""
    J, g = he.problem(n, d, c)
    scheme = engine.scheme()
    holder = scheme.keygen(columns=d)
    evaluator = scheme.evaluator(holder.public)
    prepared = evaluator.prepare(J)

    def once() -> int:
        sealed = holder.encrypt(g, bound=1.0)
        blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, sealed))
        opened = holder.open(blinded, OpeningShape(n, c, d))
        evaluator.unblind(opened, mask)
        return len(sealed) + len(blinded) + len(opened)

    return once


MEASUREMENTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "iterations": iterations,
    "default_credit": default_credit,
    "trainings": trainings,
    "gradients": gradients,
}


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=Path("../shared/data"))
    options.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    arguments = options.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    for name in arguments.only:
        for what, bar, result in MEASUREMENTS[name](arguments.data):
            print(f"{what:<70} {bar:<20} {result}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

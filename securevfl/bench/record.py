"""What every benchmark shares: repetitions, the machine it ran on, the file it writes.

A file is {"schema", "machine", "rows": [...]}; a row's figures are in milliseconds and bytes.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import ConfigError
from securevfl.runtime import executor
from securevfl.runtime.executor import TimedExecutor

T = TypeVar("T")
Row = dict[str, Any]

MEASURED_WITH = ("securevfl", "numpy", "gmpy2", "tenseal", "phe")


def machine() -> dict[str, Any]:
    """Processor, cores, load, Python and the versions that matter."""
    versions = {}
    for name in MEASURED_WITH:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def record(schema: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a benchmark's file."""
    return {"schema": schema, "machine": machine(), "rows": list(rows)}


class Stopwatch:
    """Milliseconds of the steps of one repetition, by name, and the processor's milliseconds of all of them.

    What a pool does counts in `cpu` as if its pieces were spread evenly over the cores; so `cpu` is what the clock
    would show on an idle machine, and hardly moves when others use this one.
    """

    def __init__(self, pool: TimedExecutor | None = None) -> None:
        self.steps: dict[str, float] = {}
        self.cpu = 0.0
        self._pool = pool

    def __call__(self, step: str, work: Callable[[], T]) -> T:
        started, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.steps[step] = self.steps.get(step, 0.0) + (time.perf_counter() - started) * 1e3
        self.cpu += (time.process_time() - cpu) * 1e3
        if self._pool is not None:
            self.cpu += self._pool.makespan() * 1e3
        return result

    @property
    def total(self) -> float:
        return sum(self.steps.values())

    def figures(self) -> dict[str, Any]:
        """Return the milliseconds of each step, their total and the processor's, as a row has them."""
        steps = {f"{step}_ms": ms for step, ms in self.steps.items()}
        return steps | {"total_ms": self.total, "cpu_ms": self.cpu}

    def scale(self, **factors: float) -> None:
        """Multiplies steps; the processor's time by what the total grew."""
        before = self.total
        for step, factor in factors.items():
            self.steps[step] *= factor
        self.cpu *= self.total / before


def median_of(once: Callable[[], Stopwatch], *, seconds: float, most: int) -> tuple[Stopwatch, int]:
    """Return the repetition of median total time and the number of repetitions, after one that warms up.

    As many repetitions as fit into `seconds`, at least 3 and at most `most`.
    """
    warm = once().total / 1e3
    count = max(3, min(most, int(seconds / max(warm, 1e-6))))
    runs = sorted((once() for _ in range(count)), key=lambda run: run.total)
    return runs[count // 2], count


@contextmanager
def process_pool() -> Iterator[TimedExecutor | None]:
    """One process a core, or None on one core."""
    cores = os.cpu_count() or 1
    if cores < 2:
        yield None
        return
    with executor.process_pool(cores) as pool:
        yield TimedExecutor(pool, cores)


# What this library is measured against: phe and tenseal, each as its own documentation has its users call it.
#
# phe      one ciphertext a value; a column of J^T g is a sum of EncryptedNumber * float
# tenseal  CKKSVector.matmul with Galois keys, N = 8192; a vector longer than N / 2 does not fit
#
# A phe measurement that would take longer than a minute is made on a slice and scaled: encryption grows with n, the
# products with n d, decryption with d.


SECONDS = 60.0
_PROBE = 8


class Unable(Exception):
    """The baseline cannot do this size; the text says why."""


@dataclass(frozen=True)
class Figures:
    """What a baseline took: its steps, what it sent, and how far off it was."""

    watch: Stopwatch
    bytes_up: int
    bytes_down: int
    max_abs_error: float
    repetitions: int = 1
    estimated: bool = False

    def row(self) -> dict[str, Any]:
        """Return the figures as a row has them, but for the bytes."""
        return self.watch.figures() | {
            "max_abs_error": self.max_abs_error,
            "repetitions": self.repetitions,
            "estimated": self.estimated,
        }


def phe_keys(bits: int) -> tuple[Any, Any]:
    """Make a public and a private key of phe."""
    from phe import generate_paillier_keypair

    public, private = generate_paillier_keypair(n_length=bits)
    return public, private


def _median(
    once: Callable[[], tuple[Stopwatch, float]], expected: float, seconds: float
) -> tuple[Stopwatch, float, int]:
    """Return the repetition of median time with its error, of as many as fit, three at most."""
    count = max(1, min(3, int(seconds / expected)))
    return *sorted((once() for _ in range(count)), key=lambda run: run[0].total)[count // 2], count


def phe_product(J: Floats, g: Floats, bits: int, *, seconds: float = SECONDS) -> Figures:
    """J^T g for J (n x d), g (n,)."""
    public, private = phe_keys(bits)
    n, d = J.shape

    def once(rows: int, columns: int) -> tuple[Stopwatch, float]:
        watch, part = Stopwatch(), J[:rows, :columns]
        sealed = watch("encrypt", lambda: [public.encrypt(value) for value in g[:rows].tolist()])
        products = watch(
            "compute", lambda: [sum(c * x for c, x in zip(sealed, own.tolist(), strict=True)) for own in part.T]
        )
        result = watch("open", lambda: [private.decrypt(product) for product in products])
        return watch, float(np.abs(np.array(result) - part.T @ g[:rows]).max())

    pace = {step: ms / 1e3 for step, ms in once(_PROBE, 1)[0].steps.items()}
    each_row, each_term = pace["encrypt"] / min(n, _PROBE), pace["compute"] / min(n, _PROBE)
    rows = min(n, max(_PROBE, int(0.4 * seconds / each_row)))
    columns = min(d, max(1, int(0.5 * seconds / (rows * each_term + pace["open"]))))
    expected = rows * each_row + columns * (rows * each_term + pace["open"])
    watch, error, count = _median(lambda: once(rows, columns), expected, seconds)
    watch.scale(encrypt=n / rows, compute=n * d / (rows * columns), open=d / columns)
    size = 2 * bits // 8
    return Figures(watch, d * size, n * size + 8 * d, error, count, (rows, columns) != (n, d))


def phe_sum(parts: Floats, bits: int, *, seconds: float = SECONDS) -> Figures:
    """Time the sum of the rows of `parts` (K x m), one ciphertext a value."""
    public, private = phe_keys(bits)

    def once(taken: int) -> tuple[Stopwatch, float]:
        watch, some = Stopwatch(), parts[:, :taken]
        sealed = watch("encrypt", lambda: [[public.encrypt(value) for value in part.tolist()] for part in some])
        totals = watch("add", lambda: [sum(column) for column in zip(*sealed, strict=True)])
        result = watch("decrypt", lambda: [private.decrypt(total) for total in totals])
        return watch, float(np.abs(np.array(result) - some.sum(axis=0)).max())

    m = parts.shape[1]
    each = once(_PROBE)[0].total / 1e3 / min(m, _PROBE)
    taken = min(m, max(_PROBE, int(0.9 * seconds / each)))
    watch, error, count = _median(lambda: once(taken), taken * each, seconds)
    watch.scale(encrypt=m / taken, add=m / taken, decrypt=m / taken)
    return Figures(watch, (len(parts) + 1) * m * (2 * bits // 8), 0, error, count, taken < m)


def tenseal_product(J: Floats, g: Floats) -> Figures:
    """J^T g for J (n x d), g (n,). Unable where tenseal refuses."""
    import tenseal

    n, d = J.shape
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    if n > 8192 // 2:
        raise Unable(f"a vector of {n} does not fit into N / 2 = {8192 // 2} slots, and matmul takes no more")
    context.global_scale = 2.0**40
    context.generate_galois_keys()
    columns = J.tolist()

    def once() -> tuple[Stopwatch, Any, Any, Any]:
        watch = Stopwatch()
        sealed = watch("encrypt", lambda: tenseal.ckks_vector(context, g.tolist()))
        product = watch("compute", lambda: sealed.matmul(columns))
        return watch, sealed, product, watch("open", product.decrypt)

    try:
        runs = [once()]
        if runs[0][0].total < SECONDS / 6 * 1e3:
            runs = [once() for _ in range(3)]
    except (RuntimeError, ValueError) as cause:
        raise Unable(f"tenseal refuses: {cause}") from None
    watch, sealed, product, result = sorted(runs, key=lambda run: run[0].total)[len(runs) // 2]
    error = float(np.abs(np.array(result)[:d] - J.T @ g).max())
    return Figures(watch, len(product.serialize()), len(sealed.serialize()) + 8 * d, error, len(runs))


# The frame of a benchmark: every size by the baselines and by our engines, and how they compare with phe.


def rows_of(
    sizes: Sequence[tuple[int, int]],
    baselines: Mapping[str, Callable[[int, int], Row]],
    engines: Mapping[str, Callable[[int, int, TimedExecutor | None], Row]],
    on_row: Callable[[str], None],
) -> list[Row]:
    """All rows, size by size, baselines first, with their ratios to phe. `on_row` is told what is measured next."""
    rows: list[Row] = []
    with process_pool() if "paillier" in engines else nullcontext() as pool:
        for size in sizes:
            own: list[Row] = []
            for name, baseline in baselines.items():
                on_row(f"{name} {size[0]} x {size[1]}")
                own.append(baseline(*size))
            for name, measure in engines.items():
                on_row(f"{name} {size[0]} x {size[1]}")
                own.append(measure(*size, pool))
            phe: Row = next((row for row in own if row["engine"] == "phe"), {})
            for row in own:
                for ratio, of in (("ratio_to_phe", "total_ms"), ("cpu_ratio_to_phe", "cpu_ms")):
                    row[ratio] = phe[of] / row[of] if phe and row[of] else None
            rows += own
    return rows


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """ConfigError for a name that is not known, or phe if it is not installed."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: names among {', '.join(known)} were expected, {name!r} came; correct it")
    if "phe" in names and find_spec("phe") is None:
        raise ConfigError(
            "--against phe: phe is not installed (it is GPL-3.0 and so an extra); pip install 'securevfl[phe]'"
        )

"""What every benchmark shares: repetitions, the machine it ran on, the file it writes.

A file is {"schema", "machine", "rows": [...]}; a row's figures are in milliseconds and bytes.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from securevfl.runtime import executor
from securevfl.runtime.executor import TimedExecutor

T = TypeVar("T")

_SAMPLED = 0.1  # seconds between two looks at memory
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


class MemoryHeld:
    """The most memory that this process, and each of those that it has started, has held, in MB, added up. Linux.

    Sampled while it is entered: what a process has held at its end is told with what its parent held at its start.
    """

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryHeld:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    @property
    def megabytes(self) -> int:
        return sum(self._most.values()) // 1024

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLED):
            self._look()

    def _look(self) -> None:
        own = Path("/proc/self/task")
        started = " ".join(_text(task / "children") for task in own.iterdir()).split()
        for process in ("self", *started):
            status = dict(line.split(":", 1) for line in _text(Path("/proc", process, "status")).splitlines())
            self._most[process] = max(self._most.get(process, 0), int(status.get("VmHWM", "0").split()[0]))


def _text(path: Path) -> str:
    """Read a file of /proc; nothing if its process has ended."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

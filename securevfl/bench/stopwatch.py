"""Times of the steps of a measurement, and the median of repetitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from securevfl.runtime.executor import TimedExecutor

T = TypeVar("T")


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

"""Times of the steps of a measurement, and the median of repetitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from securevfl.runtime.executor import TimedExecutor

T = TypeVar("T")


class Stopwatch:
    """Measures the milliseconds of each step of one repetition, by name, and their total processor time.

    `cpu` is the processor time in milliseconds. The work of a pool of processes counts as if it were spread evenly over
    the cores. So `cpu` is close to the wall-clock time on an idle machine, and hardly changes if the machine is busy.

    Args:
        pool: the pool of processes whose work is counted; None without one.
    """

    def __init__(self, pool: TimedExecutor | None = None) -> None:
        self.steps: dict[str, float] = {}
        self.cpu = 0.0
        self._pool = pool

    def __call__(self, step: str, work: Callable[[], T]) -> T:
        """Run a step and add its time; return its result."""
        started, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.steps[step] = self.steps.get(step, 0.0) + (time.perf_counter() - started) * 1e3
        self.cpu += (time.process_time() - cpu) * 1e3
        if self._pool is not None:
            self.cpu += self._pool.makespan() * 1e3
        return result

    @property
    def total(self) -> float:
        """The milliseconds of all steps."""
        return sum(self.steps.values())

    def figures(self) -> dict[str, Any]:
        """Return the milliseconds of each step, their total and the processor time, as keys of a row."""
        steps = {f"{step}_ms": ms for step, ms in self.steps.items()}
        return steps | {"total_ms": self.total, "cpu_ms": self.cpu}

    def scale(self, **factors: float) -> None:
        """Multiply the times of steps by factors, and the processor time by the ratio of the new total to the old one.

        Args:
            **factors: the factor of each step, by the name of the step.
        """
        before = self.total
        for step, factor in factors.items():
            self.steps[step] *= factor
        self.cpu *= self.total / before


def median_of(once: Callable[[], Stopwatch], *, seconds: float, max_repetitions: int) -> tuple[Stopwatch, int]:
    """Repeat a measurement after one warm-up.

    Args:
        once: measures one repetition.
        seconds: time for all repetitions.
        max_repetitions: largest number of repetitions; the smallest is 3.

    Returns:
        The repetition with the median total time, and the number of repetitions.
    """
    warm = once().total / 1e3
    count = max(3, min(max_repetitions, int(seconds / max(warm, 1e-6))))
    runs = sorted((once() for _ in range(count)), key=lambda run: run.total)
    return runs[count // 2], count

"""The start-up time of the command and of the package: medians over fresh processes, one after another.

Times are wall-clock and processor seconds; the latter hardly change if the machine is busy. Every figure includes the
start of the bare interpreter, which has a row of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

START_SCHEMA = "securevfl.bench.start/1"
STARTS: dict[str, list[str]] = {
    "python": ["-c", ""],
    "import numpy": ["-c", "import numpy"],
    "import securevfl": ["-c", "import securevfl"],
    "vfl.simulate": ["-c", "import securevfl as vfl; vfl.simulate"],
    "--version": ["-m", "securevfl.cli.main", "--version"],
    "--help": ["-m", "securevfl.cli.main", "--help"],
    "train --help": ["-m", "securevfl.cli.main", "train", "--help"],
}


def run(repetitions: int, on_row: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return one row for each way to start, after one start that warms the file caches."""
    rows = []
    for name, arguments in STARTS.items():
        on_row(name)
        times = [_start(arguments) for _ in range(repetitions + 1)][1:]
        rows.append(
            {
                "what": name,
                "wall_s": round(median(wall for wall, _ in times), 3),
                "cpu_s": round(median(cpu for _, cpu in times), 3),
                "repetitions": repetitions,
            }
        )
    return rows


def _start(arguments: list[str]) -> tuple[float, float]:
    """Return wall-clock and processor seconds of one process."""
    before, started = _children_cpu(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return time.perf_counter() - started, _children_cpu() - before


def _children_cpu() -> float:
    """Return the processor seconds of ended child processes.

    The resolution is a microsecond. os.times would be too coarse: it counts ticks of 10 ms.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""How long the command and the package take to start: medians over fresh processes, one after another.

Seconds on the wall and of processor time; the latter hardly changes when the machine is busy. Each figure has the bare
interpreter's beside it, which it contains.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

SCHEMA = "securevfl.bench.start/1"
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
    """One row for each way to start, after one start that warms the caches of files."""
    rows = []
    for what, arguments in STARTS.items():
        on_row(what)
        taken = [_start(arguments) for _ in range(repetitions + 1)][1:]
        rows.append(
            {
                "what": what,
                "wall_s": round(median(wall for wall, _ in taken), 3),
                "cpu_s": round(median(cpu for _, cpu in taken), 3),
                "repetitions": repetitions,
            }
        )
    return rows


def _start(arguments: list[str]) -> tuple[float, float]:
    """Seconds on the wall and of processor time of one process."""
    before, started = _children_cpu(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return time.perf_counter() - started, _children_cpu() - before


def _children_cpu() -> float:
    """Processor seconds of ended children in microseconds' steps: os.times counts ticks of ten milliseconds, less than
    which an interpreter can take.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

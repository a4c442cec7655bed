"""The common part of all scripts that run a party of another system: reading a task and writing results.

It imports only modules of Python. A script of this folder is started as `python SCRIPT TASK.json`. A task has `rank` (0
has the labels), `own` (the ports that this party binds), `other` (the ports by which it reaches the other, possibly
through a slow link), the folder of `tables`, `settings`, and the path of the results, `out`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def task() -> dict[str, Any]:
    """Return the task of this party."""
    arguments: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return arguments


def spent() -> float:
    """Return processor seconds of this process and of its ended child processes."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class Work:
    """Wall-clock and processor seconds of the measured work of a process, without imports."""

    def __enter__(self) -> Work:
        self._cpu, self._started = spent(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s, self.seconds = spent() - self._cpu, time.monotonic() - self._started

    def tell(self, arguments: dict[str, Any], **result: Any) -> None:
        """Write the results with the costs of the work."""
        figures = {"work_cpu_s": self.cpu_s, "work_s": self.seconds, **result}
        Path(arguments["out"]).write_text(json.dumps(figures), encoding="utf-8")


def address(port: int) -> str:
    """Return a port of this machine."""
    return f"127.0.0.1:{port}"

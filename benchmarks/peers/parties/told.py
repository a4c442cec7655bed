"""What every party of a peer does alike: it reads what it is to do, and writes what it found. No import but Python's.

A script of this folder is started as `python SCRIPT TASK.json`; a task has `rank` (0 is who holds the labels), `own`
(the ports this party binds) and `other` (those it reaches the other by, which may lead through a slow line), the folder
of `tables`, `settings`, and where to write `out`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def task() -> dict[str, Any]:
    """What this party is to do."""
    arguments: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return arguments


def spent() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class Work:
    """The part of a process that is the work itself, without imports: its seconds by the clock and of processor."""

    def __enter__(self) -> Work:
        self._cpu, self._started = spent(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s, self.seconds = spent() - self._cpu, time.monotonic() - self._started

    def tell(self, arguments: dict[str, Any], **result: Any) -> None:
        """Write it beside what was found."""
        figures = {"work_cpu_s": self.cpu_s, "work_s": self.seconds, **result}
        Path(arguments["out"]).write_text(json.dumps(figures), encoding="utf-8")


def address(port: int) -> str:
    """A port of this machine."""
    return f"127.0.0.1:{port}"

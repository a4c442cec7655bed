"""The memory that a process and those that it has started have held."""

from __future__ import annotations

import threading
from pathlib import Path

_SAMPLED = 0.1  # seconds between two looks at memory


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
        this_path = Path("/proc/self/task")
        started = " ".join(_text(task / "children") for task in this_path.iterdir()).split()
        for process in ("self", *started):
            status = dict(line.split(":", 1) for line in _text(Path("/proc", process, "status")).splitlines())
            self._most[process] = max(self._most.get(process, 0), int(status.get("VmHWM", "0").split()[0]))


def _text(path: Path) -> str:
    """Read a file of /proc; nothing if its process has ended."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

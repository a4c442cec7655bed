"""Measurement of the memory of a process and of its child processes."""

from __future__ import annotations

import threading
from pathlib import Path

_SAMPLED = 0.1  # seconds between two samples


class MemoryHeld:
    """The largest memory of this process plus that of its child processes, in MB. Linux only.

    The memory is sampled while the `with` block runs, and not read as the peak that the kernel stores for each process,
    because that peak includes the memory of the parent at the start of a child.
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
        """The largest memory so far, in MB."""
        return sum(self._most.values()) // 1024

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLED):
            self._look()

    def _look(self) -> None:
        tasks = Path("/proc/self/task")
        started = " ".join(_text(task / "children") for task in tasks.iterdir()).split()
        for process in ("self", *started):
            status = dict(line.split(":", 1) for line in _text(Path("/proc", process, "status")).splitlines())
            self._most[process] = max(self._most.get(process, 0), int(status.get("VmHWM", "0").split()[0]))


def _text(path: Path) -> str:
    """Return the content of a file of /proc; empty if its process has ended."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

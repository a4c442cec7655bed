"""Progress display of long operations.

On terminals and in notebooks it is a bar. Elsewhere, for example in a log file, it is a printed line every 30 seconds.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

OnStep = Callable[[int, int], None]
"""A function of the number of steps done and the total number of steps, which is 0 if unknown."""

PROGRESS_LINE_SECONDS = 30.0  # seconds between two lines of output that is not on a terminal


@contextmanager
def progress(label: str, line_seconds: float = PROGRESS_LINE_SECONDS) -> Iterator[OnStep]:
    """Show the progress of an operation while the `with` block runs.

    On a terminal the bar disappears at the end. Without a terminal a line is printed every `line_seconds` seconds, and
    none for operations that take less.

    Args:
        label: a name of the operation, for the display.
        line_seconds: the least time between two printed lines.

    Yields:
        A function that any thread may call with the number of steps done and the total.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with _bar(label, console) if _draws(console) else _lines(label, line_seconds) as on_step:
        yield on_step


@contextmanager
def watched(label: str, enabled: bool, callback: OnStep | None) -> Iterator[OnStep | None]:
    """Yield a function that reports progress to a progress bar, to the caller's callback, or to both.

    Args:
        label: a name of the operation, for the display.
        enabled: whether to show progress on a terminal, in a notebook or as printed lines.
        callback: the caller's function to call at each step; None if there is none.

    Yields:
        A function that calls the callback and updates the display, or None if there is neither.
    """
    with progress(label) if enabled else nullcontext() as display:
        if display is None or callback is None:
            yield display or callback
            return
        functions = display, callback

        def both(done: int, total: int) -> None:
            for function in functions:
                function(done, total)

        yield both


def _draws(console: Console) -> bool:
    """Return whether rich can draw a bar: on a terminal, or in a notebook that has ipywidgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


@contextmanager
def _bar(label: str, console: Console) -> Iterator[OnStep]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(label, total=None)

    def on_step(done: int, total: int) -> None:
        bar.start()  # the bar starts at the first step, because before it the command may ask a question
        bar.update(task, completed=done, total=total or None)

    try:
        yield on_step
    finally:
        bar.stop()


@contextmanager
def _lines(label: str, line_seconds: float) -> Iterator[OnStep]:
    lines = ProgressLines(label, line_seconds)
    yield lines.step
    lines.end()


class ProgressLines:
    """Prints lines of progress on stderr: at most one every `line_seconds` seconds, and one at the end.

    Args:
        label: a name of the operation, for the display.
        line_seconds: the least time between two lines.
        clock: returns the present time in seconds.
    """

    def __init__(
        self,
        label: str,
        line_seconds: float = PROGRESS_LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._line_seconds, self._clock = label, line_seconds, clock
        self._start = self._printed_at = clock()
        self._lock = threading.Lock()
        self._done = self._printed = 0

    def step(self, done: int, total: int) -> None:
        """Record the number of steps done and the total, and print them unless a line was printed recently."""
        now = self._clock()
        with self._lock:
            self._done = done
            if now - self._printed_at < self._line_seconds:
                return
            self._printed_at, self._printed = now, done
        self._print(f"{done:,} of {total:,}" if total else f"{done:,}", now)

    def end(self) -> None:
        """Print the final number of steps, if an earlier line printed another one."""
        if self._printed and self._printed != self._done:
            self._print(f"{self._done:,}, finished", self._clock())

    def _print(self, status: str, now: float) -> None:
        print(f"{self._label}: {status}, {now - self._start:.0f} s", file=sys.stderr, flush=True)

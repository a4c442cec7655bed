"""A bar while something runs: on a terminal's stderr or below a notebook's cell. Elsewhere, as in a log file, a line on
stderr from time to time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from securevfl.display.html import escape

OnStep = Callable[[int, int], None]

REDRAWN = 0.1  # seconds between two drawings in a notebook
EVERY = 30.0  # between two lines where there is no terminal


@contextmanager
def progress(label: str) -> Iterator[OnStep]:
    """Show a bar and yield `on_step(done, of)`, which any thread may call; of 0 is an end not known yet.

    On a terminal the bar is gone when done; a notebook keeps its last state; anything else gets a line every EVERY
    seconds, and none of what takes less.
    """
    with _Cell(label) if _in_notebook() else _terminal(label) as on_step:
        yield on_step


@contextmanager
def watched(label: str, wanted: bool, also: OnStep | None) -> Iterator[OnStep | None]:
    """`also`, and a bar as well if `wanted`."""
    with progress(label) if wanted else nullcontext() as shown:
        if shown is None or also is None:
            yield shown or also
            return
        steps = shown, also

        def both(done: int, of: int) -> None:
            for step in steps:
                step(done, of)

        yield both


@contextmanager
def _terminal(label: str) -> Iterator[OnStep]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    out = Console(stderr=True, highlight=False, markup=False, emoji=False)
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    if not out.is_terminal:
        lines = _Lines(label)
        yield lines.step
        lines.end()
        return
    bar = Progress(*columns, console=out, transient=True)
    task = bar.add_task(label, total=None)

    def on_step(done: int, of: int) -> None:
        bar.start()  # not before: a question may be asked until then
        bar.update(task, completed=done, total=of or None)

    try:
        yield on_step
    finally:
        bar.stop()


class _Lines:
    """Lines of progress on stderr: a line EVERY seconds at most, and after these a last one, of where it ended."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begun = self._last = time.monotonic()
        self._lock = threading.Lock()
        self._done = self._said = 0

    def step(self, done: int, of: int) -> None:
        """Note how far the work is, and say it unless that was done lately."""
        now = time.monotonic()
        with self._lock:
            self._done = done
            if now - self._last < EVERY:
                return
            self._last, self._said = now, done
        self._say(f"{done:,} of {of:,}" if of else f"{done:,}", now)

    def end(self) -> None:
        """Say where it ended, if a line before says something else."""
        if self._said and self._said != self._done:
            self._say(f"{self._done:,}, the last", time.monotonic())

    def _say(self, where: str, now: float) -> None:
        print(f"{self._label}: {where}, {now - self._begun:.0f} s", file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    """Whether a kernel runs this, so that cells can show HTML. A terminal's IPython has no kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Cell:
    """A bar below the cell that is running, redrawn in its place."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._lock = threading.Lock()
        self._state = (0, 0)
        self._begun = self._drawn = time.monotonic()
        self._handle: Any = None

    def __enter__(self) -> OnStep:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle = display(HTML(self.markup()), display_id=True)
        return self.step

    def __exit__(self, *_: object) -> None:
        self._handle.update(self._html(self.markup()))

    def step(self, done: int, of: int) -> None:
        """Note how far the work is, and redraw the bar unless it has just been drawn."""
        with self._lock:
            self._state = done, of
            now = time.monotonic()
            if now - self._drawn < REDRAWN:
                return
            self._drawn = now
        self._handle.update(self._html(self.markup()))

    def markup(self) -> str:
        """Return the bar as HTML."""
        done, of = self._state
        known = f' value="{done}" max="{of}"' if of else ""
        seconds = time.monotonic() - self._begun
        left = f", {seconds * (of - done) / done:.0f} s left" if 0 < done < of else ""
        count = f"{done:,} of {of:,}" if of else f"{done:,}"
        return f"<div>{escape(self._label)} <progress{known}></progress> {count}, {seconds:.0f} s{left}</div>"

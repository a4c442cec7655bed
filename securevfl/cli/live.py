"""The one line of a training: where it is, how good the model is so far, how long it will take, what was sent.

On a terminal the line lives on stderr and is gone at the end; elsewhere it is printed every half minute. It hears of
the training by its events (`securevfl.runtime.eventlog`); those that only it needs are in no log.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from securevfl.runtime import eventlog

if TYPE_CHECKING:
    from securevfl.job import Job

OnStep = Callable[[int, int], None]

ERASED = "\r\x1b[2K"
DRAWN = 0.2  # seconds between two drawings on a terminal
EVERY = 30.0  # seconds between two lines where there is no terminal
FIRST = 3.0  # seconds after which a wait is told of on a terminal
QUIET = 10.0  # seconds before the first line elsewhere
SHOWN = ("auc", "accuracy", "r2", "rmse", "loss")  # the figure of a line: the first of these that is measured
NAMES = {"auc": "AUC", "r2": "R2", "rmse": "RMSE"}


@contextmanager
def live(others: Sequence[str], step: str, *, verbose: bool = False) -> Iterator[OnStep]:
    """Show the line while the block runs. others: who is waited for. step: what a step is called. verbose: whether
    events are printed, too, all of them; their handler is added within the block.

    Yields what is called with the steps done and the most there may be, which any thread may do."""
    line = TrainingStatus(others, step)
    terminal = sys.stderr.isatty()
    shown = _Shown(line, terminal=terminal)
    handler, level = _Events(line, shown, logging.INFO if verbose else logging.ERROR), eventlog.LOGGER.level
    eventlog.LOGGER.addHandler(handler)
    eventlog.LOGGER.setLevel(logging.DEBUG)
    try:
        yield line.step
    finally:
        shown.stop()
        eventlog.LOGGER.removeHandler(handler)
        eventlog.LOGGER.setLevel(level)


def step_of(job: Job) -> str:
    """Return what a step of this job is called: on shares a visit to a batch, elsewhere a round."""
    return "round" if job.protocol.shares is None else "visit"


class TrainingStatus:
    """What the line says, as text: empty where there is nothing to say, as while a question is asked."""

    def __init__(self, others: Sequence[str], step: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting, self._step, self._clock = list(others), step, clock
        self._begun = clock()
        self._trains: float | None = None if others else self._begun
        self._done = self._of = self._first = 0
        self._figure, self._bytes = "", dict[str, int]()
        self._lock = threading.Lock()

    def step(self, done: int, of: int) -> None:
        """Note so many steps, of so many at most; of 0 is an end that is not known."""
        with self._lock:
            if self._trains is None or not self._done or done < self._done:
                self._trains, self._first = self._clock(), done  # what came before is not the pace of a step
                self._figure = self._figure if done >= self._done else ""  # of the training before
            self._done, self._of = done, of

    def note(self, event: str, party: str, facts: dict[str, Any]) -> None:
        """Take in an event of the training."""
        with self._lock:
            if event == "connected" and facts.get("peer") in self._waiting:
                self._waiting.remove(facts["peer"])
            elif event == "agreed":
                self._waiting = []
            elif event == "begins":
                self._trains = self._clock()
            elif event == "at":
                self._bytes[party] = int(facts.pop("bytes"))
                name = next((each for each in SHOWN if each in facts), None)
                if name is not None:
                    self._figure = f"{NAMES.get(name, name)} {facts[name]:.3f} so far"

    def text(self) -> str:
        """Return the line."""
        with self._lock:
            now = self._clock()
            if self._waiting and now - self._begun > FIRST:
                return f"waiting for {', '.join(self._waiting)}, {_span(now - self._begun)}"
            if self._trains is None:
                return ""
            if not self._done:
                return f"training: before the first {self._step}, {_span(now - self._trains)}"
            most = f" of at most {self._of:,}" if self._of else ""
            parts = [f"training: {self._step} {self._done:,}{most}", self._figure, self._left(now)]
            if sent := sum(self._bytes.values()):
                parts.append(f"{sent / 1e6:,.1f} MB sent")
            return ", ".join(filter(None, parts))

    def _left(self, now: float) -> str:
        done = self._done - self._first
        if self._trains is None or not (done and self._of):
            return ""
        return f"{_span((now - self._trains) / done * (self._of - self._done))} left"


def _span(seconds: float) -> str:
    """Format a time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{rest} s" if not minutes else f"{minutes} min {rest} s" if minutes < 60 else f"{minutes / 60:.1f} h"


class _Events(logging.Handler):
    """Hands events to the line, and takes it off the screen before one of level `printed` goes there."""

    def __init__(self, line: TrainingStatus, shown: _Shown, printed: int) -> None:
        super().__init__(logging.DEBUG)
        self._line, self._shown, self._printed = line, shown, printed

    def emit(self, record: logging.LogRecord) -> None:
        facts = json.loads(record.getMessage())
        del facts["time"]
        event = facts.pop("event")
        self._line.note(event, facts.pop("party"), facts)
        if event == "agreed" or record.levelno >= self._printed:
            self._shown.clear()


class _Shown:
    """Puts the line on stderr: on a terminal in its place, five times a second; elsewhere now and then."""

    def __init__(self, line: TrainingStatus, *, terminal: bool) -> None:
        self._line, self._terminal, self._over, self._lock = line, terminal, threading.Event(), threading.Lock()
        self._last = ""
        self._thread = threading.Thread(target=self._draw if terminal else self._print, daemon=True)
        self._thread.start()

    def clear(self) -> None:
        """Take the line off the terminal until it is drawn again."""
        with self._lock:
            if self._last:
                self._last = ""
                _write(ERASED)

    def stop(self) -> None:
        """Take it off for good: what follows says how it went."""
        self._over.set()
        self._thread.join()
        self.clear()

    def _draw(self) -> None:
        while not self._over.wait(DRAWN):
            with self._lock:
                text = self._line.text()[: shutil.get_terminal_size().columns - 1]
                if text != self._last:
                    self._last = text
                    _write(ERASED + text)

    def _print(self) -> None:
        wait = QUIET
        while not self._over.wait(wait):
            if text := self._line.text():
                _write(f"{text}\n")
            wait = EVERY


def _write(text: str) -> None:
    with suppress(OSError, ValueError):  # whoever read it has gone; the training goes on
        sys.stderr.write(text)
        sys.stderr.flush()

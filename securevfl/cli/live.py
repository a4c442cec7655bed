"""The status line of a training: steps done, model quality, time left and traffic.

On a terminal the line is redrawn in place and disappears at the end. Elsewhere it is printed every half minute. It is
updated by the events of the training, facts that the training reports (`securevfl.runtime.eventlog`). Some events are
only for this line and appear in no log.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from securevfl.runtime import eventlog

if TYPE_CHECKING:
    from rich.console import Console

    from securevfl.job import Job

OnStep = Callable[[int, int], None]
"""A function of the number of finished steps and the maximum number of steps, which is 0 if it is unknown."""

WAIT_SECONDS = 3.0  # seconds of waiting after which the line names the parties for which this party waits
# the status line shows only one metric: the first of these that the training measures
LINE_METRICS = ("auc", "accuracy", "r2", "rmse", "loss")
METRIC_NAMES = {"auc": "AUC", "r2": "R2", "rmse": "RMSE"}


class StatusPace(NamedTuple):
    """How often the status line is redrawn on a terminal, and printed without one."""

    redraws_per_second: float = 5
    first_line_seconds: float = 10.0
    """Seconds before the first printed line."""
    line_seconds: float = 30.0
    """Seconds between two printed lines."""


STATUS_PACE = StatusPace()


@contextmanager
def live(others: Sequence[str], step: str, pace: StatusPace = STATUS_PACE) -> Iterator[OnStep]:
    """Show the status line while the context is entered.

    On a terminal, text that the program writes to stderr meanwhile is printed above the line.

    Args:
        others: names of the parties for which this party waits.
        step: word for a step of the training: "iteration" or "round".
        pace: how often the line is shown.

    Yields:
        A function that any thread may call with the number of steps done and the maximum.
    """
    from rich.console import Console

    status = TrainingStatus(others, step)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    display: _Display = _TerminalLine(status, console, pace) if console.is_terminal else _PrintedLines(status, pace)
    handler = _EventHandler(status, display)
    level = eventlog.LOGGER.level
    eventlog.LOGGER.addHandler(handler)
    eventlog.LOGGER.setLevel(logging.DEBUG)
    try:
        yield status.step
    finally:
        display.stop()
        eventlog.LOGGER.removeHandler(handler)
        eventlog.LOGGER.setLevel(level)


def step_of(job: Job) -> str:
    """Return the word for a step of this job: "iteration" on secret shares, otherwise "round"."""
    return "round" if job.protocol.shares is None else "iteration"


class TrainingStatus:
    """The text of the status line. It is empty before the first event, and while the command asks a question.

    Args:
        others: names of the parties for which this party waits.
        step: word for a step of the training: "iteration" or "round".
        clock: returns the time in seconds.
    """

    def __init__(self, others: Sequence[str], step: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting, self._step, self._clock = list(others), step, clock
        self._start = clock()
        self._training_start: float | None = None if others else self._start
        self._done = self._max_steps = self._first = 0
        self._metric, self._bytes = "", dict[str, int]()
        self._others_note = "; others may still have to agree" if others else ""
        self._reasons = dict[str, str]()  # why this party waits for another one
        self._lock = threading.Lock()

    def step(self, done: int, max_steps: int) -> None:
        """Record the number of finished steps and the maximum number, which is 0 if it is unknown."""
        with self._lock:
            if self._training_start is None or not self._done or done < self._done:
                # the remaining time is estimated from the speed since this step
                self._training_start, self._first = self._clock(), done
                # if there are fewer steps than before, a new training has begun: remove the metric of the previous one
                self._metric = self._metric if done >= self._done else ""
            self._done, self._max_steps = done, max_steps

    def note(self, event: str, party: str, facts: dict[str, Any]) -> None:
        """Update the line by an event of the training.

        Args:
            event: name of the event.
            party: name of the party that reports it.
            facts: facts about the event, by name.
        """
        with self._lock:
            if event == "connected" and facts.get("peer") in self._waiting:
                self._waiting.remove(facts["peer"])
            elif event == "agreed":
                self._waiting = []
            elif event == "waiting":
                self._reasons[str(facts["peer"])] = str(facts["reason"])
            elif event == "training begins":
                self._training_start = self._clock()
            elif event == "training progress":
                self._bytes[party] = int(facts.pop("bytes"))
                name = next((metric for metric in LINE_METRICS if metric in facts), None)
                if name is not None:
                    self._metric = f"{METRIC_NAMES.get(name, name)} {facts[name]:.3f} so far"

    def text(self) -> str:
        """Return the status line as text."""
        with self._lock:
            now = self._clock()
            if self._waiting and now - self._start > WAIT_SECONDS:
                reasons = [self._reasons[name] for name in self._waiting if name in self._reasons]
                reason = f": {reasons[0]}" if reasons else ""
                return f"waiting for {', '.join(self._waiting)}, {_duration(now - self._start)}{reason}"
            if self._training_start is None:
                return ""
            if not self._done:
                so_far = _duration(now - self._training_start)
                return f"training: before the first {self._step}, {so_far}{self._others_note}"
            maximum = f" of at most {self._max_steps:,}" if self._max_steps else ""
            parts = [f"training: {self._step} {self._done:,}{maximum}", self._metric, self._time_left(now)]
            if sent := sum(self._bytes.values()):
                parts.append(f"{sent / 1e6:,.1f} MB sent")
            return ", ".join(filter(None, parts))

    def _time_left(self, now: float) -> str:
        done = self._done - self._first
        if self._training_start is None or not (done and self._max_steps):
            return ""
        return f"{_duration((now - self._training_start) / done * (self._max_steps - self._done))} left"


def _duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    minutes, remainder = divmod(round(seconds), 60)
    if not minutes:
        return f"{remainder} s"
    return f"{minutes} min {remainder} s" if minutes < 60 else f"{minutes / 60:.1f} h"


class _Display(Protocol):
    """A terminal, notebook or file on which the status line is shown."""

    def pause(self) -> None:
        """Hide the line until the next step, because the command may print a question meanwhile."""

    def resume(self) -> None:
        """Show the status line again after other output."""

    def stop(self) -> None:
        """Remove the line at the end, because the command prints the result next."""


class _EventHandler(logging.Handler):
    """Updates the status line by events, and hides it while the command may ask its user a question."""

    def __init__(self, status: TrainingStatus, display: _Display) -> None:
        super().__init__(logging.DEBUG)
        self._status, self._display = status, display

    def emit(self, record: logging.LogRecord) -> None:
        facts = json.loads(record.getMessage())
        del facts["time"]
        event = facts.pop("event")
        self._status.note(event, facts.pop("party"), facts)
        if event == "agreed":
            self._display.pause()
        elif event in ("training begins", "training progress"):
            self._display.resume()


class _TerminalLine:
    """The status line on a terminal, drawn and redrawn in place by the library rich."""

    def __init__(self, status: TrainingStatus, console: Console, pace: StatusPace) -> None:
        from rich.progress import Progress, ProgressColumn, Task
        from rich.text import Text

        class StatusColumn(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(status.text(), no_wrap=True, overflow="ellipsis")

        self._progress = Progress(
            StatusColumn(), console=console, transient=True, refresh_per_second=pace.redraws_per_second
        )
        self._progress.add_task("", total=None)
        self._stopped = False
        self._lock = threading.Lock()
        self.resume()

    def pause(self) -> None:
        with self._lock:
            self._progress.stop()

    def resume(self) -> None:
        with self._lock:
            if not self._stopped:
                self._progress.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._progress.stop()


class _PrintedLines:
    """The line on a stream that is not a terminal, printed from time to time."""

    def __init__(self, status: TrainingStatus, pace: StatusPace) -> None:
        self._status, self._pace, self._stopped = status, pace, threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _print(self) -> None:
        wait = self._pace.first_line_seconds
        while not self._stopped.wait(wait):
            if text := self._status.text():
                # the stream may be closed; the training then continues without the status line
                with suppress(OSError, ValueError):
                    print(text, file=sys.stderr, flush=True)
            wait = self._pace.line_seconds

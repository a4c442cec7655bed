"""The screen of a service shows the operator its sessions, the rate of scored rows, refusals and budgets.

A *service* is a command that keeps running: a server (`securevfl serve`), which answers requests for scores, or a
gateway (`securevfl score --http`), which requests scores from servers for its party's applications. A *budget* is the
unused part of a limit of the disclosure ledger, the party's record of what its table has disclosed.

On a terminal the screen is redrawn in place, within 80 columns. Elsewhere one line is printed when the service starts,
one when its figures have changed (at most once a minute), and one when it ends.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from securevfl.errors import SecureVFLError
from securevfl.organisations.budgets import Budget
from securevfl.runtime import eventlog
from securevfl.untrusted import shortened

if TYPE_CHECKING:
    from rich.console import Console, Group

    from securevfl.organisations.serve import RequestOutcome

SCREEN_WIDTH = 80
SCREEN_REDRAWS_PER_SECOND = 2
SERVICE_LINE_SECONDS = 60.0  # seconds between two lines without a terminal
RATE_SECONDS = 60.0  # seconds over which the rate is measured
LEDGER_SECONDS = 5.0  # seconds between two readings of the ledger
MAX_EVENTS = 4  # number of latest events on the screen
MAX_BUDGETS = 8  # maximum number of budgets on the screen
DIGEST = re.compile("[0-9a-f]{16,}")
MAX_PEER = 24  # longer names of peers are cut to this number of characters


@dataclass(frozen=True)
class ServiceFigures:
    """The figures of a service at one time.

    Attributes:
        sessions: the number of running sessions.
        max_sessions: the maximum number of sessions.
        requests: number of answered requests; at a gateway, number of blocks of rows that the servers have answered.
        rows: number of scored rows.
        refused: number of refused requests; at a gateway, number of rows without a score.
        failed: number of failed requests; None at a gateway, because its applications repeat failed requests.
        waiting: number of rows that wait for an answer; None if the service has no queue.
        refusal: why the latest refused request was refused; empty if none was refused, and at a gateway.
    """

    sessions: int
    max_sessions: int
    requests: int
    rows: int
    refused: int
    failed: int | None = None
    waiting: int | None = None
    refusal: str = ""


class RequestTally:
    """Counts the requests that a server has finished, by their outcome."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, self._rows, self._refusal = Counter[str](), 0, ""

    def count(self, request: RequestOutcome) -> None:
        """Add a finished request to the figures of the service."""
        with self._lock:
            self._requests[request.outcome] += 1
            self._rows += 0 if request.counts is None else request.counts.scored
            if request.outcome == "refused":
                self._refusal = " ".join(request.reason.split())

    def counts_and(self, then: Callable[[RequestOutcome], None]) -> Callable[[RequestOutcome], None]:
        """Return a function that counts a finished request and then calls the other function with it."""

        def count(request: RequestOutcome) -> None:
            self.count(request)
            then(request)

        return count

    def figures(self, sessions: int, max_sessions: int) -> ServiceFigures:
        """Return the figures of the service.

        Args:
            sessions: the number of running sessions.
            max_sessions: the maximum number of sessions.

        Returns:
            The figures.
        """
        with self._lock:
            answered, refused, failed = (self._requests[name] for name in ("answered", "refused", "failed"))
            return ServiceFigures(sessions, max_sessions, answered, self._rows, refused, failed, refusal=self._refusal)

    def __str__(self) -> str:
        """Return the numbers of answered, refused and failed requests as a sentence."""
        figures = self.figures(0, 0)
        answered = f"{_counted(figures.requests, 'request')} answered, {_counted(figures.rows, 'row')} scored"
        return f"{answered}, {_counted(figures.refused, 'request')} refused, {figures.failed:,} failed"


class Rate:
    """The number of rows per second over the latest minute.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples = deque[tuple[float, int]]([(clock(), 0)])

    def of(self, rows: int) -> float:
        """Return the rate, given the number of rows that were scored so far.

        Args:
            rows: the number of rows since the start.

        Returns:
            Rows per second.
        """
        now = self._clock()
        if now - self._samples[-1][0] >= 1.0:
            self._samples.append((now, rows))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_SECONDS:
            self._samples.popleft()
        start, before = self._samples[0]
        return (rows - before) / max(now - start, 1.0)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


class ServiceScreen:
    """The screen of a service.

    Args:
        title: what the service does, as in "shop serves 6,000 rows".
        figures: returns the current figures.
        budgets: returns the budgets of the ledger.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        title: str,
        figures: Callable[[], ServiceFigures],
        budgets: Callable[[], Sequence[Budget]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._figures, self._budgets, self._clock = title, figures, budgets, clock
        self._rate, self._start = Rate(clock), clock()
        self._read_at, self._latest_budgets = -LEDGER_SECONDS, list[Budget]()
        self._events = deque[str](maxlen=MAX_EVENTS)
        self._lock = threading.Lock()

    def note(self, event: str) -> None:
        """Add an event to the latest events on the screen."""
        self._events.append(event)

    def line(self) -> str:
        """Return the figures of the service as one line of text, for output that is not a terminal."""
        with self._lock:
            figures = self._figures()
            parts = [f"{figures.sessions} of {figures.max_sessions} sessions", *self._counts(figures)]
            parts += [
                f"{budget.left} of {budget.limit} {budget.kind} left" + (f" for {budget.peer}" if budget.peer else "")
                for budget in self._current_budgets()
            ]
            return f"{self._title}: {', '.join(parts)}"

    def _counts(self, figures: ServiceFigures) -> list[str]:
        counts = [
            _counted(figures.requests, "request"),
            f"{_counted(figures.rows, 'row')} scored ({self._rate.of(figures.rows):.1f} a second)",
            f"{figures.refused:,} refused",
            *([] if figures.failed is None else [f"{figures.failed:,} failed"]),
        ]
        return counts if figures.waiting is None else [*counts, f"{figures.waiting:,} rows wait"]

    def _current_budgets(self) -> list[Budget]:
        """Return the budgets of the ledger, which is read again only every `LEDGER_SECONDS`."""
        now = self._clock()
        if now - self._read_at >= LEDGER_SECONDS:
            self._read_at = now
            with suppress(SecureVFLError):  # the service itself reports a ledger that cannot be read
                self._latest_budgets = list(self._budgets())
        return self._latest_budgets

    def drawing(self) -> Group:
        """Return the screen as an object that the library rich draws."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            figures = self._figures()
            hours, seconds = divmod(int(self._clock() - self._start), 3600)
            state = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            state.add_column(style="bold", no_wrap=True)
            state.add_column(no_wrap=True, overflow="ellipsis")
            full = figures.sessions >= figures.max_sessions
            sessions = f"{figures.sessions} of {figures.max_sessions}"
            state.add_row("sessions", Text(sessions, style="yellow" if full else ""))
            state.add_row("rate", f"{self._rate.of(figures.rows):.1f} rows a second over the last minute")
            state.add_row(
                "answered", f"{_counted(figures.requests, 'request')}, {_counted(figures.rows, 'row')} scored"
            )
            refused = f"{figures.refused:,}" + (f", the latest: {figures.refusal}" if figures.refusal else "")
            state.add_row("refused", Text(refused, style="yellow" if figures.refused else ""))
            if figures.failed is not None:
                state.add_row("failed", Text(f"{figures.failed:,}", style="red" if figures.failed else ""))
            if figures.waiting is not None:
                state.add_row("waiting", f"{figures.waiting:,} rows")
            state.add_row("running for", f"{hours} h {seconds // 60} min")
            limits = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
            for head in ("budget of the ledger", "peer", "limit", "left"):
                limits.add_column(head, no_wrap=True, overflow="ellipsis")
            budgets = self._current_budgets()
            for budget in budgets[:MAX_BUDGETS]:
                empty = budget.left.startswith("0")
                left = Text(budget.left, style="red" if empty else "")
                limits.add_row(budget.kind, shortened(budget.peer, MAX_PEER) or "-", budget.limit, left)
            title = Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
            events = [Text(event, no_wrap=True, overflow="ellipsis") for event in self._events]
            parts = [title, state, *([limits] if budgets else [Text("The ledger has no limits.")]), *events]
            return Group(*parts, Text("Ctrl-C or SIGTERM ends the service."))


class _EventHandler(logging.Handler):
    """Shows events on the screen, as people read them."""

    def __init__(self, screen: ServiceScreen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        facts = json.loads(record.getMessage())
        when, event = facts.pop("time"), facts.pop("event")
        del facts["party"]
        details = ", ".join(f"{key.replace('_', ' ')} {fact}" for key, fact in facts.items() if not _is_digest(fact))
        self._screen.note(f"{when[11:19]} {event}" + (f": {details}" if details else ""))


def _is_digest(fact: object) -> bool:
    """Return whether a fact of an event is a digest or another long identifier, which only the log shows."""
    return isinstance(fact, str) and DIGEST.fullmatch(fact) is not None


@contextmanager
def service_screen(screen: ServiceScreen, line_seconds: float = SERVICE_LINE_SECONDS) -> Iterator[None]:
    """Show the screen inside the `with` block, and print the final figures at its end.

    Args:
        screen: the content of the screen.
        line_seconds: without a terminal, the seconds between two checks for changed figures.

    Yields:
        Nothing.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    handler = _EventHandler(screen)
    eventlog.LOGGER.addHandler(handler)
    eventlog.LOGGER.setLevel(min(logging.INFO, eventlog.LOGGER.getEffectiveLevel()))
    try:
        with _on_terminal(screen, console) if console.is_terminal else _in_lines(screen, line_seconds):
            yield
    finally:
        eventlog.LOGGER.removeHandler(handler)


def shows_events() -> bool:
    """Return whether stdout and stderr are both terminals: the screen then shows the events, so stderr need not."""
    return sys.stdout.isatty() and sys.stderr.isatty()


@contextmanager
def _on_terminal(screen: ServiceScreen, console: Console) -> Iterator[None]:
    from rich.live import Live

    console.width = min(console.width, SCREEN_WIDTH)
    with Live(console=console, get_renderable=screen.drawing, refresh_per_second=SCREEN_REDRAWS_PER_SECOND):
        yield


@contextmanager
def _in_lines(screen: ServiceScreen, line_seconds: float) -> Iterator[None]:
    ended = threading.Event()
    printed = ""

    def show() -> None:
        nonlocal printed
        text = screen.line()
        if text != printed:
            printed = text
            print_line(text)

    def repeat() -> None:
        while not ended.wait(line_seconds):
            show()

    show()
    thread = threading.Thread(target=repeat, name="service lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def print_line(text: str) -> None:
    """Print a line on stdout. If stdout is closed, do nothing, so that the service continues."""
    with suppress(OSError, ValueError):
        print(text, flush=True)

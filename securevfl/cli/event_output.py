"""Print the events of a run for people, and append them to a log.

An event is a fact that a run reports while it runs, such as a lost connection (`securevfl.runtime.eventlog`).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def events(verbose: bool, log: Path | None) -> Iterator[None]:
    """Print the events of a run on stderr while the `with` block runs.

    Args:
        verbose: whether to print all events, and not only errors.
        log: a file to which all events are appended as JSON.

    Yields:
        Nothing.
    """
    from securevfl.runtime import eventlog

    handlers = [] if log is None else [eventlog.write_to(log)]
    handlers.append(eventlog.write_to(sys.stderr, logging.INFO if verbose else logging.ERROR))
    handlers[-1].setFormatter(_EventFormatter())
    try:
        yield
    finally:
        for handler in handlers:
            eventlog.LOGGER.removeHandler(handler)
            handler.close()


class _EventFormatter(logging.Formatter):
    """Formats an event as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        facts = json.loads(record.getMessage())
        when, event, party = (facts.pop(key) for key in ("time", "event", "party"))
        return f"{when[11:19]} {party}: {event}" + "".join(f", {key} {fact}" for key, fact in facts.items())

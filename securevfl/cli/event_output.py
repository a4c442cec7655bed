"""Print the events of a run for people, and append them to a log."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@contextmanager
def events(verbose: bool, log: Path | None) -> Iterator[None]:
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
    """An event as a line to read."""

    def format(self, record: logging.LogRecord) -> str:
        facts = json.loads(record.getMessage())
        at, event, party = (facts.pop(key) for key in ("time", "event", "party"))
        return f"{at[11:19]} {party}: {event}" + "".join(f", {key} {fact}" for key, fact in facts.items())

"""Structured log lines of a run: connections, refusals, rounds, bytes, waiting times; never a value of a table.

The lines are JSON objects and go to the logger "securevfl" of the standard library. The logger discards them until
`write_to` adds a handler for a stream or a file.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from securevfl.untrusted import printable

LOGGER = logging.getLogger("securevfl")
LOGGER.addHandler(logging.NullHandler())


class _LogFile(logging.FileHandler):
    """A log file. If it cannot be written, one line on stderr reports it and the run continues."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._reported:
            self._reported = True
            cause = sys.exc_info()[1]
            reason = (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__
            print(
                f"{self.baseFilename}: the log cannot be written ({reason}). The run continues without it.",
                file=sys.stderr,
            )


def emit(party: str, event: str, facts: Mapping[str, str | int | float], level: int = logging.INFO) -> None:
    """Log an event of a party. Facts are names, counts, bytes and seconds, never values of a table."""
    if LOGGER.isEnabledFor(level):
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        rounded = {key: _loggable(fact) for key, fact in facts.items()}
        LOGGER.log(level, json.dumps({"time": time, "event": event, "party": party, **rounded}, ensure_ascii=False))


def _loggable(fact: str | int | float) -> str | int | float:
    """Return a fact as it is logged: numbers with at most 6 digits, texts with escaped control characters."""
    return printable(fact) if isinstance(fact, str) else round(fact, 6) if isinstance(fact, float) else fact


def warn(party: str, event: str, facts: Mapping[str, str | int | float]) -> None:
    """Log an event that an operator should look at, such as a refusal or a lost connection."""
    emit(party, event, facts, logging.WARNING)


def write_to(target: TextIO | Path, level: int = logging.INFO) -> logging.Handler:
    """Write log lines of this level and above to a stream, or append them to a file.

    Return the handler, for `LOGGER.removeHandler`.
    """
    handler: logging.Handler
    handler = _LogFile(target, encoding="utf-8") if isinstance(target, Path) else logging.StreamHandler(target)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.setLevel(level)
    LOGGER.addHandler(handler)
    LOGGER.setLevel(min(level, LOGGER.getEffectiveLevel()))
    return handler

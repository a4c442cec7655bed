"""One structured line for each event of a run: connections, refusals, rounds, bytes and waits, never a value.

The lines are JSON objects and go to the logger "securevfl" of the standard library, which shows nothing until it is
given a handler: `write_to` does that for a stream or a file.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

LOGGER = logging.getLogger("securevfl")
LOGGER.addHandler(logging.NullHandler())


class _LogFile(logging.FileHandler):
    """A file of events. That it cannot be written is said once; the run goes on."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._said:
            self._said = True
            cause = sys.exc_info()[1]
            reason = (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__
            print(
                f"{self.baseFilename}: the log cannot be written ({reason}); the run goes on without", file=sys.stderr
            )


def emit(party: str, event: str, facts: Mapping[str, str | int | float], level: int = logging.INFO) -> None:
    """Log that `event` happened at `party`. Facts are names, counts, bytes and seconds, never anyone's data."""
    if LOGGER.isEnabledFor(level):
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        rounded = {key: round(fact, 6) if isinstance(fact, float) else fact for key, fact in facts.items()}
        LOGGER.log(level, json.dumps({"time": at, "event": event, "party": party, **rounded}, ensure_ascii=False))


def warn(party: str, event: str, facts: Mapping[str, str | int | float]) -> None:
    """Log as `emit` does, at the level of a warning, for what someone should look at: refusals, lost connections."""
    emit(party, event, facts, logging.WARNING)


def write_to(target: TextIO | Path, level: int = logging.INFO) -> logging.Handler:
    """Send the log lines of a level and above to a stream or to the end of a file.

    Returns the handler, for `LOGGER.removeHandler`.
    """
    handler: logging.Handler
    handler = _LogFile(target, encoding="utf-8") if isinstance(target, Path) else logging.StreamHandler(target)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.setLevel(level)
    LOGGER.addHandler(handler)
    LOGGER.setLevel(min(level, LOGGER.getEffectiveLevel()))
    return handler

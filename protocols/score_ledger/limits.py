"""Limits of what a score ledger allows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from securevfl.errors import LeakageError

MIN_ITERATIONS = 10

SCORE_BIT_BUDGET = 1 / 4  # of the bits that columns hold

ROWS_PER_EVALUATION = 100

CLAIM_TIMEOUT = 10.0  # seconds that a row is waited for which another conversation is scoring

MAX_ATTEMPTS = 4  # times that scores of a row are made, if none has been kept

MAX_STANDARD_ERRORS = 3.0  # standard errors

EVALUATION, RANGE_COUNT = 0, 1


def max_count(tables: sqlite3.Connection, rows: Iterable[bytes], what: int) -> int:
    """Return how often that row was measured, or counted, which was so most often."""
    select = "SELECT count FROM times WHERE row = ? AND what = ?"
    known = (tables.execute(select, (row, what)).fetchone() for row in rows)
    return max((each[0] for each in known if each is not None), default=0)


def check_evaluations(tables: sqlite3.Connection, peer: str, rows: Sequence[bytes], times: int) -> None:
    most, so_far = max_evaluations(rows), max_count(tables, rows, EVALUATION)
    if so_far + times > most:
        raise LeakageError(
            f"metrics for {peer}: {len(rows)} rows are measured {most} times at most, over all runs; some were "
            f"{so_far} times before, with this it would be {so_far + times}; evaluate less (evaluate_every), hold "
            'out more rows, or accept it with accepts = ["small_metrics"]'
        )


def max_evaluations(rows: Sequence[bytes]) -> int:
    """How often so many rows may be measured, or counted, together."""
    return max(1, len(rows) // ROWS_PER_EVALUATION)

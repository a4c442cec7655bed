"""Limits that a score ledger enforces, and the check of the number of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from securevfl.account.database import Tables
from securevfl.errors import LeakageError

MIN_ITERATIONS = 10
"""A model is scored only after this number of iterations."""

SCORE_BIT_BUDGET = 1 / 4
"""Share of the information content of a row's columns that all scores and reason codes of the row may disclose."""

ROWS_PER_EVALUATION = 100
"""A set of n rows may be used for at most n / ROWS_PER_EVALUATION evaluations over all runs and peers."""

CLAIM_TIMEOUT = 10.0
"""Seconds to wait for a row that another session is scoring."""

MAX_ATTEMPTS = 4
"""How often a score of a row may be computed if no attempt has stored one."""

MAX_STANDARD_ERRORS = 3.0
"""Excess of requested rows that equal training rows, in standard errors, above which a peer is refused."""

EVALUATION, RANGE_COUNT = 0, 1
"""Kinds of counters in the table `times`."""


def max_count(tables: Tables, rows: Iterable[bytes], kind: int) -> int:
    """Return the largest counter of this kind (`EVALUATION` or `RANGE_COUNT`) among these rows."""
    select = "SELECT count FROM times WHERE row = ? AND what = ?"
    records = (tables.execute(select, (row, kind)).fetchone() for row in rows)
    return max((record[0] for record in records if record is not None), default=0)


def check_evaluations(tables: Tables, peer: str, rows: Sequence[bytes], times: int) -> None:
    """Check that `peer` may evaluate models on these rows `times` more times.

    Args:
        tables: the tables of the ledger.
        peer: name of the party that learns the metrics.
        rows: digests of the rows' ids.
        times: number of further evaluations.

    Raises:
        LeakageError: the number of evaluations would exceed the limit.
    """
    limit, evaluations = max_evaluations(rows), max_count(tables, rows, EVALUATION)
    if evaluations + times > limit:
        raise LeakageError(
            f"metrics for {peer}: {len(rows)} rows may be used for at most {limit} evaluations over all runs; some "
            f"were used for {evaluations} before, and this run would make it {evaluations + times}",
            "evaluate less often (evaluate_every), hold out more rows, or accept the disclosure with "
            'accepts = ["small_metrics"]',
            code="SVFL-LIMIT-REACHED",
            peer=peer,
            rows=len(rows),
            limit=limit,
        )


def max_evaluations(rows: Sequence[bytes]) -> int:
    """Return how often a set of rows may be evaluated together; the same limit holds for out-of-range counts."""
    return max(1, len(rows) // ROWS_PER_EVALUATION)

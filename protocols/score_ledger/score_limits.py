"""Limits that a score ledger enforces, and the check of the number of evaluations.

A score ledger is the part of a party's account (an SQLite file, `securevfl.account`) in which it records which scores
and metrics about its rows other parties have received. An evaluation is the computation of metrics, such as the AUC, of
one model on a set of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.account.database import Tables
from securevfl.errors import LeakageError
from securevfl.protocols.score_ledger.tables import max_count, pair_bits

MIN_ITERATIONS = 10
"""A model is scored only after this number of iterations."""

SCORE_BIT_BUDGET = 1 / 4
"""Scores and reason codes may disclose this fraction of the bits of information in a row's columns, by default."""

ROWS_PER_EVALUATION = 100
"""A set of n rows may be used for at most n / ROWS_PER_EVALUATION evaluations over all runs and peers."""

CLAIM_TIMEOUT = 10.0
"""Seconds to wait for a row that another session is scoring."""

MAX_ATTEMPTS = 4
"""How often the computation of a row's score may be started if it never finishes."""

MAX_STANDARD_ERRORS = 3.0
"""A peer is refused if more of its requested rows equal training rows than expected plus this many standard errors."""

EVALUATION, RANGE_COUNT = 0, 1
"""Kinds of counters in the table `times`: evaluations, and counts of out-of-range sums."""


def check_evaluations(tables: Tables, peer: str, rows: Sequence[bytes], times: int) -> None:
    """Check that `peer` may evaluate models on these rows `times` more times.

    Args:
        tables: the SQL tables of the ledger.
        peer: name of the party that learns the metrics.
        rows: digests of the rows' ids.
        times: number of further evaluations.

    Raises:
        LeakageError: the number of evaluations would exceed the limit.
    """
    limit, evaluations = max_evaluations(len(rows)), max_count(tables, rows, EVALUATION)
    if evaluations + times > limit:
        raise LeakageError(
            f"metrics for {peer}: {len(rows)} rows may be used for at most {limit} evaluations over all runs. Some of "
            f"them were used for {evaluations} before, and {times} more would make it {evaluations + times}",
            "hold out more rows, evaluate less often (a larger evaluate_every, or no optimizer.early_stop), or accept "
            'the disclosure with accepts = ["small_metrics"]',
            code="SVFL-LIMIT-REACHED",
            peer=peer,
            rows=len(rows),
            limit=limit,
        )


def check_pair_bits(tables: Tables, peer: str, bits: float, limit: float) -> None:
    """Check that scores of models with pairs may disclose this number of further bits.

    Args:
        tables: the SQL tables of the ledger.
        peer: name of the requesting party.
        bits: the number of further bits.
        limit: the number of bits that all such scores together may disclose.

    Raises:
        LeakageError: the sum would exceed the limit.
    """
    earlier = pair_bits(tables)
    if bits and earlier + bits > limit:
        raise LeakageError(
            f"scores for {peer}: the requested scores of a model with pairs would disclose {bits:,.0f} bits about this "
            f"party's columns, after {earlier:,.0f} of earlier requests, and the limit is {limit:,.0f}, a fourth of "
            "the bits of the training rows' columns",
            'request fewer rows, use a model without pairs, or accept the disclosure with accepts = ["scores"] in the '
            "job",
            code="SVFL-LIMIT-REACHED",
            peer=peer,
            limit=int(limit),
        )


def max_evaluations(rows: int) -> int:
    """Return how often this number of rows may be evaluated; the same limit applies to out-of-range counts."""
    return max(1, rows // ROWS_PER_EVALUATION)

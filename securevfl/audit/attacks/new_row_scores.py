"""Scores of new rows (model outputs f of rows that were not trained on), as the requesting party receives them.

The requesting party chooses the values of its own columns. It may use its real columns or constant ones. With constant
columns, the scores of a linear model are the other parties' contribution to f (their columns times their weights) up to
a constant, row by row.

Scores are exact if the job discloses them unrounded. On secret shares they are levels: f, rounded at random to a grid.
An attacker that inspects the low bits of its share learns no more than the level
(`securevfl.protocols.shares.opened_scores`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securevfl.audit.attacks.base import Attack, AttackerRole, Requirement, fixed_remedy
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.job import Job
from securevfl.protocols.shares.quantizer import Quantizer

MAX_QUERIED_ROWS = 3000


@dataclass(frozen=True)
class QueriedScores:
    """Scores that a party requested.

    Attributes:
        requester: name of the requesting party.
        rows: the scored rows.
        scores: scores (m, c) with the requester's real columns.
        constant_scores: scores (m, c) with the requester's columns held constant.
        other_part: the other parties' contribution to f (m, c), without rounding, up to a constant.
        requester_columns: the requester's columns (m, d); empty if it has none.
        other_columns: columns (m, d) of each other party, with their names.
    """

    requester: str
    rows: Rows
    scores: Floats
    constant_scores: Floats
    other_part: Floats
    requester_columns: Floats
    other_columns: dict[str, tuple[Floats, tuple[str, ...]]]


def query_scores(pair: RealIdealPair) -> QueriedScores:
    """Score the held-out rows with the finished model; the training rows if none are held out."""
    run, schedule = pair.real_run[0], pair.schedule
    rows = (schedule.test if len(schedule.test) else schedule.batch_order)[:MAX_QUERIED_ROWS]
    tables = {party.name: party.X[rows] for party in pair.parties if party.columns}
    requester = run.active.asker
    scores = run.decision(tables)
    columns = tables.get(requester, np.empty((len(rows), 0)))
    means = {requester: np.repeat(columns.mean(axis=0, keepdims=True), len(rows), axis=0)}
    constant = run.decision(tables | means) if requester in tables else scores
    names = {party.name: tuple(party.columns) for party in pair.parties}
    other_columns = {name: (X, names[name]) for name, X in tables.items() if name != requester}
    disclosed, disclosed_constant = (as_disclosed(pair.job, f, seed) for seed, f in enumerate((scores, constant)))
    return QueriedScores(requester, rows, disclosed, disclosed_constant, constant, columns, other_columns)


def as_disclosed(job: Job, f: Floats, seed: int) -> Floats:
    """Return model outputs f (m, c) as the job discloses them: exact, or rounded to levels."""
    options = job.protocol.shares
    if options is None or options.scores == "exact":
        return f
    return round_to_levels(f, options.score_quantizer(job.model.loss.spacing), seed)


def round_to_levels(f: Floats, levels: Quantizer, seed: int) -> Floats:
    """Round outputs f of any shape at random to levels; outputs beyond the range wrap around."""
    index = np.floor(f / levels.size + np.random.default_rng([seed, 6]).random(f.shape))
    return levels.dequantize(index.astype(np.int64).view(np.uint64), rounded_down=0)


SCORES_DISCLOSED: Requirement = (
    lambda job: job.protocol.shares is None or job.protocol.shares.scores != "none",
    "the job discloses no scores of new rows",
)

SCORES_REMEDY = "more columns, none with most of the weight; score fewer rows, under fewer models"


class ScoresAttack(Attack):
    """An attack by the party that requests scores. The ideal view has the same scores, because they are declared."""

    attacker_role = AttackerRole.REQUESTER
    requirements: ClassVar[tuple[Requirement, ...]] = (SCORES_DISCLOSED,)
    remedy = fixed_remedy(SCORES_REMEDY)


def added_variance(scores: Floats, part: Floats, *known: Floats) -> float:
    """Return the share of the variance of `part` that scores explain beyond known values.

    Args:
        scores: the scores (m,).
        part: the contribution to f (m,) to explain by a linear regression.
        *known: values that the attacker knows of each row, each (m,).

    Returns:
        A share between 0 and 1.
    """
    ones = np.ones(len(part))
    designs = [np.column_stack([ones, *known, *more]) for more in ((), (scores,))]
    residuals = [float(((design @ np.linalg.lstsq(design, part)[0] - part) ** 2).mean()) for design in designs]
    share = (residuals[0] - residuals[1]) / max(float(part.var()), 1e-300)
    return min(1.0, max(0.0, share))  # floating-point errors may exceed either end

"""Scores of new rows, as the requesting party receives them: the start of several attacks."""

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

ROWS = 3000  # that are asked about at most


@dataclass(frozen=True)
class QueriedScores:
    """Scores (m x c) of these rows as `learner` gets them, with its columns as they are and held constant.

    part (m x c): the others' part of f, up to a constant, as it is. own (m x d): its columns, empty if it has none.
    others: columns (m x d) of each other party, with their names.
    """

    learner: str
    rows: Rows
    scores: Floats
    constant: Floats
    part: Floats
    own: Floats
    others: dict[str, tuple[Floats, tuple[str, ...]]]


def query_scores(pair: RealIdealPair) -> QueriedScores:
    """Rows that were held out, or if there are none, as good as new ones, scored by the finished model."""
    run, schedule = pair.real_run[0], pair.schedule
    rows = (schedule.test if len(schedule.test) else schedule.batch_order)[:ROWS]
    tables = {party.name: party.X[rows] for party in pair.parties if party.columns}
    learner = run.active.asker
    scores = run.decision(tables)
    own = tables.get(learner, np.empty((len(rows), 0)))
    held = {learner: np.repeat(own.mean(axis=0, keepdims=True), len(rows), axis=0)} if learner in tables else {}
    constant = run.decision(tables | held) if held else scores
    columns = {party.name: tuple(party.columns) for party in pair.parties}
    others = {name: (X, columns[name]) for name, X in tables.items() if name != learner}
    told, told_constant = (as_told(pair.job, f, seed) for seed, f in enumerate((scores, constant)))
    return QueriedScores(learner, rows, told, told_constant, constant, own, others)


def as_told(job: Job, f: Floats, seed: int) -> Floats:
    """Scores f (m x c) as the job tells them."""
    options = job.protocol.shares
    if options is None or options.scores == "exact":
        return f
    return rounded(f, options.score_quantizer(job.model.loss.spacing), seed)


def rounded(f: Floats, levels: Quantizer, seed: int) -> Floats:
    """Round sums f (any shape) at random to levels; those out of reach wrap."""
    at = np.floor(f / levels.size + np.random.default_rng([seed, 6]).random(f.shape))
    return levels.dequantize(at.astype(np.int64).view(np.uint64), rounded_down=0)


SCORES_DISCLOSED: Requirement = (
    lambda job: job.protocol.shares is None or job.protocol.shares.scores != "none",
    "no scores of new rows are told in this job",
)

SINGLE_OUT = "more columns, none with most of the weight; score fewer rows, under fewer models"


class ScoresAttack(Attack):
    """Whoever asks for scores, after what the others hold; an ideal attacker is told the same."""

    attacker_role = AttackerRole.REQUESTER
    requirements: ClassVar[tuple[Requirement, ...]] = (SCORES_DISCLOSED,)
    remedy = fixed_remedy(SINGLE_OUT)


def explained(told: Floats, part: Floats, *known: Floats) -> float:
    """Return the share of the variance of `part` (m,) that `told` (m,) adds to what is known (each m,), linearly."""
    ones = np.ones(len(part))
    designs = [np.column_stack([ones, *known, *more]) for more in ((), (told,))]
    left = [float(((design @ np.linalg.lstsq(design, part)[0] - part) ** 2).mean()) for design in designs]
    return min(1.0, max(0.0, (left[0] - left[1]) / max(float(part.var()), 1e-300)))  # rounding may pass either end

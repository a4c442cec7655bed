"""Rows of an evaluation on shares, as the party with labels sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import WEIGHT_PER_COLUMN, Attack, Requirement
from securevfl.audit.attacks.new_row_scores import rounded
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.families.shares.shares_job import trains_on_shares
from securevfl.families.shares.shares_plan import make_plan
from securevfl.models import pair_metrics
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS
from securevfl.protocols.shares.quantizer import Quantizer

Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class EvaluatedRows:
    """Rows that are evaluated: sums f (m x c), less targets where labels are numbers, and the attacker's own part of
    that (m x c).

    label (m x c): what goes with each level. levels: those that are told.
    """

    f: Floats
    own: Floats
    label: Marks
    levels: Quantizer

    def told(self, seed: int) -> Floats:
        """Return the level (m x c) of each row in one evaluation, in the rows' own order, which the attacker does not
        see."""
        return rounded(self.f, self.levels, seed)

    @property
    def parts(self) -> Floats:
        """The others' part (m x c)."""
        return self.f - self.own


MEASURED: tuple[Requirement, ...] = (
    (lambda job: job.protocol.shares is not None, "no pairs of a level and a label are told but on shares"),
    (lambda job: pair_metrics.supports_pairs(job.model.loss), "one sum of losses is told, and no pairs"),
    WEIGHT_PER_COLUMN,
)


class PairsAttack(Attack):
    """The party with labels after the scores of held-out rows, by pairs (level, label) in a hidden order."""

    leak_threshold = 0.1
    requirements = MEASURED


def measured(pair: RealIdealPair) -> tuple[EvaluatedRows, EvaluatedRows]:
    """Return the rows that are evaluated, as far as there is room, and others that were not: those trained on."""
    schedule = pair.schedule
    held = schedule.test if len(schedule.test) else schedule.batch_order
    return _of(pair, held[:MAX_LOSS_ROWS]), _of(pair, schedule.batch_order)


def _of(pair: RealIdealPair, rows: Rows) -> EvaluatedRows:
    run, job = pair.real_run[0], pair.job
    lead, loss, schedule = run.active, job.model.loss, pair.schedule
    tables = {party.name: party.X[rows] for party in pair.parties if party.columns}
    held = {
        name: X if name == lead.name else np.repeat(X.mean(axis=0, keepdims=True), len(X), axis=0)
        for name, X in tables.items()
    }
    f, own = run.decision(tables), run.decision(held)
    targets = loss.targets(pair.active.labels[rows], lead.label_classes)
    label = targets > 0 if loss.classifies else np.zeros(f.shape, bool)
    less = 0.0 if loss.classifies else targets
    assert trains_on_shares(job), "pairs are told on shares"
    most = max(len(part) for part in schedule.partition(0))
    numbers = make_plan(job, rows=most, batches=schedule.batches, parties=len(run.parts)).numbers
    return EvaluatedRows(
        f - less, own - less, label, job.protocol.shares.metric_quantizer(numbers, classifies=loss.classifies)
    )

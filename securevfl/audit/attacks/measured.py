"""What the party with labels is told of held-out rows on shares: (level, label) pairs in a hidden order.

The attacker is given its own part of f exactly, which its random share of its weights does not tell it: what an attack
finds here bounds what one finds without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.asked import rounded
from securevfl.audit.attacks.base import BY_COLUMN, Attack
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.job import Job
from securevfl.methods.shares.shares_plan import on_shares, plan
from securevfl.models import level_metrics
from securevfl.protocols.shares.pair_measure import FEWEST, MOST
from securevfl.protocols.shares.share_levels import Levels

Marks = NDArray[np.bool_]

TOO_FEW = f"metrics are of {FEWEST} rows or more"


@dataclass(frozen=True)
class EvaluatedRows:
    """Rows that are evaluated: sums f (m x c), less targets where labels are numbers, and the attacker's own part of
    that (m x c).

    label (m x c): what goes with each level. levels: those that are told.
    """

    f: Floats
    own: Floats
    label: Marks
    levels: Levels

    def told(self, seed: int) -> Floats:
        """Return the level (m x c) of each row in one evaluation, in the rows' own order, which the attacker does not
        see."""
        return rounded(self.f, self.levels, seed)

    @property
    def parts(self) -> Floats:
        """The others' part (m x c)."""
        return self.f - self.own


class PairsAttack(Attack):
    """The party with labels after the scores of held-out rows, by pairs (level, label) in a hidden order."""

    beyond = 0.1

    def why_not(self, job: Job) -> str:
        return unmeasured(job)


def unmeasured(job: Job) -> str:
    """Say why there are no pairs in this job; empty where there are."""
    if job.protocol.shares is None:
        return "no pairs of a level and a label are told but on shares"
    if not level_metrics.fits(job.model.loss):
        return "one sum of losses is told, and no pairs"
    return "" if job.model.by_column else BY_COLUMN


def measured(worlds: Worlds) -> tuple[EvaluatedRows, EvaluatedRows]:
    """Return the rows that are evaluated, as far as there is room, and others that were not: those trained on."""
    schedule = worlds.schedule
    held = schedule.test if len(schedule.test) else schedule.flow
    return _of(worlds, held[:MOST]), _of(worlds, schedule.flow)


def _of(worlds: Worlds, rows: Rows) -> EvaluatedRows:
    run, job = worlds.real_run[0], worlds.job
    lead, loss, schedule = run.active, job.model.loss, worlds.schedule
    tables = {party.name: party.X[rows] for party in worlds.parties if party.columns}
    held = {
        name: X if name == lead.name else np.repeat(X.mean(axis=0, keepdims=True), len(X), axis=0)
        for name, X in tables.items()
    }
    f, own = run.decision(tables), run.decision(held)
    targets = loss.targets(worlds.active.labels[rows], lead.label_classes)
    label = targets > 0 if loss.classifies else np.zeros(f.shape, bool)
    less = 0.0 if loss.classifies else targets
    assert on_shares(job), "pairs are told on shares"
    most = max(len(part) for part in schedule.partition(0))
    numbers = plan(job, rows=most, batches=schedule.batches, parties=len(run.parts)).numbers
    return EvaluatedRows(
        f - less, own - less, label, job.protocol.shares.metrics_levels(numbers, classifies=loss.classifies)
    )

"""The rows of an evaluation on secret shares, as the party with labels sees them.

The party with labels receives pairs (level, label) of held-out rows in a hidden order; a level is a model output f,
rounded to a grid. The attacker's part of f is the sum of its columns times their weights; the parts of all parties add
up to f. The attacks on these pairs are given that part exactly, although the attacker's secret share of its weights is
random and does not reveal it. So their scores are upper bounds for an attacker without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.audit.attacks.base import WEIGHT_PER_COLUMN, Attack, Requirement
from securevfl.audit.attacks.new_row_scores import round_to_levels
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.families.shares.shares_job import opens_pairs, trains_on_shares
from securevfl.families.shares.shares_outputs import PAIRS
from securevfl.families.shares.shares_plan import make_plan
from securevfl.models.pair_metrics import ROUNDED_LABEL_BITS, code_bits, supports_pairs
from securevfl.models.rounded_labels import Codes, choose_knots, round_labels
from securevfl.protocols.shares.opened_loss import select_measured
from securevfl.protocols.shares.quantizer import Quantizer


@dataclass(frozen=True)
class EvaluatedRows:
    """The rows of one evaluation, with model outputs, labels, and the grid of levels.

    Attributes:
        f: the numbers (m, c) that are rounded to levels. If the loss depends only on the difference of output and
            target, these differences; otherwise model outputs, clipped if the protocol clips them.
        attacker_part: the attacker's contribution to f (m, c), its columns times their weights.
        labels: the code (m, c) of the label that is paired with each level.
        levels: the levels to which outputs are rounded.
    """

    f: Floats
    attacker_part: Floats
    labels: Codes
    levels: Quantizer

    def disclosed_levels(self, seed: int) -> Floats:
        """Return the levels (m, c) in one evaluation, in the order of `f`. The attacker does not see that order."""
        return round_to_levels(self.f, self.levels, seed)

    @property
    def other_part(self) -> Floats:
        """The other parties' contribution to f (m, c), their columns times their weights."""
        return self.f - self.attacker_part


PAIRS_DISCLOSED: tuple[Requirement, ...] = (
    (lambda job: job.protocol.shares is not None, "(level, label) pairs are disclosed on secret shares only"),
    (lambda job: trains_on_shares(job) and opens_pairs(job), "the job discloses one sum of losses and no pairs"),
    WEIGHT_PER_COLUMN,
)


class PairsAttack(Attack):
    """An attack on scores of held-out rows by the party with labels, from (level, label) pairs in a hidden order."""

    leak_threshold = 0.1
    requirements = PAIRS_DISCLOSED
    output = PAIRS


def evaluated_rows(pair: RealIdealPair) -> tuple[EvaluatedRows, EvaluatedRows]:
    """Return the rows that an evaluation uses, and the training rows for comparison."""
    schedule = pair.schedule
    evaluated = schedule.test if len(schedule.test) else schedule.batch_order
    measured = select_measured(evaluated, pair.real_run[0].active.outputs)
    return _rows_of(pair, measured), _rows_of(pair, schedule.batch_order)


def _rounded_labels(y: Floats, seed: int) -> Codes:
    """Round labels y (m,) that are counts or amounts, and return the code (m, 1) of each rounded label.

    An evaluation discloses only these codes. They are 0 for all rows if too few rows would have one of the codes.
    """
    knots = choose_knots(y, 2**ROUNDED_LABEL_BITS)
    if knots is None:
        return np.zeros((len(y), 1), np.uint8)
    return round_labels(y, knots, np.random.default_rng([seed, 7]).random(len(y)))[:, None]


def _rows_of(pair: RealIdealPair, rows: Rows) -> EvaluatedRows:
    """Evaluate the finished model of the real run on these rows."""
    run, job = pair.real_run[0], pair.job
    lead, loss, schedule = run.active, job.model.loss, pair.schedule
    tables = {party.name: party.X[rows] for party in pair.parties if party.columns}
    constant = {
        name: X if name == lead.name else np.repeat(X.mean(axis=0, keepdims=True), len(X), axis=0)
        for name, X in tables.items()
    }
    f, attacker_part = run.decision(tables), run.decision(constant)
    targets = loss.targets(pair.active.labels[rows], lead.label_classes)
    subtracts = not loss.classifies and supports_pairs(loss)
    labels = (targets > 0).astype(np.uint8) if loss.classifies else np.zeros(f.shape, np.uint8)
    if not loss.classifies and not subtracts:
        labels = _rounded_labels(np.asarray(pair.active.labels[rows], np.float64), pair.seed)
    offset = targets if subtracts else 0.0
    assert trains_on_shares(job), "pairs are disclosed on shares"
    batch_rows = max(len(batch) for batch in schedule.partition(0))
    inputs = sum(part.state["sizes"]["columns"][name] for name, part in run.parts.items())
    plan = make_plan(job, rows=batch_rows, batches=schedule.batches, parties=len(run.parts), inputs=inputs)
    numbers = plan.numbers
    levels = job.protocol.shares.metric_quantizer(numbers, classifies=loss.classifies, code_bits=code_bits(loss))
    disclosed = levels.clipped(f) if not subtracts and levels.can_clip(numbers) else f - offset
    return EvaluatedRows(disclosed, attacker_part - offset, labels, levels)

"""The measurements of one training on shares: metrics, sums of losses and counts of out-of-range rows."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from securevfl.base.roles import PARTNER
from securevfl.data.schedule import Iteration
from securevfl.errors import DataNotice
from securevfl.families.divergence import DIVERGENCE_FACTOR as FAR_ABOVE
from securevfl.families.divergence import divergence_error
from securevfl.families.score_results import Measurement
from securevfl.families.shares.metric_labels import MetricLabels
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import can_roll_back
from securevfl.families.training_data import ScaledRows, TrainingData
from securevfl.models import pair_metrics
from securevfl.models.loss import Loss
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS, MIN_LOSS_ROWS, LossTable, open_loss
from securevfl.protocols.shares.quantizer import CLIP_FRACTION, Quantizer
from securevfl.protocols.shares.range_count import MAX_COUNTED_SUMS, count_out_of_range
from securevfl.protocols.shares.score_label_pairs import PairInputs, open_pairs
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.word_shuffle import Shuffle, prepare_shuffle
from securevfl.runtime import eventlog
from securevfl.runtime.costs import Stage

if TYPE_CHECKING:
    from securevfl.families.shares.shares_participant import SharesParticipant

MAX_PRECOMPUTED_SHUFFLES = 4  # shuffles of a chunk that are made with it

MAX_NEAR_END_SHARE = (
    0.01  # part of the rows near the end of the table from which a party is warned where none are counted
)

OUTER_SHARE = 0.75  # of what levels cover: sums between this and the end say that others may have wrapped

_OUT_OF_RANGE = (
    "so many rows have scores beyond the largest that the training counts with, where they are taken for others and "
    "draw weights further: set protocol.shares.table_bits one higher, by which scores may be twice as large and almost "
    "twice as much is sent, or cut values off that lie far out (prepare.clip)"
)

_NEAR_RANGE_END = (
    "so many rows have scores near the largest that the training counts with; beyond it they are taken for others, and "
    "whether some are could not be counted: set protocol.shares.table_bits one higher if metrics get worse"
)

_LEVELS_WRAP = (
    "so many rows have scores near the largest that metrics count with or beyond, where they are taken for others: "
    "these may be wrong; set a larger metrics_range"
)


class Measurements:
    """The measurements of one training, with the shuffles that were made ahead of them."""

    def __init__(self, player: SharesParticipant, job: SharesJob, context: PartyContext) -> None:
        """player: what it is asked about the model, each at its time."""
        self._player, self._job, self._context = player, job, context
        self._chunk = -1
        self._shuffles: dict[int, deque[Shuffle]] = {}
        self.none = np.inf  # the loss without a model, of the rows last measured; known to the party with labels
        self._far = 0.0  # the part of the rows that was warned of last
        self._uncounted = False  # whether the partner told no count of rows beyond the table

    def measure(self, loss: Loss, data: TrainingData, state: SharedState, rounds: int) -> Measurement:
        """Return the metrics after `rounds` rounds; empty at a party that receives none.

        DivergenceError if the loss is far above that of a model that says nothing.
        """
        rows = self._evaluated(data)
        if len(rows) < MIN_LOSS_ROWS:
            if self._context.me == self._context.active:
                what = f"{MIN_LOSS_ROWS} rows to take metrics of were expected, {len(rows)} came, so there are none"
                warnings.warn(
                    f"party {self._context.me}: {what}; hold out more (test_fraction)", DataNotice, stacklevel=2
                )
            return Measurement()
        self._note_measure(data, rows)
        if not pair_metrics.supports_pairs(loss):
            return self._sum_of_losses(data, rows, state, rounds)
        labels, classes = data.labels(rows.rows), data.classes
        own, levels = None, self._levels(loss)
        if labels is not None and classes is not None:
            own = MetricLabels.of(loss, labels, classes, levels.reach)
        met = self._player.met
        held = loss.classifies and levels.can_clip(self._player.plan.numbers)
        found = open_pairs(
            met.products,
            self._shuffle(len(rows)),
            self._player.terms,
            state,
            self._player.inputs_of(data, rows.rows),
            levels,
            None if own is None else PairInputs(own.flags, own.subtracted),
            met.top_transfers if held else None,
        )
        if found is None or own is None:
            return Measurement()
        told, curve = own.metrics(found)
        self._watch(told["loss"], own.zero_model_loss, rounds)
        if self._uncounted and own.subtracted is None:
            self._warn(
                float((np.abs(found.f) > CLIP_FRACTION * levels.reach).mean()), MAX_NEAR_END_SHARE, _NEAR_RANGE_END
            )
        if not held:
            outer = (np.abs(found.f) > OUTER_SHARE * own.reach) & ((own.subtracted is None) | ~found.marked)
            self._warn(float(outer.mean()), 0.0, _LEVELS_WRAP)
        return Measurement(told, curve, own.standard_errors(found))

    def _sum_of_losses(self, data: TrainingData, rows: ScaledRows, state: SharedState, rounds: int) -> Measurement:
        """Return what one opened sum tells of a loss that pairs do not."""
        targets = (
            None
            if (rated := data.loss_targets_by_output(rows.rows, self._context.outputs)) is None
            else LossTable(self._job.loss.value, rated, self._job.loss.minimizer(rated))
        )
        met, own = self._player.met, self._player.inputs_of(data, rows.rows)
        found = open_loss(met.products, met.transfers, self._player.terms, state, state.iterations, own, targets)
        if found is None or targets is None:
            return Measurement()
        none = float(targets.values(np.zeros_like(targets.minimizers), targets.targets).mean())
        self._watch(found.loss * self._context.outputs, none * self._context.outputs, rounds)
        if self._uncounted:
            self._warn(found.far_share, MAX_NEAR_END_SHARE, _NEAR_RANGE_END)
        counts = 1.0 if data.weights is None else float(data.weights[rows.rows].mean())
        return Measurement({"loss": found.loss * self._context.outputs / counts})

    def _watch(self, loss: float, none: float, rounds: int) -> None:
        """Compare the loss with that of no model. DivergenceError if it is far above, and nothing turns back for it."""
        self.none = none
        if loss > FAR_ABOVE * none and not can_roll_back(self._job, self._player.rollbacks):
            raise divergence_error(rounds)

    def count_far(self, data: TrainingData, state: SharedState | None, visit: Iteration) -> None:
        """Count, of some rows of the last visit, those whose sums are beyond the end of their table, as often as the
        partner's ledger lets them be counted; warn of any."""
        rows, met = visit.rows[: MAX_COUNTED_SUMS // self._context.outputs], self._player.met
        if len(rows) < MIN_LOSS_ROWS or state is None:
            return
        self._context.channel.clock.stage = Stage.EVALUATE
        X, numbers = self._player.inputs_of(data, rows), self._player.plan.numbers
        rated = data.loss_targets_by_output(rows, self._context.outputs)
        limited = not (self._context.resources.simulated or "small_metrics" in self._job.accepts)
        found = count_out_of_range(
            met.products,
            met.top_transfers,
            self._player.terms,
            state,
            state.iterations,
            X,
            np.zeros(0) if rated is None else numbers.table_centres(self._job.loss.minimizer(rated)),
            allowed=lambda: not limited or self._player.ledger.record_range_count(data.ids(rows)),
        )
        self._uncounted = found is None
        if found is not None:
            self._warn(
                found / (len(rows) * self._context.outputs),
                *((0.0, _OUT_OF_RANGE) if numbers.has_headroom else (MAX_NEAR_END_SHARE, _NEAR_RANGE_END)),
            )

    def _warn(self, far: float, most: float, why: str) -> None:
        """Warn of a part of the rows, if it is more than `most`."""
        if far > most:
            facts: dict[str, str | int | float] = {"part": round(far, 4), "reason": why}
            level = logging.ERROR if far > 2 * self._far else logging.INFO
            eventlog.emit(self._context.me, "far", facts, level)
            self._far = far

    def _evaluated(self, data: TrainingData) -> ScaledRows:
        """Return the rows that are measured: those to be evaluated, or as many as there is room for, spread evenly over
        the table: one that is sorted by time is not judged by its first months."""
        rows, most = np.sort(data.evaluated.rows), MAX_LOSS_ROWS // self._context.outputs
        spread = np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.intp)
        return ScaledRows(data, rows[spread])

    def _levels(self, loss: Loss) -> Quantizer:
        return self._job.protocol.shares.metric_quantizer(self._player.plan.numbers, classifies=loss.classifies)

    def _shuffle(self, rows: int) -> Shuffle | None:
        """Take a shuffle of so many rows at a holder, made with the chunk or now."""
        made = self._shuffles.get(self._chunk)
        return made.popleft() if made else self._prepared(self._player.met, rows)

    def _prepared(self, met: SharesSession, rows: int) -> Shuffle | None:
        ends, holders = met.switch_transfers, (self._context.active, self._context.roles.only(PARTNER))
        if ends is None:
            return None
        (peer,) = (name for name in holders if name != self._context.me)
        bits = self._levels(self._job.model.loss).bits + 1
        return prepare_shuffle(met.products.context, peer, ends, rows, bits, blocks=self._context.outputs)

    def enter(self, chunk: int) -> None:
        """Go on to a chunk, by the number of its first visit; shuffles left from the one before serve no longer."""
        self._shuffles.pop(self._chunk, None)
        self._chunk = chunk

    def prepare(self, met: SharesSession, data: TrainingData, first: int, visits: int, total: int) -> None:
        """Make shuffles for the evaluations that come in a chunk of so many visits, of `total` in all; some of them."""
        every, rows, last = self._job.evaluation_interval, len(self._evaluated(data)), first + visits
        due = {number for number in range(first + 1, last + 1) if every and number % every == 0}
        due |= {last} if last == total else set()
        count = (
            min(len(due), MAX_PRECOMPUTED_SHUFFLES)
            if rows >= MIN_LOSS_ROWS and pair_metrics.supports_pairs(self._job.model.loss)
            else 0
        )
        made = (self._prepared(met, rows) for _ in range(count))
        self._shuffles[first] = deque(shuffle for shuffle in made if shuffle is not None)

    def _note_measure(self, data: TrainingData, rows: ScaledRows) -> None:
        """Enter at every other party that the active one measures these rows. LeakageError if that is too often."""
        context = self._context
        if not (context.me == context.active or context.resources.simulated or context.resources.evaluations_reserved):
            limited = "small_metrics" not in self._job.accepts
            self._player.ledger.record_evaluation(context.active, data.ids(rows.rows), limited=limited, me=context.me)

    def check(self, data: TrainingData, start: int) -> None:
        """Raise LeakageError if the evaluations of the run from round `start` on would be too many. A DataNotice says
        where rows that count more or less than others are measured alike."""
        if data.metric_weights(data.evaluated.rows) is not None and pair_metrics.supports_pairs(self._job.model.loss):
            what = "on shares metrics count every row alike, as nobody knows which row a score is of"
            why = "weights.column counts in the training alone"
            warnings.warn(f"party {self._context.me}: {what}; {why}", DataNotice, stacklevel=2)
        context, rows, every = self._context, self._evaluated(data), self._job.evaluation_interval
        if (
            self._context.me == self._context.active
            or context.resources.simulated
            or context.resources.evaluations_reserved
            or "small_metrics" in self._job.accepts
            or len(rows) < MIN_LOSS_ROWS
        ):
            return
        total = len(data.schedule)
        measured_at_end = not every or total % every > 0 or (start > 0 and self._job.patience is not None)
        times = (total // every - start // every if every else 0) + measured_at_end
        self._player.ledger.check_evaluations(context.active, data.ids(rows.rows), times)

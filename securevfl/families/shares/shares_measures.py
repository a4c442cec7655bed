"""The measurements of one training on secret shares: metrics, sums of losses and counts of out-of-range rows.

A measurement (an evaluation of the model) *opens* one sum of losses, that is, discloses it to the active party, which
has the labels; that of the final model also opens (score, label) pairs, from which all other metrics follow. A lookup
table converts a row's output to its residual, wrongly if the output is outside the table's range. A *shuffle* is random
material with which the active party and its partner, the share holders, reorder rows at random, so that the active
party does not learn the order. It is generated with the preprocessing of the last *chunk* of epochs. A party's ledger
records how often its rows were measured. A *rollback* returns the training to the model of an earlier iteration. A
session is a part of a run that is not interrupted; an interrupted run resumes in another session.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import PARTNER
from securevfl.data.schedule import Iteration, Rows
from securevfl.errors import DataNotice, DivergenceError
from securevfl.families.divergence import DIVERGENCE_FACTOR, raise_divergence
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.score_results import TOLERATED_ROUNDINGS, Measurement
from securevfl.families.shares.metric_labels import MetricLabels
from securevfl.families.shares.metric_notes import (
    ONLY_LOSS,
    far_labels,
    imprecise,
    metric_notes,
    no_ranking,
    rounded_auc,
    too_few_rows,
)
from securevfl.families.shares.rounded_metric_labels import RoundedMetricLabels
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_job import SharesJob, opens_pairs, weighs_rows
from securevfl.families.shares.shares_plan import can_roll_back
from securevfl.families.training_data import ScaledRows, TrainingData
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.pair_metrics import code_bits, pair_metric_names, supports_pairs
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.opened_loss import (
    MIN_LOSS_ROWS,
    LossTable,
    LossTransfers,
    open_loss,
    rounding_deviation,
    select_measured,
)
from securevfl.protocols.shares.pair_sums import ColumnSource
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.range_count import MAX_COUNTED_SUMS, count_out_of_range
from securevfl.protocols.shares.score_label_pairs import PairInputs, PairWords, open_pairs
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.word_shuffle import Shuffle, prepare_shuffle
from securevfl.runtime import eventlog
from securevfl.runtime.costs import Stage

MAX_WRAPPED_SHARE = 0.005  # the training is aborted if a larger share of rows is beyond the end of the table
MAX_NEAR_END_SHARE = 0.01  # a larger share of rows near the range's end causes a warning
# rows whose output exceeds this share of the range are near its end; if many are, other outputs have probably wrapped
OUTER_SHARE = 0.75

_OUT_OF_RANGE = (
    "share of rows with model outputs outside the table's range; their residuals are wrong and push the weights "
    "further out. Increase protocol.shares.table_bits by one, which doubles the range and almost doubles the traffic, "
    "or clip extreme values (prepare.clip)"
)
_NEAR_RANGE_END = (
    "share of rows with model outputs near the end of the table's range. Outputs beyond it get wrong residuals, and "
    "they cannot be counted. Increase protocol.shares.table_bits by one if metrics get worse"
)
_UNCOUNTED = (
    "the partner's ledger permits no further count of rows with model outputs beyond the table's range, so wrong "
    "residuals would not be noticed. Increase protocol.shares.table_bits by one if metrics get worse"
)
_LEVELS_WRAP = (
    "share of rows with model outputs near or beyond the range of metrics, where outputs wrap; the metrics may be "
    "wrong. Set a larger metrics_range"
)


def loss_has_risen(losses: Sequence[float], measurement: Measurement, factor: float) -> bool:
    """Return whether the latest loss exceeds the starting model's, or the smallest earlier one by too much.

    The latest loss is rounded and the starting model's is exact, so a difference that rounding may explain does not
    count.

    Args:
        losses: the losses of all evaluations so far, the latest one last.
        measurement: the measurement of the current model, to which the last loss belongs.
        factor: the latest loss exceeds an earlier one by too much if it is larger than `factor` times that loss.

    Returns:
        Whether the training must roll back.
    """
    start_limit = measurement.start_loss + TOLERATED_ROUNDINGS * measurement.loss_rounding
    return not losses[-1] <= min([start_limit, *(factor * loss for loss in losses[:-1])])


class MeasuredTraining(Protocol):
    """The attributes of a training that `Measurements` reads."""

    @property
    def facts(self) -> SharesFacts:
        """The facts of the training, such as its public sizes."""

    @property
    def session(self) -> SharesSession:
        """The session of the share holders for measurements and scores."""

    @property
    def params(self) -> SharesParams:
        """The parameters of the training that all parties agree on."""

    @property
    def ledger(self) -> ScoreLedger:
        """This party's score ledger."""

    @property
    def start(self) -> Floats | None:
        """The intercepts (c,) from which the training starts, at the party with labels; None for 0."""

    def inputs_of(self, data: TrainingData, rows: Rows) -> ColumnSource:
        """Return this party's model inputs for rows of its table."""


class Measurements:
    """The measurements of one training, with the shuffles that were generated in advance.

    Args:
        training: the training that is measured.
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
    """

    def __init__(self, training: MeasuredTraining, job: SharesJob, context: PartyContext) -> None:
        self._training, self._job, self._context = training, job, context
        self._chunk = -1
        self._shuffles: dict[int, Shuffle] = {}
        self._losses: dict[int, Measurement] = {}  # the measured loss by number of finished iterations
        self._recorded: set[int] = set()  # numbers of iterations whose measurement this session has recorded
        self._reported_share = 0.0  # share of out-of-range rows in the latest warning, so that it is not repeated

    def measure(self, loss: Loss, data: TrainingData, state: SharedState, rounds: int, *, last: bool) -> Measurement:
        """Measure the model on the evaluated rows.

        Args:
            loss: the loss function that the training minimises (`securevfl.models.loss`).
            data: the training data of this party.
            state: this party's shares of the weights.
            rounds: number of rounds so far.
            last: whether this is the final model, so that all metrics are measured. Otherwise only the loss is.

        Returns:
            The metrics; an empty measurement at a party that receives none.
        """
        rows = self._measured_rows(data)
        if len(rows) < MIN_LOSS_ROWS:
            if self._context.me != self._context.active:
                return Measurement()
            statement = too_few_rows(len(rows), MIN_LOSS_ROWS)
            warnings.warn(f"party {self._context.me}: {statement}.", DataNotice, stacklevel=2)
            return Measurement(notes=[statement])
        mean_loss = self._losses.get(state.iterations)
        with_pairs = last and opens_pairs(self._job, len(rows))
        # the ledger counts opened pairs again in each session: by restarting, the active party could have other pairs
        # of the same model opened
        if mean_loss is None:
            mean_loss = self._losses[state.iterations] = self._measure_loss(loss, data, rows, state, rounds)
        elif with_pairs and state.iterations not in self._recorded:
            self._record_evaluation(data, rows, state)
        if with_pairs:
            return self._measure_pairs(loss, data, rows, state, mean_loss)
        return self._with_loss_metrics(loss, data, rows, mean_loss) if last else mean_loss

    def _with_loss_metrics(
        self, loss: Loss, data: TrainingData, rows: ScaledRows, mean_loss: Measurement
    ) -> Measurement:
        """Add the metrics that follow from the loss alone, if the loss allows pairs and the job opens none."""
        labels, classes = data.labels(rows.rows), data.classes
        if labels is None or classes is None or not supports_pairs(loss) or not mean_loss.metrics:
            return mean_loss
        metric_labels = MetricLabels.of(loss, labels, classes, self._quantizer(loss).reach)
        values = dict(mean_loss.metrics) | metric_labels.loss_metrics(mean_loss.metrics["loss"])
        return replace(mean_loss, metrics=values, notes=[*mean_loss.notes, ONLY_LOSS])

    def reuse(self, iterations: int, measurement: Measurement) -> None:
        """Use the loss that an earlier session measured after `iterations`, so that no further sum is opened."""
        self._losses.setdefault(iterations, measurement)

    def roll_back(self, iterations: int, target: int) -> None:
        """Replace the loss that was measured after `iterations` by that of the model to which all parties return.

        Otherwise a rollback in the last round would open another sum. If an earlier session measured the loss, this
        session does not know it, and discards the measurement.

        Args:
            iterations: number of finished iterations.
            target: number of iterations of the model to which the parties return; 0 for the starting model, whose loss
                the party with labels computes alone.
        """
        latest = self._losses.pop(iterations, None)
        restored = self._losses.get(target)
        if target == 0 and latest is not None:
            # all measured values, such as the deviance, are multiples of the loss
            scale = latest.start_loss / latest.metrics["loss"] if latest.metrics else 0.0
            values = {name: value * scale for name, value in latest.metrics.items()}
            restored = replace(latest, metrics=values, loss_rounding=0.0)
        if restored is not None:
            self._losses[iterations] = restored

    def _measure_pairs(
        self, loss: Loss, data: TrainingData, rows: ScaledRows, state: SharedState, mean_loss: Measurement
    ) -> Measurement:
        """Open (score, label) pairs, and return all metrics that follow from them and from the measured loss."""
        labels, classes = data.labels(rows.rows), data.classes
        metric_labels: MetricLabels | RoundedMetricLabels | None = None
        quantizer = self._quantizer(loss)
        if labels is not None and classes is not None:
            if isinstance(loss, LogLinkLoss):
                metric_labels = RoundedMetricLabels.of(loss, labels, classes, quantizer.reach, quantizer.size)
            else:
                metric_labels = MetricLabels.of(loss, labels, classes, quantizer.reach, quantizer.size)
        session, numbers, inputs = self._training.session, self._training.facts.plan.numbers, None
        subtracts = not loss.classifies and supports_pairs(loss)
        clips = not subtracts and quantizer.can_clip(numbers)
        if metric_labels is not None:
            centres = numbers.table_centres(loss.minimizer(metric_labels.targets.reshape(-1, 1)))
            inputs = PairInputs(metric_labels.codes, metric_labels.subtracted, centres)
        pairs = open_pairs(
            session.products,
            self._take_shuffle(len(rows)),
            self._training.params,
            state,
            self._training.inputs_of(data, rows.rows),
            PairWords(quantizer, code_bits(loss)),
            inputs,
            session.fine_transfers if clips else None,
        )
        if pairs is None or metric_labels is None:
            return Measurement()
        values, curve = metric_labels.metrics(pairs)
        from_loss = metric_labels.loss_metrics(mean_loss.metrics["loss"])
        notes = metric_notes(loss, weighted=data.metric_weights(rows.rows) is not None)
        if isinstance(metric_labels, RoundedMetricLabels) and metric_labels.knots is None:
            notes = [no_ranking()]
        elif isinstance(metric_labels, RoundedMetricLabels):
            missing = [name for name in ("gini", "r2", "rmse") if name not in values] + ["calibration"] * (not curve)
            notes += [imprecise(missing)] if missing else []
        if "auc" in values:
            bias, is_subtracted = metric_labels.auc_bias(pairs)
            if np.isfinite(bias):
                notes.append(rounded_auc(bias, 2**quantizer.bits, subtracted=is_subtracted))
        if unmeasured := set(metric_labels.unmeasured(pairs)) - set(from_loss):
            notes.append(far_labels(unmeasured, quantizer.reach))
            warnings.warn(f"party {self._context.me}: {notes[-1]}.", DataNotice, stacklevel=2)
            values = {name: value for name, value in values.items() if name not in unmeasured}
        if not clips:
            outer = np.abs(pairs.f) > OUTER_SHARE * metric_labels.reach
            self._report(float((outer & ~pairs.marked if subtracts else outer).mean()), 0.0, _LEVELS_WRAP)
        if loss.classifies and values.get("auc") == 1.0:
            warnings.warn(
                f"party {self._context.me}: the model separates the classes of all measured rows. If the columns of "
                "all parties together separate the classes, coefficients grow with every iteration and are not "
                "estimates. Look for a column that contains the label, or set l2 in the model.",
                DataNotice,
                stacklevel=2,
            )
        errors = metric_labels.standard_errors(pairs)
        values |= from_loss
        return Measurement(
            {name: values[name] for name in pair_metric_names(loss) if name in values},
            curve,
            {name: errors[name] for name in values if name in errors},
            start_loss=mean_loss.start_loss,
            loss_rounding=mean_loss.loss_rounding,
            by_class=metric_labels.by_class(pairs),
            notes=notes,
        )

    def _measure_loss(
        self, loss: Loss, data: TrainingData, rows: ScaledRows, state: SharedState, rounds: int
    ) -> Measurement:
        """Open the sum of the losses of these rows to the party with labels.

        If (score, label) pairs are opened at the end, all rows count equally, as in the metrics of these pairs.
        Otherwise each row counts by its weight.
        """
        targets = data.loss_targets_by_output(rows.rows, self._context.outputs)
        table, weights = None, None if supports_pairs(loss) else data.weights
        if targets is not None:
            if data.weights is not None and weights is None:
                targets[:, -1] = 1.0
            table = LossTable(self._job.loss.value, targets, self._job.loss.minimizer)
        session, inputs = self._training.session, self._training.inputs_of(data, rows.rows)
        tables, carries = session.fine_transfers, session.fine_carry_transfers
        transfers = None if tables is None or carries is None else LossTransfers(tables, carries)
        mean = open_loss(
            session.products,
            transfers,
            self._training.params,
            state,
            state.iterations,
            inputs,
            table,
            record_evaluation=partial(self._record_evaluation, data, rows, state),
        )
        if mean is None or table is None:
            return Measurement()
        outputs = self._context.outputs
        zero_model_loss = float(table.values(np.zeros((len(table.targets), 1)), table.targets).mean())
        self._check_divergence(mean * outputs, zero_model_loss * outputs, rounds)
        starting = np.resize(
            np.zeros(outputs) if self._training.start is None else self._training.start, len(table.targets)
        )
        start_loss = float(table.values(starting[:, None], table.targets).mean())
        mean_weight = 1.0 if weights is None else float(weights[rows.rows].mean())
        values = {"loss": mean * outputs / mean_weight}
        if isinstance(loss, LogLinkLoss) and self._job.exposure is None and data.classes is not None:
            values["deviance"] = values["loss"] * loss.deviance_scale(data.classes)
        notes = []
        if not supports_pairs(loss) and not opens_pairs(self._job, len(rows)):
            opens_loss_only = self._job.protocol.shares.metrics == "loss"
            weighed = weighs_rows(self._job)
            notes = [ONLY_LOSS if opens_loss_only else no_ranking(weighed=weighed, few_rows=not weighed)]
        numbers, curvature = self._training.facts.plan.numbers, self._job.loss.curvature or 0.0
        rounding = rounding_deviation(mean * outputs, len(rows), curvature, 2.0**numbers.fine_step) / mean_weight
        return Measurement(values, start_loss=start_loss * outputs / mean_weight, loss_rounding=rounding, notes=notes)

    def _check_divergence(self, loss: float, zero_model_loss: float, rounds: int) -> None:
        """Abort the training if the loss is far above the zero model's, unless the training can roll back."""
        if loss > DIVERGENCE_FACTOR * zero_model_loss and not can_roll_back(self._job, self._training.facts.rollbacks):
            remedy = "lower lr, or increase protocol.shares.table_bits so that the lookup table covers larger sums"
            raise_divergence(rounds, remedy)

    def count_out_of_range(self, data: TrainingData, state: SharedState | None, iteration: Iteration) -> None:
        """Count rows of an iteration whose outputs are outside the lookup table's range.

        A few of them cause a warning, and a share above MAX_WRAPPED_SHARE raises DivergenceError. The partner's ledger
        limits the number of counts.

        Args:
            data: the training data of this party.
            state: this party's shares of the weights.
            iteration: the last iteration of a chunk.
        """
        rows, session = iteration.rows[: MAX_COUNTED_SUMS // self._context.outputs], self._training.session
        if len(rows) < MIN_LOSS_ROWS or state is None:
            return
        self._context.channel.clock.stage = Stage.EVALUATE
        X, numbers = self._training.inputs_of(data, rows), self._training.facts.plan.numbers
        targets = data.loss_targets_by_output(rows, self._context.outputs)
        is_limited = not (self._context.resources.simulated or "small_metrics" in self._job.accepts)
        count = count_out_of_range(
            session.products,
            session.top_transfers,
            self._training.params,
            state,
            state.iterations,
            X,
            np.zeros(0) if targets is None else numbers.table_centres(self._job.loss.minimizer(targets)),
            allowed=lambda: not is_limited or self._training.ledger.record_range_count(data.ids(rows)),
        )
        if count is None and self._context.me == self._context.active:
            eventlog.warn(self._context.me, "range not counted", {"iteration": state.iterations, "reason": _UNCOUNTED})
        if count is not None:
            share = count / (len(rows) * self._context.outputs)
            if numbers.has_headroom:
                if share > MAX_WRAPPED_SHARE:
                    self._refuse(share)
                self._report(share, 0.0, _OUT_OF_RANGE)
            else:
                self._report(share, MAX_NEAR_END_SHARE, _NEAR_RANGE_END)

    def _refuse(self, share: float) -> None:
        """Raise the error of a training in which too many rows (`share`) are outside the lookup table's range."""
        shares = self._job.protocol.shares
        step = 2.0 ** shares.step_bits(self._job.model.loss.spacing)
        raise DivergenceError(
            f"party {self._context.me}: {share:.1%} of the counted rows have model outputs outside the range of the "
            f"lookup table of residuals, which has 2^{shares.table_bits} entries, one for every {step:g}. These rows "
            "get wrong residuals, so the model would be biased",
            "increase protocol.shares.table_bits by one or two (at most 8), double protocol.shares.step, or clip "
            "extreme values (prepare.clip); no model was stored",
            code="SVFL-TRAINING-RANGE",
            party=self._context.me,
            share=round(share, 4),
        )

    def _report(self, share: float, limit: float, reason: str) -> None:
        """Log a warning that a share of the rows has the problem `reason`, if it exceeds `limit`."""
        if share > limit:
            facts: dict[str, str | int | float] = {"share_of_rows": round(share, 4), "reason": reason}
            level = logging.ERROR if share > 2 * self._reported_share else logging.INFO
            eventlog.emit(self._context.me, "outputs out of range", facts, level)
            self._reported_share = share

    def _measured_rows(self, data: TrainingData) -> ScaledRows:
        return ScaledRows(data, select_measured(data.evaluated.rows, self._context.outputs))

    def _quantizer(self, loss: Loss) -> Quantizer:
        numbers = self._training.facts.plan.numbers
        options = self._job.protocol.shares
        return options.metric_quantizer(numbers, classifies=loss.classifies, code_bits=code_bits(loss))

    def _take_shuffle(self, rows: int) -> Shuffle | None:
        """Return a shuffle at a share holder: the precomputed one of the current chunk, or a new one."""
        shuffle = self._shuffles.pop(self._chunk, None)
        return self._generate_shuffle(self._training.session, rows) if shuffle is None else shuffle

    def _generate_shuffle(self, session: SharesSession, rows: int) -> Shuffle | None:
        transfers, holders = session.switch_transfers, (self._context.active, self._context.roles.only(PARTNER))
        if transfers is None:
            return None
        (peer,) = (name for name in holders if name != self._context.me)
        loss = self._job.model.loss
        bits = PairWords(self._quantizer(loss), code_bits(loss)).bits
        return prepare_shuffle(session.products.context, peer, transfers, rows, bits, blocks=self._context.outputs)

    def enter_chunk(self, chunk: int) -> None:
        """Begin a chunk, identified by its first iteration; an unused shuffle of the previous chunk is discarded."""
        self._shuffles.pop(self._chunk, None)
        self._chunk = chunk

    def precompute(self, session: SharesSession, data: TrainingData, first: int, iterations: int, total: int) -> None:
        """Generate the shuffle of the final measurement with the preprocessing of the last chunk.

        Args:
            session: the session of the share holders.
            data: the training data of this party.
            first: number of the chunk's first iteration.
            iterations: number of iterations of the chunk.
            total: number of iterations of the training.
        """
        rows = len(self._measured_rows(data))
        if first + iterations < total or rows < MIN_LOSS_ROWS or not opens_pairs(self._job, rows):
            return
        if (shuffle := self._generate_shuffle(session, rows)) is not None:
            self._shuffles[first] = shuffle

    def _record_evaluation(self, data: TrainingData, rows: ScaledRows, state: SharedState) -> None:
        """Record in this party's ledger that the active party measures a model on these rows.

        Args:
            data: the training data of this party.
            rows: the measured rows.
            state: this party's shares of the weights.

        Raises:
            LeakageError: the ledger does not permit a further evaluation.
        """
        context = self._context
        self._recorded.add(state.iterations)
        if context.me == context.active or context.resources.simulated:
            return
        if context.resources.use_reserved_evaluation is not None:
            context.resources.use_reserved_evaluation()
        else:
            limited = "small_metrics" not in self._job.accepts
            ids = data.ids(rows.rows)
            self._training.ledger.record_evaluation(context.active, ids, limited=limited, me=context.me)

    def check(self, data: TrainingData, start: int) -> None:
        """Check that the ledger permits the measurements of a run, or raise LeakageError.

        A DataNotice reports that metrics ignore row weights.

        Args:
            data: the training data of this party.
            start: number of rounds that an earlier session has finished, if the training resumes; otherwise 0.
        """
        context = self._context
        if data.metric_weights(data.evaluated.rows) is not None and supports_pairs(self._job.model.loss):
            warnings.warn(
                f"party {context.me}: on shares, metrics count every row equally, because no party knows which row a "
                "score belongs to. weights.column affects the training only.",
                DataNotice,
                stacklevel=2,
            )
        rows = self._measured_rows(data)
        if (
            context.me == context.active
            or context.resources.simulated
            or context.resources.use_reserved_evaluation is not None
            or "small_metrics" in self._job.accepts
            or len(rows) < MIN_LOSS_ROWS
        ):
            return
        schedule = data.schedule
        times = EvaluationSchedule.of(self._job, len(schedule), schedule.subset_iterations).remaining(start)
        self._training.ledger.check_evaluations(context.active, data.ids(rows.rows), times)

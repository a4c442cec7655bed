"""The training loop of one party: runs rounds, evaluates, records, writes checkpoints and stops.

The *participant* (`securevfl.families.participant`) does the work of a round and exchanges the messages. The leading
party, which has the labels, decides when the training ends. The classes are *separated* if a sum of columns ranks all
rows correctly; the weights would then grow without bound.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.config import to_plain
from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation
from securevfl.data.validation import name_list
from securevfl.errors import (
    DataNotice,
    DivergenceError,
    RangeError,
)
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.participant import Round
from securevfl.families.score_results import TOLERATED_ROUNDINGS, Measurement
from securevfl.families.training_data import TrainingData
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.linear import LinearModel
from securevfl.models.separation import (
    GROWING_COEFFICIENTS,
    MAX_COLUMN_EFFECT,
    columns_with_large_effect,
    separating_columns,
)
from securevfl.models.standard_losses import LogisticLoss, SoftmaxLoss
from securevfl.protocols.handshake import StopDecision, receive_decision
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_evaluated_decision
from securevfl.runtime import eventlog
from securevfl.runtime.costs import Kind, Stage
from securevfl.runtime.disclosure_gate import Group
from securevfl.training.checkpoint import Checkpoint
from securevfl.training.evaluation_records import FINAL_EVALUATION, KnownEvaluations
from securevfl.training.model_part import ModelPart

MAX_EXTREME_SEARCH_ROWS = 1 << 20
"""Maximum number of training rows in which the most extreme value is searched for."""
EXTREME_DISTANCE = 50.0
"""A value that is further from the mean of its column, in standard deviations, is named before a training."""
MAX_SEPARATION_ROWS = 65_536
"""Maximum number of rows in which columns that separate the classes are searched for."""

SaveCheckpoint = Callable[[int, int, Callable[[], Checkpoint]], None]
"""A function that is called with the number of finished rounds, the number of all rounds, and a function that returns
the checkpoint. It may write the checkpoint."""


@dataclass(eq=False)
class TrainingLoop:
    """One party's run of a training. It calls its participant round by round and builds the party's model part.

    Attributes:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party, with prepared columns.
        context: the party's channel to the others and the roles of all parties.
        data: the party's scaled columns, targets and batches.
        run: id of the run.
        on_round: called after every round with the number of rounds that are done, and of all rounds.
        save: called when a checkpoint may be written.
        checkpoint: the checkpoint from which the run resumes.
        known: the evaluations that are not repeated, and the file in which this party stores the others.
        rounds: number of rounds that are done, including those before the checkpoint.
    """

    job: Job
    party: Party
    context: PartyContext
    data: TrainingData
    run: str
    on_round: Callable[[int, int], None] | None
    save: SaveCheckpoint | None
    checkpoint: Checkpoint | None
    known: KnownEvaluations

    def __post_init__(self) -> None:
        checkpoint, schedule = self.checkpoint, self.data.schedule
        self._evaluations = EvaluationSchedule.of(self.job, len(schedule), schedule.subset_iterations)
        self.rounds = self._start = 0 if checkpoint is None else checkpoint.round
        self._finished = checkpoint is not None and checkpoint.over
        self._history = [] if checkpoint is None else checkpoint.history
        self._best = None if checkpoint is None else checkpoint.best
        self._leads = self.party.name == self.context.roles.lead
        state = None if checkpoint is None else checkpoint.state
        self._participant = self.job.family.participant(self.job, self.context, self.data.columns, state)

    def train(self) -> None:
        """Run rounds until all are done or the training stops early.

        Raises:
            DivergenceError: if a value leaves the range in which the protocol computes.
        """
        if not self._start:
            self._warn_of_separating_columns()
            self._warn_of_extreme_rows()
        if self.save is not None and not self._start:
            self.save(0, len(self.data.schedule), lambda: self._state(0, finished=False))
        eventlog.emit(self.party.name, "training begins", {}, logging.DEBUG)
        first = len(self.data.schedule) if self._finished else self._start
        rounds = self._participant.train(self.data, first)
        try:
            for done in rounds:
                if self._after_round(done):
                    rounds.close()
        except BaseException as error:
            with suppress(BaseException):
                # raise the error in the participant too, so that it ends its background work without waiting for others
                rounds.throw(error)
            if isinstance(error, RangeError):
                raise DivergenceError(
                    f"{self.party.name}, round {self.rounds + 1}: {error.problem}",
                    "the training probably diverges: lower lr, or scale the columns",
                    code="SVFL-TRAINING-RANGE",
                    party=self.party.name,
                    round=self.rounds + 1,
                ) from error
            raise
        self.context.channel.clock.tick(Kind.LOCAL)

    def finish(self) -> ModelPart:
        """Evaluate the final model if the job requires it, and return this party's part of the model."""
        context, data = self.context, self.data
        exchanges, notes = self._participant.exchanges or self.rounds, list(self._participant.notes)
        if self._best is not None and self.job.stopping is not None:
            create = partial(self.job.family.participant, self.job, context, data.columns)
            self._participant = self._participant.resume_from(self._best, create)
        measurement = self._evaluate(last=True)
        notes += self._early_stop_notes(measurement)
        self._warn_of_separated_classes(measurement.metrics)
        context.channel.clock.tick(Kind.LOCAL)
        return ModelPart(
            name=self.party.name,
            role=context.roles.role(self.party.name),
            job=to_plain(self.job),
            parties=list(context.parties),
            preparation=self.party.preparation or FittedPreparation(self.party.columns),
            scaling=data.scaling,
            state=self._participant.model_state(),
            outputs=context.outputs,
            classes=data.classes,
            metrics=measurement.metrics,
            calibration=measurement.calibration,
            metric_std_errors=dict(measurement.standard_errors),
            by_class={name: dict(figures) for name, figures in measurement.by_class.items()},
            notes=[*notes, *measurement.notes],
            baseline=[] if measurement.score_baseline is None else [measurement.score_baseline],
            history=self._history,
            rounds=exchanges,
            counters=context.channel.counters,
            path=context.channel.clock.path(),
            run=self.run,
            trained=len(data.schedule.batch_order),
            held_out=len(data.schedule.test),
            model=self.party.model,
        )

    @property
    def _weights_may_grow(self) -> bool:
        """Whether nothing limits the weights, which then grow forever if this party's columns separate the classes."""
        model = self.job.model
        by_column = isinstance(model, LinearModel) and model.by_column and not model.l2
        return by_column and isinstance(model.loss, LogisticLoss | SoftmaxLoss) and self.data.columns > 0

    @property
    def _features(self) -> NDArray[Any]:
        return np.array((self.party.preparation or FittedPreparation(self.party.columns)).features)

    def _warn_of_separating_columns(self) -> None:
        """Warn of columns of this party that separate its labels."""
        rows, targets = self.data.schedule.train[:MAX_SEPARATION_ROWS], self.data.targets
        if not self._weights_may_grow or targets is None or len(self.data.schedule.train) > MAX_SEPARATION_ROWS:
            return
        if (separating := separating_columns(self.data.raw(rows), targets[rows] > 0)).any():
            columns = name_list(self._features[separating].tolist())
            self._warn(f"columns that separate the labels: {columns}; {GROWING_COEFFICIENTS}")

    def _warn_of_extreme_rows(self) -> None:
        """Warn of this party's row and column that is furthest from the mean, unless values are clipped.

        Columns that are not scaled, such as those of trees, are left out: their values are not standard deviations.
        """
        rows = self.data.schedule.train
        is_scaled = self.job.model.scales and self.job.scale != "none"
        if not is_scaled or self.data.scaling.clip is not None or not self.data.columns or self.data.is_remote:
            return
        if len(rows) > MAX_EXTREME_SEARCH_ROWS:
            return
        distances = np.abs(np.asarray(self.data.scaled(rows), np.float64))
        row, column = np.unravel_index(int(distances.argmax()), distances.shape)
        if distances[row, column] > EXTREME_DISTANCE:
            warnings.warn(
                f"party {self.party.name}: {self.party.row_name(int(rows[row]))} is more than {EXTREME_DISTANCE:g} "
                f"standard deviations from the mean in column {str(self._features[column])!r}. One such row can decide "
                "the gradient of a batch, and the training may diverge; clip extreme values (prepare.clip) or correct "
                "the row",
                DataNotice,
                stacklevel=3,
            )

    def _warn_of_separated_classes(self, measured: dict[str, float]) -> None:
        """Warn if the model separates the classes, judged by metrics or by this party's weights."""
        if not self._weights_may_grow:
            return
        if measured.get("auc") == 1.0:
            self._warn(f"the model ranks all measured rows correctly: classes may be separated; {GROWING_COEFFICIENTS}")
        theta, rows = self._participant.model_state().get("theta"), self.data.schedule.sample(MAX_SEPARATION_ROWS)
        names = self._features
        if not isinstance(theta, np.ndarray) or theta.ndim != 2 or len(theta) < len(names):
            return
        if (large := columns_with_large_effect(theta[: len(names)], self.data.scaled(rows))).any():
            columns = name_list(names[large].tolist())
            problem = f"columns whose weights change the model's output by more than {MAX_COLUMN_EFFECT:g}: {columns}"
            self._warn(f"{problem}; if they separate classes, {GROWING_COEFFICIENTS}")

    def _warn(self, problem: str) -> None:
        remedy = "l2 in the model keeps them finite"
        warnings.warn(f"party {self.party.name}: {problem}; {remedy}", DataNotice, stacklevel=3)

    def _after_round(self, done: Round) -> bool:
        """Evaluate, record and save after a round if the job requires it, and return whether to stop."""
        stop = False
        self.rounds = done.number
        record = {"round": float(done.number), "epoch": float(done.epoch)}
        if done.loss is not None:
            record["batch_loss"] = done.loss
        measured = dict[str, float]()
        if self._evaluations.is_due(done.number):
            measured, stop = self._evaluate_and_decide()
            record |= measured
        if eventlog.LOGGER.isEnabledFor(logging.DEBUG):
            facts = {"bytes": self.context.channel.counters.bytes_sent()} | measured
            eventlog.emit(self.party.name, "training progress", facts, logging.DEBUG)
        if self._leads:
            clock = self.context.channel.clock
            clock.tick(Kind.LOCAL)
            record["seconds"] = float(clock.path()[: Stage.EVALUATE].sum())
            self._history.append(record)
        if self.on_round is not None:
            self.on_round(done.number, done.of)
        if self.save is not None:
            of = done.number if stop else done.of
            self.save(done.number, of, lambda: self._state(done.number, finished=done.number == of))
        return stop

    def _state(self, rounds: int, *, finished: bool) -> Checkpoint:
        participant, channel, preparation = self._participant, self.context.channel, self.party.preparation
        return Checkpoint(
            round=rounds,
            run=self.run,
            history=self._history,
            identities=dict(channel.keys),
            state=participant.state(),
            constant=participant.state_fits_any_round,
            preparation=[] if preparation is None else preparation.plain(),
            best=self._best,
            session=channel.session.hex(),
            over=finished,
        )

    def _evaluate(self, *, last: bool = False) -> Measurement:
        """Measure the model on the held-out rows, or on the training rows if there are none.

        The result is empty at parties that receive no metrics.
        """
        number = FINAL_EVALUATION if last else self.rounds
        rows: Group = "held out" if len(self.data.schedule.test) else "training"
        with self.context.channel.gate.about_rows(rows):
            if last:
                self._participant.end_training()
                for measured in sorted(self.known.measured - {FINAL_EVALUATION}):
                    self._participant.reuse_measurement(measured, self.known.file.measurement(measured))
            if number in self.known.measured:
                return self.known.file.measurement(number)
            measurement = self._participant.measure(self.job.model.loss, self.data, self.rounds, last=last)
        if self._leads or last:  # the other parties store an evaluation when they receive the decision after it
            self.known.file.store(number, measurement)
        return measurement

    def _is_good_enough(self, measured: dict[str, float]) -> bool:
        """Return whether the job's target is reached, or no evaluation has improved for the job's patience."""
        target, patience = self.job.target, self.job.stopping
        if target is not None and metrics.reached(target.metric, measured[target.metric], target.value):
            return True
        if patience is None or patience.metric not in measured or self.rounds <= self.data.schedule.subset_iterations:
            return False
        values = [*self._past(patience.metric), measured[patience.metric]]
        return metrics.stale(patience.metric, values, patience.evaluations, patience.tolerance)

    def _is_lost(self, measurement: Measurement) -> bool:
        """Return whether the losses show that step sizes are too large.

        If the loss of the latest model could not be measured, it counts as infinite, which is too large.
        """
        losses = [record["loss"] for record in self._history if "loss" in record]
        return self._participant.should_roll_back([*losses, measurement.metrics.get("loss", math.inf)], measurement)

    def _improves(self, measurement: Measurement) -> bool:
        """Return whether the model is the best so far, by the metric of patience or else by the loss.

        If the optimizer ends the training, a loss that is larger by less than its smallest gain and the rounding of
        measured losses counts as an improvement, because later models are closer to the optimum.
        """
        measured, gain = measurement.metrics, self.job.optimizer.smallest_gain
        tolerated = 0.0 if gain is None else gain + TOLERATED_ROUNDINGS * measurement.loss_rounding
        metric = "loss" if self.job.stopping is None else self.job.stopping.metric
        if metric not in measured or self.rounds <= self.data.schedule.subset_iterations:
            return False
        return metrics.improves(metric, measured[metric] - tolerated, self._past(metric))

    def _early_stop_notes(self, measurement: Measurement) -> list[str]:
        """Return a statement about the end of a training that its optimizer may end early, for the run's report.

        Args:
            measurement: that of the final model.

        Returns:
            The statement, which contains losses at the leading party only; empty if the optimizer ends no training.
        """
        gain, rounds = self.job.optimizer.smallest_gain, len(self.data.schedule)
        evaluated = [(record["loss"], int(record["round"])) for record in self._history if "loss" in record]
        returned = self._participant.model_iterations
        if gain is None or (self._leads and len(evaluated) < 2 and returned):
            return []
        end = f"stopped after {self.rounds} of" if self.rounds < rounds else "took all"
        if not self._leads:
            return [f"the training {end} {rounds} iterations"]
        if len(evaluated) < 2:
            return [f"the training {end} {rounds} iterations. The result is the starting model."]
        (best, before), (latest, after) = min(evaluated[:-1]), evaluated[-1]
        losses = f"the measured loss was {best:.5f} after {before} iterations and {latest:.5f} after {after}"
        rounding = measurement.loss_rounding
        result = "" if returned == self.rounds else f" The result is the model after {returned} iterations."
        if not returned:
            result = " The result is the starting model."
        # the gain is the difference of two rounded losses, so its deviation is sqrt(2) times that of one
        gap_text = f" The last gain was probably below {gain + 2 * math.sqrt(2) * rounding:.2g}."
        if gain < 2 * rounding:
            gap_text += f" Rounding changes a measured loss by about {rounding:.2g};"
            gap_text += " set optimizer.early_stop to at least twice this value."
        return [
            f"the training {end} {rounds} iterations: {losses}, and optimizer.early_stop asks for a decrease of "
            f"{gain:g}.{result}{gap_text if self.rounds < rounds else ''}"
        ]

    def _receive_decision(self) -> StopDecision:
        """Receive the leading party's decision, and refuse one that the job does not allow after this round."""
        settled = self.rounds > self.data.schedule.subset_iterations
        return receive_decision(
            self.context.channel,
            self.context.roles.lead,
            may_stop=self.job.target is not None or (self.job.stopping is not None and settled),
            may_improve=settled,
            may_roll_back=self._participant.can_roll_back,
        )

    def _past(self, metric: str) -> list[float]:
        """Return the values of a metric in all evaluations so far that may end the training.

        If steps use growing subsets of the rows, these are the evaluations after steps on the largest subset, because
        earlier models are not stored.
        """
        settled = self.data.schedule.subset_iterations
        return [record[metric] for record in self._history if metric in record and record["round"] > settled]

    def _evaluate_and_decide(self) -> tuple[dict[str, float], bool]:
        """Return the metrics and whether to stop. The leading party decides and sends its decision to the others."""
        channel, roles = self.context.channel, self.context.roles
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.EVALUATE
        measurement = self._evaluate()
        measured, decision = measurement.metrics, StopDecision(stop=False, is_best=False, roll_back=False)
        decides = self.job.stops_early or self._participant.can_roll_back
        if decides and self._leads:
            roll_back = self._participant.can_roll_back and self._is_lost(measurement)
            decision = StopDecision(
                stop=not roll_back and self._is_good_enough(measured),
                is_best=not roll_back and self._improves(measurement),
                roll_back=roll_back,
            )
            for name in () if self.rounds in self.known.decided else roles.others(roles.lead):
                channel.send(name, decision, permit=permit_evaluated_decision(channel, name))
        elif self.rounds in self.known.decided:
            decision = self.known.file.decision(self.rounds)
        else:
            decision = self._receive_decision() if decides else decision
            self.known.file.store(self.rounds, measurement, decision)
        if decision.roll_back:
            self._participant.roll_back(self._best)
        if decides and decision.is_best:
            self._best = self._participant.model_state()
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.TRAIN
        return measured, decision.stop

"""One party while it trains: drives its player round by round, and evaluates, notes, keeps and stops in between."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from securevfl.base.config import to_plain
from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation
from securevfl.data.validation import name_list
from securevfl.errors import (
    DataNotice,
    DivergenceError,
    RangeError,
)
from securevfl.families.participant import Round
from securevfl.families.score_results import Measurement
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
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.handshake import StopDecision
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_evaluated_decision as tell_verdict
from securevfl.runtime import eventlog
from securevfl.runtime.costs import Kind, Stage
from securevfl.runtime.disclosure_gate import Group
from securevfl.training.checkpoint import Checkpoint
from securevfl.training.model_part import ModelPart

MAX_SEPARATION_ROWS = 65_536  # rows in which separated classes are looked for

SaveCheckpoint = Callable[
    [int, int, Callable[[], Checkpoint]], None
]  # rounds done, of how many, and what there is to save


@dataclass(eq=False)
class TrainingLoop:
    """A party of a run: its player, what it has noted so far, and the part that it takes home."""

    job: Job
    party: Party
    context: PartyContext
    data: TrainingData
    run: str
    on_round: Callable[[int, int], None] | None
    save: SaveCheckpoint | None
    saved: Checkpoint | None

    def __post_init__(self) -> None:
        saved, self._every = self.saved, self.job.evaluation_interval
        self.rounds = self._start = 0 if saved is None else saved.round  # done so far, those before a resume among them
        self._over = saved is not None and saved.over
        self._history = [] if saved is None else saved.history
        self._best = None if saved is None else saved.best
        self._leads = self.party.name == self.context.roles.lead
        state = None if saved is None else saved.state
        self._player = self.job.family.participant(self.job, self.context, self.data.columns, state)

    def train(self) -> None:
        """Plays until the rounds are over or the target is reached."""
        if not self._start:
            self._tell_separating()
        if self.save is not None and not self._start:
            self.save(0, len(self.data.schedule), lambda: self._saved(0, over=False))
        eventlog.emit(self.party.name, "begins", {}, logging.DEBUG)
        rounds = self._player.train(self.data, len(self.data.schedule) if self._over else self._start)
        try:
            for done in rounds:
                if self._after(done):
                    rounds.close()
        except BaseException as error:
            with suppress(BaseException):
                rounds.throw(error)  # so that what the player has open ends with the reason, and waits for nobody
            if isinstance(error, RangeError):
                raise DivergenceError(
                    f"{self.party.name}, round {self.rounds + 1}: {error}; a training that diverges comes to this: "
                    "lower lr, or scale the columns"
                ) from error
            raise
        self.context.channel.clock.tick(Kind.LOCAL)

    def finish(self) -> ModelPart:
        """Evaluate a last time and pack what this party takes home."""
        context, data = self.context, self.data
        exchanges = self._player.exchanges or self.rounds
        if self._best is not None and self.job.patience is not None:
            make = partial(self.job.family.participant, self.job, context, data.columns)
            self._player = self._player.resume_from(self._best, make)
        measurement = self._evaluate(last=True)
        self._tell_far(measurement.metrics)
        context.channel.clock.tick(Kind.LOCAL)
        return ModelPart(
            name=self.party.name,
            role=context.roles.role(self.party.name),
            job=to_plain(self.job),
            parties=list(context.parties),
            preparation=self.party.preparation or FittedPreparation(self.party.columns),
            scaling=data.scaling,
            state=self._player.model_state(),
            outputs=context.outputs,
            classes=data.classes,
            metrics=measurement.metrics,
            calibration=measurement.calibration,
            metric_std_errors=dict(measurement.standard_errors),
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
    def _unbounded(self) -> bool:
        """Whether nothing keeps the weights of this party's columns finite where classes are separated."""
        model = self.job.model
        held = model.l2 and not isinstance(self.job.optimizer, BlockDescent)  # whose l2 is in its steps alone
        free = isinstance(model, LinearModel) and model.by_column and not held
        return free and isinstance(model.loss, LogisticLoss | SoftmaxLoss) and self.data.columns > 0

    def _tell_separating(self) -> None:
        """Say in a DataNotice which of this party's own columns separate its labels."""
        rows, targets = self.data.schedule.train[:MAX_SEPARATION_ROWS], self.data.targets
        if not self._unbounded or targets is None or len(self.data.schedule.train) > MAX_SEPARATION_ROWS:
            return
        names = np.array((self.party.preparation or FittedPreparation(self.party.columns)).features)
        if (found := separating_columns(self.data.raw(rows), targets[rows] > 0)).any():
            self._notice(
                f"columns that separate the labels: {name_list(names[found].tolist())}; {GROWING_COEFFICIENTS}"
            )

    def _tell_far(self, measured: dict[str, float]) -> None:
        """Say in a DataNotice that the model separates classes, as far as this party knows by metrics or by weights of
        its own."""
        if not self._unbounded:
            return
        if measured.get("auc") == 1.0:
            self._notice(
                f"the model ranks all rows that were measured right: classes may be separated; {GROWING_COEFFICIENTS}"
            )
        theta, rows = self._player.model_state().get("theta"), self.data.schedule.sample(MAX_SEPARATION_ROWS)
        names = np.array((self.party.preparation or FittedPreparation(self.party.columns)).features)
        if not isinstance(theta, np.ndarray) or theta.ndim != 2 or len(theta) < len(names):
            return
        if (found := columns_with_large_effect(theta[: len(names)], self.data.scaled(rows))).any():
            named = name_list(names[found].tolist())
            what = f"columns that by themselves move f by more than {MAX_COLUMN_EFFECT:g}: {named}"
            self._notice(f"{what}; where they separate classes {GROWING_COEFFICIENTS}")

    def _notice(self, what: str) -> None:
        descends = isinstance(self.job.optimizer, BlockDescent)
        remedy = "fewer epochs keep them small" if descends else "l2 in the model keeps them finite"
        warnings.warn(f"party {self.party.name}: {what}; {remedy}", DataNotice, stacklevel=3)

    def _after(self, done: Round) -> bool:
        """All that happens between two rounds; whether to stop."""
        stop = False
        self.rounds = done.number
        record = {"round": float(done.number), "epoch": float(done.epoch)}
        if done.loss is not None:
            record["batch_loss"] = done.loss
        measured = dict[str, float]()
        if self._every and done.number % self._every == 0:
            measured, stop = self._evaluate_and_decide()
            record |= measured
        if eventlog.LOGGER.isEnabledFor(logging.DEBUG):
            facts = {"bytes": self.context.channel.counters.bytes_sent()} | measured
            eventlog.emit(self.party.name, "at", facts, logging.DEBUG)
        if self._leads:
            clock = self.context.channel.clock
            clock.tick(Kind.LOCAL)
            record["seconds"] = float(clock.path()[: Stage.EVALUATE].sum())
            self._history.append(record)
        if self.on_round is not None:
            self.on_round(done.number, done.of)
        if self.save is not None:
            of = done.number if stop else done.of
            self.save(done.number, of, lambda: self._saved(done.number, over=done.number == of))
        return stop

    def _saved(self, rounds: int, *, over: bool) -> Checkpoint:
        player, channel, prepared = self._player, self.context.channel, self.party.preparation
        steps = [] if prepared is None else prepared.plain()
        kept = player.state(), player.state_fits_any_round, steps, self._best
        return Checkpoint(rounds, self.run, self._history, dict(channel.keys), *kept, channel.session.hex(), over)

    def _evaluate(self, *, last: bool = False) -> Measurement:
        """Metrics on the held-out rows, or without any on the training rows; empty where not for this party."""
        rows: Group = "held out" if len(self.data.schedule.test) else "training"
        with self.context.channel.gate.about_rows(rows):
            return self._player.measure(self.job.model.loss, self.data, self.rounds, last=last)

    def _enough(self, measured: dict[str, float]) -> bool:
        """Whether the target is reached, or patience is at its end."""
        target, patience = self.job.target, self.job.patience
        if target is not None and metrics.reached(target.metric, measured[target.metric], target.value):
            return True
        if patience is None or patience.metric not in measured or self.rounds <= self.data.schedule.subset_iterations:
            return False
        now = [*self._past(patience.metric), measured[patience.metric]]
        return metrics.stale(patience.metric, now, patience.evaluations, patience.tolerance)

    def _is_lost(self, measured: dict[str, float]) -> bool:
        """Whether the loss says that the steps are too long; also where none is measured, so that nobody would see it
        rise."""
        losses = [record["loss"] for record in self._history if "loss" in record]
        return self._player.should_roll_back([*losses, measured.get("loss", math.inf)])

    def _improves(self, measured: dict[str, float]) -> bool:
        """Whether the model is better than at every evaluation before, by the metric that patience watches, or else by
        the loss."""
        metric = "loss" if self.job.patience is None else self.job.patience.metric
        if metric not in measured or self.rounds <= self.data.schedule.subset_iterations:
            return False
        return metrics.improves(metric, measured[metric], self._past(metric))

    def _past(self, metric: str) -> list[float]:
        """Return the values of this metric in the evaluations so far, of models whose last visit was to all rows or to
        the largest part of them: of models of fewer rows none is kept, nor does it end a training."""
        settled = self.data.schedule.subset_iterations
        return [record[metric] for record in self._history if metric in record and record["round"] > settled]

    def _evaluate_and_decide(self) -> tuple[dict[str, float], bool]:
        """Metrics, and whether to stop, which the leading party tells the others."""
        channel, roles = self.context.channel, self.context.roles
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.EVALUATE
        measured, verdict = self._evaluate().metrics, StopDecision(stop=False, is_best=False, roll_back=False)
        watched = self.job.stops_early or self._player.can_roll_back
        if watched and self._leads:
            back = self._player.can_roll_back and self._is_lost(measured)
            verdict = StopDecision(not back and self._enough(measured), not back and self._improves(measured), back)
            for name in roles.others(roles.lead):
                channel.send(name, verdict, permit=tell_verdict(channel, name))
        elif watched:
            verdict = channel.recv(roles.lead, StopDecision)
        if verdict.roll_back:
            self._player.roll_back(self._best)
        if watched and verdict.is_best:
            self._best = self._player.model_state()
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.TRAIN
        return measured, verdict.stop

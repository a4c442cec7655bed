"""One party while it trains: drives its player round by round, and evaluates, notes, keeps and stops in between."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np

from securevfl.base.config import plain
from securevfl.data.columns import some
from securevfl.data.party import Party
from securevfl.data.preparation import Prepared
from securevfl.errors import DataNotice, DivergenceError, RangeError
from securevfl.families.player import Round
from securevfl.families.training_data import TrainingData
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.linear import FAR, GROW, LinearModel, far_moved, separating
from securevfl.models.loss import LogisticLoss, SoftmaxLoss
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.declared import evaluated as tell_verdict
from securevfl.protocols.meeting import Verdict
from securevfl.protocols.seat import Seat
from securevfl.runtime import eventlog
from securevfl.runtime.clock import Kind, Stage
from securevfl.runtime.door import Group
from securevfl.training.checkpoint import Saved
from securevfl.training.model_part import ModelPart

LOOKED_AT = 65_536  # rows in which separated classes are looked for

Save = Callable[[int, int, Callable[[], Saved]], None]  # rounds done, of how many, and what there is to save


class Trainee:
    """A party of a run: its player, what it has noted so far, and the part that it takes home."""

    def __init__(
        self,
        job: Job,
        party: Party,
        seat: Seat,
        data: TrainingData,
        run: str,
        on_round: Callable[[int, int], None] | None,
        save: Save | None,
        saved: Saved | None,
    ) -> None:
        self._job = job
        self._every = job.evaluation_interval
        self._party = party
        self._seat = seat
        self._data = data
        self._on_round = on_round
        self._save = save
        self._start = 0 if saved is None else saved.round
        self._over = saved is not None and saved.over
        self.rounds = self._start  # done so far, those before a resume among them
        self._history = [] if saved is None else saved.history
        self._run = run
        self._leads = party.name == seat.roles.lead
        self._best = None if saved is None else saved.best
        state = None if saved is None else saved.state
        self._player = job.method.player(job, seat, data.columns, state)

    def train(self) -> None:
        """Plays until the rounds are over or the target is reached."""
        if not self._start:
            self._tell_separating()
        if self._save is not None and not self._start:
            self._save(0, len(self._data.schedule), lambda: self._saved(0, over=False))
        eventlog.emit(self._party.name, "begins", {}, logging.DEBUG)
        rounds = self._player.train(self._data, len(self._data.schedule) if self._over else self._start)
        try:
            for done in rounds:
                if self._after(done):
                    rounds.close()
        except BaseException as error:
            with suppress(BaseException):
                rounds.throw(error)  # so that what the player has open ends with the reason, and waits for nobody
            if isinstance(error, RangeError):
                raise DivergenceError(
                    f"{self._party.name}, round {self.rounds + 1}: {error}; a training that diverges comes to this: "
                    "lower lr, or scale the columns"
                ) from error
            raise
        self._seat.channel.clock.tick(Kind.LOCAL)

    def finish(self) -> ModelPart:
        """Evaluate a last time and pack what this party takes home."""
        seat, data = self._seat, self._data
        exchanges = self._player.exchanges or self.rounds
        if self._best is not None and self._job.patience is not None:
            make = partial(self._job.method.player, self._job, seat, data.columns)
            self._player = self._player.going_back(self._best, make)
        measured = self._evaluate(last=True)
        self._tell_far(measured)
        seat.channel.clock.tick(Kind.LOCAL)
        return ModelPart(
            name=self._party.name,
            role=seat.roles.role(self._party.name),
            job=plain(self._job),
            parties=list(seat.parties),
            preparation=self._party.preparation or Prepared(self._party.columns),
            scaling=data.scaling,
            state=self._player.outcome(),
            outputs=seat.outputs,
            classes=data.classes,
            metrics=measured,
            calibration=self._player.calibration,
            spread=dict(self._player.spread),
            baseline=[] if self._player.scored is None else [self._player.scored],
            history=self._history,
            rounds=exchanges,
            books=seat.channel.books,
            path=seat.channel.clock.path(),
            run=self._run,
            trained=len(data.schedule.flow),
            held_out=len(data.schedule.test),
            model=self._party.model,
        )

    @property
    def _unbounded(self) -> bool:
        """Whether nothing keeps the weights of this party's columns finite where classes are separated."""
        model = self._job.model
        held = model.l2 and not isinstance(self._job.optimizer, BlockDescent)  # whose l2 is in its steps alone
        free = isinstance(model, LinearModel) and model.by_column and not held
        return free and isinstance(model.loss, LogisticLoss | SoftmaxLoss) and self._data.columns > 0

    def _tell_separating(self) -> None:
        """Say in a DataNotice which of this party's own columns separate its labels."""
        rows, targets = self._data.schedule.train[:LOOKED_AT], self._data.targets
        if not self._unbounded or targets is None or len(self._data.schedule.train) > LOOKED_AT:
            return
        names = np.array((self._party.preparation or Prepared(self._party.columns)).features)
        if (found := separating(self._data.raw(rows), targets[rows] > 0)).any():
            self._notice(f"columns that separate the labels: {some(names[found].tolist())}; {GROW}")

    def _tell_far(self, measured: dict[str, float]) -> None:
        """Say in a DataNotice that the model separates classes, as far as this party knows by metrics or by weights of
        its own."""
        if not self._unbounded:
            return
        if measured.get("auc") == 1.0:
            self._notice(f"the model ranks all rows that were measured right: classes may be separated; {GROW}")
        theta, rows = self._player.outcome().get("theta"), self._data.schedule.sample(LOOKED_AT)
        names = np.array((self._party.preparation or Prepared(self._party.columns)).features)
        if not isinstance(theta, np.ndarray) or theta.ndim != 2 or len(theta) < len(names):
            return
        if (found := far_moved(theta[: len(names)], self._data.scaled(rows))).any():
            what = f"columns that by themselves move f by more than {FAR:g}: {some(names[found].tolist())}"
            self._notice(f"{what}; where they separate classes {GROW}")

    def _notice(self, what: str) -> None:
        descends = isinstance(self._job.optimizer, BlockDescent)
        remedy = "fewer epochs keep them small" if descends else "l2 in the model keeps them finite"
        warnings.warn(f"party {self._party.name}: {what}; {remedy}", DataNotice, stacklevel=3)

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
        facts = {"bytes": self._seat.channel.books.bytes_sent()} | measured
        eventlog.emit(self._party.name, "at", facts, logging.DEBUG)
        if self._leads:
            clock = self._seat.channel.clock
            clock.tick(Kind.LOCAL)
            record["seconds"] = float(clock.path()[: Stage.EVALUATE].sum())
            self._history.append(record)
        if self._on_round is not None:
            self._on_round(done.number, done.of)
        if self._save is not None:
            of = done.number if stop else done.of
            self._save(done.number, of, lambda: self._saved(done.number, over=done.number == of))
        return stop

    def _saved(self, rounds: int, *, over: bool) -> Saved:
        player, keys = self._player, dict(self._seat.channel.keys)
        steps = [] if self._party.preparation is None else self._party.preparation.plain()
        return Saved(
            rounds,
            self._run,
            self._history,
            keys,
            player.state(),
            player.constant,
            steps,
            self._best,
            self._seat.channel.session.hex(),
            over,
        )

    def _evaluate(self, *, last: bool = False) -> dict[str, float]:
        """Metrics on the held-out rows, or without any on the training rows; empty where not for this party."""
        rows: Group = "held out" if len(self._data.schedule.test) else "training"
        with self._seat.channel.door.on(rows):
            return self._player.measure(self._job.model.loss, self._data, self.rounds, last=last)

    def _enough(self, measured: dict[str, float]) -> bool:
        """Whether the target is reached, or patience is at its end."""
        target, patience = self._job.target, self._job.patience
        if target is not None and metrics.reached(target.metric, measured[target.metric], target.value):
            return True
        if patience is None or patience.metric not in measured or self.rounds <= self._data.schedule.settled:
            return False
        now = [*self._past(patience.metric), measured[patience.metric]]
        return metrics.stale(patience.metric, now, patience.evaluations, patience.tolerance)

    def _is_lost(self, measured: dict[str, float]) -> bool:
        """Whether the loss says that the steps are too long; also where none is measured, so that nobody would see it
        rise."""
        losses = [record["loss"] for record in self._history if "loss" in record]
        return self._player.is_lost([*losses, measured.get("loss", math.inf)])

    def _improves(self, measured: dict[str, float]) -> bool:
        """Whether the model is better than at every evaluation before, by the metric that patience watches, or else by
        the loss."""
        metric = "loss" if self._job.patience is None else self._job.patience.metric
        if metric not in measured or self.rounds <= self._data.schedule.settled:
            return False
        return metrics.improves(metric, measured[metric], self._past(metric))

    def _past(self, metric: str) -> list[float]:
        """Return the values of this metric in the evaluations so far, of models whose last visit was to all rows or to
        the largest part of them: of models of fewer rows none is kept, nor does it end a training."""
        settled = self._data.schedule.settled
        return [record[metric] for record in self._history if metric in record and record["round"] > settled]

    def _evaluate_and_decide(self) -> tuple[dict[str, float], bool]:
        """Metrics, and whether to stop, which the leading party tells the others."""
        channel, roles = self._seat.channel, self._seat.roles
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.EVALUATE
        measured, verdict = self._evaluate(), Verdict(stop=False, best=False, back=False)
        watched = self._job.stops_early or self._player.turns_back
        if watched and self._leads:
            back = self._player.turns_back and self._is_lost(measured)
            verdict = Verdict(not back and self._enough(measured), not back and self._improves(measured), back)
            for name in roles.others(roles.lead):
                channel.send(name, verdict, told=tell_verdict(channel, name))
        elif watched:
            verdict = channel.recv(roles.lead, Verdict)
        if verdict.back:
            self._player.turn_back(self._best)
        if watched and verdict.best:
            self._best = self._player.outcome()
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.TRAIN
        return measured, verdict.stop

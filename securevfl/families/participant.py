"""One party at work: what trains, predicts and is kept, whatever its method.

Whoever knows labels watches whether a training still moves towards a model (`Divergence`): its loss against that of no
model at all, f = 0 on the same rows. A loss that is not finite ends the training at once; one that is FAR above that of
f = 0 as soon as it is so over as many rows as tell it from a few odd ones. The watcher's error ends the run of all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.data.baseline import SCORE, Baseline, numeric_baseline
from securevfl.errors import ConfigError
from securevfl.families.divergence import check_final_loss
from securevfl.families.score_results import Measurement, RowHistory, ScoreResult
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models import metrics
from securevfl.models.loss import Loss
from securevfl.protocols.joint_prediction import RowsToScore


@dataclass(frozen=True)
class Round:
    """One round that is over. number counts from 1, those before a resume included; loss: its mean, where known."""

    number: int
    of: int
    epoch: int
    loss: float | None = None


class Participant(ABC):
    """One party at work under one method."""

    @abstractmethod
    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Trains, `start` rounds having been done before, and hands over after every round.

        In between all parties may evaluate, keep their states, or stop for good, which closes this generator.
        """

    @abstractmethod
    def model_outputs(self, rows: RowSlices, asked: RowsToScore | None = None) -> Floats | None:
        """F (m x c) on these rows, of which every party brings its columns; None where it is not for this party. nan
        for rows that a party has refused.

        asked: their ids and columns as they are, where there are any.
        """

    def score(self, rows: RowSlices, request: RowsToScore | None = None) -> ScoreResult:
        """Return the model outputs of these rows and which of the rows were scored; all of them by default."""
        return ScoreResult.of_all(len(rows), self.model_outputs(rows, request))

    def row_history(self, asked: RowsToScore) -> RowHistory:
        """Return what this party, which asks, knows of new rows (m,) before it asks about them."""
        nothing = np.zeros(len(asked.ids), np.bool_)
        return RowHistory(nothing, nothing, np.full((len(nothing), 1), np.nan))

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> Measurement:
        """Metrics on the rows that are evaluated, with all other parties; empty where they are not for this party.

        rounds: done so far. last: the training is over. DivergenceError if it has left the numbers.
        """
        rows = data.evaluated
        f, labels = self.model_outputs(rows), data.labels(rows.rows)
        if f is None or labels is None or data.counted is None:
            return Measurement()
        f = data.shifted(f, rows.rows)
        check_final_loss(loss, f, loss.targets(labels, data.counted), rounds)
        counts = data.counts(rows.rows)
        curve: list[list[float]] = []
        baseline: Baseline | None = None
        if not loss.classifies or len(data.counted) == 2:
            said = loss.proba(f)[:, 1] if loss.classifies else loss.mean(f, data.counted)
            found = labels == data.counted[1] if loss.classifies else labels
            curve = metrics.calibration(found, said, weights=counts).tolist()
            baseline = numeric_baseline(SCORE, said)
        errors = metrics.standard_errors(loss, f, labels, data.counted, counts) if last else {}
        return Measurement(metrics.evaluate(loss, f, labels, data.counted, counts), curve, errors, baseline)

    def precompute(self, data: TrainingData) -> Generator[Round]:
        """Do all work that can be done before the training, together with all other parties; yields after each step as
        `train` does.

        ConfigError for a method that has none.
        """
        raise ConfigError(f"{type(self).__name__} has nothing to prepare; start the training at once")

    @property
    def can_roll_back(self) -> bool:
        """Whether the player can go back from where it has lost its way, to go on with shorter steps."""
        return False

    def should_roll_back(self, losses: Sequence[float]) -> bool:
        """Whether the losses of all evaluations so far say to turn back, the last one being of this model."""
        return False

    def roll_back(self, best: State | None) -> None:
        """Go back to the outcome of an earlier evaluation, or to the start, and on from there with shorter steps; all
        parties do so at the same point, between two rounds. Only where `turns_back`."""
        raise NotImplementedError(f"{type(self).__name__} does not turn back")

    @property
    def max_bits_per_row(self) -> float:
        """How many bits of a new row this party lets its scores and codes tell; no end where scores are exact."""
        return float("inf")

    @property
    def exchanges(self) -> int:
        """How often all parties have exchanged something so far, before a resume included."""
        return 0

    @property
    def state_fits_any_round(self) -> bool:
        """Whether one state serves any round before it: it is the same at every round, or the player goes at a pace of
        its own and knows by its state how far it is."""
        return False

    @abstractmethod
    def state(self) -> State:
        """All that a resume needs beside the training data."""

    def model_state(self) -> State:
        """Return what predicting needs of the state: the party's part of the model."""
        return self.state()

    def resume_from(self, best: State, anew: Callable[[State], Participant]) -> Participant:
        """Who ends the training with an earlier outcome of this player; all parties go back at the same point.

        anew: makes a player of an outcome, which is enough for methods whose ends need nothing of the training.
        """
        return anew(best)

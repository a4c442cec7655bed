"""The base class of one party in a training or a prediction: training rounds, scores, metrics and stored state.

Every protocol family has a subclass of it. `RowSlices` are rows that are read slice by slice; a request for scores of
new rows also has their ids (`RowsToScore`). The requesting party is the party that asks for scores. An exchange is one
transfer of outputs, residuals or shares between the parties. To roll back is to return to an earlier model and to
continue with shorter steps. Evaluated rows are those on which metrics are computed: the held-out rows, or the training
rows if none are held out. Reason codes name the columns that affect a score most. An offline phase generates random
numbers before the training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.data.baseline import SCORE_COLUMN, Baseline, numeric_baseline
from securevfl.errors import ConfigError
from securevfl.families.divergence import check_final_loss
from securevfl.families.score_results import Measurement
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models import metrics
from securevfl.models.class_figures import class_figures
from securevfl.models.loss import Loss
from securevfl.models.output_noise import rounding_errors, rounding_note
from securevfl.models.standard_errors import standard_errors
from securevfl.protocols.joint_prediction import RowsToScore, ScoreResult


@dataclass(frozen=True)
class Round:
    """One finished round.

    Attributes:
        number: number of the round; the first round of the training, before any resume, has the number 1.
        of: number of rounds in the complete training.
        epoch: the epoch of the round's batch.
        loss: mean loss of the batch, at a party that knows it.
    """

    number: int
    of: int
    epoch: int
    loss: float | None = None


class Participant(ABC):
    """One party in a run: it trains its part of the model, and evaluates and scores rows with the others."""

    @abstractmethod
    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Train, and yield after every round.

        Between two rounds all parties may evaluate and store their states. Closing the generator stops the training.

        Args:
            data: the training data of this party.
            start: number of rounds that were finished before a resume.
        """

    @abstractmethod
    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Compute the model outputs of rows together with all other parties, which contribute their columns.

        Args:
            rows: scaled columns of this party (m, d).
            request: ids and unscaled columns of the rows; None if the rows are not new.

        Returns:
            Outputs (m, c), nan for rows that a party refused; None at a party that receives no outputs.
        """

    def score(self, rows: RowSlices, request: RowsToScore | None = None) -> ScoreResult:
        """Return the model outputs of these rows, and which of the rows have a score (by default all)."""
        return ScoreResult.of_all(len(rows), self.model_outputs(rows, request))

    def check_request(self, ids: Iterable[bytes]) -> None:  # noqa: B027  most families limit no whole requests
        """Check before the first block of a request that this party's limits permit the scores of all its rows.

        Args:
            ids: digests of the ids of the rows, of all blocks; they are read only if the family has such a limit.

        Raises:
            LeakageError: the scores would exceed a limit of this party.
        """

    def stored_scores(self, request: RowsToScore) -> ScoreResult:
        """Return the results that this party already has for new rows (m,), before it requests their scores.

        Only the requesting party has such results.

        Args:
            request: ids and unscaled columns of the rows.

        Returns:
            Which rows the model was trained on, which rows were requested before with other values, and stored scores
            (m, c).
        """
        m = len(request.ids)
        return ScoreResult.of(np.full((m, 1), np.nan), np.zeros(m, np.bool_))

    def end_training(self) -> None:  # noqa: B027  a family without such a step inherits this
        """Finish the training with all other parties after the last round, for example open weights to their owners."""

    def reuse_measurement(self, rounds: int, measurement: Measurement) -> None:  # noqa: B027  most families need none
        """Note a measurement that an earlier session of the run has stored, before the final model is measured.

        Args:
            rounds: number of rounds after which the model was measured.
            measurement: the result; empty at a party that received none.
        """

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> Measurement:
        """Measure the model on the evaluated rows, together with all other parties.

        Args:
            loss: the loss function that the training minimises (`securevfl.models.loss`).
            data: the training data of this party.
            rounds: number of rounds so far.
            last: whether the training has finished; only then standard errors are computed.

        Returns:
            The metrics; an empty measurement at a party that receives none.
        """
        rows = data.evaluated
        f, labels, classes = self.model_outputs(rows), data.labels(rows.rows), data.target_classes
        if f is None or labels is None or classes is None:
            return Measurement()
        unit_f, f = f, data.with_offsets(f, rows.rows)
        check_final_loss(loss, f, loss.targets(labels, classes), rounds)
        weights = data.metric_weights(rows.rows)
        curve: list[list[float]] = []
        baseline: Baseline | None = None
        if not loss.classifies or loss.single:  # with one output for each class, no class is the positive one
            prediction = loss.proba(f)[:, 1] if loss.classifies else loss.mean(f, classes)
            actual = labels == classes[1] if loss.classifies else labels
            curve = metrics.calibration(actual, prediction, weights=weights).tolist()
            scores = prediction
            if data.offsets is not None and data.classes is not None:
                scores = loss.mean(unit_f, data.classes)  # scores of new rows are for one unit of exposure
            baseline = numeric_baseline(SCORE_COLUMN, scores)
        values = metrics.evaluate(loss, f, labels, classes, weights)
        if not last:
            return Measurement(values, curve, score_baseline=baseline)
        notes: list[str] = []
        if noise := self.output_noise(len(data.schedule.train)):
            notes.append(rounding_note(rounding_errors(loss, f, labels, classes, weights, noise)))
        return Measurement(
            values,
            curve,
            standard_errors(loss, f, labels, classes, weights),
            baseline,
            by_class=class_figures(loss, f, labels, classes, weights),
            notes=notes,
        )

    def precompute(self, data: TrainingData) -> Generator[Round]:
        """Generate the random numbers of a training in advance, together with all other parties; yield after each step.

        Args:
            data: the training data of this party.

        Raises:
            ConfigError: if the protocol family has no offline phase.
        """
        raise ConfigError(
            f"{type(self).__name__}: this protocol family has no offline phase",
            "start the training directly",
            code="SVFL-JOB-UNSUPPORTED",
        )

    @property
    def notes(self) -> Sequence[str]:
        """Statements about the training for its report, such as that it has not converged."""
        return ()

    def output_noise(self, trained_rows: int) -> float:
        """Return the standard deviation of the random rounding in the sum of all parties' outputs.

        Args:
            trained_rows: number of training rows, on which the rounding step may depend.

        Returns:
            The standard deviation; 0 without rounding.
        """
        return 0.0

    @property
    def can_roll_back(self) -> bool:
        """Whether the training can roll back: return to an earlier model and continue with shorter steps."""
        return False

    def should_roll_back(self, losses: Sequence[float], measurement: Measurement) -> bool:
        """Return whether the training must return to an earlier model.

        Args:
            losses: the losses of all evaluations so far; the last one is of the current model.
            measurement: the measurement of the current model.

        Returns:
            Whether to roll back.
        """
        return False

    def roll_back(self, best: State | None) -> None:
        """Return to an earlier model and continue with shorter steps.

        All parties do so between the same two rounds. Requires `can_roll_back`.

        Args:
            best: model state of an earlier evaluation; None returns to the start.

        Raises:
            NotImplementedError: if the protocol family cannot roll back.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot roll back")

    @property
    def max_bits_per_row(self) -> float:
        """Maximum number of bits about a new row that scores and reason codes may disclose; inf for exact scores."""
        return float("inf")

    @property
    def exchanges(self) -> int:
        """Number of exchanges between the parties so far, including those before a resume."""
        return 0

    @property
    def model_iterations(self) -> int:
        """Number of exchanges with which the current model was trained; fewer than `exchanges` after a rollback."""
        return self.exchanges

    @property
    def state_fits_any_round(self) -> bool:
        """Whether a stored state of this party can resume from any earlier round of the others.

        That is so if the state never changes, or if the party advances independently and stores its own position.
        """
        return False

    @abstractmethod
    def state(self) -> State:
        """Return everything that is needed to resume the training, except the training data."""

    def model_state(self) -> State:
        """Return the part of the state that predictions need: the party's part of the model."""
        return self.state()

    def resume_from(self, best: State, create: Callable[[State], Participant]) -> Participant:
        """Return a participant that has an earlier, better model and ends the training with it.

        All parties must do so at the same point.

        Args:
            best: model state of the earlier model.
            create: creates a participant from a model state.

        Returns:
            The new participant.
        """
        return create(best)

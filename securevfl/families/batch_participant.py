"""Base class of participants that iterate over the batches of a schedule.

A *participant* trains one party's part of the model. H (n, c) are a party's outputs for the n rows of a batch, f is the
sum of all parties' outputs, and the *residual* g is the derivative of the loss by f. An iteration or *round* uses one
batch. The *key holder* is the party that can decrypt residuals, if they are sent encrypted (*sealed*).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.data.schedule import Iteration, Rows
from securevfl.families.divergence import DivergenceDetector
from securevfl.families.output_rounding import RoundedOutputs, output_step
from securevfl.families.participant import Participant, Round
from securevfl.families.training_data import ScaledRows, TrainingData
from securevfl.options import JobOptions
from securevfl.protocols.observations import IterationStarted
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Batch

EXTREME_DEVIATIONS = 20.0
"""If a row makes a training diverge, the error names a column with a value of more than this number of standard
deviations from the mean."""


@dataclass
class CurrentRound:
    """The round that a participant works on.

    Attributes:
        number: its number; the first round has the number 1.
        epoch: the epoch of its batch.
        loss: mean loss of its batch, once a party with labels has computed it; later values do not replace it.
    """

    number: int
    epoch: int
    loss: float | None = None

    def record_loss(self, loss: float) -> None:
        """Record the mean loss of the batch, unless it is recorded already."""
        if self.loss is None:
            self.loss = loss


class BatchParticipant(Participant):
    """A participant that iterates over batches; optimizers read a party's data and model through this interface.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.

    Attributes:
        parties: number of parties.
        seed: seed of the job.
        start: number of rounds that were finished before a resume.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        statements: statements about the training for its report.
    """

    def __init__(self, job: JobOptions, context: PartyContext) -> None:
        self.parties = len(context.parties)
        self.seed = job.seed
        self.start = 0
        self._job = job
        self._channel, self._me = context.channel, context.me
        self.loss = job.loss
        self._seals = job.protocol.seals
        self._divergence: DivergenceDetector | None = None
        self._current = CurrentRound(0, 0)
        self._run_key = b""
        self.statements: list[str] = []
        self._rounding_parties = len(context.passives)
        self._sends_outputs = context.me in context.passives
        self._rounding: RoundedOutputs | None = None

    @property
    def data(self) -> TrainingData:
        """The training data of this party; available after `begin`."""
        return self._data

    def begin(self, data: TrainingData, start: int) -> None:
        """Set the training data, and the number of rounds `start` that are finished. Call this before anything else."""
        self._data = data
        self.start = start
        self._divergence = None if data.targets is None else DivergenceDetector(self.loss, len(data.schedule.train))

    def set_run_key(self, key: bytes | None) -> None:
        """Set the secret key of the run: the key from a stored state, or a new random one if `key` is None."""
        self._run_key = key or os.urandom(SYMMETRIC_KEY_BYTES)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about the training for the notes of the report. The optimizer appends them to `statements`."""
        return self.statements

    def output_noise(self, trained_rows: int) -> float:
        """Return the standard deviation of the random rounding in the sum of all parties' outputs.

        Args:
            trained_rows: number of training rows, on which the rounding step depends.

        Returns:
            The standard deviation, which is 0 if residuals are not encrypted.
        """
        if not (self._seals and self._job.model.static_jacobian):
            return 0.0
        return output_step(trained_rows) * math.sqrt(self._rounding_parties / 6)

    def sendable_outputs(self, H: Floats, rows: Rows, table_rows: int, trained_rows: int) -> Floats:
        """Return the outputs H (n, c) as this party may send them, rounded if a key holder can influence the weights.

        A key holder can influence the weights if residuals are encrypted (`securevfl.families.output_rounding`).

        Args:
            H: forward outputs of this party (n, c).
            rows: positions of the rows in the table.
            table_rows: number of rows of the table.
            trained_rows: number of rows that are used in the training.

        Returns:
            The outputs H (n, c) of these rows as this party may send them.
        """
        if not (self._seals and self._sends_outputs and self._job.model.static_jacobian):
            return H
        if self._rounding is None:
            self._rounding = RoundedOutputs(self._run_key, table_rows, H.shape[1], output_step(trained_rows))
        return self._rounding(H, rows)

    def sendable_batch_outputs(self, H: Floats, batch: Batch) -> Floats:
        """Return the outputs H (n, c) of a batch as this party sends them: rounded where `sendable_outputs` rounds."""
        assert batch.rows is not None, "a batch of a table contains the positions of its rows"
        return self.sendable_outputs(H, batch.rows, self._data.rows, len(self._data.schedule.train))

    def output_filter(self, rows: RowSlices) -> Callable[[Floats, slice], Floats]:
        """Return a function from this party's outputs H on a slice of these rows to the outputs that it may send.

        Outputs are rounded only for rows of the table that the model is trained on.
        """
        if not isinstance(rows, ScaledRows):
            return lambda H, block: H
        trained = len(rows.data.schedule.train)
        return lambda H, block: self.sendable_outputs(H, rows.rows[block], rows.data.rows, trained)

    def batches(self) -> Iterator[Batch]:
        """Yield this party's rows of every remaining batch, in an order that is the same at all parties."""
        for number, iteration in enumerate(islice(self._data.schedule.iterations(), self.start, None), self.start + 1):
            self._current = CurrentRound(number, iteration.epoch)
            self._channel.gate.begin_iteration(number)
            self._channel.note(IterationStarted(iteration.index))
            yield self.batch(iteration)

    def batch_of_round(self, number: int) -> Batch:
        """Return this party's rows of the batch of round `number`; the first round has the number 0."""
        iteration = self._data.schedule.iteration(number)
        assert iteration is not None, "only finished rounds are restored"
        return self.batch(iteration)

    def upcoming_batch(self, k: int) -> Batch | None:
        """Return this party's rows of the batch that is used `k` rounds after the current one.

        None after the last round.
        """
        iteration = self._data.schedule.iteration(self._current.number - 1 + k)
        return None if iteration is None else self.batch(iteration)

    def batch(self, iteration: Iteration) -> Batch:
        """Return this party's data of the batch of an iteration: its columns, and targets if it has labels."""
        return self._data.batch(iteration)

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """Compute the residual and record the loss of the batch. Requires labels.

        Args:
            f: model outputs (n, c).
            batch: this party's columns and targets of the batch.

        Returns:
            g (n, c), the derivative of the loss at f.
        """
        y = batch.labels
        assert self._divergence is not None, "begin was called on data with labels"
        if self._current.loss is None:
            self._current.loss = self._divergence.add_batch(
                self._current.number, f, y, None if batch.rows is None else partial(self._describe_row, batch.rows)
            )
        g = self.loss.residual(f, y)
        if self._seals:
            self._divergence.check_residual_bound(self._current.number, g, y)
        return g

    def _describe_row(self, rows: Rows, position: int) -> str:
        """Describe a row of a batch for an error: its number and, if one of this party's columns is extreme, which."""
        row_name = self._data.row_name(int(rows[position]))
        start = f"{row_name[0].upper()}{row_name[1:]} alone makes the loss so large"
        if self._data.columns:
            distances = np.abs(np.asarray(self._data.scaled(rows[position : position + 1]), np.float64)[0])
            if distances.max() > EXTREME_DEVIATIONS:
                furthest = int(distances.argmax())
                column = next((source.name for source in self._data.sources if furthest in source.at), "")
                far = f"more than {EXTREME_DEVIATIONS:g} standard deviations from the mean"
                return f"{start}: the value of its column {column!r} is {far}"
        return f"{start}. No column of {self._me} is extreme there, so the label or another party's column may be"

    def record_loss(self, loss: float) -> None:
        """Record the mean loss of the current batch, unless it has been recorded already in this iteration."""
        self._current.record_loss(loss)

    def rounds(self, work: Iterator[None]) -> Iterator[Round]:
        """Turn an optimizer's generator `work`, which yields after each step, into one that yields finished rounds."""
        of = len(self._data.schedule)
        for number, _ in enumerate(work, self.start + 1):
            yield Round(number, of, self._current.epoch, self._current.loss)

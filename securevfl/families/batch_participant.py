"""Base class of participants that iterate over the batches of a schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice

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


class BatchParticipant(Participant):
    """A player that goes through the batches of the schedule; what its optimizer sees of the party."""

    def __init__(self, job: JobOptions, context: PartyContext) -> None:
        self.parties = len(context.parties)  # K
        self.seed = job.seed
        self.start = 0  # rounds done before, where it goes on from a state
        self._job = job
        self._channel = context.channel
        self.loss = job.loss
        self._seals = job.protocol.seals
        self._visit: Iteration | None = None
        self._booked: float | None = None
        self._watch: DivergenceDetector | None = None
        self._round = 0  # the one that is being done, from 1
        self._secret = b""  # of the run
        self._sends = context.me in context.passives
        self._rounding: RoundedOutputs | None = None

    @property
    def data(self) -> TrainingData:
        """The training data of this party, once it has begun."""
        return self._data

    def begin(self, data: TrainingData, start: int) -> None:
        """Start on the training data, at round `start`; this is called before anything else."""
        self._data = data
        self.start = start
        self._watch = None if data.targets is None else DivergenceDetector(self.loss, len(data.schedule.train))

    def set_run_key(self, key: bytes | None) -> None:
        """Go by the secret of the run that a state has, or by a fresh one."""
        self._secret = key or os.urandom(SYMMETRIC_KEY_BYTES)

    def sendable_outputs(self, H: Floats, rows: Rows, table: int, trained: int) -> Floats:
        """H (n x c) of these rows of a table of so many, of which so many are trained on, as this party may send it:
        rounded, where it follows from weights that a key holder has a hand in."""
        if not (self._seals and self._sends and self._job.model.static_jacobian):
            return H
        if self._rounding is None:
            self._rounding = RoundedOutputs(self._secret, table, H.shape[1], output_step(trained))
        return self._rounding(H, rows)

    def sendable_batch_outputs(self, H: Floats, batch: Batch) -> Floats:
        """H (n x c) of a batch as this party may send it."""
        assert batch.rows is not None, "a batch of a table has its rows"
        return self.sendable_outputs(H, batch.rows, self._data.rows, len(self._data.schedule.train))

    def output_filter(self, rows: RowSlices) -> Callable[[Floats, slice], Floats]:
        """Return how H of these rows may be sent: rounded, where they are of the table that is trained on."""
        if not isinstance(rows, ScaledRows):
            return lambda H, block: H
        return lambda H, block: self.sendable_outputs(H, rows.rows[block], rows.of.rows, len(rows.of.schedule.train))

    def batches(self) -> Iterator[Batch]:
        """Yield this party's side of every batch still to come, in the order that all parties share."""
        for number, visit in enumerate(islice(self._data.schedule.iterations(), self.start, None), self.start + 1):
            self._round, self._visit, self._booked = number, visit, None
            self._channel.gate.begin_iteration(number)
            self._channel.note(IterationStarted(visit.index))
            yield self.batch(visit)

    def batch_of_round(self, number: int) -> Batch:
        """Return this party's side of the batch of an earlier round, counted from 0."""
        return self.batch(next(islice(self._data.schedule.iterations(), number, None)))

    def upcoming_batch(self, k: int) -> Batch | None:
        """Return this party's side of the batch k rounds after the one being done, or done last; None after the end."""
        visit = next(islice(self._data.schedule.iterations(), self._round - 1 + k, None), None)
        return None if visit is None else self.batch(visit)

    def batch(self, visit: Iteration) -> Batch:
        """Return this party's side of the batch of a visit."""
        return self._data.batch(visit)

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """G (n x c) of the loss at f (n x c); the first of a batch also books its loss. Only with labels.

        DivergenceError if the loss is that of no model; LabelError if a label is too far from the others to be sealed.
        """
        y = batch.labels
        assert self._watch is not None, "it has begun"
        if self._booked is None:
            self._booked = self._watch.add_batch(self._round, f, y)
        g = self.loss.residual(f, y)
        if self._seals:
            self._watch.check_residual_bound(self._round, g, y)
        return g

    def record_loss(self, loss: float) -> None:
        """Note the mean loss of a batch, the first time in a visit."""
        if self._booked is None:
            self._booked = loss

    def rounds(self, work: Iterator[None]) -> Iterator[Round]:
        """Yield a round for each step of an optimizer's work."""
        of = len(self._data.schedule)
        for number, _ in enumerate(work, self.start + 1):
            assert self._visit is not None, "an optimizer takes a batch before it is done with one"
            yield Round(number, of, self._visit.epoch, self._booked)

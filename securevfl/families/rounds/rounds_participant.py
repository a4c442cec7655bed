"""One party of a training by rounds: it sends model outputs into a sum and updates the weights of its columns.

The active party has the labels; it receives sums of the parties' outputs and sends residuals to the passive parties. An
exchange is one sum with the residual that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from securevfl.base.arrays import Floats, RowSlices
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.participant import Participant, Round
from securevfl.families.rounds.rounds_job import RoundsJob
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.block import BlockSpec
from securevfl.optim.rules import Updater
from securevfl.protocols.joint_prediction import RowsToScore, predict
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.party_context import PartyContext

INITIAL_WEIGHT_ROWS = 1024  # number of rows, the first ones, from whose values initial weights are computed


class RoundsParticipant(BatchParticipant):
    """One party of a training by rounds: its columns, and the weights of its columns.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        columns: d, number of columns of this party.
        state: the state to resume from, or the model state to predict with; None to start a training.
    """

    _job: RoundsJob

    def __init__(self, job: RoundsJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._active = context.me == context.active
        passives = len(context.passives)
        position = 0 if self._active else context.passives.index(context.me)
        self._outputs = context.outputs
        self._context = replace(
            context, outputs=job.model.collected_width(context.outputs, passives), reals=job.protocol.reals
        )
        self._optimizer = job.optimizer
        self.model = job.model.build(
            BlockSpec(context.me, self._active, columns, context.outputs, context.model, passives, position)
        )
        stored = State() if state is None else state
        if state is not None:
            self.model.restore(state)
        self._exchanges_before: int = stored.get("exchanges", 0)
        self.memory = self._optimizer.init_state(self.model, stored.get("update"))
        self.set_run_key(stored.get("noise"))
        self._sums = job.protocol.sum_for(len(context.passives)).role(context.sum_to(context.active))
        self._link: ActiveLink | PassiveLink | None = None

    @property
    def exchanges(self) -> int:
        """Number of exchanges so far, including those before a resume."""
        return self._exchanges_before + (self._link.rounds if self._link is not None else 0)

    @property
    def updater(self) -> Updater:
        """The values that the optimizer's update rule remembers from earlier steps."""
        assert isinstance(self.memory, Updater), "only an optimizer with an update rule reads its updater"
        return self.memory

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Train by the job's optimizer, and yield after every round."""
        self.begin(data, start)
        # a linear model reads a batch chunk by chunk, so rows may stay in the Dask processes that hold them
        data.may_stay_remote = True
        if start == 0:
            rows, targets = data.initial_rows(INITIAL_WEIGHT_ROWS)
            self.model.start(data.raw(rows), data.scaled(rows), targets, self.seed)
            self.memory = self._optimizer.init_state(self.model, None)
        residual, agreement = self._job.protocol.residual, self._optimizer.agreement(self._job.model)
        if self._active:
            context = replace(self._context, noise_key=self._run_key, residuals_sent=self._exchanges_before)
            with ActiveLink(context, self._sums, residual.active(context, agreement)) as self._link:
                yield from self.rounds(self._optimizer.active(self, self._link))
        else:
            requester = residual.passive(self._context, agreement)
            with PassiveLink(self._context, self._sums, requester, self.sendable_batch_outputs) as self._link:
                yield from self.rounds(self._optimizer.passive(self, self._link))

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Compute the sum of all parties' outputs; the active party receives it, all others return None."""
        self._receive_pending()
        return predict(self._context, self._sums, self.model, rows, self._outputs, self.output_filter(rows))

    def _receive_pending(self) -> None:
        """Receive outputs that passive parties have sent in advance for later rounds, to free the channel for sums."""
        if isinstance(self._link, ActiveLink):
            self._optimizer.drain(self, self._link)

    def state(self) -> State:
        """Return the weights, the number of exchanges, the run key, and the values that the optimizer stores."""
        self._receive_pending()
        return State(self.model_state(), exchanges=self.exchanges, noise=self._run_key, update=self.memory.state)

    def model_state(self) -> State:
        """Return the weights of this party's columns."""
        return State(self.model.state())

    def resume_from(self, best: State, create: Callable[[State], Participant]) -> Participant:
        """Return a participant with the earlier weights and this run's key."""
        earlier = create(best)
        assert isinstance(earlier, RoundsParticipant), "participants of one run are of one family"
        earlier.set_run_key(self._run_key)
        return earlier

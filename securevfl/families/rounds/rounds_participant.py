"""One party of a training by rounds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from securevfl.base.arrays import Floats, RowSlices
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.participant import Participant, Round
from securevfl.families.rounds.rounds_job import RoundsJob
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.block import Place
from securevfl.optim.rules import Updater
from securevfl.protocols.joint_prediction import RowsToScore, predict
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.party_context import PartyContext

INITIAL_WEIGHT_ROWS = 1024  # rows that the first weights are drawn from


class RoundsParticipant(BatchParticipant):
    """The player of one party, which holds that party's block of weights."""

    _job: RoundsJob

    def __init__(self, job: RoundsJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._active = context.me == context.active
        passives = len(context.passives)
        place = 0 if self._active else context.passives.index(context.me)
        self._outputs = context.outputs
        self._context = replace(
            context, outputs=job.model.collected_width(context.outputs, passives), reals=job.protocol.reals
        )
        self._optimizer = job.optimizer
        self.model = job.model.build(
            Place(context.me, self._active, columns, context.outputs, context.model, passives, place)
        )
        own = State() if state is None else state
        if state is not None:
            self.model.restore(state)
        self._before: int = own.get("exchanges", 0)
        self.memory = self._optimizer.init_state(self.model, own.get("update"))
        self.set_run_key(own.get("noise"))
        self._sums = job.protocol.sum_for(len(context.passives)).role(context.sum_to(context.active))
        self._link: ActiveLink | PassiveLink | None = None

    @property
    def exchanges(self) -> int:
        return self._before + (self._link.rounds if self._link is not None else 0)

    @property
    def updater(self) -> Updater:
        """Its memory, where the optimizer goes by a rule."""
        assert isinstance(self.memory, Updater), "only an optimizer that goes by a rule asks for it"
        return self.memory

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        self.begin(data, start)
        data.may_stay_remote = True  # what linear models ask of a batch, rows give where they lie
        if start == 0:
            first, targets = data.initial_rows(INITIAL_WEIGHT_ROWS)
            self.model.start(data.raw(first), data.scaled(first), targets, self.seed)
            self.memory = self._optimizer.init_state(self.model, None)
        residual, agreement = self._job.protocol.residual, self._optimizer.agreement(self._job.model)
        if self._active:
            context = replace(self._context, noise_key=self._run_key, residuals_sent=self._before)
            with ActiveLink(context, self._sums, residual.active(context, agreement)) as self._link:
                yield from self.rounds(self._optimizer.active(self, self._link))
        else:
            asks = residual.passive(self._context, agreement)
            with PassiveLink(self._context, self._sums, asks, self.sendable_batch_outputs) as self._link:
                yield from self.rounds(self._optimizer.passive(self, self._link))

    def model_outputs(self, rows: RowSlices, asked: RowsToScore | None = None) -> Floats | None:
        self._settle()
        return predict(self._context, self._sums, self.model, rows, self._outputs, self.output_filter(rows))

    def _settle(self) -> None:
        if isinstance(self._link, ActiveLink):
            self._optimizer.drain(self, self._link)

    def state(self) -> State:
        self._settle()
        return State(self.model_state(), exchanges=self.exchanges, noise=self._run_key, update=self.memory.state)

    def model_state(self) -> State:
        return State(self.model.state())

    def resume_from(self, best: State, anew: Callable[[State], Participant]) -> Participant:
        before = anew(best)
        assert isinstance(before, RoundsParticipant), "it is one of this method"
        before.set_run_key(self._run_key)
        return before

"""A party of FDML at work: a worker with a block of weights, or the server (see `securevfl.families.fdml.fdml_family`).

A worker goes on while answers are under way, and takes its steps in the order of its pushes:

    push t;  then for every push s that is answered, or must be:  f of s -> g -> a step on its own weights

Its own state is enough to go on after a kill. It begins where it was itself, whatever the others have done, and pushes
its predictions on the batches visited before, so that the server, which keeps nothing on disk, has them again. Where
residuals go down all begin where the party with labels was, as these are numbered by its iterations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.roles import SERVER
from securevfl.errors import ProtocolError
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.fdml import label_sharing
from securevfl.families.fdml.fdml_optimizer import FdmlJob, pace_of, readers_of, stored_of, workers_of
from securevfl.families.fdml.fdml_server import STORED_SUBCHANNEL
from securevfl.families.fdml.local_noise import LocalNoiseSampler
from securevfl.families.fdml.peer_pulls import PeerPullClient
from securevfl.families.fdml.pulls import PullClient, PulledSum, ServerPullClient, StartIteration
from securevfl.families.participant import Round
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.block import Place
from securevfl.optim.rules import Updater
from securevfl.protocols.joint_prediction import RowsToScore, predict
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.observations import IterationStarted, OthersSumLearned, OutputsPushed
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.protocols.residuals.base import Agreement, Batch
from securevfl.runtime.costs import Kind

INITIAL_WEIGHT_ROWS = 1024  # rows that the first weights are drawn from


@dataclass(frozen=True)
class _PendingStep:
    """A push whose step is still to be taken: its iteration, batch and H (n x c) as it was pushed, and how many steps
    came before."""

    t: int
    batch: Batch
    H: Floats
    steps: int


class FdmlWorker(BatchParticipant):
    """The player of one FDML worker, which holds one party's block of weights."""

    _job: FdmlJob

    def __init__(self, job: FdmlJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self.parties = len(workers_of(context))
        self._context = context
        self._optimizer = job.optimizer
        self._active, passives = context.me == context.active, context.passives
        place = 0 if self._active else passives.index(context.me)
        self.model = job.model.build(
            Place(context.me, self._active, columns, context.outputs, context.model, len(passives), place)
        )
        own = State() if state is None else state
        if state is not None:
            self.model.restore(state)
        self._fresh = state is None
        self.set_run_key(own.get("secret"))
        self._done: int = own.get("iteration", 0)  # iterations whose step is taken
        self._memory = Updater(self._optimizer.rule, self.model, own.get("update"))
        noise = stored_of(job).noise
        self._blur = None if noise is None else LocalNoiseSampler(noise, job.epochs)
        self._sums = job.protocol.sum_for(len(passives)).role(context.sum_to(context.active, passives))

    @property
    def exchanges(self) -> int:
        return self._done

    @property
    def state_fits_any_round(self) -> bool:
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        if self._optimizer.shows_labels:
            flow = data.schedule.batch_order
            if self._active:
                assert data.targets is not None, "the active party has labels"
                label_sharing.send_labels(self._context, data.targets[flow])
            else:
                data.targets = np.zeros((data.rows, self._context.outputs))
                data.targets[flow] = label_sharing.receive_labels(self._context, len(flow))
        self.begin(data, start)
        data.stays = True  # what linear models ask of a batch, rows give where they lie
        if self._fresh:
            first, targets = data.starting(INITIAL_WEIGHT_ROWS)
            self.model.start(data.raw(first), data.scaled(first), targets if self._active else None, self.seed)
            self._memory = Updater(self._optimizer.rule, self.model)
        self._visits = list(data.schedule.iterations())
        self._pace = pace_of(self._job, data.schedule, self._visits)
        self._take_place(start)
        pulls = self._pulls()
        pulls.begin(self._done, self._before())
        residual, context = self._job.protocol.residual, self._context
        agreement = Agreement(
            1, max_open_exchanges=2 * (self._pace.tau + 1), shares_outputs=self._job.model.shares_outputs
        )  # no passive party is further behind
        if residual is None:
            yield from self._knowing(pulls, None)
        elif self._active:
            with ActiveLink(context, self._sums, residual.active(context, agreement)) as down:
                yield from self._knowing(pulls, down)
        else:
            with PassiveLink(context, self._sums, residual.passive(context, agreement)) as up:
                yield from self._asking(pulls, up)

    def _take_place(self, start: int) -> None:
        """Set where this worker begins: at the iteration it had reached, but before the next joint evaluation, and at
        that of the active party where residuals are sent down."""
        if self._pace.pause:
            self._done = min(self._done, (start // self._pace.pause + 1) * self._pace.pause - 1)
        if self._optimizer.shows_labels:
            return
        channel, context = self._channel, self._context
        if self._active:
            for passive in context.passives:
                channel.send(
                    passive, StartIteration(self._done), STORED_SUBCHANNEL, permit=permit_sizes(channel, passive)
                )
        else:
            self._done = channel.recv(context.active, StartIteration, STORED_SUBCHANNEL).iteration
            if not 0 <= self._done <= len(self._visits):
                raise ProtocolError(
                    f"{context.me}: {context.active} was expected to begin within {len(self._visits)} iterations, it "
                    "begins "
                    f"at {self._done}; do both run the same job?"
                )

    def _pulls(self) -> PullClient:
        context, workers = self._context, workers_of(self._context)
        if not context.roles.with_role(SERVER):
            return PeerPullClient(
                context.sum_to(context.active, workers, subchannel=STORED_SUBCHANNEL), self._pace, lead=context.active
            )
        own = context.sum_to(context.roles.only(SERVER), workers, subchannel=STORED_SUBCHANNEL)
        readers = readers_of(self._job, context)
        return ServerPullClient(own, self._pace, stored_of(self._job).worker(own, readers), told=readers)

    def _before(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield, for every batch visited before, its number, the iteration of its last visit, and H (n x c) at the
        present weights."""
        visits = range(max(0, self._done - 2 * self._pace.epoch), self._done)
        for batch, t in {self._visits[t].index: t for t in visits}.items():
            before = self.batch(self._visits[t])
            yield batch, t, self._shown(self.model.forward(before.X), before)

    def _shown(self, H: Floats, batch: Batch) -> Floats:
        """H (n x c) of a batch as it may be pushed."""
        H = self.sendable_batch_outputs(H, batch)
        return H if self._blur is None else self._blur(H)

    def _push(self, pulls: PullClient, t: int) -> _PendingStep:
        batch = self.batch(self._visits[t])
        self._channel.gate.begin_iteration(t + 1)
        self._channel.note(IterationStarted(batch.index))
        H = self._shown(self.model.forward(batch.X), batch)
        self._channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        self._channel.note(OutputsPushed(batch.index, H))
        pulls.push(t, H, self._done)
        return _PendingStep(t, batch, H, self._done)

    def _knowing(self, pulls: PullClient, down: ActiveLink | None) -> Iterator[Round]:
        """Run the iterations of a worker that knows labels. down: the link to the others where these wait for its
        residuals."""
        opened: deque[_PendingStep] = deque()
        for t in range(self._done, len(self._visits)):
            opened.append(self._push(pulls, t))
            while opened:
                wait = len(opened) > self._pace.unanswered(t)
                answer = pulls.pull((len(opened[0].batch.X), self._context.outputs), wait=wait)
                if answer is None:
                    break
                yield self._step(opened.popleft(), answer, down)

    def _step(self, item: _PendingStep, answer: PulledSum, down: ActiveLink | None) -> Round:
        assert answer.total is not None, "who knows labels is told sums"
        X, f = item.batch.X, answer.total
        self._channel.note(OthersSumLearned(item.batch.index, f - item.H, answer.versions))
        if self._done > item.steps or self._blur is not None:  # its own part has moved since, or is known better
            f = f - item.H + self.model.forward(X)
        self._round, self._booked = item.t + 1, None
        g = self.residual(f, item.batch)
        if down is not None:
            down.publish(g, item.batch)
        return self._step_by(item, self.model.vjp(X, g))

    def _asking(self, pulls: PullClient, up: PassiveLink) -> Iterator[Round]:
        """Run the iterations of a worker without labels, which asks for residuals over `up`."""
        opened: deque[_PendingStep] = deque()
        begun, answered, published = self._done, self._done - 1, 0
        for t in range(begun, len(self._visits)):
            opened.append(self._push(pulls, t))
            while opened:
                item, wait = opened[0], len(opened) > self._pace.unanswered(t)
                while (answer := pulls.pull((0, 0), wait=wait and answered < item.t)) is not None:
                    answered, published = answer.iteration, answer.finished
                if not (wait or item.t < min(answered + 1, published)):
                    break
                reply = up.reply()
                if reply.exchange != item.t - begun:
                    raise ProtocolError(
                        f"{self._context.me}: {self._context.active} was expected to publish exchange "
                        f"{item.t - begun}, it "
                        f"published {reply.exchange}; do both run the same job?"
                    )
                yield self._step_by(opened.popleft(), reply.gradient(self.model, item.batch))

    def _step_by(self, item: _PendingStep, gradient: Floats) -> Round:
        """Take the step of an iteration, from the gradient of its batch's loss, and return the round that it ends."""
        self._memory.begin()
        self._memory.step(gradient / len(item.batch.X), self._optimizer.eta(item.t, self.parties))
        self._done = item.t + 1
        return Round(self._done, len(self._visits), item.batch.epoch, self._booked)

    def model_outputs(self, rows: RowSlices, asked: RowsToScore | None = None) -> Floats | None:
        return predict(self._context, self._sums, self.model, rows, self._context.outputs, self.output_filter(rows))

    def state(self) -> State:
        return State(self.model_state(), iteration=self._done, secret=self._secret, update=self._memory.state)

    def model_state(self) -> State:
        return State(self.model.state())

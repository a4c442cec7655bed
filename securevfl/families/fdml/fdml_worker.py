"""A worker of FDML, asynchronous training: a party with columns and weights (`securevfl.families.fdml.fdml_optimizer`).

In iteration t, a worker *pushes* its outputs H on the batch of t to the server (or to all other workers) and *pulls*
the sum f. It continues while replies are in transit, and updates its weights in the order of its pushes:

    push t;  then for each earlier push s whose reply has arrived (or must be waited for):  f of s -> g -> update

g is the residual, the derivative of the loss by f. A worker resumes from its own iteration, whatever the others have
done, and pushes the outputs of earlier batches again, because the server stores nothing on disk. If residuals are sent,
all workers resume from the iteration of the party with labels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.roles import SERVER
from securevfl.errors import ProtocolError
from securevfl.families.batch_participant import BatchParticipant, CurrentRound
from securevfl.families.fdml import label_sharing
from securevfl.families.fdml.fdml_optimizer import FdmlJob, pace_of, readers_of, stored_of, workers_of
from securevfl.families.fdml.fdml_server import STORED_SUBCHANNEL
from securevfl.families.fdml.local_noise import LocalNoiseSampler
from securevfl.families.fdml.peer_pulls import PeerPullClient
from securevfl.families.fdml.pulls import PullClient, PulledSum, ServerPullClient, StartIteration
from securevfl.families.participant import Round
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.block import BlockSpec
from securevfl.optim.rules import Updater
from securevfl.protocols.joint_prediction import RowsToScore, predict
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.observations import IterationStarted, OthersSumLearned, OutputsPushed
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.protocols.residuals.base import Agreement, Batch
from securevfl.runtime.costs import Kind


@dataclass(frozen=True)
class _PendingStep:
    """A push whose update of the weights has not been made yet.

    Attributes:
        t: number of the iteration, counted from 0.
        batch: the data of one batch of rows at this party: columns, and targets if it has labels.
        H: the pushed outputs (n, c).
        steps: number of finished updates at the time of the push.
    """

    t: int
    batch: Batch
    H: Floats
    steps: int


class FdmlWorker(BatchParticipant):
    """The participant of one FDML worker, with that party's block of weights.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        columns: d, number of columns of this party.
        state: the state to resume from, or the model state to predict with; None to start a training.
    """

    _job: FdmlJob

    def __init__(self, job: FdmlJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self.parties = len(workers_of(context))
        self._context = context
        self._optimizer = job.optimizer
        self._active, passives = context.me == context.active, context.passives
        position = 0 if self._active else passives.index(context.me)
        self.model = job.model.build(
            BlockSpec(context.me, self._active, columns, context.outputs, context.model, len(passives), position)
        )
        stored = State() if state is None else state
        if state is not None:
            self.model.restore(state)
        self._is_new = state is None
        self.set_run_key(stored.get("secret"))
        self._finished: int = stored.get("iteration", 0)  # number of iterations whose update is done
        self._memory = Updater(self._optimizer.rule, self.model, stored.get("update"))
        noise = stored_of(job).noise
        self._noise = None if noise is None else LocalNoiseSampler(noise, job.epochs)
        self._sums = job.protocol.sum_for(len(passives)).role(context.sum_to(context.active, passives))

    @property
    def exchanges(self) -> int:
        """Number of finished iterations."""
        return self._finished

    @property
    def state_fits_any_round(self) -> bool:
        """Whether the state fits any round of the others: always True, because it contains the worker's iteration."""
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Push, pull and update, and yield after every update."""
        if self._optimizer.shows_labels:
            self._share_labels(data)
        self.begin(data, start)
        # A linear model reads a batch chunk by chunk, so rows may stay in the Dask processes that hold them.
        data.may_stay_remote = True
        if self._is_new:
            rows, targets = data.initial_rows(INITIAL_WEIGHT_ROWS)
            self.model.start(data.raw(rows), data.scaled(rows), targets if self._active else None, self.seed)
            self._memory = Updater(self._optimizer.rule, self.model)
        self._iterations = list(data.schedule.iterations())
        self._pace = pace_of(self._job, data.schedule, self._iterations)
        self._set_position(start)
        pulls = self._pull_client()
        pulls.begin(self._finished, self._restored_outputs())
        residual, context = self._job.protocol.residual, self._context
        # two workers are at most 2 * tau iterations apart, so nobody requests an older residual
        agreement = Agreement(
            1, max_open_exchanges=2 * (self._pace.tau + 1), shares_outputs=self._job.model.shares_outputs
        )
        if residual is None:
            yield from self._train_with_labels(pulls, None)
        elif self._active:
            with ActiveLink(context, self._sums, residual.active(context, agreement)) as link:
                yield from self._train_with_labels(pulls, link)
        else:
            with PassiveLink(context, self._sums, residual.passive(context, agreement)) as passive_link:
                yield from self._train_on_residuals(pulls, passive_link)

    def _share_labels(self, data: TrainingData) -> None:
        """Send the targets of the training rows, or receive them."""
        rows = data.schedule.batch_order
        if self._active:
            assert data.targets is not None, "the active party has labels"
            label_sharing.send_labels(self._context, data.targets[rows])
        else:
            data.targets = np.zeros((data.rows, self._context.outputs))
            data.targets[rows] = label_sharing.receive_labels(self._context, len(rows))

    def _set_position(self, start: int) -> None:
        """Set the iteration with which this worker begins or resumes.

        It is the iteration after that of its stored state, or an earlier one if this state is newer than the next joint
        evaluation. If residuals are sent, it is that of the active party, the party with labels.
        """
        if self._pace.meeting_interval:
            next_meeting = (start // self._pace.meeting_interval + 1) * self._pace.meeting_interval
            self._finished = min(self._finished, next_meeting - 1)
        if self._optimizer.shows_labels:
            return
        channel, context = self._channel, self._context
        if self._active:
            for passive in context.passives:
                permit = permit_sizes(channel, passive)
                channel.send(passive, StartIteration(self._finished), STORED_SUBCHANNEL, permit=permit)
            return
        self._finished = channel.recv(context.active, StartIteration, STORED_SUBCHANNEL).iteration
        if not 0 <= self._finished <= len(self._iterations):
            raise ProtocolError(
                f"{context.me}: {context.active} begins at iteration {self._finished}, which is not one of the "
                f"{len(self._iterations)} iterations of the schedule",
                "check that both parties run the same job",
                code="SVFL-PROTOCOL-MESSAGE",
                peer=context.active,
            )

    def _pull_client(self) -> PullClient:
        """Create this worker's client for pushes and pulls, to the server or to all other workers."""
        context, workers = self._context, workers_of(self._context)
        if not context.roles.with_role(SERVER):
            peer_context = context.sum_to(context.active, workers, subchannel=STORED_SUBCHANNEL)
            return PeerPullClient(peer_context, self._pace, lead=context.active)
        server_context = context.sum_to(context.roles.only(SERVER), workers, subchannel=STORED_SUBCHANNEL)
        readers = readers_of(self._job, context)
        stored = stored_of(self._job).worker(server_context, readers)
        return ServerPullClient(server_context, self._pace, stored, readers=readers)

    def _restored_outputs(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield for each batch of earlier iterations its number, its last iteration, and this worker's outputs now."""
        earlier = range(max(0, self._finished - 2 * self._pace.epoch), self._finished)
        for index, t in {self._iterations[t].index: t for t in earlier}.items():
            batch = self.batch(self._iterations[t])
            yield index, t, self._pushable(self.model.forward(batch.X), batch)

    def _pushable(self, H: Floats, batch: Batch) -> Floats:
        """Return this worker's outputs H (n, c) as it pushes them: rounded, and with noise if the job has any."""
        H = self.sendable_batch_outputs(H, batch)
        return H if self._noise is None else self._noise(H)

    def _push(self, pulls: PullClient, t: int) -> _PendingStep:
        batch = self.batch(self._iterations[t])
        self._channel.gate.begin_iteration(t + 1)
        self._channel.note(IterationStarted(batch.index))
        H = self._pushable(self.model.forward(batch.X), batch)
        self._channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        self._channel.note(OutputsPushed(batch.index, H))
        pulls.push(t, H, self._finished)
        return _PendingStep(t, batch, H, self._finished)

    def _train_with_labels(self, pulls: PullClient, link: ActiveLink | None) -> Iterator[Round]:
        """Run the iterations of a worker that knows the labels.

        Args:
            pulls: this worker's client for pushes and pulls.
            link: the link over which workers without labels receive residuals; None if all workers have labels.

        Yields:
            Each finished round.
        """
        pending: deque[_PendingStep] = deque()
        for t in range(self._finished, len(self._iterations)):
            pending.append(self._push(pulls, t))
            while pending:
                wait = len(pending) > self._pace.max_unanswered(t)
                pulled = pulls.pull((len(pending[0].batch.X), self._context.outputs), wait=wait)
                if pulled is None:
                    break
                yield self._step(pending.popleft(), pulled, link)

    def _step(self, pending: _PendingStep, pulled: PulledSum, link: ActiveLink | None) -> Round:
        assert pulled.total is not None, "a worker with labels receives sums"
        X, f = pending.batch.X, pulled.total
        self._channel.note(OthersSumLearned(pending.batch.index, f - pending.H, pulled.versions))
        if self._finished > pending.steps or self._noise is not None:
            # f contains the outputs as they were pushed, perhaps with noise; replace them by the current outputs
            f = f - pending.H + self.model.forward(X)
        self._current = CurrentRound(pending.t + 1, pending.batch.epoch)
        g = self.residual(f, pending.batch)
        if link is not None:
            link.publish(g, pending.batch)
        return self._update(pending, self.model.vjp(X, g))

    def _train_on_residuals(self, pulls: PullClient, link: PassiveLink) -> Iterator[Round]:
        """Run the iterations of a worker without labels, which requests residuals over `link`."""
        pending: deque[_PendingStep] = deque()
        first, answered, published = self._finished, self._finished - 1, 0
        for t in range(first, len(self._iterations)):
            pending.append(self._push(pulls, t))
            while pending:
                oldest, wait = pending[0], len(pending) > self._pace.max_unanswered(t)
                while (pulled := pulls.pull((0, 0), wait=wait and answered < oldest.t)) is not None:
                    answered, published = pulled.iteration, pulled.finished
                if not (wait or oldest.t < min(answered + 1, published)):
                    break
                reply = link.reply()
                if reply.exchange != oldest.t - first:
                    raise ProtocolError(
                        f"{self._context.me}: {self._context.active} sent residual number {reply.exchange} of the run "
                        f"instead of number {oldest.t - first}",
                        "check that both parties run the same job",
                        code="SVFL-PROTOCOL-MESSAGE",
                        peer=self._context.active,
                    )
                yield self._update(pending.popleft(), reply.gradient(self.model, oldest.batch))

    def _update(self, pending: _PendingStep, gradient: Floats) -> Round:
        """Update the weights by the gradient of a batch's summed loss, and return the finished round."""
        self._memory.begin()
        self._memory.step(gradient / len(pending.batch.X), self._optimizer.eta(pending.t, self.parties))
        self._finished = pending.t + 1
        return Round(self._finished, len(self._iterations), pending.batch.epoch, self._current.loss)

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Compute the sum of all workers' outputs; the active party receives it, all others return None."""
        return predict(self._context, self._sums, self.model, rows, self._context.outputs, self.output_filter(rows))

    def state(self) -> State:
        """Return the weights, the number of finished iterations, the run key, and the update rule's stored values."""
        return State(self.model_state(), iteration=self._finished, secret=self._run_key, update=self._memory.state)

    def model_state(self) -> State:
        """Return the party's block of weights."""
        return State(self.model.state())

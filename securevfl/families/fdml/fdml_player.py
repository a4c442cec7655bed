"""A party of FDML at work: a worker with a block of weights, or the server (see `securevfl.families.fdml.fdml`).

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
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.roles import ACTIVE, PASSIVE, SERVER
from securevfl.data.schedule import Iteration, Schedule
from securevfl.errors import ProtocolError
from securevfl.families.fdml import pulls as shown_labels
from securevfl.families.fdml.local_noise import Blur
from securevfl.families.fdml.pulls import PeerPulls, Position, PullAnswer, Pulls, PullServer, ServerPulls, WorkerPace
from securevfl.families.fdml.stored_sum import STORED, StoredMasks, StoredSum
from securevfl.families.player import BatchPlayer, Player, Round, State, TrainingData
from securevfl.models.block import BlockModel, Place
from securevfl.optim.rules import AnyRule, Optimizer, Sgd, Updater
from securevfl.options import JobOptions
from securevfl.protocols.declared import permit_sizes
from securevfl.protocols.link import ActiveLink, AskedRows, PassiveLink, predict
from securevfl.protocols.notes import Began, Pushed, ToldSum
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement, Batch
from securevfl.runtime.clock import Kind

SAMPLE = 1024  # rows that the first weights are drawn from
STORED_SUBCHANNEL = "stored"


# FDML (Hu et al. 2019): stochastic gradient descent of all parties at their own pace, on sums that may be stale.
#
# All parties go through one sequence of batches (Algorithm 1). In iteration t party k
#
# 1. pushes H_k = its local predictions (n x c) on the batch of t
# 2. pulls f, the sum of what all have pushed last of this batch, as soon as the slowest has pushed t - tau
# 3. takes a step on its own weights: theta_k -= eta_t (J_k^T g / n + l2 theta_k), g = df-loss at f
#
# The paper's Algorithm 1 has another order: it pulls, updates, and then pushes the prediction of the updated weights.
# Here a push comes first, so that a sum holds predictions of its own iteration as far as tau lets it, and at tau = 0
# the steps are those of FedSGD.
#
# The paper lets every party know the labels: then each makes its own g. With labels at one party alone the others pull
# nothing; that party publishes its g, and each steps when the one of its iteration has come, the same tau at most late.
#
# In 2 a party puts its own prediction as it is now in place of the one it pushed: its own weights are never stale, as
# in the paper, while answers are under way. In 3 eta_t = lr / sqrt(t + 1) with decay "sqrt_t", for which Proposition 1
# has the regret of a convex loss fall as 1 / sqrt(T) (for gradients and distances that are bounded).


class FDML(Optimizer):
    """Each party at its own pace, at most `tau` iterations ahead of the slowest."""

    name: ClassVar[str] = "fdml"
    method: ClassVar[str] = "fdml"
    tau: int = Field(default=8, ge=0)
    """Iterations a party may be ahead of the slowest; 0 has all go in step."""
    rule: AnyRule = Field(default_factory=Sgd)
    """How a gradient becomes a change of weights."""
    synchronous_first: bool = True
    """All go in step through the first epoch, so that every party's predictions are there from the first sum on."""
    stored: Annotated[SerializeAsAny[StoredSum] | None, BeforeValidator(STORED.read)] = None
    """How local predictions lie at a server: "open", or "masks", which stand if it is left out."""
    shows_labels: bool = False
    """The party with labels shows those of the training rows to all others, as the paper has it; else residuals go
    down."""

    @property
    def label(self) -> str:
        rule = "" if isinstance(self.rule, Sgd) else f" {self.rule.name}"
        return f"FDML tau={self.tau}{rule}"


class FdmlJob(JobOptions, defer_build=True):
    """A job at everyone's own pace: a block of weights for each worker, by FDML."""

    model: BlockModel
    optimizer: FDML


def stored_of(job: JobOptions) -> StoredSum:
    """How local predictions lie at its server: under masks unless it says otherwise."""
    return (job.optimizer.stored if isinstance(job.optimizer, FDML) else None) or StoredMasks()


def pace_of(job: FdmlJob, schedule: Schedule, visits: list[Iteration]) -> WorkerPace:
    """How far parties may go apart on this schedule."""
    own, epoch = job.optimizer, schedule.batches
    together = epoch if own.synchronous_first else 0
    return WorkerPace([visit.index for visit in visits], epoch, own.tau, together, job.evaluation_interval)


def workers_of(context: PartyContext) -> tuple[str, ...]:
    """List the parties with columns, in the order of the run's roles."""
    return tuple(name for name in context.parties if context.roles.role(name) in (ACTIVE, PASSIVE))


def readers_of(job: FdmlJob, context: PartyContext) -> tuple[str, ...]:
    """Who pulls sums: whoever knows labels."""
    return workers_of(context) if job.optimizer.shows_labels else (context.active,)


class FdmlServer(Player):
    """Keeps what workers push. It starts empty in every session: they push again what it had."""

    def __init__(self, job: FdmlJob, context: PartyContext) -> None:
        self._job = job
        self._context = context

    @property
    def constant(self) -> bool:
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        visits = list(data.schedule.iterations())
        pace, stored = pace_of(self._job, data.schedule, visits), stored_of(self._job)
        context = self._context.sum_to(self._context.me, workers_of(self._context), subchannel=STORED_SUBCHANNEL)
        readers = readers_of(self._job, self._context)
        kept = stored.server(context, readers)
        server = PullServer(context, pace, kept, lead=self._context.active, told=readers, whole=stored.hides_parts)
        for done in server.serve():
            yield Round(done, len(visits), visits[done - 1].epoch)

    def decision(self, rows: RowSlices, asked: AskedRows | None = None) -> Floats | None:
        return None

    def state(self) -> State:
        return State()


@dataclass(frozen=True)
class _Open:
    """A push whose step is still to be taken: its iteration, batch and H (n x c) as it was pushed, and how many steps
    came before."""

    t: int
    batch: Batch
    H: Floats
    steps: int


class FdmlWorker(BatchPlayer):
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
        self.keep_secret(own.get("secret"))
        self._done: int = own.get("iteration", 0)  # iterations whose step is taken
        self._memory = Updater(self._optimizer.rule, self.model, own.get("update"))
        noise = stored_of(job).noise
        self._blur = None if noise is None else Blur(noise, job.epochs)
        self._sums = job.protocol.sum_for(len(passives)).role(context.sum_to(context.active, passives))

    @property
    def exchanges(self) -> int:
        return self._done

    @property
    def constant(self) -> bool:
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        if self._optimizer.shows_labels:
            flow = data.schedule.flow
            if self._active:
                assert data.targets is not None, "the active party has labels"
                shown_labels.show(self._context, data.targets[flow])
            else:
                data.targets = np.zeros((data.rows, self._context.outputs))
                data.targets[flow] = shown_labels.seen(self._context, len(flow))
        self.begin(data, start)
        data.stays = True  # what linear models ask of a batch, rows give where they lie
        if self._fresh:
            first, targets = data.starting(SAMPLE)
            self.model.start(data.raw(first), data.scaled(first), targets if self._active else None, self.seed)
            self._memory = Updater(self._optimizer.rule, self.model)
        self._visits = list(data.schedule.iterations())
        self._pace = pace_of(self._job, data.schedule, self._visits)
        self._take_place(start)
        pulls = self._pulls()
        pulls.begin(self._done, self._before())
        residual, context = self._job.protocol.residual, self._context
        agreement = Agreement(
            1, kept=2 * (self._pace.tau + 1), shares_outputs=self._job.model.shares_outputs
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
                channel.send(passive, Position(self._done), STORED_SUBCHANNEL, permit=permit_sizes(channel, passive))
        else:
            self._done = channel.recv(context.active, Position, STORED_SUBCHANNEL).iteration
            if not 0 <= self._done <= len(self._visits):
                raise ProtocolError(
                    f"{context.me}: {context.active} was expected to begin within {len(self._visits)} iterations, it "
                    "begins "
                    f"at {self._done}; do both run the same job?"
                )

    def _pulls(self) -> Pulls:
        context, workers = self._context, workers_of(self._context)
        if not context.roles.having(SERVER):
            return PeerPulls(
                context.sum_to(context.active, workers, subchannel=STORED_SUBCHANNEL), self._pace, lead=context.active
            )
        own = context.sum_to(context.roles.the(SERVER), workers, subchannel=STORED_SUBCHANNEL)
        readers = readers_of(self._job, context)
        return ServerPulls(own, self._pace, stored_of(self._job).worker(own, readers), told=readers)

    def _before(self) -> Iterator[tuple[int, int, Floats]]:
        """Yield, for every batch visited before, its number, the iteration of its last visit, and H (n x c) at the
        present weights."""
        visits = range(max(0, self._done - 2 * self._pace.epoch), self._done)
        for batch, t in {self._visits[t].index: t for t in visits}.items():
            before = self.batch(self._visits[t])
            yield batch, t, self._shown(self.model.forward(before.X), before)

    def _shown(self, H: Floats, batch: Batch) -> Floats:
        """H (n x c) of a batch as it may be pushed."""
        H = self.shown_batch(H, batch)
        return H if self._blur is None else self._blur(H)

    def _push(self, pulls: Pulls, t: int) -> _Open:
        batch = self.batch(self._visits[t])
        self._channel.gate.began(t + 1)
        self._channel.note(Began(batch.index))
        H = self._shown(self.model.forward(batch.X), batch)
        self._channel.clock.offloaded(Kind.LOCAL, batch.elsewhere)
        self._channel.note(Pushed(batch.index, H))
        pulls.push(t, H, self._done)
        return _Open(t, batch, H, self._done)

    def _knowing(self, pulls: Pulls, down: ActiveLink | None) -> Iterator[Round]:
        """Run the iterations of a worker that knows labels. down: the link to the others where these wait for its
        residuals."""
        opened: deque[_Open] = deque()
        for t in range(self._done, len(self._visits)):
            opened.append(self._push(pulls, t))
            while opened:
                wait = len(opened) > self._pace.unanswered(t)
                answer = pulls.pull((len(opened[0].batch.X), self._context.outputs), wait=wait)
                if answer is None:
                    break
                yield self._step(opened.popleft(), answer, down)

    def _step(self, item: _Open, answer: PullAnswer, down: ActiveLink | None) -> Round:
        assert answer.total is not None, "who knows labels is told sums"
        X, f = item.batch.X, answer.total
        self._channel.note(ToldSum(item.batch.index, f - item.H, answer.versions))
        if self._done > item.steps or self._blur is not None:  # its own part has moved since, or is known better
            f = f - item.H + self.model.forward(X)
        self._round, self._booked = item.t + 1, None
        g = self.residual(f, item.batch)
        if down is not None:
            down.publish(g, item.batch)
        return self._step_by(item, self.model.vjp(X, g))

    def _asking(self, pulls: Pulls, up: PassiveLink) -> Iterator[Round]:
        """Run the iterations of a worker without labels, which asks for residuals over `up`."""
        opened: deque[_Open] = deque()
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

    def _step_by(self, item: _Open, gradient: Floats) -> Round:
        """Take the step of an iteration, from the gradient of its batch's loss, and return the round that it ends."""
        self._memory.begin()
        self._memory.step(gradient / len(item.batch.X), self._optimizer.eta(item.t, self.parties))
        self._done = item.t + 1
        return Round(self._done, len(self._visits), item.batch.epoch, self._booked)

    def decision(self, rows: RowSlices, asked: AskedRows | None = None) -> Floats | None:
        return predict(self._context, self._sums, self.model, rows, self._context.outputs, self.shown_of(rows))

    def state(self) -> State:
        return State(self.outcome(), iteration=self._done, secret=self._secret, update=self._memory.state)

    def outcome(self) -> State:
        return State(self.model.state())

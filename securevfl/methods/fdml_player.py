"""A party of FDML at work: a worker with a block of weights, or the server (see `securevfl.methods.fdml`).

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

from securevfl.crypto.scheme import Floats
from securevfl.crypto.tall import makespan
from securevfl.data.schedule import Schedule, Visit
from securevfl.errors import ProtocolError
from securevfl.methods.base import AskedRows, BatchPlayer, OwnRows, Player, Round
from securevfl.methods.data import TrainingData
from securevfl.methods.state import State
from securevfl.models.base import BlockModel, Place
from securevfl.optim.fdml import FDML
from securevfl.optim.update import Updater
from securevfl.options import JobOptions
from securevfl.protocols import shown_labels
from securevfl.protocols.base import Agreement, Batch, Seat
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.local_noise import Blur
from securevfl.protocols.notes import Began, Pushed, ToldSum
from securevfl.protocols.peer_pulls import PeerPulls
from securevfl.protocols.predict import predict_active, predict_passive
from securevfl.protocols.pulls import Answer, Pace, Position, Pulls, PullServer, ServerPulls
from securevfl.protocols.stored_masks import StoredMasks
from securevfl.protocols.stored_sum import StoredSum
from securevfl.roles import ACTIVE, PASSIVE, SERVER
from securevfl.runtime.clock import Kind

SAMPLE = 1024  # rows that the first weights are drawn from
LANE = "stored"


def fdml_of(job: JobOptions) -> FDML:
    """Its optimizer."""
    assert isinstance(job.optimizer, FDML), "it is the one optimizer of this method"
    return job.optimizer


def stored_of(job: JobOptions) -> StoredSum:
    """How local predictions lie at its server: under masks unless it says otherwise."""
    return job.protocol.stored or StoredMasks()


def pace_of(job: JobOptions, schedule: Schedule, visits: list[Visit]) -> Pace:
    """How far parties may go apart on this schedule."""
    own, epoch = fdml_of(job), schedule.batches
    together = epoch if own.synchronous_first else 0
    return Pace([visit.index for visit in visits], epoch, own.tau, together, job.evaluation_interval)


def workers_of(seat: Seat) -> tuple[str, ...]:
    """The parties with columns, in the order of the cast."""
    return tuple(name for name in seat.parties if seat.roles.role(name) in (ACTIVE, PASSIVE))


def readers_of(job: JobOptions, seat: Seat) -> tuple[str, ...]:
    """Who pulls sums: whoever knows labels."""
    return workers_of(seat) if fdml_of(job).shows_labels else (seat.active,)


class FdmlServer(Player):
    """Keeps what workers push. It starts empty in every session: they push again what it had."""

    def __init__(self, job: JobOptions, seat: Seat) -> None:
        self._job = job
        self._seat = seat

    @property
    def constant(self) -> bool:
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        visits = list(data.schedule.visits())
        pace, stored = pace_of(self._job, data.schedule, visits), stored_of(self._job)
        seat = self._seat.sum_to(self._seat.me, workers_of(self._seat), lane=LANE)
        readers = readers_of(self._job, self._seat)
        kept = stored.server(seat, readers)
        server = PullServer(seat, pace, kept, lead=self._seat.active, told=readers, whole=stored.hides_parts)
        for done in server.serve():
            yield Round(done, len(visits), visits[done - 1].epoch)

    def decision(self, rows: OwnRows, asked: AskedRows | None = None) -> Floats | None:
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
    """One party's block of weights."""

    def __init__(self, job: JobOptions, seat: Seat, columns: int, state: State | None) -> None:
        super().__init__(job, seat)
        assert isinstance(job.model, BlockModel), "FdmlMethod.trains says so"
        self.parties = len(workers_of(seat))
        self._seat = seat
        self._optimizer = fdml_of(job)
        self._active, passives = seat.me == seat.active, seat.passives
        place = 0 if self._active else passives.index(seat.me)
        self.model = job.model.build(
            Place(seat.me, self._active, columns, seat.outputs, seat.model, len(passives), place)
        )
        own = State() if state is None else state
        if state is not None:
            self.model.restore(state)
        self._fresh = state is None
        self._done: int = own.get("iteration", 0)  # iterations whose step is taken
        self._memory = Updater(self._optimizer.rule, self.model, own.get("update"))
        noise = stored_of(job).noise
        self._blur = None if noise is None else Blur(noise, job.epochs)
        self._sums = job.protocol.sum_for(len(passives)).role(seat.sum_to(seat.active, passives))

    @property
    def exchanges(self) -> int:
        return self._done

    @property
    def constant(self) -> bool:
        return True

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        if self._optimizer.shows_labels:
            self._show_labels(data)
        self.begin(data, start)
        data.stays = True  # what linear models ask of a batch, rows give where they lie
        if self._fresh:
            first = np.arange(data.rows)[:SAMPLE]
            targets = data.targets if self._active else None
            self.model.start(data.raw(first), data.scaled(first), targets, self.seed)
            self._memory = Updater(self._optimizer.rule, self.model)
        self._visits = list(data.schedule.visits())
        self._pace = pace_of(self._job, data.schedule, self._visits)
        self._take_place(start)
        pulls = self._pulls()
        pulls.begin(self._done, self._before())
        residual, seat = self._job.protocol.residual, self._seat
        agreement = Agreement(
            1, kept=2 * (self._pace.tau + 1), shares_outputs=self._job.model.shares_outputs
        )  # no passive party is further behind
        if residual is None:
            yield from self._knowing(pulls, None)
        elif self._active:
            with ActiveLink(seat, self._sums, residual.active(seat, agreement)) as down:
                yield from self._knowing(pulls, down)
        else:
            with PassiveLink(seat, self._sums, residual.passive(seat, agreement)) as up:
                yield from self._asking(pulls, up)

    def _show_labels(self, data: TrainingData) -> None:
        flow = data.schedule.flow
        if self._active:
            assert data.targets is not None, "the active party has labels"
            shown_labels.show(self._seat, data.targets[flow])
        else:
            data.targets = np.zeros((data.rows, self._seat.outputs))
            data.targets[flow] = shown_labels.seen(self._seat, len(flow))

    def _take_place(self, start: int) -> None:
        """Where this worker begins: where it was, before the next joint evaluation, and with the active party where
        residuals go down."""
        if self._pace.pause:
            self._done = min(self._done, (start // self._pace.pause + 1) * self._pace.pause - 1)
        if self._optimizer.shows_labels:
            return
        channel, seat = self._channel, self._seat
        if self._active:
            for passive in seat.passives:
                channel.send(passive, Position(self._done), LANE)
        else:
            self._done = channel.recv(seat.active, Position, LANE).iteration
            if not 0 <= self._done <= len(self._visits):
                raise ProtocolError(
                    f"{seat.me}: {seat.active} was expected to begin within {len(self._visits)} iterations, it begins "
                    f"at {self._done}; do both run the same job?"
                )

    def _pulls(self) -> Pulls:
        seat, workers = self._seat, workers_of(self._seat)
        if not seat.roles.having(SERVER):
            return PeerPulls(seat.sum_to(seat.active, workers, lane=LANE), self._pace, lead=seat.active)
        own = seat.sum_to(seat.roles.the(SERVER), workers, lane=LANE)
        readers = readers_of(self._job, seat)
        return ServerPulls(own, self._pace, stored_of(self._job).worker(own, readers), told=seat.me in readers)

    def _before(self) -> Iterator[tuple[int, int, Floats]]:
        """Of every batch visited before: its number, the iteration of the last visit, H (n x c) as it is now."""
        visits = range(max(0, self._done - 2 * self._pace.epoch), self._done)
        for batch, t in {self._visits[t].index: t for t in visits}.items():
            yield batch, t, self._shown(self.model.forward(self.batch(self._visits[t]).X))

    def _shown(self, H: Floats) -> Floats:
        """H (n x c) as it may be pushed."""
        return H if self._blur is None else self._blur(H)

    def _push(self, pulls: Pulls, t: int) -> _Open:
        batch = self.batch(self._visits[t])
        self._channel.note(Began(batch.index))
        H = self._shown(self.model.forward(batch.X))
        self._channel.clock.offloaded(Kind.LOCAL, makespan(batch.X))
        self._channel.note(Pushed(batch.index, H))
        pulls.push(t, H, self._done)
        return _Open(t, batch, H, self._done)

    def _knowing(self, pulls: Pulls, down: ActiveLink | None) -> Iterator[Round]:
        """The iterations of a worker that knows labels; `down` where others wait for its residuals."""
        opened: deque[_Open] = deque()
        for t in range(self._done, len(self._visits)):
            opened.append(self._push(pulls, t))
            while opened:
                wait = len(opened) > self._pace.unanswered(t)
                answer = pulls.pull((len(opened[0].batch.X), self._seat.outputs), wait=wait)
                if answer is None:
                    break
                yield self._step(opened.popleft(), answer, down)

    def _step(self, item: _Open, answer: Answer, down: ActiveLink | None) -> Round:
        assert answer.total is not None, "who knows labels is told sums"
        X, f = item.batch.X, answer.total
        self._channel.note(ToldSum(item.batch.index, f - item.H, answer.versions))
        if self._done > item.steps or self._blur is not None:  # its own part has moved since, or is known better
            f = f - item.H + self.model.forward(X)
        self._round, self._booked = item.t + 1, None
        g = self.residual(f, item.batch)
        if down is not None:
            down.publish(g, item.batch)
        return self._moved(item, self.model.vjp(X, g))

    def _asking(self, pulls: Pulls, up: PassiveLink) -> Iterator[Round]:
        """The iterations of a worker without labels."""
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
                        f"{self._seat.me}: {self._seat.active} was expected to publish exchange {item.t - begun}, it "
                        f"published {reply.exchange}; do both run the same job?"
                    )
                yield self._moved(opened.popleft(), reply.gradient(self.model, item.batch))

    def _moved(self, item: _Open, gradient: Floats) -> Round:
        """Takes the step of an iteration, from the gradient of its batch's loss."""
        self._memory.begin()
        self._memory.step(gradient / len(item.batch.X), self._optimizer.eta(item.t, self.parties))
        self._done = item.t + 1
        return Round(self._done, len(self._visits), item.batch.epoch, self._booked)

    def decision(self, rows: OwnRows, asked: AskedRows | None = None) -> Floats | None:
        if not self._active:
            predict_passive(self._sums, lambda block: self.model.forward(rows[block]), len(rows))
            return None

        def joined(block: slice, others: Floats) -> Floats:
            return self.model.joined(rows[block], others)

        return predict_active(self._sums, joined, len(rows), self._seat.outputs, collected=self._seat.outputs)

    def state(self) -> State:
        return State(self.outcome(), iteration=self._done, update=self._memory.state)

    def outcome(self) -> State:
        return State(self.model.state())

"""Pushes and pulls at a server, each worker at its own pace (FDML, Hu et al. 2019, Algorithm 1).

All workers go through the same batches in the same order; t counts them from 0. The server keeps, of every batch, what
each worker pushed last.

0. worker k -> server   Restored       of a run that goes on: H_k on every batch visited before
   worker k -> server   Position       the iteration that it begins with
1. worker k -> server   Push           t, H_k (n x c) on the batch of t as the stored sum conceals it, and how many
                                       iterations it has finished
2. server -> worker k   Pulled         for this t: which versions are stored of the batch, their sum if k is told sums,
                                       and how many iterations the leading party has finished

One round trip an iteration. The server holds the answer to t back until the slowest worker has pushed t - tau: whoever
is further ahead waits for it, without asking again. A worker pushes on while answers are under way, and never has more
than tau pushes that are not answered, so that the line's latency is hidden as far as staleness is allowed
(`WorkerPace.unanswered`). So two workers' pushes are at most 2 tau iterations apart, and every sum that is pulled for t
is of workers that have come to t - tau or further.

What payloads and sums show is the stored sum's (`securevfl.families.fdml.stored_sum`). Iterations and how many are
finished are public: everyone's pace is seen by the server, the leading party's by all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE, SERVER
from securevfl.errors import ProtocolError
from securevfl.families.fdml.stored_sum import StoredOpen, StoredServer, StoredSum, StoredWorker
from securevfl.protocols.declared import Declared, Reveal, permit_sizes
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.channel import Channel, DisclosingMessage, DisclosurePermit, DisclosureRecord


class Restored(DisclosingMessage, frozen=True):
    """H_k, concealed, on a batch that was visited in an earlier session, last in iteration `version`."""

    batch: int
    version: int
    payload: bytes


class Position(DisclosingMessage, frozen=True):
    """The iteration that the sender begins with; all before are finished."""

    iteration: int


class Push(DisclosingMessage, frozen=True):
    """H_k, concealed, on the batch of an iteration. finished: iterations whose step the sender has taken."""

    iteration: int
    batch: int
    finished: int
    payload: bytes


class Pulled(DisclosingMessage, frozen=True):
    """The answer to the push of an iteration.

    total: the sum of what is stored of the batch; empty for a worker that is told none. versions: the iteration that
    each worker's part of it is of, in the order of the cast; -1 for none. finished: the leading party's iterations.
    """

    iteration: int
    total: bytes
    versions: tuple[int, ...]
    finished: int


@dataclass(frozen=True)
class WorkerPace:
    """How far workers may go apart.

    batches: by number in the partition, of every iteration. epoch: iterations of one epoch. tau: how far a worker may
    be ahead. together: so many iterations at the start are taken in step. pause: iterations between joint evaluations,
    at which all meet; 0 for none.
    """

    batches: Sequence[int] = field(repr=False)
    epoch: int
    tau: int
    together: int = 0
    pause: int = 0

    def lead(self, t: int) -> int:
        """How far iteration t may be ahead of the slowest worker's push when it is answered."""
        return 0 if t < self.together else self.tau

    def pauses(self, t: int) -> bool:
        """Whether all meet after iteration t."""
        return t + 1 == len(self.batches) or (self.pause > 0 and (t + 1) % self.pause == 0)

    def unanswered(self, t: int) -> int:
        """How many pushes a worker may have open when it goes on after the push of t: never two of one batch."""
        if t < 0 or self.pauses(t):
            return 0
        most = min(self.lead(t), t + 1)
        return next((back for back in range(most) if self.batches[t - back] == self.batches[t + 1]), most)


@dataclass(frozen=True)
class PullAnswer:
    """A pull of one iteration. total: the sum of all workers' parts (n x c), where it is told. versions: of each
    worker's part in it."""

    iteration: int
    total: Floats | None
    finished: int
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PullAnswered:
    """A fact for observers: the pull of `worker` for an iteration was answered when the slowest had pushed `slowest`,
    from parts of these versions by worker."""

    worker: str
    iteration: int
    slowest: int
    versions: Mapping[str, int]


class Pulls(ABC):
    """A worker's side, whoever keeps what is pushed."""

    @abstractmethod
    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        """Says where this worker begins; (batch, version, H) of what it had pushed in an earlier session."""

    @abstractmethod
    def push(self, t: int, H: Floats, finished: int) -> None:
        """Push H (n x c) on the batch of t; `finished` iterations have been done before."""

    @abstractmethod
    def pull(self, shape: tuple[int, int], *, wait: bool) -> PullAnswer | None:
        """Return the answer to the oldest push that has none yet, of a batch of this shape (n x c).

        None if the answer is not here and is not waited for.
        """


def declares(stored: StoredSum, told: Iterable[str]) -> list[Declared]:
    """Declare what the messages reveal; `told` are the roles that pull sums."""
    found = []
    for role in (ACTIVE, PASSIVE):
        pulled = stored.pulled if role in told else Reveal("public")
        found += [
            Declared(Restored, role, SERVER, stored.pushed),
            Declared(Position, role, SERVER, Reveal("public")),
            Declared(Push, role, SERVER, stored.pushed),
            Declared(Pulled, SERVER, role, pulled),
        ]
    return found


class ServerPulls(Pulls):
    """A worker's side towards a server."""

    def __init__(self, context: PartyContext, pace: WorkerPace, stored: StoredWorker, *, told: Collection[str]) -> None:
        """context: of a sum, whose collector is the server. told: who is told sums."""
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._server, self._workers = context.collector, context.contributors
        self._pace, self._stored, self._told = pace, stored, context.me in told
        self._readers = [name for name in told if name != context.me]
        self._open: deque[int] = deque()

    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        for batch, version, H in restored:
            payload = self._stored.conceal(H, batch, version)
            permit = self._permit(H)
            self._channel.send(self._server, Restored(batch, version, payload), self._subchannel, permit=permit)  # 0
        permit = permit_sizes(self._channel, self._server)
        self._channel.send(self._server, Position(iteration), self._subchannel, permit=permit)  # 0

    def push(self, t: int, H: Floats, finished: int) -> None:
        batch = self._pace.batches[t]
        permit, payload = self._permit(H), self._stored.conceal(H, batch, t)
        self._channel.send(self._server, Push(t, batch, finished, payload), self._subchannel, permit=permit)  # 1
        self._open.append(t)

    def _permit(self, H: Floats) -> DisclosurePermit:
        """Enters forward outputs: at whoever is told sums of them, and at a server that reads them as they are."""
        disclose, me = self._channel.permit, self._channel.me
        permit, octets = disclose(DisclosureRecord(self._server, "sizes", 1, 64)), self._stored.size(H)
        for name in self._readers:
            others = tuple(worker for worker in self._workers if worker != name)
            permit = disclose(DisclosureRecord(name, "columns", H.size, 64, about=others, octets=octets))
        if self._stored.hides_parts:
            return permit
        return disclose(DisclosureRecord(self._server, "columns", H.size, 64, about=(me,), octets=octets))

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PullAnswer | None:
        if wait:
            message = self._channel.recv(self._server, Pulled, self._subchannel)  # 2
        elif (due := self._channel.recv_due((self._server,), Pulled, self._subchannel)) is not None:
            message = due[1]
        else:
            return None
        t = self._open.popleft() if self._open else -1
        if message.iteration != t or len(message.versions) != len(self._workers):
            raise ProtocolError(
                f"{self._channel.me}: {self._server} was expected to answer iteration {t} for {len(self._workers)} "
                f"workers, it answered {message.iteration} for {len(message.versions)}; do both run the same job?"
            )
        if not self._told:
            return PullAnswer(t, None, message.finished)
        versions = {name: v for name, v in zip(self._workers, message.versions, strict=True) if v >= 0}
        total = self._stored.reveal(message.total, versions, self._pace.batches[t], shape)
        return PullAnswer(t, total, message.finished, versions)


@dataclass
class _Worker:
    """What is known of one: the last iterations pushed and answered, how many it has finished, what is held back."""

    pushed: int = -1
    answered: int = -1
    finished: int = 0
    held: deque[int] = field(default_factory=deque)


class Latest:
    """What each worker has pushed last of each batch, at whoever keeps it: payloads with their versions."""

    def __init__(self, channel: Channel, subchannel: str, pace: WorkerPace, workers: Sequence[str]) -> None:
        self._channel, self._subchannel, self._pace = channel, subchannel, pace
        self.workers = {name: _Worker() for name in workers}
        self._stored: dict[str, dict[int, tuple[int, bytes]]] = {name: {} for name in workers}

    @property
    def slowest(self) -> int:
        """The last iteration that all have pushed."""
        return min(worker.pushed for worker in self.workers.values())

    def begin(self, name: str) -> None:
        """Step 0 of a worker: take in the iteration that it begins with, and payloads of batches visited before.

        ProtocolError for what this schedule does not have.
        """
        last = len(self._pace.batches)
        while True:
            _, message = self._channel.recv_any((name,), (Restored, Position), self._subchannel)  # 0
            match message:
                case Position(iteration) if 0 <= iteration <= last:
                    worker = self.workers[name]
                    worker.finished, worker.pushed, worker.answered = iteration, iteration - 1, iteration - 1
                    return
                case Restored(batch, version, payload) if 0 <= version < last and self._pace.batches[version] == batch:
                    self.put(name, batch, version, payload)
                case _:
                    raise ProtocolError(
                        f"{self._channel.me}: {name} was expected to begin within {last} iterations of the schedule, "
                        "it names one or a batch that is none of it; do both run the same job?"
                    )

    def put(self, name: str, batch: int, version: int, payload: bytes) -> None:
        """Keep a worker's payload in place of what it had pushed of this batch."""
        self._stored[name][batch] = version, payload

    def take(self, name: str, push: Push) -> int:
        """Take in a worker's next push, and return its iteration. ProtocolError if it is another."""
        worker = self.workers[name]
        t = worker.pushed + 1
        batch = self._pace.batches[t] if t < len(self._pace.batches) else -1
        if (push.iteration, push.batch) != (t, batch) or not worker.finished <= push.finished <= t:
            raise ProtocolError(
                f"{self._channel.me}: {name} was expected to push iteration {t} of batch {batch}, it pushed "
                f"{push.iteration} of {push.batch}, with {push.finished} finished; do both run the same job?"
            )
        worker.pushed, worker.finished = t, push.finished
        self.put(name, batch, t, push.payload)
        return t

    def parts(self, batch: int) -> tuple[dict[str, bytes], dict[str, int]]:
        """Return the payloads of a batch that have been pushed, by worker, and their versions."""
        parts = {name: own[batch] for name, own in self._stored.items() if batch in own}
        return {name: part for name, (_, part) in parts.items()}, {name: v for name, (v, _) in parts.items()}


class PullServer:
    """The server's side: keeps the latest payloads of all batches (one a worker), and answers."""

    def __init__(
        self,
        context: PartyContext,
        pace: WorkerPace,
        stored: StoredServer,
        *,
        lead: str,
        told: Iterable[str],
        whole: bool,
    ):
        """context: of a sum, whose collector this is. told: who is told sums. whole: sums are of all workers or
        none."""
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._pace, self._stored, self._lead, self._told, self._whole = pace, stored, lead, frozenset(told), whole
        self._latest = Latest(context.channel, self._subchannel, pace, context.contributors)
        self._workers = self._latest.workers

    def serve(self) -> Iterator[int]:
        """Serve until all pushes are answered; yield the number of iterations that every worker has finished."""
        for name in self._workers:
            self._latest.begin(name)  # 0
        done = self._through
        while done < len(self._pace.batches):
            senders = self._pushing(done)
            awaited = [name for name in senders if self._waits_for_nobody(name)]
            name, push = self._channel.recv_first(senders, Push, self._subchannel, awaited=awaited)  # 1
            self._workers[name].held.append(self._latest.take(name, push))
            self._answer()
            while done < self._through:
                done += 1
                yield done

    @property
    def _through(self) -> int:
        """How many iterations everyone's pulls are answered of."""
        return 1 + min(worker.answered for worker in self._workers.values())

    def _pushing(self, done: int) -> list[str]:
        """Who pushes next without an answer from here, while all are through with `done` iterations."""
        found = []
        for name, worker in self._workers.items():
            t = worker.pushed
            meets = t >= done and self._pace.pauses(t)  # waits for the others after its last push
            if not (meets or t - worker.answered > self._pace.unanswered(t)):
                found.append(name)
        return found

    def _waits_for_nobody(self, name: str) -> bool:
        """Whether its next push needs no residual either that the leading party may still have to publish."""
        if name in self._told:
            return True
        t = self._workers[name].pushed
        return self._workers[self._lead].finished > t - self._pace.unanswered(t)

    def _answer(self) -> None:
        """Answers all that need not wait: those whose lead is small enough, and have parts of all where they must."""
        slowest = self._latest.slowest
        for name, worker in self._workers.items():
            while worker.held and worker.held[0] - slowest <= self._pace.lead(worker.held[0]):
                t = worker.held[0]
                parts, stored = self._latest.parts(self._pace.batches[t])
                if self._whole and len(parts) < len(self._workers):
                    break
                worker.held.popleft()
                worker.answered = t
                total = self._stored.add(parts) if name in self._told else b""
                versions = {each: stored.get(each, -1) for each in self._workers}
                finished = self._workers[self._lead].finished
                self._channel.note(PullAnswered(name, t, slowest, versions))
                permit = permit_sizes(self._channel, name)  # what the total tells, those who pushed have entered
                self._channel.send(
                    name, Pulled(t, total, tuple(versions.values()), finished), self._subchannel, permit=permit
                )  # 2


# Pushes to all other workers, without a server: each keeps what all pushed and pulls from itself.
#
# FDML (Hu et al. 2019), Algorithm 1, with the matrix of local predictions at every worker:
#
# 0. worker k -> worker j   Restored      of a run that goes on: H_k on every batch visited before
#    worker k -> worker j   Position      the iteration that it begins with
# 1. worker k -> worker j   Push          t, H_k (n x c) on the batch of t, and how many iterations it has finished
#    worker j               waits with its own t until the slowest it has heard of has pushed t - tau, and adds up
#
# A push costs half a round trip, and one for every other worker. Each worker sees the H_k of each other, in the clear:
# a key that all workers share would hide nothing here. So this is for workers that may see each other's local
# predictions; a server under a stored sum that hides is for all others (`securevfl.families.fdml.pulls`).


def declares_peer_pulls() -> list[Declared]:
    """Declare what the messages reveal, between workers of any role."""
    shown = StoredOpen.pushed
    return [
        Declared(message, sender, receiver, shown)
        for message in (Restored, Position, Push)
        for sender, receiver in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE), (PASSIVE, PASSIVE))
    ]


class PeerPulls(Pulls):
    """A worker with a matrix of its own."""

    def __init__(self, context: PartyContext, pace: WorkerPace, *, lead: str) -> None:
        """context: of a sum; its contributors are the workers. lead: the leading party."""
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._me, self._lead, self._pace = context.me, lead, pace
        self._peers = [name for name in context.contributors if name != context.me]
        stored, readers = StoredOpen(), context.contributors
        self._worker, self._adder = stored.worker(context, readers), stored.server(context, readers)
        self._latest = Latest(context.channel, self._subchannel, pace, context.contributors)
        self._open: deque[int] = deque()

    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        for batch, version, H in restored:
            payload = self._worker.conceal(H, batch, version)
            self._latest.put(self._me, batch, version, payload)
            for peer in self._peers:
                permit = self._permit(peer, H)
                self._channel.send(peer, Restored(batch, version, payload), self._subchannel, permit=permit)  # 0
        own = self._latest.workers[self._me]
        own.pushed, own.finished = iteration - 1, iteration
        for peer in self._peers:
            self._channel.send(
                peer, Position(iteration), self._subchannel, permit=permit_sizes(self._channel, peer)
            )  # 0
        for peer in self._peers:
            self._latest.begin(peer)  # 0

    def push(self, t: int, H: Floats, finished: int) -> None:
        batch = self._pace.batches[t]
        push = Push(t, batch, finished, self._worker.conceal(H, batch, t))
        for peer in self._peers:
            self._channel.send(peer, push, self._subchannel, permit=self._permit(peer, H))  # 1
        self._latest.take(self._me, push)
        self._open.append(t)

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PullAnswer | None:
        while (come := self._channel.recv_due(self._peers, Push, self._subchannel)) is not None:
            self._latest.take(*come)  # 1
        t, workers = self._open[0], self._latest.workers
        while behind := [name for name in self._peers if t - workers[name].pushed > self._pace.lead(t)]:
            if not wait:
                return None
            self._latest.take(*self._channel.recv_any(behind, Push, self._subchannel))  # 1
        self._open.popleft()
        batch = self._pace.batches[t]
        parts, versions = self._latest.parts(batch)
        self._channel.note(PullAnswered(self._me, t, self._latest.slowest, versions))
        total = self._worker.reveal(self._adder.add(parts), versions, batch, shape)
        return PullAnswer(t, total, workers[self._lead].finished, versions)

    def _permit(self, peer: str, H: Floats) -> DisclosurePermit:
        """Enters forward outputs that a peer is sent as they are."""
        return self._channel.permit(DisclosureRecord(peer, "columns", H.size, 64, about=(self._me,)))


# Labels shown to all: every worker of FDML knows those of the training rows (Hu et al. 2019, section 3).
#
# 1. active -> passive   Labels    the targets (m x c) of the training rows, in the order of the schedule
#
# Nothing is hidden here. It is what a method declares that lets every party compute residuals of its own.


LABELS_SUBCHANNEL = "labels"


class Labels(DisclosingMessage, frozen=True):
    """Targets (m x c), as the loss takes them."""

    targets: NDArray[np.float64]


def declares_labels() -> list[Declared]:
    """Declare what the message with the labels reveals."""
    return [Declared(Labels, ACTIVE, PASSIVE, Reveal("plain", "the label of every training row"))]


def show(context: PartyContext, targets: Floats) -> None:
    """Show the targets (m x c) of the training rows to every passive party, as the active party."""
    for passive in context.passives:
        permit = context.channel.permit(DisclosureRecord(passive, "labels", targets.size, 64, about=(context.me,)))
        context.channel.send(passive, Labels(targets), LABELS_SUBCHANNEL, permit=permit)  # 1


def seen(context: PartyContext, rows: int) -> Floats:
    """Receive the targets (rows x c), as a passive party. ProtocolError if they are not as many or not finite."""
    targets = context.channel.recv(context.active, Labels, LABELS_SUBCHANNEL).targets  # 1
    if targets.shape != (rows, context.outputs) or not np.isfinite(targets).all():
        raise ProtocolError(
            f"{context.me}: {context.active} was expected to show finite labels of shape {(rows, context.outputs)}, "
            f"{targets.shape} came; do both run the same job?"
        )
    return targets

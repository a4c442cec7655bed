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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE, SERVER
from securevfl.errors import ProtocolError
from securevfl.families.fdml.stored_sum import StoredSum, StoredWorker
from securevfl.families.fdml.worker_pace import WorkerPace
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosurePermit, DisclosureRecord


class RestoredOutputs(DisclosingMessage, frozen=True):
    """H_k, concealed, on a batch that was visited in an earlier session, last in iteration `version`."""

    batch: int
    version: int
    payload: bytes


class StartIteration(DisclosingMessage, frozen=True):
    """The iteration that the sender begins with; all before are finished."""

    iteration: int


class Push(DisclosingMessage, frozen=True):
    """H_k, concealed, on the batch of an iteration. finished: iterations whose step the sender has taken."""

    iteration: int
    batch: int
    finished: int
    payload: bytes


class PullReply(DisclosingMessage, frozen=True):
    """The answer to the push of an iteration.

    total: the sum of what is stored of the batch; empty for a worker that is told none. versions: the iteration that
    each worker's part of it is of, in the order of the cast; -1 for none. finished: the leading party's iterations.
    """

    iteration: int
    total: bytes
    versions: tuple[int, ...]
    finished: int


@dataclass(frozen=True)
class PulledSum:
    """A pull of one iteration. total: the sum of all workers' parts (n x c), where it is told. versions: of each
    worker's part in it."""

    iteration: int
    total: Floats | None
    finished: int
    versions: Mapping[str, int] = field(default_factory=dict)


class PullClient(ABC):
    """A worker's side, whoever keeps what is pushed."""

    @abstractmethod
    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        """Says where this worker begins; (batch, version, H) of what it had pushed in an earlier session."""

    @abstractmethod
    def push(self, t: int, H: Floats, finished: int) -> None:
        """Push H (n x c) on the batch of t; `finished` iterations have been done before."""

    @abstractmethod
    def pull(self, shape: tuple[int, int], *, wait: bool) -> PulledSum | None:
        """Return the answer to the oldest push that has none yet, of a batch of this shape (n x c).

        None if the answer is not here and is not waited for.
        """


def declare_pulls(stored: StoredSum, told: Iterable[str]) -> list[MessageDeclaration]:
    """Declare what the messages reveal; `told` are the roles that pull sums."""
    found = []
    for role in (ACTIVE, PASSIVE):
        pulled = stored.pulled if role in told else Reveal("public")
        found += [
            MessageDeclaration(RestoredOutputs, role, SERVER, stored.pushed),
            MessageDeclaration(StartIteration, role, SERVER, Reveal("public")),
            MessageDeclaration(Push, role, SERVER, stored.pushed),
            MessageDeclaration(PullReply, SERVER, role, pulled),
        ]
    return found


class ServerPullClient(PullClient):
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
            self._channel.send(
                self._server, RestoredOutputs(batch, version, payload), self._subchannel, permit=permit
            )  # 0
        permit = permit_sizes(self._channel, self._server)
        self._channel.send(self._server, StartIteration(iteration), self._subchannel, permit=permit)  # 0

    def push(self, t: int, H: Floats, finished: int) -> None:
        batch = self._pace.batches[t]
        permit, payload = self._permit(H), self._stored.conceal(H, batch, t)
        self._channel.send(self._server, Push(t, batch, finished, payload), self._subchannel, permit=permit)  # 1
        self._open.append(t)

    def _permit(self, H: Floats) -> DisclosurePermit:
        """Enters forward outputs: at whoever is told sums of them, and at a server that reads them as they are."""
        disclose, me = self._channel.permit, self._channel.me
        permit, max_bytes = disclose(DisclosureRecord(self._server, "sizes", 1, 64)), self._stored.size(H)
        for name in self._readers:
            others = tuple(worker for worker in self._workers if worker != name)
            permit = disclose(DisclosureRecord(name, "columns", H.size, 64, about=others, max_bytes=max_bytes))
        if self._stored.hides_parts:
            return permit
        return disclose(DisclosureRecord(self._server, "columns", H.size, 64, about=(me,), max_bytes=max_bytes))

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PulledSum | None:
        if wait:
            message = self._channel.recv(self._server, PullReply, self._subchannel)  # 2
        elif (due := self._channel.recv_due((self._server,), PullReply, self._subchannel)) is not None:
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
            return PulledSum(t, None, message.finished)
        versions = {name: v for name, v in zip(self._workers, message.versions, strict=True) if v >= 0}
        total = self._stored.reveal(message.total, versions, self._pace.batches[t], shape)
        return PulledSum(t, total, message.finished, versions)

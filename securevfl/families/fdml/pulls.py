"""Pushes to a server and pulls from it, at each worker's own pace (FDML, Hu et al. 2019, Algorithm 1).

All workers use the same batches in the same order; t counts the iterations from 0. For every batch, the server stores
the latest *payload* of each worker: its outputs H_k (n, c), concealed by the job's stored sum (`stored_sum`). The
*version* of a payload is the iteration of its push. A *reader* is a worker that receives sums.
0. worker k -> server   RestoredOutputs   after a resume: the payload of H_k on every batch of earlier iterations
   worker k -> server   StartIteration    the worker's first iteration
1. worker k -> server   Push              t, the payload of H_k on the batch of t, number of finished iterations
2. server -> worker k   PullReply         for this t: the payloads' versions, their sum if k is a reader, and the number
                                          of iterations that the leading party has finished

The server replies to t once the slowest worker has pushed t - tau. A worker may have at most tau unanswered pushes.
Comments refer to these steps by number. The pace of workers (iteration numbers) is public.
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
    """The payload of H_k on a batch that an earlier session used, last in iteration `version`."""

    batch: int
    version: int
    payload: bytes


class StartIteration(DisclosingMessage, frozen=True):
    """The sender's first iteration; it has finished all earlier ones."""

    iteration: int


class Push(DisclosingMessage, frozen=True):
    """The payload of H_k on the batch of an iteration, and the sender's number of finished iterations."""

    iteration: int
    batch: int
    finished: int
    payload: bytes


class PullReply(DisclosingMessage, frozen=True):
    """The reply to the push of an iteration.

    Attributes:
        iteration: the iteration of the push that is answered.
        total: the sum of the batch's stored payloads; empty for a worker that receives no sums.
        versions: for each worker, in the order of the run's roles, the iteration of its payload; -1 without a payload.
        finished: number of iterations that the leading party has finished.
    """

    iteration: int
    total: bytes
    versions: tuple[int, ...]
    finished: int


@dataclass(frozen=True)
class PulledSum:
    """The result of a pull.

    Attributes:
        iteration: the iteration of the answered push.
        total: the sum of all workers' outputs (n, c); None at a worker that receives no sums.
        finished: number of iterations that the leading party has finished.
        versions: the iteration of each worker's outputs in the sum.
    """

    iteration: int
    total: Floats | None
    finished: int
    versions: Mapping[str, int] = field(default_factory=dict)


class PullClient(ABC):
    """A worker's client for pushes and pulls, whether a server or each worker stores the pushes."""

    @abstractmethod
    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        """Announce the first iteration of this worker, and restore its pushes of an earlier session.

        Args:
            iteration: number of the first iteration of this session, counted from 0.
            restored: (batch, version, outputs H (n, c)) of each push to restore.
        """

    @abstractmethod
    def push(self, t: int, H: Floats, finished: int) -> None:
        """Push the outputs H (n, c) on the batch of iteration `t`, after `finished` finished iterations."""

    @abstractmethod
    def pull(self, shape: tuple[int, int], *, wait: bool) -> PulledSum | None:
        """Return the reply to the oldest unanswered push.

        Args:
            shape: (n, c) of the batch of that push.
            wait: whether to wait for the reply.

        Returns:
            The reply; None if it has not arrived and `wait` is False.
        """


def declare_pulls(stored: StoredSum, readers: Iterable[str]) -> list[MessageDeclaration]:
    """Declare what the messages reveal; `readers` are the roles that receive sums."""
    declarations = []
    for role in (ACTIVE, PASSIVE):
        pulled = stored.pulled if role in readers else Reveal("public")
        declarations += [
            MessageDeclaration(RestoredOutputs, role, SERVER, stored.pushed),
            MessageDeclaration(StartIteration, role, SERVER, Reveal("public")),
            MessageDeclaration(Push, role, SERVER, stored.pushed),
            MessageDeclaration(PullReply, SERVER, role, pulled),
        ]
    return declarations


class ServerPullClient(PullClient):
    """A worker's client for pushes to a server and pulls from it.

    Args:
        context: this party's channel, and the roles of all parties in the sums that the server receives.
        pace: how many iterations workers may be apart.
        stored: the object that conceals outputs and reveals sums.
        readers: the workers that receive sums.
    """

    def __init__(
        self, context: PartyContext, pace: WorkerPace, stored: StoredWorker, *, readers: Collection[str]
    ) -> None:
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._server, self._workers = context.collector, context.contributors
        self._pace, self._stored, self._reads_sums = pace, stored, context.me in readers
        self._other_readers = [name for name in readers if name != context.me]
        self._unanswered: deque[int] = deque()
        self._lead_finished = 0  # the number of iterations that the leading party has finished, as stated last

    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        """Send the restored outputs and the first iteration to the server."""
        for batch, version, H in restored:
            payload = self._stored.conceal(H, batch, version)
            message = RestoredOutputs(batch, version, payload)
            self._channel.send(self._server, message, self._subchannel, permit=self._permit(H))  # step 0
        permit = permit_sizes(self._channel, self._server)
        self._channel.send(self._server, StartIteration(iteration), self._subchannel, permit=permit)  # step 0

    def push(self, t: int, H: Floats, finished: int) -> None:
        """Conceal the outputs and send them to the server."""
        batch = self._pace.batches[t]
        permit, payload = self._permit(H), self._stored.conceal(H, batch, t)
        self._channel.send(self._server, Push(t, batch, finished, payload), self._subchannel, permit=permit)  # step 1
        self._unanswered.append(t)

    def _permit(self, H: Floats) -> DisclosurePermit:
        """Record that pushed outputs are disclosed to the readers of their sum, and to a server that can read them."""
        record, me = self._channel.permit, self._channel.me
        permit, max_bytes = record(DisclosureRecord(self._server, "sizes", 1, 64)), self._stored.size(H)
        for name in self._other_readers:
            others = tuple(worker for worker in self._workers if worker != name)
            permit = record(DisclosureRecord(name, "columns", H.size, 64, about=others, max_bytes=max_bytes))
        if self._stored.hides_parts:
            return permit
        return record(DisclosureRecord(self._server, "columns", H.size, 64, about=(me,), max_bytes=max_bytes))

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PulledSum | None:
        """Receive the reply to the oldest unanswered push and, at a reader, compute its sum in the clear."""
        if wait:
            message = self._channel.recv(self._server, PullReply, self._subchannel)  # step 2
        elif (due := self._channel.recv_due((self._server,), PullReply, self._subchannel)) is not None:
            message = due[1]
        else:
            return None
        t = self._unanswered.popleft() if self._unanswered else -1
        if message.iteration != t or len(message.versions) != len(self._workers):
            raise ProtocolError(
                f"{self._channel.me}: {self._server} answered iteration {message.iteration} with "
                f"{len(message.versions)} versions instead of iteration {t} with {len(self._workers)}",
                "check that both parties run the same job",
                code="SVFL-PROTOCOL-MESSAGE",
                peer=self._server,
            )
        if not self._lead_finished <= message.finished <= len(self._pace.batches):
            raise ProtocolError(
                f"{self._channel.me}: {self._server} states that the leading party has finished {message.finished} "
                f"iterations, after {self._lead_finished} of {len(self._pace.batches)}",
                "check that both parties run the same job",
                code="SVFL-PROTOCOL-VALUES",
                peer=self._server,
            )
        self._lead_finished = message.finished
        if not self._reads_sums:
            return PulledSum(t, None, message.finished)
        versions = {name: v for name, v in zip(self._workers, message.versions, strict=True) if v >= 0}
        total = self._stored.reveal(message.total, versions, self._pace.batches[t], shape)
        return PulledSum(t, total, message.finished, versions)

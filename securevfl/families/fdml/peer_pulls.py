"""Pushes to all other workers, without a server: each keeps what all pushed and pulls from itself.

FDML (Hu et al. 2019), Algorithm 1, with the matrix of local predictions at every worker:

0. worker k -> worker j   Restored      of a run that goes on: H_k on every batch visited before
   worker k -> worker j   Position      the iteration that it begins with
1. worker k -> worker j   Push          t, H_k (n x c) on the batch of t, and how many iterations it has finished
   worker j               waits with its own t until the slowest it has heard of has pushed t - tau, and adds up

A push costs half a round trip, and one for every other worker. Each worker sees the H_k of each other, in the clear:
a key that all workers share would hide nothing here. So this is for workers that may see each other's local
predictions; a server under a stored sum that hides is for all others (`securevfl.families.fdml.pulls`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.families.fdml.open_store import StoredOpen
from securevfl.families.fdml.pull_server import PayloadTable, PullObservation
from securevfl.families.fdml.pulls import PullClient, PulledSum, Push, RestoredOutputs, StartIteration
from securevfl.families.fdml.worker_pace import WorkerPace
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord


def declare_peer_pulls() -> list[MessageDeclaration]:
    """Declare what the messages reveal, between workers of any role."""
    shown = StoredOpen.pushed
    return [
        MessageDeclaration(message, sender, receiver, shown)
        for message in (RestoredOutputs, StartIteration, Push)
        for sender, receiver in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE), (PASSIVE, PASSIVE))
    ]


class PeerPullClient(PullClient):
    """A worker with a matrix of its own."""

    def __init__(self, context: PartyContext, pace: WorkerPace, *, lead: str) -> None:
        """context: of a sum; its contributors are the workers. lead: the leading party."""
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._me, self._lead, self._pace = context.me, lead, pace
        self._peers = [name for name in context.contributors if name != context.me]
        stored, readers = StoredOpen(), context.contributors
        self._worker, self._adder = stored.worker(context, readers), stored.server(context, readers)
        self._latest = PayloadTable(context.channel, self._subchannel, pace, context.contributors)
        self._open: deque[int] = deque()

    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        for batch, version, H in restored:
            payload = self._worker.conceal(H, batch, version)
            self._latest.put(self._me, batch, version, payload)
            for peer in self._peers:
                permit = self._permit(peer, H)
                self._channel.send(peer, RestoredOutputs(batch, version, payload), self._subchannel, permit=permit)  # 0
        own = self._latest.workers[self._me]
        own.pushed, own.finished = iteration - 1, iteration
        for peer in self._peers:
            self._channel.send(
                peer, StartIteration(iteration), self._subchannel, permit=permit_sizes(self._channel, peer)
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

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PulledSum | None:
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
        self._channel.note(PullObservation(self._me, t, self._latest.slowest, versions))
        total = self._worker.reveal(self._adder.add(parts), versions, batch, shape)
        return PulledSum(t, total, workers[self._lead].finished, versions)

    def _permit(self, peer: str, H: Floats) -> DisclosurePermit:
        """Enters forward outputs that a peer is sent as they are."""
        return self._channel.permit(DisclosureRecord(peer, "columns", H.size, 64, about=(self._me,)))

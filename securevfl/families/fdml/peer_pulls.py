"""Pushes to all other workers, without a server: each worker stores all pushes and adds them up itself.

This is FDML (Hu et al. 2019), Algorithm 1, with a table of local predictions H_k (n, c) at every worker. In iteration t
a worker pushes its H_k on the batch of t; it may be at most tau iterations ahead of the slowest worker.
0. worker k -> worker j   RestoredOutputs   after a resume: H_k on every batch of earlier iterations
   worker k -> worker j   StartIteration    the worker's first iteration
1. worker k -> worker j   Push              t, H_k on the batch of t, and the number of finished iterations
   worker j               waits at its t until the slowest worker has pushed t - tau, then adds the outputs

Comments refer to these steps by number. Each worker can read the outputs of all others. If workers must not see them,
use a server with a stored sum that hides them (`securevfl.families.fdml.pulls`).
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
    """Return what these messages reveal to their receivers. It is the same for workers of all roles."""
    return [
        MessageDeclaration(message, sender, receiver, StoredOpen.pushed)
        for message in (RestoredOutputs, StartIteration, Push)
        for sender, receiver in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE), (PASSIVE, PASSIVE))
    ]


class PeerPullClient(PullClient):
    """The client of a worker that stores the pushes of all workers and pulls from its own store.

    Args:
        context: this worker's channel, and the roles of all parties in sums of the workers' outputs.
        pace: how many iterations workers may be apart.
        lead: name of the leading party, which has the labels.
    """

    def __init__(self, context: PartyContext, pace: WorkerPace, *, lead: str) -> None:
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._me, self._lead, self._pace = context.me, lead, pace
        self._peers = [name for name in context.contributors if name != context.me]
        stored, readers = StoredOpen(), context.contributors
        self._worker, self._adder = stored.worker(context, readers), stored.server(context, readers)
        self._payloads = PayloadTable(context.channel, self._subchannel, pace, context.contributors)
        self._unanswered: deque[int] = deque()

    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        """Exchange restored outputs and first iterations with all other workers."""
        for batch, version, H in restored:
            payload = self._worker.conceal(H, batch, version)
            self._payloads.put(self._me, batch, version, payload)
            for peer in self._peers:
                message, permit = RestoredOutputs(batch, version, payload), self._permit(peer, H)
                self._channel.send(peer, message, self._subchannel, permit=permit)  # step 0
        progress = self._payloads.workers[self._me]
        progress.pushed, progress.finished = iteration - 1, iteration
        for peer in self._peers:
            permit = permit_sizes(self._channel, peer)
            self._channel.send(peer, StartIteration(iteration), self._subchannel, permit=permit)  # step 0
        for peer in self._peers:
            self._payloads.begin(peer)  # step 0

    def push(self, t: int, H: Floats, finished: int) -> None:
        """Send the outputs to all other workers and store them."""
        batch = self._pace.batches[t]
        push = Push(t, batch, finished, self._worker.conceal(H, batch, t))
        for peer in self._peers:
            self._channel.send(peer, push, self._subchannel, permit=self._permit(peer, H))  # step 1
        self._payloads.take(self._me, push)
        self._unanswered.append(t)

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PulledSum | None:
        """Receive pushes of other workers, and return the sum for the oldest iteration that has not been pulled yet."""
        while (arrived := self._channel.recv_due(self._peers, Push, self._subchannel)) is not None:
            self._payloads.take(*arrived)  # step 1
        t, workers = self._unanswered[0], self._payloads.workers
        while behind := [name for name in self._peers if t - workers[name].pushed > self._pace.max_lead(t)]:
            if not wait:
                return None
            self._payloads.take(*self._channel.recv_any(behind, Push, self._subchannel))  # step 1
        self._unanswered.popleft()
        batch = self._pace.batches[t]
        parts, versions = self._payloads.parts(batch)
        self._channel.note(PullObservation(self._me, t, self._payloads.slowest, versions))
        total = self._worker.reveal(self._adder.add(parts), versions, batch, shape)
        return PulledSum(t, total, workers[self._lead].finished, versions)

    def _permit(self, peer: str, H: Floats) -> DisclosurePermit:
        """Record the outputs as disclosed to the peer."""
        return self._channel.permit(DisclosureRecord(peer, "columns", H.size, 64, about=(self._me,)))

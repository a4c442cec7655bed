"""Pushes to all other workers, without a server: each keeps what all pushed and pulls from itself.

FDML (Hu et al. 2019), Algorithm 1, with the matrix of local predictions at every worker:

0. worker k -> worker j   Restored      of a run that goes on: H_k on every batch visited before
   worker k -> worker j   Position      the iteration that it begins with
1. worker k -> worker j   Push          t, H_k (n x c) on the batch of t, and how many iterations it has finished
   worker j               waits with its own t until the slowest it has heard of has pushed t - tau, and adds up

A push costs half a round trip, and one for every other worker. Each worker sees the H_k of each other, in the clear: a
key that all workers share would hide nothing here. So this is for workers that may see each other's local predictions;
a server under a stored sum that hides is for all others (`securevfl.protocols.stored.pulls`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.errors import ProtocolError
from securevfl.protocols.declared import Declared
from securevfl.protocols.giving import sizes
from securevfl.protocols.seat import Seat
from securevfl.protocols.stored.pulls import (
    Position,
    PullAnswer,
    PullAnswered,
    Pulls,
    Push,
    Restored,
    WorkerPace,
    begun,
)
from securevfl.protocols.stored.stored_sum import StoredOpen
from securevfl.runtime.door import Entry, Leave


def declares() -> list[Declared]:
    """Declare what the messages reveal, between workers of any role."""
    shown = StoredOpen.pushed
    return [
        Declared(message, sender, receiver, shown)
        for message in (Restored, Position, Push)
        for sender, receiver in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE), (PASSIVE, PASSIVE))
    ]


class PeerPulls(Pulls):
    """A worker with a matrix of its own."""

    def __init__(self, seat: Seat, pace: WorkerPace, *, lead: str) -> None:
        """seat: of a sum; its contributors are the workers. lead: the leading party."""
        self._channel, self._lane = seat.channel, f"{seat.lane}/pulls"
        self._me, self._lead, self._pace = seat.me, lead, pace
        self._peers = [name for name in seat.contributors if name != seat.me]
        stored, readers = StoredOpen(), seat.contributors
        self._worker, self._adder = stored.worker(seat, readers), stored.server(seat, readers)
        self._pushed = dict.fromkeys(seat.contributors, -1)
        self._finished = dict.fromkeys(seat.contributors, 0)
        self._stored: dict[str, dict[int, tuple[int, bytes]]] = {name: {} for name in seat.contributors}
        self._open: deque[int] = deque()

    def begin(self, iteration: int, restored: Iterable[tuple[int, int, Floats]]) -> None:
        for batch, version, H in restored:
            payload = self._worker.conceal(H, batch, version)
            self._stored[self._me][batch] = version, payload
            for peer in self._peers:
                told = self._tell(peer, H)
                self._channel.send(peer, Restored(batch, version, payload), self._lane, told=told)  # 0
        self._pushed[self._me] = iteration - 1
        for peer in self._peers:
            self._channel.send(peer, Position(iteration), self._lane, told=sizes(self._channel, peer))  # 0
        for peer in self._peers:
            self._finished[peer], self._stored[peer] = begun(self._channel, peer, self._lane, self._pace)  # 0
            self._pushed[peer] = self._finished[peer] - 1

    def push(self, t: int, H: Floats, finished: int) -> None:
        batch = self._pace.batches[t]
        payload = self._worker.conceal(H, batch, t)
        for peer in self._peers:
            self._channel.send(peer, Push(t, batch, finished, payload), self._lane, told=self._tell(peer, H))  # 1
        self._pushed[self._me], self._finished[self._me] = t, finished
        self._stored[self._me][batch] = t, payload
        self._open.append(t)

    def pull(self, shape: tuple[int, int], *, wait: bool) -> PullAnswer | None:
        while (come := self._channel.recv_due(self._peers, Push, self._lane)) is not None:
            self._take(*come)  # 1
        t = self._open[0]
        while behind := [name for name in self._peers if t - self._pushed[name] > self._pace.lead(t)]:
            if not wait:
                return None
            self._take(*self._channel.recv_any(behind, Push, self._lane))  # 1
        self._open.popleft()
        batch = self._pace.batches[t]
        parts = {name: own[batch] for name, own in self._stored.items() if batch in own}
        versions = {name: version for name, (version, _) in parts.items()}
        self._channel.note(PullAnswered(self._me, t, min(self._pushed.values()), versions))
        total = self._adder.add({name: payload for name, (_, payload) in parts.items()})
        return PullAnswer(t, self._worker.reveal(total, versions, batch, shape), self._finished[self._lead], versions)

    def _tell(self, peer: str, H: Floats) -> Leave:
        """Enters forward outputs that a peer is sent as they are."""
        return self._channel.tell(Entry(peer, "columns", H.size, about=(self._me,)))

    def _take(self, peer: str, push: Push) -> None:
        t = self._pushed[peer] + 1
        if t == len(self._pace.batches) or (push.iteration, push.batch) != (t, self._pace.batches[t]):
            raise ProtocolError(
                f"{self._me}: {peer} was expected to push iteration {t}, it pushed {push.iteration} of batch "
                f"{push.batch}; do both run the same job?"
            )
        self._pushed[peer], self._finished[peer] = t, push.finished
        self._stored[peer][push.batch] = t, push.payload

"""What a party's protocols note of what it does and learns, for whoever observes its channel in this process.

Nothing of it leaves the party: an audit that runs all parties itself reads it beside the messages (`Channel.note`). A
method may note facts of its own kinds; who observes picks those it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from securevfl.crypto.scheme import Floats
from securevfl.protocols.base import Batch, Phases, Reply, Seat
from securevfl.protocols.differentiable import Differentiable, Jacobian


@dataclass(frozen=True)
class Began:
    """A visit to batch `index` begins."""

    index: int


@dataclass(frozen=True)
class Summed:
    """The last sum that this party collected, or gave to, was of batch `index`."""

    index: int


@dataclass(frozen=True)
class Learned:
    """The party has learned the gradient J^T g on batch `index`."""

    index: int
    J: Jacobian
    gradient: Floats


@dataclass(frozen=True)
class Pushed:
    """The party has pushed these forward outputs (n x c) on batch `index`."""

    index: int
    values: Floats


@dataclass(frozen=True)
class ToldSum:
    """The party has been told the sum of all others' forward outputs on batch `index` (n x c), of these versions by
    party, its own among them."""

    index: int
    values: Floats
    versions: Mapping[str, int]


@dataclass(frozen=True)
class LearnedPhases:
    """The party has learned the sum of the others' phases of block k (n x D, residues modulo 2^bits)."""

    k: int
    bits: int
    phases: Phases


@dataclass(frozen=True)
class SharedResidual:
    """What the party knows of the residual of batch `index`: a share or a masked one (n x c), as signed numbers."""

    index: int
    words: Floats


def noted(reply: Reply, seat: Seat) -> Reply:
    """The reply, of which every gradient learned is noted if somebody observes this party."""
    return NotedReply(reply, seat) if seat.channel.observed else reply


class NotedReply(Reply):
    """A reply of which every gradient learned is noted."""

    def __init__(self, reply: Reply, seat: Seat) -> None:
        self.exchange = reply.exchange
        self._reply = reply
        self._channel = seat.channel
        self._asked = False

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        gradient = self._reply.gradient(model, batch)
        if not (self._asked and model.static_jacobian):
            self._channel.note(Learned(batch.index, model.jacobian(batch.X), gradient))
        self._asked = True
        return gradient

    def repeat(self) -> None:
        self._reply.repeat()

    def close(self) -> None:
        self._reply.close()

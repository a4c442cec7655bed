"""The sums of FDSKL: phases to each worker, and f over the workers (Gu et al. 2020, Algorithms 1 to 3).

Parties with labels are workers. For every worker there is one context of the job's sum protocol, with that worker as
its
collector and a subchannel of its own, so that one channel carries them all and each worker learns its own sums alone.

1. all others l -> worker   x_l w_l on the circle, for some rows and blocks of features
   worker                   adds its own x w + b: the phases
2. all others l -> worker   f_l on the same rows, as a sum of reals; 0 from a party that is no worker
   worker                   adds its own: f

With one worker there is no step 2. A worker learns the sums over the other parties and what the job's sum protocol
declares beside them; the others learn nothing.

Nobody waits for an answer, so a party could send a whole table of phases ahead of a worker that is busy. It stays
within two windows of 2^23 phases, 32 MB each at 4 bytes:

3. worker -> all others l    a window of phases has been summed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.number_spaces import Circle, Phases, Reals
from securevfl.protocols.observations import PhasesLearned, SumFinished
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumProtocol, SumRole
from securevfl.runtime.codec import Message

MESSAGE_PHASES = 2**19  # phases a message, unless one block of features is more: larger ones cost page faults
WINDOW_PHASES = 2**23  # phases


class WindowSummed(Message, frozen=True):
    """The sender has summed one window more of its phases."""


def declare_windows() -> list[MessageDeclaration]:
    """Declare what the messages beside those of the sums reveal."""
    return [MessageDeclaration(WindowSummed, COLLECTOR, CONTRIBUTOR, Reveal("public"), space=Circle)]


def subchannel_to(worker: str) -> str:
    """Name the subchannel of a worker's sums."""
    return f"to {worker}"


def worker_of(subchannel: str) -> str | None:
    """Whose sums a subchannel carries; None if it is another."""
    return subchannel.removeprefix("to ").split("/")[0] if subchannel.startswith("to ") else None


class PhaseSums:
    """One party's side of all of them. Every party makes it, and calls it, in the same order."""

    def __init__(
        self, protocol: SumProtocol, context: PartyContext, workers: Sequence[str], *, bits: Literal[16, 32] = 32
    ) -> None:
        self.me = context.me
        self.workers = tuple(workers)
        self.bits = bits
        self.rounds = 0  # exchanges so far
        self._channel = context.channel
        self._others = [name for name in context.parties if name != context.me]
        self._summed = dict.fromkeys(workers, 0)  # phases so far
        self._taken = dict.fromkeys(workers, 0)  # windows that others have been told of, or have heard of
        self.sums: dict[str, SumRole] = {}
        for worker in workers:
            self.sums[worker] = protocol.role(context.sum_to(worker, subchannel=subchannel_to(worker)))

    def phases(
        self, worker: str, blocks: int, rows: int, size: int, own: Callable[[int], Phases]
    ) -> Iterator[tuple[int, Phases]]:
        """Yield, at the worker, each block k and the sum of everyone's phases (rows x size); elsewhere yield nothing.

        `own(k)` is this party's part of block k, in residues modulo 2^bits.
        """
        space = Circle(self.bits)
        sums = self.sums[worker]
        at_once = max(1, MESSAGE_PHASES // max(1, rows * size))
        for start in range(0, blocks, at_once):
            ks = range(start, min(start + at_once, blocks))
            part = np.empty((len(ks), rows, size), np.uint32)
            for slot, k in zip(part, ks, strict=True):
                slot[:] = own(k)
            self.rounds += 1
            if worker != self.me:
                self._wait(worker)
                sums.contribute(part, space)  # 1
                self._summed[worker] += part.size
                continue
            part += sums.collect(part.shape, space)  # 1
            self._summed[worker] += part.size
            self._tell()
            part &= np.uint32(2**self.bits - 1)
            for k, phases in zip(ks, part, strict=True):
                if self._channel.observed:
                    others = (phases - own(k)) & np.uint32(2**self.bits - 1)
                    self._channel.note(PhasesLearned(k, self.bits, others))
                yield k, phases

    def _wait(self, worker: str) -> None:
        """Until no more than two windows are on their way."""
        while self._taken[worker] < self._summed[worker] // WINDOW_PHASES - 1:
            self._channel.recv(worker, WindowSummed, self._subchannel(worker))  # 3
            self._taken[worker] += 1

    def _tell(self) -> None:
        while self._taken[self.me] < self._summed[self.me] // WINDOW_PHASES:
            for other in self._others:
                self._channel.send(other, WindowSummed(), self._subchannel(self.me))  # 3
            self._taken[self.me] += 1

    def _subchannel(self, worker: str) -> str:
        return f"{subchannel_to(worker)}/taken"

    def total(self, worker: str, own: Floats, index: int | None = None) -> Floats | None:
        """Return f (n x c), the sum of all workers' parts, at the worker, else None. index: of the batch, in
        training."""
        if len(self.workers) == 1:
            return own if worker == self.me else None
        self.rounds += 1
        if worker != self.me:
            self.sums[worker].contribute(own, Reals())  # 2
            return None
        others: Floats = self.sums[worker].collect(own.shape, Reals())  # 2
        if index is not None:
            self._channel.note(SumFinished(index))
        return own + others

"""The sums of FDSKL: phases to each worker, and f over the workers (Gu et al. 2020, Algorithms 1 to 3).

Parties with labels are workers. For every worker there is one seat of the job's sum protocol, with that worker as the
active party and a lane of its own, so that one channel carries them all and each worker learns its own sums alone.

1. all others l -> worker   x_l w_l on the circle, for some rows and blocks of features
   worker                   adds its own x w + b: the phases
2. all others l -> worker   f_l on the same rows, as a sum of reals; 0 from a party that is no worker
   worker                   adds its own: f

With one worker there is no step 2. A worker learns the sums over the other parties and what the job's sum protocol
declares beside them; the others learn nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.protocols.base import Circle, Phases, Reals, Seat, SumProtocol, SumRole

MESSAGE = 2**19  # phases a message, unless one block of features is more: larger ones cost page faults


class PhaseSums:
    """One party's side of all of them. Every party makes it, and calls it, in the same order."""

    def __init__(
        self, protocol: SumProtocol, seat: Seat, workers: Sequence[str], *, bits: Literal[16, 32] = 32
    ) -> None:
        self.me = seat.me
        self.workers = tuple(workers)
        self.bits = bits
        self.rounds = 0  # exchanges so far
        self.sums: dict[str, SumRole] = {}
        for worker in workers:
            others = tuple(name for name in seat.parties if name != worker)
            self.sums[worker] = protocol.role(replace(seat, active=worker, passives=others, lane=f"to {worker}"))

    def phases(
        self, worker: str, blocks: int, rows: int, size: int, own: Callable[[int], Phases]
    ) -> Iterator[tuple[int, Phases]]:
        """At the worker: each block k and the sum of everyone's phases (rows x size); elsewhere runs through empty.

        `own(k)` is this party's part of block k, in residues modulo 2^bits.
        """
        space = Circle(self.bits)
        sums = self.sums[worker]
        at_once = max(1, MESSAGE // max(1, rows * size))
        for start in range(0, blocks, at_once):
            ks = range(start, min(start + at_once, blocks))
            part = np.empty((len(ks), rows, size), np.uint32)
            for slot, k in zip(part, ks, strict=True):
                slot[:] = own(k)
            self.rounds += 1
            if worker != self.me:
                sums.contribute(part, space)  # 1
                continue
            part += sums.collect_all(part.shape, space)  # 1
            part &= np.uint32(2**self.bits - 1)
            yield from zip(ks, part, strict=True)

    def total(self, worker: str, own: Floats) -> Floats | None:
        """At the worker: f (n x c), the sum of all workers' parts; None elsewhere."""
        if len(self.workers) == 1:
            return own if worker == self.me else None
        self.rounds += 1
        if worker != self.me:
            self.sums[worker].contribute(own, Reals())  # 2
            return None
        others: Floats = self.sums[worker].collect_all(own.shape, Reals())  # 2
        return own + others

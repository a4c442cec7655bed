"""The sums of FDSKL: phases for each worker, and f over the workers (Gu et al. 2020, Algorithms 1 to 3).

Parties with labels are *workers*. A *phase* is an angle, as an integer modulo 2^bits in units of 2 pi / 2^bits. Party
l's phases are x_l w_l modulo 2 pi, its columns times its random frequencies. For every worker there is one instance
of the job's sum protocol, with that worker as its collector.
1. all others l -> worker   their phases of some rows and blocks of features
   worker                   adds its phases and its random offsets b
2. all others l -> worker   f_l, their outputs on the same rows, as a sum of reals; 0 from a party that is no worker
   worker                   adds its outputs: f
3. worker -> all others l   a *window* of 2^23 phases (32 MB if a phase has 32 bits) has been summed; at most two
                            windows are in transit

Comments refer to these steps by number. With one worker there is no step 2. A worker learns the sums over the other
parties and the values that the job's sum protocol declares; the others learn nothing.
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

MESSAGE_PHASES = 2**19  # number of phases in a message; for larger messages, allocating memory takes more time
WINDOW_PHASES = 2**23  # number of phases in one window


class WindowSummed(Message, frozen=True):
    """The sender has summed one more window of its phases."""


def declare_windows() -> list[MessageDeclaration]:
    """Declare the messages that are not part of the sum protocol."""
    return [MessageDeclaration(WindowSummed, COLLECTOR, CONTRIBUTOR, Reveal("public"), space=Circle)]


def subchannel_to(worker: str) -> str:
    """Return the subchannel of a worker's sums."""
    return f"to {worker}"


def worker_of(subchannel: str) -> str | None:
    """Return the worker whose sums a subchannel carries; None for another subchannel."""
    return subchannel.removeprefix("to ").split("/")[0] if subchannel.startswith("to ") else None


class PhaseSums:
    """One party's side of the sums for all workers. All parties must create it and call it in the same order.

    Args:
        protocol: the sum protocol of the job.
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        workers: the parties with labels.
        bits: number of bits of a phase in messages.
        message_phases: largest number of phases in a message that has several blocks.
        window_phases: number of phases in one window.

    Attributes:
        rounds: number of exchanges so far.
        sums: this party's role in the sums of each worker.
    """

    def __init__(
        self,
        protocol: SumProtocol,
        context: PartyContext,
        workers: Sequence[str],
        *,
        bits: Literal[16, 32] = 32,
        message_phases: int = MESSAGE_PHASES,
        window_phases: int = WINDOW_PHASES,
    ) -> None:
        self._message_phases, self._window_phases = message_phases, window_phases
        self.me = context.me
        self.workers = tuple(workers)
        self.bits = bits
        self.rounds = 0
        self._channel = context.channel
        self._others = [name for name in context.parties if name != context.me]
        self._summed_phases = dict.fromkeys(workers, 0)
        self._acknowledged_windows = dict.fromkeys(workers, 0)
        self.sums: dict[str, SumRole] = {}
        for worker in workers:
            self.sums[worker] = protocol.role(context.sum_to(worker, subchannel=subchannel_to(worker)))

    def phases(
        self, worker: str, blocks: int, rows: int, size: int, local_phases: Callable[[int], Phases]
    ) -> Iterator[tuple[int, Phases]]:
        """Sum the phases of some rows for one worker.

        Args:
            worker: the worker that receives the sums.
            blocks: K, number of blocks of features.
            rows: n, number of rows.
            size: D, number of features in a block.
            local_phases: returns this party's phases (n, D) of a block, as residues modulo 2^bits.

        Yields:
            At the worker, the number of each block and the sum of all parties' phases (n, D). Other parties yield
            nothing.
        """
        space = Circle(self.bits)
        sums = self.sums[worker]
        blocks_per_message = max(1, self._message_phases // max(1, rows * size))
        for start in range(0, blocks, blocks_per_message):
            ks = range(start, min(start + blocks_per_message, blocks))
            summand = np.empty((len(ks), rows, size), np.uint32)
            for block, k in zip(summand, ks, strict=True):
                block[:] = local_phases(k)
            self.rounds += 1
            if worker != self.me:
                self._wait_for_window(worker)
                sums.contribute(summand, space)  # step 1
                self._summed_phases[worker] += summand.size
                continue
            summand += sums.collect(summand.shape, space)  # step 1
            self._summed_phases[worker] += summand.size
            self._acknowledge_windows()
            summand &= np.uint32(2**self.bits - 1)
            for k, phases in zip(ks, summand, strict=True):
                if self._channel.observed:
                    others = (phases - local_phases(k)) & np.uint32(2**self.bits - 1)
                    self._channel.note(PhasesLearned(k, self.bits, others))
                yield k, phases

    def _wait_for_window(self, worker: str) -> None:
        """Wait until at most two windows of this party's phases have not been summed by the worker."""
        while self._acknowledged_windows[worker] < self._summed_phases[worker] // self._window_phases - 1:
            self._channel.recv(worker, WindowSummed, self._subchannel(worker))  # step 3
            self._acknowledged_windows[worker] += 1

    def _acknowledge_windows(self) -> None:
        while self._acknowledged_windows[self.me] < self._summed_phases[self.me] // self._window_phases:
            for other in self._others:
                self._channel.send(other, WindowSummed(), self._subchannel(self.me))  # step 3
            self._acknowledged_windows[self.me] += 1

    def _subchannel(self, worker: str) -> str:
        return f"{subchannel_to(worker)}/taken"

    def total(self, worker: str, outputs: Floats, index: int | None = None) -> Floats | None:
        """Sum the outputs of all workers; `worker` receives the sum.

        Args:
            worker: the worker that receives the sum.
            outputs: f_l (n, c) of this party.
            index: number of the batch, in training.

        Returns:
            f (n, c) at that worker; None at all other parties.
        """
        if len(self.workers) == 1:
            return outputs if worker == self.me else None
        self.rounds += 1
        if worker != self.me:
            self.sums[worker].contribute(outputs, Reals())  # step 2
            return None
        others: Floats = self.sums[worker].collect(outputs.shape, Reals())  # step 2
        if index is not None:
            self._channel.note(SumFinished(index))
        return outputs + others

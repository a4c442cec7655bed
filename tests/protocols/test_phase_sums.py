"""Sums of phases (angles) are limited in how far they run ahead (windows), whichever party is slow."""

import time
from functools import partial

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.families.fdskl.phase_sums import PhaseSums
from securevfl.protocols.number_spaces import Phases
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.tree_sum import TreeSum
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads

NAMES = ["bank", "shop", "post"]
BLOCKS, ROWS, SIZE, BATCHES = 12, 5, 20, 6
VALUES_PER_BLOCK = ROWS * SIZE
WINDOW = 3 * VALUES_PER_BLOCK


def part(name: str, batch: int, k: int) -> Phases:
    generator = np.random.default_rng([ord(name[0]), batch, k])
    return generator.integers(2**32, size=(ROWS, SIZE), dtype=np.uint64).astype(np.uint32)


class Lead:
    """How far the others are ahead of the workers, in phases."""

    def __init__(self) -> None:
        self.summed = dict.fromkeys(NAMES, 0)
        self.furthest = 0


def role(
    channel: Channel, *, lead: Lead, chosen: SumProtocol, workers: list[str], slow: str
) -> list[tuple[str, int, int, Phases]]:
    others = tuple(name for name in NAMES if name != workers[0])
    context = PartyContext(channel, Roles.labelled(workers[0], others), Meter(channel.clock, channel.counters))
    sums = PhaseSums(chosen, context, workers, message_phases=VALUES_PER_BLOCK, window_phases=WINDOW)
    results: list[tuple[str, int, int, Phases]] = []
    for batch in range(BATCHES):
        for worker in workers:

            def local_phases(k: int, worker: str = worker, batch: int = batch) -> Phases:
                if channel.me == slow:
                    time.sleep(0.002)
                    deadline = time.monotonic() + 20
                    while [slow] == workers and lead.furthest <= WINDOW and time.monotonic() < deadline:
                        time.sleep(0.001)  # gives the others time to run ahead
                elif channel.me != worker:
                    lead.furthest = max(lead.furthest, sums._summed_phases[worker] - lead.summed[worker])
                return part(channel.me, batch, k)

            for k, phases in sums.phases(worker, BLOCKS, ROWS, SIZE, local_phases):
                lead.summed[worker] = sums._summed_phases[worker]
                results.append((worker, batch, k, phases.copy()))
    return results


@pytest.mark.parametrize("chosen", [DirectSum(), TreeSum(), PairwiseSum()], ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("workers", [["bank"], ["bank", "post"]], ids=len)
@pytest.mark.parametrize("slow", NAMES)
def test_nobody_is_more_than_two_windows_ahead(chosen: SumProtocol, workers: list[str], slow: str) -> None:
    lead = Lead()
    run_role = partial(role, lead=lead, chosen=chosen, workers=workers, slow=slow)
    results = run_threads(dict.fromkeys(NAMES, run_role), lambda: VirtualClock(vfl.Network()), timeout=30)
    for worker in workers:
        assert len(results[worker]) == BATCHES * BLOCKS
        for _, batch, k, phases in results[worker]:
            expected = sum(part(name, batch, k).astype(np.uint64) for name in NAMES)
            np.testing.assert_array_equal(phases, np.asarray(expected).astype(np.uint32))
    assert lead.furthest <= 2 * WINDOW + VALUES_PER_BLOCK
    if slow == "bank" and workers == ["bank"]:
        assert lead.furthest > WINDOW, "the others run ahead where they may"

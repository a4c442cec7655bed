"""The weights of a training on shares, which no party has, reconstructed by tests from the states of all parties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.state import State


def whole_weights(job: SharesJob, states: Mapping[str, State], active: str) -> dict[str, Floats]:
    """Reconstruct the weights (d x c) of each party from the stored states of all parties.

    This requires all states in one place; no party has them all.
    """
    lead = states[active]
    job_plan = SharesFacts.restore(job, lead["sizes"], len(states)).plan
    ring, weights = ShareRing(job_plan.numbers.bits), {}
    for name, state in states.items():
        shares = [state["own"], *(other["others"][name] for other in states.values() if name in other["others"])]
        rule = job_plan.rule.with_intercept() if name == active else job_plan.rule
        total = np.zeros((1, 1), np.uint64)
        for item in shares:
            total = ring.reduce(total + rule.result(item, state["visits"]))
        weights[name] = job_plan.numbers.decode_weights(total)
    return weights

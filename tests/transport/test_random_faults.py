"""A few runs of benchmarks/faults.py; docs/benchmarks.md has the figures of many."""

from collections import Counter

import pytest

SEEDS = {"few": [7, 1, 9], "more": [13, 12, 10]}  # sums that are encrypted, pairwise, of FDSKL; trees, shares, a hub


@pytest.mark.long
@pytest.mark.parametrize("which", ["few", "more"])
@pytest.mark.slow
def test_random_faults_end_well(benchmarks: None, which: str) -> None:
    import faults

    seeds = SEEDS[which]
    outcomes = faults.campaign(seeds, 2, lambda outcome: None)
    assert Counter(outcome.seed for outcome in outcomes) == Counter(seeds)
    assert sum(len(outcome.blows) for outcome in outcomes) >= 3
    for outcome in outcomes:
        assert not outcome.fault, outcome

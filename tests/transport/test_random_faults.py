"""A few runs of benchmarks/faults.py; docs/faults.md has the figures of many."""

from collections import Counter

import pytest

SEEDS = {"few": [7, 20, 40], "more": [149, 8, 25]}  # dropouts with a party killed for good; cipher sums; FDSKL


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

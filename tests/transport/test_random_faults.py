"""A few runs of benchmarks/faults.py; docs/faults.md has the figures of many."""

from collections import Counter

SEEDS = [149, 7, 8, 20, 25, 40]  # dropouts with a party killed for good; cipher sums; FDSKL


def test_random_faults_end_well(benchmarks: None) -> None:
    import faults

    outcomes = faults.campaign(SEEDS, 2, lambda outcome: None)
    assert Counter(outcome.seed for outcome in outcomes) == Counter(SEEDS)
    assert sum(len(outcome.blows) for outcome in outcomes) >= 6
    for outcome in outcomes:
        assert not outcome.fault, outcome

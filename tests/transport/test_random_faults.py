"""A few runs of benchmarks/faults.py; docs/faults.md has the figures of many."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="not beside a checkout")
def test_random_faults_end_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import faults

    outcomes = faults.campaign([0, 1, 3, 4, 5, 8], 2, lambda outcome: None)
    assert len(outcomes) == 6
    assert sum(len(outcome.blows) for outcome in outcomes) >= 6
    for outcome in outcomes:
        assert not outcome.fault, outcome
    sys.modules.pop("faults")

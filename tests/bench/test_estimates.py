"""The estimate of `explain` against the memory and the processor time of trainings from files and frames."""

from pathlib import Path

import pytest

from benchmarks.estimates import KINDS, estimate, measure, write_tables


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("texts", [0, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_and_processor_time_are_within_a_quarter(kind: str, texts: int, tmp_path: Path) -> None:
    """With texts, 60 columns become 476 prepared columns."""
    write_tables(tmp_path, 100_000, 60, texts)
    measured, estimated = measure(tmp_path, kind), estimate(tmp_path, kind)
    assert abs(estimated.memory / measured.memory - 1) < 0.25
    assert abs(estimated.seconds / measured.seconds - 1) < 0.25

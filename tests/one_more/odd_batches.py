"""Another check, here of the schedule: every row is in one batch."""

from __future__ import annotations

import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.data.schedule import Schedule


def every_row_once() -> Outcome:
    """Whether a partition leaves rows out or takes them twice."""
    outcome = Outcome()
    schedule = Schedule(103, batch_size=10, epochs=1, seed=0, test_fraction=0.1, reshuffle=False)
    if not np.array_equal(np.sort(np.concatenate(schedule.partition(0))), schedule.train):
        outcome.add("schedule", "all", "rows are missing from the batches, or are in two")
    return outcome

"""The facts of a training on shares are computed once for each party."""

from typing import Any

import pytest

import securevfl as vfl
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_job import trains_on_shares


def shares_job(**options: Any) -> vfl.Job:
    """Return a job on shares with an evaluation after every second iteration."""
    return vfl.Job(
        **{"model": "logistic", "protocol": "shares", "epochs": 8, "evaluate_every": 2, "accepts": ["small_metrics"]}
        | options
    )


def test_facts_are_restored_from_a_state() -> None:
    job = shares_job()
    assert trains_on_shares(job)
    facts = SharesFacts(job, 2, {"bank": 3, "shop": 4}, 100, 1, 100, True, 20.0).rolled_back(4, 2)
    restored = SharesFacts.restore(job, facts.plain(), 2)
    assert restored.plain() == facts.plain()
    assert restored.rollbacks == ((4, 2),)
    assert restored.plan.rate == facts.plan.rate


@pytest.mark.parametrize(
    ("total", "interval", "start", "expected"),
    [
        (10, 0, 0, [10]),
        (10, 5, 0, [5, 10]),
        (10, 4, 0, [4, 8, 10]),
        (10, 4, 5, [8, 10]),
        (10, 5, 10, []),
        (10, 4, 10, [10]),
    ],
)
def test_metrics_are_measured_at_intervals_and_at_the_end(
    total: int, interval: int, start: int, expected: list[int]
) -> None:
    assert EvaluationSchedule(total, interval, 0, may_restore=False).measured_rounds(start) == expected

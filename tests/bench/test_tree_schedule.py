"""The stopping rule of the schedules of trees."""

import math

import pytest
from builders import raises_code

from benchmarks.tree_schedule import stopping_point
from securevfl.errors import DivergenceError


@pytest.mark.parametrize(
    ("losses", "result"),
    [
        ([0.6, 0.5, 0.4, 0.3], (4, 4)),
        ([0.6, 0.5, 0.4, 0.5], (2, 4)),
        ([0.6, 0.5, 0.4, math.nan], (2, 4)),
    ],
)
def test_a_schedule_returns_its_best_evaluated_model(losses: list[float], result: tuple[int, int]) -> None:
    assert stopping_point((2, 4), losses) == result


def test_a_first_loss_that_is_not_finite_is_refused() -> None:
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        stopping_point((1, 2), [math.nan, 0.5])

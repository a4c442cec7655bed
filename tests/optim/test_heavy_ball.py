"""Momentum of safe steps: the error that it leaves of quadratics and of logistic models, of rare classes too."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.models.log_link_losses import PoissonLoss
from securevfl.models.robust_losses import QuantileLoss
from securevfl.models.row_weights import WeightedLoss
from securevfl.models.standard_losses import LogisticLoss, OneVsRestLoss, SquareLoss
from securevfl.optim.block_descent import heavy_ball


def remaining(iterations: int, eigenvalues: np.ndarray) -> np.ndarray:
    """Return what the iteration leaves of an error of 1, for each eigenvalue."""
    before, error = np.ones_like(eigenvalues), np.ones_like(eigenvalues)
    for step, factor in heavy_ball(iterations):
        before, error = error, error - step * eigenvalues * error + factor * (error - before)
    return error


@pytest.mark.parametrize("iterations", [1, 2, 5, 12, 40, 100, 400])
def test_no_eigenvalue_up_to_1_ever_grows_and_large_ones_shrink(iterations: int) -> None:
    eigenvalues = np.linspace(0, 1, 1001)
    before, error, largest = np.ones(1001), np.ones(1001), 0.0
    for step, factor in heavy_ball(iterations):
        before, error = error, error - step * eigenvalues * error + factor * (error - before)
        largest = max(largest, float(np.abs(error).max()))
    assert largest <= 1 + 1e-9
    if iterations >= 40:
        assert np.abs(error[eigenvalues >= 0.02]).max() <= 5e-3


def test_more_iterations_reach_smaller_curvature() -> None:
    small = np.array([1e-3])
    errors = [abs(float(remaining(iterations, small)[0])) for iterations in (20, 40, 80, 160)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.003])
def test_a_training_starts_from_the_best_constant_model(rate: float) -> None:
    draw = np.random.default_rng(3)
    y, weights = np.where(draw.random((4000, 1)) < rate, 1.0, -1.0), draw.uniform(0.1, 3, 4000)
    loss = LogisticLoss()
    f = np.full((4000, 1), loss.constant_outputs(y)[0])
    assert abs(loss.residual(f, y).mean()) < 1e-9
    f[:] = loss.constant_outputs(y, weights)[0]
    assert abs(np.average(loss.residual(f, y)[:, 0], weights=weights)) < 1e-9
    classes = np.arange(3)
    targets = OneVsRestLoss().targets(draw.choice(3, 900, p=[0.7, 0.2, 0.1]), classes)
    f = np.tile(OneVsRestLoss().constant_outputs(targets), (900, 1))
    np.testing.assert_allclose(OneVsRestLoss().residual(f, targets).mean(axis=0), 0, atol=1e-9)


def test_constant_outputs_are_finite_for_every_loss() -> None:
    assert np.isfinite(LogisticLoss().constant_outputs(np.ones((5, 1)))).all()
    assert np.isfinite(LogisticLoss().constant_outputs(-np.ones((5, 1)))).all()
    assert QuantileLoss(0.9).constant_outputs(np.arange(11.0)[:, None])[0] == 9
    for loss in (SquareLoss(), PoissonLoss(), WeightedLoss(SquareLoss(), 2.0)):
        assert not loss.constant_outputs(np.ones((4, 1))).any()

"""Losses and linear blocks: values, residuals, bounds, and what a residual reveals."""

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st

from securevfl.errors import LabelError
from securevfl.models.exposure import OffsetLoss
from securevfl.models.linear_block import Linear
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from securevfl.models.row_weights import WeightedLoss
from securevfl.models.standard_losses import SoftmaxLoss


def targets(loss: Loss, n: int, generator: np.random.Generator) -> np.ndarray:
    if loss.classifies:
        y = np.arange(n) % (3 if loss.name == "softmax" else 2)
    else:
        y = loss.synthetic_labels(0.5 + generator.normal(size=n) / 2)
        y[0] = y.max() + 1
    return loss.targets(y, loss.classes(y))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@given(seed=st.integers(0, 2**32 - 1))
def test_the_residual_is_the_derivative_of_the_value(loss: Loss, seed: int) -> None:
    generator = np.random.default_rng(seed)
    y = targets(loss, 6, generator)
    f = generator.normal(scale=2, size=y.shape)
    g, eps = loss.residual(f, y), 1e-6
    for k in range(f.shape[1]):
        shift = np.zeros_like(f)
        shift[:, k] = eps
        slope = (loss.value(f + shift, y) - loss.value(f - shift, y)) / (2 * eps)
        np.testing.assert_allclose(g[:, k], slope, atol=1e-5)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if loss.classifies], ids=lambda loss: loss.name)
@given(st.floats(-1e6, 1e6), st.integers(0, 2**32 - 1))
def test_the_residual_stays_within_its_bound(loss: Loss, scale: float, seed: int) -> None:
    y = targets(loss, 6, np.random.default_rng(seed))
    g = loss.residual(np.full(y.shape, scale), y)
    assert np.isfinite(g).all()
    assert np.abs(g).max() <= loss.bound


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@given(seed=st.integers(0, 2**32 - 1))
def test_a_residual_tells_what_its_loss_says(loss: Loss, seed: int) -> None:
    """`invert_residual` recovers the targets and sums from g.

    Most rows are recovered, and at least one value of each row.
    """
    generator = np.random.default_rng(seed)
    y = targets(loss, 60, generator)
    f = generator.normal(size=y.shape).clip(-2.9, 2.9)  # where exp is not cut off
    f = y + f / 20 if loss.name == "quantile" else f  # elsewhere it reveals only a side
    undone = loss.invert_residual(loss.residual(f, y))
    expected = loss.revealed_outputs(f) - (loss.target_term(y) if loss.retains_targets else 0)
    for inverted, truth in ((undone.targets, y), (undone.sums, expected)):
        known = np.isfinite(inverted) & ((y == 0) if loss.assumes_zero_labels else True)
        np.testing.assert_allclose(inverted[known], truth[known], atol=1e-6)
    assert np.isfinite(undone.sums).mean() > 0.15
    assert np.isfinite(undone.targets).mean() > (0.15 if loss.assumes_zero_labels else 0.5) or loss.retains_targets


def test_a_loss_without_its_own_inverse_is_none() -> None:
    class Silent(Loss):
        name = "silent"
        value = residual = LOSSES["square"].value

    with pytest.raises(TypeError, match=r"Silent.*invert_residual"):
        Silent()  # type: ignore[abstract]


def test_probabilities_sum_to_one() -> None:
    f = np.random.default_rng(0).normal(scale=50, size=(20, 3))
    np.testing.assert_allclose(SoftmaxLoss().proba(f).sum(axis=1), 1)
    np.testing.assert_allclose(LOSSES["logistic"].proba(f[:, :1]).sum(axis=1), 1)


def test_labels_that_do_not_fit_are_refused() -> None:
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        LOSSES["logistic"].classes(np.array([0, 1, 2]))
    with raises_code(LabelError, "SVFL-LABEL-CONSTANT"):
        LOSSES["square"].classes(np.ones(4))
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        LOSSES["softmax"].classes(np.random.default_rng(0).normal(size=40))
    with raises_code(LabelError, "SVFL-JOB-UNSUPPORTED"):
        LOSSES["square"].proba(np.ones((2, 1)))


@pytest.mark.parametrize("intercept", [False, True])
def test_vjp_and_forward_follow_the_jacobian(intercept: bool) -> None:
    generator = np.random.default_rng(1)
    X, g = generator.normal(size=(7, 4)), generator.normal(size=(7, 3))
    model = Linear(generator.normal(size=(4 + intercept, 3)), l2=0.1, intercept=intercept)
    J = model.jacobian(X)
    assert J.shares_outputs
    np.testing.assert_allclose(model.vjp(X, g), J.matrix.T @ g)
    np.testing.assert_allclose(model.vjp(X, g), J.vjp(g))
    np.testing.assert_allclose(model.forward(X), J.matrix @ model.theta)


def test_decay_is_part_of_the_gradient_and_spares_the_intercept() -> None:
    model = Linear(np.array([[1.0], [2.0]]), l2=0.1, intercept=True)
    np.testing.assert_allclose(model.regularised(np.array([[1.0], [1.0]])), [[1.0 + 0.1], [1.0]])


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if loss.elementwise], ids=lambda loss: loss.name)
def test_least_is_the_sum_of_least_loss(loss):
    """Also with weights or exposures of rows: they change the minimizer as they change the loss."""
    y = np.array([[-1.0], [1.0]]) if loss.classifies else np.array([[0.3], [1.0], [4.0]])
    cases = [(loss, y), (WeightedLoss(loss, 8.0), np.hstack([y, np.full_like(y, 2.0)]))]
    if isinstance(loss, LogLinkLoss):
        cases.append((OffsetLoss(loss), np.hstack([y, np.full_like(y, np.log(1.5))])))
    for case_loss, targets in cases:
        f = case_loss.minimizer(targets)
        assert f.shape == (len(y), 1)
        f = f.clip(-20, 20)
        here = case_loss.value(f, targets)
        for away in (-0.5, 0.5):
            assert (here <= case_loss.value(f + away, targets) + 1e-8).all()

"""Lookup tables of residuals, computed by projection: coefficients compared with a dense
solver, and unbiased lookups.
"""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.models.log_link_losses import GammaLoss, PoissonLoss
from securevfl.models.robust_losses import HuberLoss, QuantileLoss
from securevfl.models.standard_losses import LogisticLoss, SmoothHingeLoss, SquareLoss
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.projection import MARGIN_KNOTS, projected
from securevfl.protocols.shares.residual_tables import ResidualTables

SMOOTH = [(LogisticLoss(), 1.0, -1.0), (LogisticLoss(), 0.5, 1.0), (PoissonLoss(), 0.25, 2.0), (GammaLoss(), 0.25, 0.7)]


def dense_projection(residual, target: float, first: float, knots: int, spacing: float) -> np.ndarray:
    """Project g on hat functions (linear between entries) by quadrature and a dense
    solver, on a grid 40 entries longer.
    """
    count = knots + 80
    at = first + spacing * (np.arange(count) - 40)
    fine = np.linspace(at[0], at[-1], 200 * (count - 1) + 1)
    g = residual(fine[:, None], np.full((len(fine), 1), target))[:, 0]
    hats = np.maximum(0, 1 - np.abs(fine[None, :] - at[:, None]) / spacing)
    weights = np.full(len(fine), fine[1] - fine[0])
    weights[[0, -1]] /= 2
    gram = (hats * weights) @ hats.T
    return np.linalg.solve(gram, (hats * weights) @ g)[40 : 40 + knots]


@pytest.mark.parametrize(("loss", "spacing", "target"), SMOOTH)
def test_coefficients_are_those_of_a_dense_solver(loss, spacing: float, target: float) -> None:
    first, knots = -12 * spacing, 25
    coefficients = projected(loss.residual, np.array([[target]]), np.array([first]), knots, spacing)
    reference = dense_projection(loss.residual, target, first, knots, spacing)
    np.testing.assert_allclose(coefficients[0], reference, rtol=2e-4, atol=2e-4)


def test_a_line_is_its_own_projection() -> None:
    coefficients = projected(SquareLoss().residual, np.array([[3.0], [-1.0]]), np.array([-4.0, 2.0]), 9, 0.5)
    at = np.array([-4.0, 2.0])[:, None] + 0.5 * np.arange(9)
    np.testing.assert_allclose(coefficients, at - np.array([[3.0], [-1.0]]), atol=1e-8 * MARGIN_KNOTS)


@pytest.mark.parametrize("spread", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("target", [-1.0, 1.0])
def test_a_projected_table_has_no_bias(target: float, spread: float) -> None:
    """The mean of looked-up values around 1.5 equals that of g. With values of g as
    entries, the mean would deviate more.
    """
    loss, numbers = LogisticLoss(), FixedPointEncoding(1000, 1.0)
    f = np.linspace(-1, 1, 200_001) * 6 * spread
    density = np.exp(-(((f - 1.5) / spread) ** 2) / 2)
    g = loss.residual(f[:, None], np.full((len(f), 1), target))[:, 0]

    def bias(*, smooth: bool) -> float:
        table = ResidualTables(numbers, loss.residual, np.array([[target]]), loss.minimizer, smooth=smooth)
        share = numbers.index(np.zeros(1, np.uint64))
        index = numbers.index(((np.floor(f).astype(np.int64) - 1) << numbers.shift).astype(np.uint64))
        entries = np.ldexp(table._tables.astype(float), -numbers.f_g - 16)
        low = entries[(index + share) % numbers.entries]
        high = entries[(index + share + 1) % numbers.entries]
        read = low + (f - np.floor(f)) * (high - low)
        return abs(float(np.average(read - g, weights=density)))

    assert bias(smooth=True) < 1e-4
    if spread < 2:
        assert bias(smooth=False) > 3e-3


def test_losses_with_kinks_keep_values_of_g() -> None:
    assert not any(loss.smooth for loss in (SmoothHingeLoss(), SquareLoss(), HuberLoss(), QuantileLoss()))
    assert all(loss.smooth for loss in (LogisticLoss(), PoissonLoss(), GammaLoss()))

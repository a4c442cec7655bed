"""L2 projection of a residual on linear splines with equally spaced knots.

A lookup table reads a residual g by linear interpolation between its entries. If the entries are values of g, each
chord lies on one side of a curved g, so that the mean of what is read differs from the mean of g over many rows, and
the model is biased however many rows there are. The coefficients of the L2 projection remove this: the difference
between g and the spline is orthogonal to every hat function, so it averages to zero for every density that a spline
with these knots approximates well.

With the hat functions phi_j at the knots x_j = j h, the coefficients solve

    sum_k <phi_j, phi_k> c_k = <g, phi_j>,    <phi_j, phi_k> / h = 2/3, 1/6, 1/6 for k = j, j - 1, j + 1

On an infinite grid the inverse of this matrix is known: sqrt(3) (sqrt(3) - 2)^|j - k|. It decays by 0.27 a knot. A grid
that is `MARGIN_KNOTS` knots longer than the table on each side therefore gives its coefficients to ten digits.

Source: M. Unser, "Splines: a perfect fit for signal and image processing", IEEE Signal Processing
Magazine 16(6), 1999.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats

MARGIN_KNOTS = 18  # knots on each side: (2 - sqrt(3))^18 = 5e-11
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # on the unit interval


def projected(
    residual: Callable[[Floats, Floats], Floats], targets: Floats, first: Floats, knots: int, spacing: float
) -> Floats:
    """Return the coefficients (m, knots) of the projections of m residuals, each on a grid of its own.

    Args:
        residual: g (n, 1) of outputs f (n, 1) and targets (n, k).
        targets: the targets (m, k), one row for each residual.
        first: the first knot of each grid (m,).
        knots: the number of knots of each grid.
        spacing: the distance h between two knots.

    Returns:
        The coefficients (m, knots).
    """
    intervals = knots + 2 * MARGIN_KNOTS + 1
    starts = first[:, None] + spacing * (np.arange(intervals) - MARGIN_KNOTS - 1)
    repeated = np.repeat(targets, intervals, axis=0)
    rising = np.zeros_like(starts)  # integrals of g times the hat that rises, and that falls, over each interval
    falling = np.zeros_like(starts)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        values = weight * residual((starts + node * spacing).reshape(-1, 1), repeated).reshape(starts.shape)
        rising += node * values
        falling += (1 - node) * values
    products = rising[:, :-1] + falling[:, 1:]  # <g, phi_j> / h for MARGIN_KNOTS knots more on each side
    offsets = np.arange(-MARGIN_KNOTS, MARGIN_KNOTS + 1)
    inverse = np.sqrt(3) * (np.sqrt(3) - 2) ** np.abs(offsets)
    windows = np.lib.stride_tricks.sliding_window_view(products, len(inverse), axis=1)
    coefficients: Floats = windows @ inverse
    return coefficients

"""L2 projection of a function on linear splines with equally spaced knots.

A training on shares reads a residual g(f), the derivative of a row's loss by the model's output f, from a table, with
linear interpolation between the entries. If the entries were values of g, the straight lines between them would be on
one side of a curved g. Over many rows, the mean of the interpolated values would differ from the mean of g, and the
model would be biased however many rows there are. The entries are therefore the coefficients of the L2 projection of g
on linear splines. The difference between g and this spline is orthogonal to every hat function, so it averages to zero
for every density of f that a spline with these knots approximates well.

The hat function phi_j is 1 at the knot x_j = j * h, 0 at all other knots, and linear in between. The coefficients c_k
solve

    sum_k <phi_j, phi_k> c_k = <g, phi_j>,    <phi_j, phi_k> / h = 2/3, 1/6, 1/6 for k = j, j - 1, j + 1

On an infinite grid the inverse of this matrix is known: sqrt(3) * (sqrt(3) - 2)^|j - k|. Its entries decrease by a
factor of 0.27 from knot to knot. With `MARGIN_KNOTS` additional knots at each end of a finite grid, the table's
coefficients therefore have ten correct digits. Source: M. Unser, "Splines: a perfect fit for signal and image
processing", IEEE Signal Processing Magazine 16(6), 1999.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats

# additional knots at both ends of a grid; knots beyond them have a weight below (2 - sqrt(3))^18 = 5e-11
MARGIN_KNOTS = 18
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)
# nodes and weights of Gauss quadrature, moved from [-1, 1] to the interval [0, 1]
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2


def projected(
    residual: Callable[[Floats, Floats], Floats], targets: Floats, first: Floats, knots: int, spacing: float
) -> Floats:
    """Project m functions, the residuals for m targets, each on a separate grid of knots.

    Args:
        residual: computes residuals g (n, 1) from outputs f (n, 1) and targets (n, k).
        targets: the m targets (m, k).
        first: the first knot of each grid (m,).
        knots: the number of knots of each grid.
        spacing: the distance h between two knots.

    Returns:
        The coefficients (m, knots).
    """
    intervals = knots + 2 * MARGIN_KNOTS + 1
    starts = first[:, None] + spacing * (np.arange(intervals) - MARGIN_KNOTS - 1)
    repeated = np.repeat(targets, intervals, axis=0)
    # for each interval between knots: the integral of g times the hat function that rises there, divided by h
    rising = np.zeros_like(starts)
    falling = np.zeros_like(starts)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        values = weight * residual((starts + node * spacing).reshape(-1, 1), repeated).reshape(starts.shape)
        rising += node * values
        falling += (1 - node) * values
    # the inner product of g with each knot's hat function, divided by h; including MARGIN_KNOTS at each end
    products = rising[:, :-1] + falling[:, 1:]
    offsets = np.arange(-MARGIN_KNOTS, MARGIN_KNOTS + 1)
    inverse = np.sqrt(3) * (np.sqrt(3) - 2) ** np.abs(offsets)
    windows = np.lib.stride_tricks.sliding_window_view(products, len(inverse), axis=1)
    coefficients: Floats = windows @ inverse
    return coefficients

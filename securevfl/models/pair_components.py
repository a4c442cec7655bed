"""The components of a party's columns: a few uncorrelated numbers of each row, whose products are interactions.

A model with pairs has one input for each pair of a component of one party and a component of another, the product of
the two. A party computes its components from its own columns alone:

1. The rank of each value among the training rows, scaled to the interval from -1 to 1. Equal values have equal ranks.
2. The Legendre polynomials of degree 1 to 3 of each rank. For uniform ranks they are uncorrelated, and their variances
   are 1/3, 1/5 and 1/7, so that straight lines come before curves in step 3.
3. The first principal components of these polynomials, divided by their standard deviations and clipped at 3.
4. Rounding to multiples of `COMPONENT_STEP`, which leaves 4 bits. The error has a standard deviation of an eighth, so
   1.5 % of a component's variance is noise. A fifth bit would add a quarter to the traffic of a training.

Products of uncorrelated components with a variance of 1 are nearly uncorrelated themselves, so that one step size
serves all of them. Labels are not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, SerializableFields

COMPONENT_BITS = 4
"""Number of bits of a component: an integer from -7 to 7."""
MAX_COMPONENT = 2 ** (COMPONENT_BITS - 1) - 1
MAX_COMPONENT_DEVIATIONS = 3.0
"""A component is clipped at this number of standard deviations."""
COMPONENT_STEP = MAX_COMPONENT_DEVIATIONS / MAX_COMPONENT
"""The value of a component whose integer is 1."""
DEGREES = 3
"""Number of Legendre polynomials of each column."""
MAX_COMPONENTS = 16
PAIRS_NOTE = """\
the two share holders also compute components of their columns, without labels; the model has an input for each
product of a component of one and a component of the other, so it learns interactions between their columns"""
"""Lines about pairs for the consent sheet."""
PAIR_RIDGE = 120.0
"""The ridge penalty on weights of pairs is PAIR_RIDGE times their number, divided by the number of training rows.

The penalty only makes the steps of these weights shorter. Noise in d weights that are trained on n rows increases the
loss by a multiple of d / n, so the steps are shorter the larger this is. `benchmarks.interactions` measures the choice.
"""

_MAX_KNOTS = 256  # numbers of a column between whose ranks other values are interpolated
_MIN_VARIANCE_SHARE = 1e-4  # principal components with a smaller share of the largest variance are left out
_ROWS_AT_ONCE = 8192

Components = NDArray[np.int8]
"""Components (n, r) of n rows, as multiples of `COMPONENT_STEP`."""


def pair_ridge(rows: int, products: int) -> float:
    """Return the ridge penalty on the weights of d = `products` pairs for n = `rows` training rows."""
    return PAIR_RIDGE * products / rows


def component_count(rank: int, columns: int) -> int:
    """Return the number of components of a party: `rank`, or fewer if it has few columns.

    The number follows from public sizes. If the columns do not have as many components, the last ones are 0.

    Args:
        rank: the number of components that the job asks for.
        columns: number of columns of the party.

    Returns:
        The number of components.
    """
    return min(rank, DEGREES * columns)


@dataclass(frozen=True, repr=False)
class PairComponents(SerializableFields):
    """The transformation from a party's columns to its components, fitted to training rows.

    Attributes:
        knots: values of each column in ascending order; a column with fewer values repeats its last one (d, k).
        ranks: the rank of each of these values, from -1 to 1 (d, k).
        mean: the mean of each polynomial (3 d,): all of degree 1, then those of degree 2 and 3.
        directions: the whitened principal components as combinations of the polynomials (3 d, r).
    """

    knots: Floats
    ranks: Floats
    mean: Floats
    directions: Floats

    @classmethod
    def fit(cls, X: Floats, rank: int) -> PairComponents:
        """Fit the components to columns X (n, d) of training rows.

        Args:
            X: the columns of the training rows alone.
            rank: the largest number of components.

        Returns:
            The transformation, with `component_count(rank, d)` components.
        """
        knots, ranks = zip(*(_ranked(column) for column in X.T), strict=True)
        fitted = cls(np.stack(knots), np.stack(ranks), np.zeros(DEGREES * X.shape[1]), np.zeros((0, 0)))
        total, moments = np.zeros(DEGREES * X.shape[1]), np.zeros((DEGREES * X.shape[1],) * 2)
        for start in range(0, len(X), _ROWS_AT_ONCE):
            polynomials = fitted.polynomials(X[start : start + _ROWS_AT_ONCE])
            total += polynomials.sum(axis=0)
            moments += polynomials.T @ polynomials
        mean = total / len(X)
        variances, vectors = np.linalg.eigh(moments / len(X) - np.outer(mean, mean))
        count = component_count(rank, X.shape[1])
        variances, vectors = variances[::-1][:count], vectors[:, ::-1][:, :count]
        # the sign of an eigenvector is arbitrary; its largest entry becomes positive, so that all machines agree
        vectors = vectors * np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(count)] < 0, -1.0, 1.0)
        has_variance = variances > max(_MIN_VARIANCE_SHARE * variances[0], 1e-12)
        directions = np.where(has_variance, vectors / np.sqrt(np.where(has_variance, variances, 1.0)), 0.0)
        return cls(fitted.knots, fitted.ranks, mean, directions)

    def __len__(self) -> int:
        return self.directions.shape[1]

    def transform(self, X: Floats) -> Components:
        """Return the components (n, r) of rows X (n, d) as integers, multiples of `COMPONENT_STEP`."""
        out = np.empty((len(X), len(self)), np.int8)
        for start in range(0, len(X), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            components = (self.polynomials(X[rows]) - self.mean) @ self.directions
            out[rows] = np.clip(np.rint(components / COMPONENT_STEP), -MAX_COMPONENT, MAX_COMPONENT)
        return out

    def polynomials(self, X: Floats) -> Floats:
        """Return the Legendre polynomials (n, 3 d) of the ranks of rows X (n, d)."""
        ranks = np.column_stack(
            [np.interp(column, *curve) for column, *curve in zip(X.T, self.knots, self.ranks, strict=True)]
        )
        squares = ranks * ranks
        return np.hstack([ranks, (3 * squares - 1) / 2, (5 * squares - 3) * ranks / 2])


def _ranked(column: Floats) -> tuple[Floats, Floats]:
    """Return at most `_MAX_KNOTS` values of a column, padded to this number, and the rank of each of them."""
    values, counts = np.unique(column, return_counts=True)
    ranks = (2 * np.cumsum(counts) - counts) / len(column) - 1  # the middle rank of all rows with a value
    if len(values) > _MAX_KNOTS:
        chosen = np.searchsorted(ranks, np.linspace(-1, 1, _MAX_KNOTS)).clip(0, len(values) - 1)
        chosen = np.unique(np.concatenate([[0], chosen[1:-1], [len(values) - 1]]))
        values, ranks = values[chosen], ranks[chosen]
    padding = _MAX_KNOTS - len(values)
    return np.pad(values, (0, padding), mode="edge"), np.pad(ranks, (0, padding), mode="edge")

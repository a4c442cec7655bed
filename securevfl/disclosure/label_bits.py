"""How much counts of the positive class in bins tell of labels, in bits.

For labels that are independent of each other a count of m of them has a variance of at most m / 4, and a whole number
of variance v an entropy of at most log2(2 pi e (v + 1 / 12)) / 2 (Cover and Thomas 2006, problem 8.7). So counts of k
bins of n rows tell k times as many bits at most, for m = n, while the n labels hold n times the entropy of one. From as
many bits on as they hold the counts may determine all of them; integers of two values are found by lattice reduction
far below as many equations as unknowns (`securevfl.audit.attacks.two_values`). Rows of rare bins together, or a bin of
one class, are found before: this is an average.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.tall import Rows, Stretch, gram
from securevfl.disclosure.leverage import ALONE

_NONE = 1e-9  # of the largest eigenvalue: below it is rounding


def told_bits(equations: int, rows: int) -> int:
    """Return the most bits that `equations` independent counts can tell of the labels of `rows` rows."""
    return math.ceil(equations * 0.5 * math.log2(2 * math.pi * math.e * (rows / 4 + 1 / 12)))


def label_entropy(later: NDArray[np.bool_]) -> float:
    """Bits that one of these labels (n,) holds by itself: 1 where half of them are of the positive class."""
    p = float(np.mean(later))
    return sum(-each * math.log2(each) for each in (p, 1 - p) if each > 0)


def alone(bins: Rows) -> int:
    """How many rows of a 0/1 matrix of bins (n x k) its counts single out: whose leverage exceeds `ALONE`.

    Where two bins differ by one row, the difference of their counts is that row's label. Leverage is that of
    `securevfl.disclosure.leverage`, by the k x k products of the columns.
    """
    stretch = Stretch(bins)
    values, vectors = np.linalg.eigh(gram(stretch))
    kept = values > _NONE * values[-1]
    W: Floats = vectors[:, kept] / np.sqrt(values[kept])
    return sum(int((np.square(block @ W).sum(axis=1) > ALONE).sum()) for _, block in stretch.blocks())

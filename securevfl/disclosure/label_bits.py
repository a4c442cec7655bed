"""How much labels hold, in bits, which what counts of the positive class in bins tell is a share of.

A count is told as a word of log2(2n) bits (`securevfl.protocols.bin_classes`), which tells as many bits of labels at
most, whatever a party has multiplied these by. The n labels hold n times the entropy of one. From as many bits on as
they hold the words may determine all of them; integers of two values are found by lattice reduction far below as many
equations as unknowns (`securevfl.audit.attacks.two_values`). Rows of rare bins together, or a bin of one
class, are found before: this is an average.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk, RowSource, gram
from securevfl.disclosure.leverage import HIGH_LEVERAGE

ZERO_EIGENVALUE = 1e-9  # of the largest eigenvalue: below it is rounding


def label_entropy(later: NDArray[np.bool_]) -> float:
    """Bits that one of these labels (n,) holds by itself: 1 where half of them are of the positive class."""
    p = float(np.mean(later))
    return sum(-each * math.log2(each) for each in (p, 1 - p) if each > 0)


def count_singled_out(bins: RowSource) -> int:
    """How many rows of a 0/1 matrix of bins (n x k) its counts single out: whose leverage exceeds `ALONE`.

    Where two bins differ by one row, the difference of their counts is that row's label. Leverage is that of
    `securevfl.disclosure.column_recovery`, by the k x k products of the columns.
    """
    stretch = RowChunk(bins)
    values, vectors = np.linalg.eigh(gram(stretch))
    kept = values > ZERO_EIGENVALUE * values[-1]
    W: Floats = vectors[:, kept] / np.sqrt(values[kept])
    return sum(int((np.square(block @ W).sum(axis=1) > HIGH_LEVERAGE).sum()) for _, block in stretch.blocks())

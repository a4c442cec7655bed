"""Information content of labels, in bits; counts of the positive class in bins are measured as a share of it.

A count is sent as a word of log2(2n) bits (`securevfl.protocols.bin_classes`), which discloses at most that many bits
of the labels, whatever the party has multiplied them by. The n labels hold n times the entropy of one label. Words of
as many bits as that may determine all labels. Integers of two values are found by lattice reduction from far fewer
equations than unknowns (`securevfl.audit.attacks.two_values`). This is an average: rows of rare bins, or bins of
one class, are found earlier.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk, RowSource, gram
from securevfl.disclosure.leverage import HIGH_LEVERAGE

ZERO_EIGENVALUE = 1e-9
"""Share of the largest eigenvalue below which an eigenvalue is a rounding error."""


def label_entropy(positive: NDArray[np.bool_]) -> float:
    """Return the entropy of one of these labels (n,) in bits: 1 if half of them are of the positive class."""
    p = float(np.mean(positive))
    return sum(-probability * math.log2(probability) for probability in (p, 1 - p) if probability > 0)


def count_singled_out(bins: RowSource) -> int:
    """Return how many rows of a 0/1 matrix of bins (n, k) its counts single out.

    A row is singled out if its leverage exceeds `HIGH_LEVERAGE`. If two bins differ by one row, for example, the
    difference of their counts is that row's label. The leverage is computed from the k x k products of the columns.
    """
    chunk = RowChunk(bins)
    eigenvalues, eigenvectors = np.linalg.eigh(gram(chunk))
    nonzero = eigenvalues > ZERO_EIGENVALUE * eigenvalues[-1]
    W: Floats = eigenvectors[:, nonzero] / np.sqrt(eigenvalues[nonzero])
    return sum(int((np.square(block @ W).sum(axis=1) > HIGH_LEVERAGE).sum()) for _, block in chunk.blocks())

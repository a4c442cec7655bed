"""Information content of labels in bits, and how many of them the counts of the positive class in bins disclose.

A party may replace a column by weights of evidence: it divides the column into bins, and each value becomes the log
odds of the label in its bin. For this it learns how many rows of each bin are of the positive class. Each count is a
number of log2(2 n) bits (`securevfl.protocols.bin_classes`). It discloses at most that many bits of the labels, even if
the party cheats and uses other factors than 0 and 1 for the rows. The n labels have n times the entropy of one label.
Counts with as many bits in total may determine all labels: lattice reduction finds integers of two values from far
fewer equations than unknowns (`securevfl.audit.attacks.two_values`). This is an average; the labels of rows in rare
bins, or in bins whose rows are all of one class, follow from fewer counts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk, RowSource, gram
from securevfl.disclosure.leverage import HIGH_LEVERAGE

ZERO_EIGENVALUE = 1e-9
"""Eigenvalues below this share of the largest one are rounding errors of zero."""


def label_entropy(positive: NDArray[np.bool_]) -> float:
    """Return the entropy of one of n labels in bits: 1 if half of them are of the positive class, else less."""
    p = float(np.mean(positive))
    return sum(-probability * math.log2(probability) for probability in (p, 1 - p) if probability > 0)


def count_singled_out(bins: RowSource) -> int:
    """Return the number of rows whose label a party can compute from the class counts of its bins.

    Such a row has a leverage (`securevfl.disclosure.leverage`) above `HIGH_LEVERAGE`: some combination of the counts
    depends mainly on its label. If two bins differ by one row, for example, the difference of their counts is that
    row's label. The leverage is computed from the k x k products of the columns.

    Args:
        bins: the 0/1 matrix (n, k) that states which of k bins a row is in.

    Returns:
        The number of rows.
    """
    chunk = RowChunk(bins)
    eigenvalues, eigenvectors = np.linalg.eigh(gram(chunk))
    nonzero = eigenvalues > ZERO_EIGENVALUE * eigenvalues[-1]
    W: Floats = eigenvectors[:, nonzero] / np.sqrt(eigenvalues[nonzero])
    return sum(int((np.square(block @ W).sum(axis=1) > HIGH_LEVERAGE).sum()) for _, block in chunk.blocks())

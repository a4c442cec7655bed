"""Information content of one row of a party's columns, in bits: an upper bound of what the row's scores can reveal.

The information content is a sum over columns, in decreasing order of entropy. Each column adds its entropy at a
resolution of 1/8 standard deviation, minus its mutual information with the columns before it, -1/2 log2 v. Here v is
the share of its variance that the columns before it do not explain. For normal columns this is exact, and the mutual
information of all columns is -1/2 log2 det R for the correlation matrix R. v counts as 1/64 at least, and no column
adds less than 0 bits. So columns that share one factor do not count as independent, and one-hot columns, which
determine each other, never count negatively.

Examples, in bits per row: 4.5 for one column of bill amounts, 8 for ten 0/1 columns, 70 for the twenty columns of the
breast cancer table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.disclosure.score_reading import readable_shares

VALUE_STEP = 1 / 8
"""Resolution of a column, in standard deviations."""
MIN_VARIANCE = 1 / 64
"""Smallest share v of a column's variance that counts as unexplained by the columns before it."""
_JITTER = 1e-9  # added to the diagonal, so that a Cholesky factor exists even if columns are linearly dependent
EQUAL_VALUES = 1e-9
"""Relative distance below which values differ only by rounding."""


@dataclass(frozen=True)
class InformationContent:
    """The number of bits of information in one row of a party's columns, on average.

    Attributes:
        bits: the information content.
        max_share: the largest share of `bits` that is lost when one column is removed; 0 for a single column.
        readable_share: the largest share of the variance of one column that a score can reveal
            (`securevfl.disclosure.score_reading`).
        readable_column: the name of this column; empty if the names are unknown.
    """

    bits: float
    max_share: float
    readable_share: float = 0.0
    readable_column: str = ""

    def in_words(self, bits: int, outputs: int, owner: str) -> str:
        """State how much about a row of `owner` its scores can reveal, `outputs` numbers of `bits` bits each."""
        sent = bits * outputs
        numbers = f"{outputs} numbers of {bits} bits" if outputs > 1 else f"{bits} bits"
        of_row = f"{self.bits:.0f} bits that the columns of {owner} contain about a row"
        if sent >= self.bits:
            return f"The scores of a row ({numbers}) can reveal all {of_row}."
        scores = f"the scores of a row ({numbers})" if outputs > 1 else "a score"
        return f"The {sent} bits of {scores} are at most {sent / self.bits:.0%} of the {of_row}."

    @classmethod
    def of(cls, X: Floats, names: Sequence[str] = ()) -> InformationContent:
        """Estimate the information content from some rows of a table, whether or not they are scaled.

        Args:
            X: the rows (n, d).
            names: the names of the d columns, if they are known.

        Returns:
            The information content of a row.
        """
        centred = X - X.mean(axis=0)
        deviation = centred.std(axis=0)
        varies = deviation > EQUAL_VALUES * np.abs(X).max(axis=0, initial=0.0)
        unit = centred[:, varies] / deviation[varies]
        column_entropies, R = np.array([_entropy(column) for column in unit.T]), unit.T @ unit / max(1, len(X))
        total, d = _joint_bits(column_entropies, R), len(column_entropies)
        readable = readable_shares(unit)
        readable_share = float(readable.max(initial=0.0))
        readable_column = names[np.flatnonzero(varies)[int(np.argmax(readable))]] if readable_share and names else ""
        if d < 2 or not total:
            return cls(total, 0.0, readable_share, readable_column)
        # only columns of enough entropy can contain half of the information content, so the others are not tried
        candidates = np.flatnonzero(column_entropies - np.log2(MIN_VARIANCE) / 2 >= total / 2)
        remaining = (np.delete(np.arange(d), j) for j in candidates)
        shares = (1 - _joint_bits(column_entropies[kept], R[np.ix_(kept, kept)]) / total for kept in remaining)
        return cls(total, max(shares, default=0.0), readable_share, readable_column)


def entropies(X: Floats) -> Floats:
    """Return the entropy of each column of X (n, d), in bits per row; 0 for a constant column."""
    return np.array([InformationContent.of(column[:, None]).bits for column in X.T])


def _entropy(column: Floats) -> float:
    _, counts = np.unique(np.rint(column / VALUE_STEP), return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


def _joint_bits(column_entropies: Floats, R: Floats) -> float:
    """Return the joint information content of columns with these entropies (d,) and correlations R (d, d)."""
    if not len(column_entropies):
        return 0.0
    order = np.argsort(-column_entropies, kind="stable")
    ordered = R[np.ix_(order, order)] + _JITTER * np.eye(len(order))
    variances = np.diag(np.linalg.cholesky(ordered)) ** 2
    added = column_entropies[order] + 0.5 * np.log2(np.clip(variances, MIN_VARIANCE, 1.0))
    return float(np.maximum(added, 0.0).sum())


def code_bits(columns: int, max_codes: int) -> float:
    """Return how many bits the reason codes of a row disclose at most.

    Reason codes name the k of a party's n columns that raise the score of a row most, the largest contribution first.
    They are one of n! / (n - k)! cases.

    Args:
        columns: number of columns n.
        max_codes: number of codes k.

    Returns:
        log2(n! / (n - k)!).
    """
    return sum(math.log2(columns - position) for position in range(min(max_codes, columns)))

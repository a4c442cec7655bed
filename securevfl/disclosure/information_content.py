"""How many bits the columns of a row hold: what scores of a few bits each are weighed against.

A row's columns are worth what it takes to tell them to an eighth of a deviation: the entropies of each column in such
steps, less what columns say of each other, by the determinant of their correlations (of normal columns the
information that they share is -1/2 log2 det R). Eigenvalues count as 1/64 at least, and the whole as nothing at
least: columns that others determine hold nothing of their own, and three bits of each other.

Measured: 4.5 bits for one column of bill amounts, 8 for ten columns of 0/1, 70 for twenty of breast cancer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats

VALUE_STEP = 1 / 8  # of a deviation

MIN_EIGENVALUE = 1 / 64  # of an eigenvalue


@dataclass(frozen=True)
class InformationContent:
    """What a row of one party's columns holds: bits, and the largest part of them that leaves with a single one of
    several columns."""

    bits: float
    max_share: float

    def in_words(self, bits: int, outputs: int) -> str:
        """Say in words what so many scores of a row, of so many bits each, are against this."""
        sent, most = bits * outputs, min(bits * outputs, self.bits)
        numbers = f"{outputs} numbers, of {bits} bits each" if outputs > 1 else f"one number of {bits} bits"
        share = 1.0 if not self.bits else most / self.bits
        told = "so all of it may follow" if sent >= self.bits else f"of which it tells {share:.0%} at most"
        return f"{numbers}; its row holds {self.bits:.0f} bits, {told}"

    @classmethod
    def of(cls, X: Floats) -> InformationContent:
        """Measure how many bits the columns hold from some rows of a table (n x d), scaled or not."""
        # the entropy, in bits, of each column that varies, and the correlations of these columns
        centred = X - X.mean(axis=0)
        deviation = centred.std(axis=0)
        varies = deviation > EQUAL_VALUES * np.abs(X).max(axis=0, initial=0.0)
        unit = centred[:, varies] / deviation[varies]
        entropies, R = np.array([_entropy(column) for column in unit.T]), unit.T @ unit / max(1, len(X))
        whole, d = _joint_bits(entropies, R), len(entropies)
        if d < 2 or not whole:
            return cls(whole, 0.0)
        alone = np.flatnonzero(entropies - np.log2(MIN_EIGENVALUE) / 2 >= whole / 2)  # others take less with them
        kept = (np.delete(np.arange(d), j) for j in alone)
        return cls(
            whole, max((1 - _joint_bits(entropies[each], R[np.ix_(each, each)]) / whole for each in kept), default=0.0)
        )


def entropies(X: Floats) -> Floats:
    """Return the entropy of each column (n x d), in bits a row: 0 of one that does not vary."""
    return np.array([InformationContent.of(column[:, None]).bits for column in X.T])


def _entropy(column: Floats) -> float:
    _, counts = np.unique(np.rint(column / VALUE_STEP), return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


def _joint_bits(entropies: Floats, R: Floats) -> float:
    if not len(entropies):
        return 0.0
    shared = 0.5 * np.log2(np.maximum(np.linalg.eigvalsh(R), MIN_EIGENVALUE)).sum()
    return max(0.0, float(entropies.sum() + shared))


# How much reason codes tell of a row: which k of a party's n columns cost it most, in order, under names of its own.
#
# Codes in order are one of n! / (n - k)! cases, so they tell log2 of that in bits at most.


def code_bits(columns: int, most: int) -> float:
    """Return how much `most` codes of a row tell of it at most, of a party with so many columns: log2 of
    n! / (n - k)!."""
    return sum(math.log2(columns - each) for each in range(min(most, columns)))


EQUAL_VALUES = 1e-9  # of the reach of a column: closer values differ by rounding

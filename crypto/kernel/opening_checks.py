"""Check columns: random combinations of the columns of J that detect changes of decrypted values.

A key holder decrypts products of its g with the d columns of an evaluator's matrix J, and could return other values.
The evaluator therefore adds check columns to J. With the columns x_j of J as integers:

    rho_j           a secret weight, uniform in [-1, 1) / max(1, sqrt(d / 3))
    check column    sum over j of rho_j * x_j, each entry rounded up or down at random

A check column is multiplied, blinded and decrypted like the columns of J, so the holder cannot distinguish it. The
holder removes the lowest `drop` bits of every decrypted value, so values are integers ("levels") modulo q / 2^drop. Let
v_j be the value of column j, and v the value of the check column. Then the difference

    v - sum over j of rho_j * v_j

is small: it contains only the random numbers (dithers) that the holder has added to each value, and the effect of
rounding the check column. The standard deviation of the difference is known (`check_tolerance`). If the holder changes
v_j by Delta, the difference changes by rho_j * Delta, and the holder does not know rho_j. Every check column is a
separate test for each of the c outputs (columns of g). docs/proof.md has the probabilities.

There are at least `MIN_CHECKS` and at most `MAX_CHECKS` check columns. Within these limits, they fill the last block of
columns. Their number depends on the layout and d alone (`columns_with_checks`).
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_parameters import Profile
from securevfl.crypto.prg import random_words

MIN_CHECKS, MAX_CHECKS = 3, 20
TEST_DEVIATIONS = 9.0
"""Tolerance of a test in standard deviations. A correct answer fails with probability <= 2 * exp(-81 / 2) = 2^-57.4."""
ROUNDING_VARIANCE = 0.25
"""Upper bound on the variance of an error of rounding to an integer, treated as a sub-Gaussian variable."""


def columns_with_checks(layout: RingLayout, d: int) -> int:
    """Return the number of columns that are multiplied for d columns of J, including the checks."""
    return min(layout.column_blocks(d + MIN_CHECKS) * layout.columns, d + MAX_CHECKS)


def draw_check_weights(d: int, checks: int) -> Floats:
    """Draw new secret weights rho (d, checks)."""
    words = random_words(d * checks).reshape(d, checks)
    uniform = np.asarray((words >> np.uint64(11)) * 2.0**-52 - 1.0, np.float64)
    return uniform / max(1.0, math.sqrt(d / 3))


def append_checks(ints: Floats, rho: Floats) -> Floats:
    """Append the check columns to rows of integers.

    Args:
        ints: the rows (m, d).
        rho: the weights (d, checks).

    Returns:
        The rows (m, d + checks).
    """
    exact = ints @ rho
    fractions = (random_words(exact.size) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([ints, np.floor(exact + fractions.reshape(exact.shape))], axis=1)


def check_tolerance(rho: Floats, layout: RingLayout, profile: Profile, unit: float) -> Floats:
    """Return the largest distance from zero that each test accepts.

    Args:
        rho: the weights (d, checks).
        layout: the division of matrices into blocks (`ring_layout.py`).
        profile: the sizes of the scheme, such as the number of bits that rounding removes.
        unit: the number of levels by which a decrypted value changes if one entry of a column changes by 1 and g is at
            its bound.

    Returns:
        The tolerances (checks,) in levels.
    """
    dither = 4.0 ** (profile.k - profile.drop - 1) + ROUNDING_VARIANCE
    deviation = np.sqrt(dither * (1 + (rho**2).sum(axis=0)) + ROUNDING_VARIANCE * layout.n * unit**2)
    entry_errors = layout.sample_blocks + layout.column_blocks(len(rho)) * np.abs(rho).max()
    return np.asarray(TEST_DEVIATIONS * deviation + unit * entry_errors)


def passes_checks(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
    """Return whether decrypted values pass all tests.

    Args:
        opened: decrypted values (d + checks, c), as integers in [-levels / 2, levels / 2).
        rho: the weights (d, checks).
        levels: number of possible values.
        within: the tolerance of each test (checks,), in levels.

    Returns:
        Whether all tests pass.
    """
    deviation = opened[len(rho) :] - rho.T @ opened[: len(rho)]
    deviation -= levels * np.rint(deviation / levels)
    return bool((np.abs(deviation) <= within[:, None]).all())

"""Check columns: random combinations of the columns of J that detect changes of decrypted values.

A check column is a combination of the encoded columns of J, which are integers x_j:

    rho_j    uniform in [-1, 1) / m with m = max(1, sqrt(d / 3)), drawn by the owner of J
    check    sum_j rho_j x_j, each entry rounded up or down at random

It is encoded, multiplied, blinded and decrypted like the columns, so it is uniform to the key holder as well. Let v_j
be the decrypted values of the columns and v that of the check, in levels. Then

    v - sum_j rho_j v_j  modulo q / 2^drop

is the dither of the check minus those of the columns, plus the effect of rounding the entries of the check: it is
random, bounded, and its deviation is known (`check_tolerance`). A change of a value by Delta moves it by rho_j Delta,
which only the owner of J knows. Each check and each output of g is a separate test. docs/proof.md has the
probabilities.

The number of checks follows from the layout and d alone: checks fill the blocks that exist anyway
(`columns_with_checks`).
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
"""Tolerance of a test in standard deviations; an honest answer fails with probability <= 2 exp(-81 / 2) = 2^-57.4."""
ROUNDING_VARIANCE = 0.25
"""Bound on the variance, as a sub-Gaussian variable, of rounding to a whole level or entry."""


def columns_with_checks(layout: RingLayout, d: int) -> int:
    """Return how many columns are multiplied for d columns of J, including the checks that existing blocks hold."""
    return min(layout.column_blocks(d + MIN_CHECKS) * layout.columns, d + MAX_CHECKS)


def draw_check_weights(d: int, checks: int) -> Floats:
    """Draw fresh weights rho (d, checks)."""
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
    """Return how far each test may be from zero.

    Args:
        rho: the weights (d, checks).
        layout: the layout.
        profile: the sizes of the scheme.
        unit: levels by which 1 in an entry of a column moves a value if g is at its bound.

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
        opened: centred values (d + checks, c) in levels.
        rho: the weights (d, checks).
        levels: number of levels.
        within: the tolerances (checks,) in levels.

    Returns:
        True if they pass.
    """
    deviation = opened[len(rho) :] - rho.T @ opened[: len(rho)]
    deviation -= levels * np.rint(deviation / levels)
    return bool((np.abs(deviation) <= within[:, None]).all())

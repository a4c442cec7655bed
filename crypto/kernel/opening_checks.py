"""Check columns: random combinations of the columns of J that show whether what was opened is what was decrypted."""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_parameters import Profile
from securevfl.crypto.prg import random_words

MIN_CHECKS, MAX_CHECKS = 3, 20  # check columns beside those of J (`columns_with_checks`)


TEST_DEVIATIONS = 9.0  # a test fails by chance with probability 2 exp(-81 / 2) = 2^-57.4 at most

ROUNDING_VARIANCE = 0.25  # variance of a rounding to a whole level or entry, at most, as a sub-Gaussian one


def columns_with_checks(layout: RingLayout, d: int) -> int:
    """How many columns are multiplied for d of J: these, and as many checks as fit in blocks that are there anyway."""
    return min(layout.column_blocks(d + MIN_CHECKS) * layout.columns, d + MAX_CHECKS)


def draw_check_weights(d: int, checks: int) -> Floats:
    """rho (d x checks), drawn afresh."""
    words = random_words(d * checks).reshape(d, checks)
    uniform = np.asarray((words >> np.uint64(11)) * 2.0**-52 - 1.0, np.float64)
    return uniform / max(1.0, math.sqrt(d / 3))


def append_checks(ints: Floats, rho: Floats) -> Floats:
    """Rows of whole numbers (m x d), and their check columns beside them (m x (d + checks))."""
    exact = ints @ rho
    parts = (random_words(exact.size) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([ints, np.floor(exact + parts.reshape(exact.shape))], axis=1)


def check_tolerance(rho: Floats, layout: RingLayout, profile: Profile, unit: float) -> Floats:
    """Return (checks,): how far a test may be from zero, in levels. unit: levels that 1 in an entry moves a value by, g
    at its bound."""
    dither = 4.0 ** (profile.k - profile.drop - 1) + ROUNDING_VARIANCE
    spread = np.sqrt(dither * (1 + (rho**2).sum(axis=0)) + ROUNDING_VARIANCE * layout.n * unit**2)
    ones = layout.sample_blocks + layout.column_blocks(len(rho)) * np.abs(rho).max()  # of an entry
    return np.asarray(TEST_DEVIATIONS * spread + unit * ones)


def passes_checks(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
    """Whether opened levels ((d + checks) x c), about zero, pass all tests."""
    rest = opened[len(rho) :] - rho.T @ opened[: len(rho)]
    rest -= levels * np.rint(rest / levels)
    return bool((np.abs(rest) <= within[:, None]).all())

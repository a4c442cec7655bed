"""Columns beside those of J that tell a passive party whether what was opened is what was decrypted.

A check column is a random combination of the columns of J as they are encoded, integers x_j:

    rho_j    uniform in [-1, 1) / m, m = max(1, sqrt(d / 3)), drawn by the owner of J
    check    sum_j rho_j x_j, each entry rounded up or down at random

It is encoded, multiplied, blinded and opened as the columns are, so to the key holder it is uniform like them. With v_j
what the columns open to and v what the check does, in levels,

    v - sum_j rho_j v_j  modulo q / 2^drop

is the dither of the one less that of the others, and what rounding the check's entries adds: random, bounded, and known
in its deviation (`tolerance`). A value that was changed by Delta moves it by rho_j Delta, which nobody but the owner
knows. Each check and each output of g is a test of its own. docs/proof.md has the probabilities.

How many there are follows from the layout and d alone: those that fit in blocks that are there anyway (`checked`).
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.lattice.layout import Blocked
from securevfl.crypto.lattice.polynomial_ring import random_words
from securevfl.crypto.lattice.profile import Profile

DEVIATIONS = 9.0  # a test fails by chance with probability 2 exp(-81 / 2) = 2^-57.4 at most
ROUNDED = 0.25  # variance of a rounding to a whole level or entry, at most, as a sub-Gaussian one


def combinations(d: int, checks: int) -> Floats:
    """rho (d x checks), drawn afresh."""
    words = random_words(d * checks).reshape(d, checks)
    uniform = np.asarray((words >> np.uint64(11)) * 2.0**-52 - 1.0, np.float64)
    return uniform / max(1.0, math.sqrt(d / 3))


def beside(ints: Floats, rho: Floats) -> Floats:
    """Rows of whole numbers (m x d), and their check columns beside them (m x (d + checks))."""
    exact = ints @ rho
    parts = (random_words(exact.size) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([ints, np.floor(exact + parts.reshape(exact.shape))], axis=1)


def tolerance(rho: Floats, layout: Blocked, profile: Profile, unit: float) -> Floats:
    """Return (checks,): how far a test may be from zero, in levels. unit: levels that 1 in an entry moves a value by, g
    at its bound."""
    dither = 4.0 ** (profile.k - profile.drop - 1) + ROUNDED
    spread = np.sqrt(dither * (1 + (rho**2).sum(axis=0)) + ROUNDED * layout.n * unit**2)
    ones = layout.sample_blocks + layout.column_blocks(len(rho)) * np.abs(rho).max()  # in place of zero polynomials
    return np.asarray(DEVIATIONS * spread + unit * ones)


def fits(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
    """Whether opened levels ((d + checks) x c), about zero, pass all tests."""
    rest = opened[len(rho) :] - rho.T @ opened[: len(rho)]
    rest -= levels * np.rint(rest / levels)
    return bool((np.abs(rest) <= within[:, None]).all())

"""How weights come of the changes u_s = W^T g_s of the visits so far, in integers: the same rule runs on any share.

A rule is linear with coefficients that are known before the training starts, so that parties apply it each to its own
shares, of weights as of masks, without a message and without ever dividing:

    theta_t = theta_0 - sum_{s < t} c_ts u_s,      c_ts integers at the scale 2^m

A first-order method with momentum has that form once its coefficients are fixed; they are rounded to m bits, and the
changes are kept, so that no rounding adds up. Its state is an array of words (k x d x c), theta_0 first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from securevfl.crypto.share_ring import Words

__all__ = ["Descent", "FixedCoefficients", "Rule"]


class Rule(ABC):
    """A linear rule. Words wrap modulo 2^64; callers reduce them to their ring."""

    m: int  # bits of the coefficients

    def start(self, theta: Words) -> Words:
        """The state (1 x d x c) before the first visit, from a share of theta_0 (d x c)."""
        return theta[None]

    @abstractmethod
    def step(self, state: Words, change: Words) -> Words:
        """The state after one more visit, given a share (d x c) of its change."""

    @abstractmethod
    def theta(self, state: Words) -> Words:
        """The share (d x c) of the weights."""


class Descent(Rule):
    """theta -= u: gradient descent with a step size that is in W."""

    m = 0

    def step(self, state: Words, change: Words) -> Words:
        after: Words = state - change
        return after

    def theta(self, state: Words) -> Words:
        theta: Words = state[0]
        return theta


class FixedCoefficients(Rule):
    """Any first-order method with coefficients c_ts, in floats, that are known ahead: row(t) is c_t0 .. c_t,t-1."""

    def __init__(self, row: Callable[[int], Sequence[float]], m: int = 8) -> None:
        self.m = m
        self._row = row

    def step(self, state: Words, change: Words) -> Words:
        return np.concatenate([state, change[None]])

    def theta(self, state: Words) -> Words:
        t = len(state) - 1
        row = np.ldexp(np.asarray(self._row(t), np.float64).reshape(t), self.m)
        coefficients = np.rint(row).astype(np.int64).view(np.uint64)
        theta: Words = state[0] - (state[1:] * coefficients[:, None, None]).sum(axis=0, dtype=np.uint64)
        return theta

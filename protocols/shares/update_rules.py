"""How weights come of the changes u_s = W^T g_s of the visits so far, in integers: the same rule runs on any share.

A rule is linear with coefficients that are known before the training starts, so that parties apply it each to its own
shares, of weights as of masks, without a message and without ever dividing:

    theta_t = theta_0 - sum_{s < t} c_ts u_s,      c_ts integers at the scale 2^m

A method with momentum has that form once its coefficients are fixed, weight decay and step sizes that fall have it by
themselves. Coefficients are rounded to m bits and what they multiply is kept, so that no rounding adds up. A state is
an array of words (k x d x c), theta_0 first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words

Coefficients = Callable[[int], Sequence[float]]  # by visits so far


class LinearRule(ABC):
    """A linear rule. Words wrap modulo 2^64; callers reduce them to their ring. `visit` counts the visits so far."""

    m: int  # bits of the coefficients

    def start(self, theta: Words) -> Words:
        """Return the state (k x d x c) before the first visit, from a share of theta_0 (d x c)."""
        return theta[None]

    @abstractmethod
    def step(self, state: Words, change: Words, visit: int) -> Words:
        """Return the state after one more visit, given a share (d x c) of its change."""

    @abstractmethod
    def theta(self, state: Words, visit: int) -> Words:
        """Return the share (d x c) of the weights."""

    def sparing(self) -> LinearRule:
        """Return the same rule for a party whose last weight is an intercept, which does not decay."""
        return self


class Descent(LinearRule):
    """theta -= u: gradient descent with a step size that is in W."""

    m = 0

    def step(self, state: Words, change: Words, visit: int) -> Words:
        after: Words = state - change
        return after

    def theta(self, state: Words, visit: int) -> Words:
        theta: Words = state[0]
        return theta


@dataclass(frozen=True)
class ScheduledDescent(LinearRule):
    """theta -= r_t u with step sizes that are fixed ahead, and a decay of all weights at the end of every epoch.

    rates: r_t, of the step size in W, by visit; all 1 if empty. decays: what an epoch leaves of the weights, by epoch;
    1 throughout if empty. batches: visits an epoch.
    """

    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    batches: int = 1
    rate_bits: int = 8
    decay_bits: int = 8
    spares_last: bool = False

    @property
    def m(self) -> int:  # type: ignore[override]
        return (self.rate_bits if self.rates else 0) + (self.decay_bits if self.decays else 0)

    def start(self, theta: Words) -> Words:
        return np.concatenate([theta[None], np.zeros((max(1, len(self.decays)), *theta.shape), np.uint64)])

    def step(self, state: Words, change: Words, visit: int) -> Words:
        after = state.copy()
        factor = np.uint64(_whole([self.rates[visit]], self.rate_bits)[0]) if self.rates else np.uint64(1)
        after[1 + (visit // self.batches if self.decays else 0)] -= change * factor
        return after

    def theta(self, state: Words, visit: int) -> Words:
        if not self.decays:
            plain: Words = state[0] + state[1]
            return plain
        epoch = min(visit // self.batches, len(self.decays))
        left = np.cumprod([1.0, *self.decays])
        factors = [left[epoch] / left[own] for own in range(min(epoch + 1, len(self.decays)))]
        even = [1.0] * len(factors) if self.spares_last else None
        theta: Words = state[0] + _combined(state[1 : 1 + len(factors)], factors, even, self.decay_bits)
        return theta

    def sparing(self) -> LinearRule:
        return replace(self, spares_last=True)


class FixedCoefficients(LinearRule):
    """Any first-order method with coefficients c_ts, in floats, that are known ahead: row(t) is c_t0 .. c_t,t-1.

    last: the same for a weight that does not decay, if that is another one.
    """

    def __init__(
        self, row: Coefficients, m: int = 8, last: Coefficients | None = None, *, spares_last: bool = False
    ) -> None:
        self.m = m
        self._row, self._last, self._spares = row, last, spares_last

    def step(self, state: Words, change: Words, visit: int) -> Words:
        return np.concatenate([state, change[None]])

    def theta(self, state: Words, visit: int) -> Words:
        t = len(state) - 1
        last = self._last(t) if self._spares and self._last is not None else None
        theta: Words = state[0] - _combined(state[1:], self._row(t), last, self.m)
        return theta

    def sparing(self) -> LinearRule:
        return FixedCoefficients(self._row, self.m, self._last, spares_last=True)


def _whole(factors: Sequence[float], bits: int) -> NDArray[np.uint64]:
    """Factors at `bits` bits, as words."""
    return np.rint(np.ldexp(np.asarray(factors, np.float64), bits)).astype(np.int64).view(np.uint64)


def _combined(parts: Words, factors: Sequence[float], last: Sequence[float] | None, bits: int) -> Words:
    """Sum parts (k x d x c), each times its factor, to (d x c); the last of the d rows takes the factors of `last`."""
    total: Words = (parts * _whole(factors, bits).reshape(-1, 1, 1)).sum(axis=0, dtype=np.uint64)
    if last is not None:
        total[-1] = (parts[:, -1] * _whole(last, bits).reshape(-1, 1)).sum(axis=0, dtype=np.uint64)
    return total

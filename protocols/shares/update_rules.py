"""Linear update rules: how weights follow from the gradients so far, computed on integers and on any additive share.

u_s = W^T g_s is the change of iteration s. A rule is linear in these, with coefficients that are known before the
training starts. Each party therefore applies it to its shares of weights and of masks, without a message and without a
division:

    theta_t = theta_0 - sum_{s < t} c_ts u_s,      c_ts integers at the scale 2^m

Momentum methods with fixed coefficients, weight decay and decreasing step sizes all have this form. Coefficients are
rounded to m bits, and the factors that they multiply are stored, so rounding errors do not accumulate. A state is an
array of words (k, d, c) that begins with theta_0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words

Coefficients = Callable[[int], Sequence[float]]
"""Maps the number t of iterations so far to c_t0 .. c_t,t-1."""


class LinearRule(ABC):
    """A linear update rule. Words wrap modulo 2^64; callers reduce them to their ring.

    Attributes:
        m: the number of fractional bits of the coefficients.
    """

    m: int

    def start(self, theta: Words) -> Words:
        """Return the state (k, d, c) before the first iteration, from a share of theta_0 (d, c)."""
        return theta[None]

    @abstractmethod
    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration.

        Args:
            state: the state (k, d, c).
            change: a share of W^T g (d, c).
            iteration: the number of iterations so far.

        Returns:
            The new state.
        """

    @abstractmethod
    def theta(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the weights after `iteration` iterations."""

    def with_intercept(self) -> LinearRule:
        """Return the rule for a party whose last weight is an intercept, which does not decay."""
        return self


class Descent(LinearRule):
    """theta -= u: gradient descent whose step size is part of W."""

    m = 0

    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration."""
        after: Words = state - change
        return after

    def theta(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the weights."""
        theta: Words = state[0]
        return theta


@dataclass(frozen=True)
class ScheduledDescent(LinearRule):
    """theta -= r_t u with step sizes fixed in advance, and weight decay at the end of every epoch.

    Attributes:
        rates: r_t by iteration, relative to the step size in W; all 1 if empty.
        decays: the factor that an epoch leaves of the weights, by epoch; all 1 if empty.
        batches: iterations of an epoch.
        rate_bits: fractional bits of a rate.
        decay_bits: fractional bits of a decay.
        has_intercept: True if the last weight does not decay.
    """

    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    batches: int = 1
    rate_bits: int = 8
    decay_bits: int = 8
    has_intercept: bool = False

    @property
    def m(self) -> int:  # type: ignore[override]
        """The number of fractional bits of the coefficients."""
        return (self.rate_bits if self.rates else 0) + (self.decay_bits if self.decays else 0)

    def start(self, theta: Words) -> Words:
        """Return the state before the first iteration: theta_0, and one sum of changes for each epoch."""
        return np.concatenate([theta[None], np.zeros((max(1, len(self.decays)), *theta.shape), np.uint64)])

    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration."""
        after = state.copy()
        factor = np.uint64(_to_words([self.rates[iteration]], self.rate_bits)[0]) if self.rates else np.uint64(1)
        after[1 + (iteration // self.batches if self.decays else 0)] -= change * factor
        return after

    def theta(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the weights."""
        if not self.decays:
            undecayed: Words = state[0] + state[1]
            return undecayed
        epoch = min(iteration // self.batches, len(self.decays))
        remaining = np.cumprod([1.0, *self.decays])
        factors = [remaining[epoch] / remaining[start] for start in range(min(epoch + 1, len(self.decays)))]
        intercept_factors = [1.0] * len(factors) if self.has_intercept else None
        summands = state[1 : 1 + len(factors)]
        theta: Words = state[0] + _weighted_sum(summands, factors, intercept_factors, self.decay_bits)
        return theta

    def with_intercept(self) -> LinearRule:
        """Return the rule for a party whose last weight is an intercept."""
        return replace(self, has_intercept=True)


class FixedCoefficients(LinearRule):
    """Any first-order method whose coefficients c_ts are known in advance.

    Args:
        row: maps t to the coefficients c_t0 .. c_t,t-1.
        m: the number of fractional bits of the coefficients.
        last: the coefficients of a weight that does not decay, if they differ.
        has_intercept: True if the last weight does not decay.
    """

    def __init__(
        self, row: Coefficients, m: int = 8, last: Coefficients | None = None, *, has_intercept: bool = False
    ) -> None:
        self.m = m
        self._row, self._intercept_row, self._has_intercept = row, last, has_intercept

    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration: all changes are stored."""
        return np.concatenate([state, change[None]])

    def theta(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the weights."""
        t = len(state) - 1
        row = self._intercept_row if self._has_intercept else None
        theta: Words = state[0] - _weighted_sum(state[1:], self._row(t), None if row is None else row(t), self.m)
        return theta

    def with_intercept(self) -> LinearRule:
        """Return the rule for a party whose last weight is an intercept."""
        return FixedCoefficients(self._row, self.m, self._intercept_row, has_intercept=True)


def _to_words(factors: Sequence[float], bits: int) -> NDArray[np.uint64]:
    """Return factors with this number of fractional bits, as words."""
    return np.rint(np.ldexp(np.asarray(factors, np.float64), bits)).astype(np.int64).view(np.uint64)


def _weighted_sum(
    summands: Words, factors: Sequence[float], intercept_factors: Sequence[float] | None, bits: int
) -> Words:
    """Return the weighted sum of summands (k, d, c), with factors of this number of fractional bits.

    Args:
        summands: k arrays (d, c).
        factors: one factor for each summand.
        intercept_factors: the factors of the last of the d rows, if they differ.
        bits: fractional bits of the factors.

    Returns:
        The sum (d, c).
    """
    total: Words = (summands * _to_words(factors, bits).reshape(-1, 1, 1)).sum(axis=0, dtype=np.uint64)
    if intercept_factors is not None:
        factors_of_last = _to_words(intercept_factors, bits).reshape(-1, 1)
        total[-1] = (summands[:, -1] * factors_of_last).sum(axis=0, dtype=np.uint64)
    return total

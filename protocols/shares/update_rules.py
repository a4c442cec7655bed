"""Linear update rules: how the weights after t iterations are computed from the gradients of all t iterations.

theta_t (d, c) are the weights after t iterations, for d columns and c model outputs. u_s = W^T g_s (d, c) is the change
of iteration s: the gradient times the step size. A rule is a linear combination with coefficients that are known before
the training starts:

    theta_t = theta_0 - sum over s < t of coefficient[t, s] * u_s

Weights and changes are secret-shared: each party has summands modulo 2^64 ("words"). Because the rule is linear, each
party applies it to its own summands, without a message and without a division. Momentum methods with fixed
coefficients, weight decay and decreasing step sizes all have this form. A coefficient is rounded to an integer over
2^m, so m is its number of fractional bits. The changes are stored and not the rounded products, so rounding errors do
not accumulate. The state of a rule is an array of words (k, d, c): theta_0 and k - 1 changes, or sums of changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError

Coefficients = Callable[[int], Sequence[float]]
"""A function that maps t, the number of iterations so far, to the t coefficients of their changes."""


class LinearRule(ABC):
    """A linear update rule. Results are modulo 2^64, and callers reduce them to the smaller modulus of the training.

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
            state: the state (k, d, c) before the iteration.
            change: a share of the change W^T g (d, c) of the iteration.
            iteration: the number of iterations before this one.

        Returns:
            The new state.
        """

    @abstractmethod
    def theta(self, state: Words, iteration: int) -> Words:
        """Return this party's share (d, c) of the weights after `iteration` iterations."""

    def result(self, state: Words, iteration: int) -> Words:
        """Return this party's share (d, c) of the model that a training has after `iteration` iterations.

        Evaluations use this model, and it is the final model if the training ends here. The next gradient is computed
        at the weights `theta`, which may differ from the model: some methods return a mean of their latest weights.
        """
        return self.theta(state, iteration)

    def coefficients(self, iterations: int, *, result: bool = False) -> Sequence[float]:
        """Return the coefficients of all changes so far, with which weights are computed from another encoding of them.

        Args:
            iterations: the number of iterations so far, t.
            result: whether the coefficients are those of `result` in place of `theta`.

        Returns:
            The t coefficients.

        Raises:
            ConfigError: the weights are no linear combination with one coefficient for each change.
        """
        raise ConfigError(
            f"the update rule {type(self).__name__} has no coefficients for pairs",
            'use optimizer = "block_descent" with momentum',
            code="SVFL-JOB-COMBINATION",
        )

    def with_intercept(self) -> LinearRule:
        """Return the rule for a party whose last weight is an intercept, which does not decay."""
        return self


class Descent(LinearRule):
    """Gradient descent with a constant step size: the change is subtracted from the weights, theta -= u."""

    m = 0

    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration: the weights minus the change."""
        after: Words = state - change
        return after

    def theta(self, state: Words, iteration: int) -> Words:
        """Return this party's share (d, c) of the weights, which is the only array of the state."""
        theta: Words = state[0]
        return theta


@dataclass(frozen=True)
class ScheduledDescent(LinearRule):
    """Gradient descent with step sizes that are fixed in advance, and with weight decay at the end of every epoch.

    Attributes:
        rates: for each iteration, the factor of its change, relative to the step size in W; all 1 if empty.
        decays: for each epoch, the factor by which the weights are multiplied at its end; all 1 if empty.
        batches: the number of iterations of an epoch.
        rate_bits: the number of fractional bits of an entry of `rates`.
        decay_bits: the number of fractional bits of an entry of `decays`.
        has_intercept: whether the last weight is an intercept, which does not decay.
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
        """Return the state before the first iteration: theta_0, and a sum of changes, still 0, for each epoch."""
        return np.concatenate([theta[None], np.zeros((max(1, len(self.decays)), *theta.shape), np.uint64)])

    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration: the change is subtracted from the sum of its epoch."""
        after = state.copy()
        factor = np.uint64(_to_words([self.rates[iteration]], self.rate_bits)[0]) if self.rates else np.uint64(1)
        after[1 + (iteration // self.batches if self.decays else 0)] -= change * factor
        return after

    def theta(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the weights: the sum over epochs, each multiplied by the decays since then."""
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
        """Return the rule for a party whose last weight is an intercept, which does not decay."""
        return replace(self, has_intercept=True)


@dataclass(frozen=True)
class FixedCoefficients(LinearRule):
    """Any first-order method whose coefficients are known in advance, such as one with momentum.

    Attributes:
        row: maps t, the number of iterations so far, to the t coefficients of their changes.
        m: the number of fractional bits of the coefficients.
        last: the same for an intercept, which does not decay; None if its coefficients do not differ.
        result_row: maps t to the coefficients of the model after t iterations; None if it is the weights themselves.
        last_of_result: the same for an intercept, which does not decay.
        has_intercept: whether the last weight is an intercept.
        pair_row: the same as `row` for weights of pairs; None if their coefficients do not differ.
        pair_result_row: the same as `result_row` for weights of pairs; None if their coefficients do not differ.
    """

    row: Coefficients
    m: int = 8
    last: Coefficients | None = None
    result_row: Coefficients | None = None
    last_of_result: Coefficients | None = None
    has_intercept: bool = False
    pair_row: Coefficients | None = None
    pair_result_row: Coefficients | None = None

    def step(self, state: Words, change: Words, iteration: int) -> Words:
        """Return the state after one more iteration: the change is appended to all earlier ones."""
        return np.concatenate([state, change[None]])

    def theta(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the weights: theta_0 minus the weighted sum of all changes."""
        return self._combined(state, self.row, self.last)

    def result(self, state: Words, iteration: int) -> Words:
        """Return the share (d, c) of the model: theta_0 minus its weighted sum of all changes."""
        if self.result_row is None:
            return self.theta(state, iteration)
        return self._combined(state, self.result_row, self.last_of_result)

    def coefficients(self, iterations: int, *, result: bool = False) -> Sequence[float]:
        """Return the coefficients of all gradients of pairs so far; see `LinearRule.coefficients`."""
        row, result_row = self.pair_row or self.row, self.pair_result_row or self.result_row
        return (result_row if result and result_row is not None else row)(iterations)

    def with_intercept(self) -> LinearRule:
        """Return the rule for a party whose last weight is an intercept, which does not decay."""
        return replace(self, has_intercept=True)

    def _combined(self, state: Words, row: Coefficients, last: Coefficients | None) -> Words:
        t = len(state) - 1
        intercept_row = None if last is None or not self.has_intercept else last(t)
        combined: Words = state[0] - _weighted_sum(state[1:], row(t), intercept_row, self.m)
        return combined


def _to_words(factors: Sequence[float], bits: int) -> NDArray[np.uint64]:
    """Return real factors as words with `bits` fractional bits."""
    return np.rint(np.ldexp(np.asarray(factors, np.float64), bits)).astype(np.int64).view(np.uint64)


def _weighted_sum(
    summands: Words, factors: Sequence[float], intercept_factors: Sequence[float] | None, bits: int
) -> Words:
    """Return the weighted sum of k matrices.

    Args:
        summands: the k matrices to add up (k, d, c).
        factors: one factor for each matrix.
        intercept_factors: the factors for the last of the d rows, if they differ; otherwise None.
        bits: the number of fractional bits of the factors.

    Returns:
        The weighted sum (d, c).
    """
    total: Words = (summands * _to_words(factors, bits).reshape(-1, 1, 1)).sum(axis=0, dtype=np.uint64)
    if intercept_factors is not None:
        factors_of_last = _to_words(intercept_factors, bits).reshape(-1, 1)
        total[-1] = (summands[:, -1] * factors_of_last).sum(axis=0, dtype=np.uint64)
    return total

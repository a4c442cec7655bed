"""Losses of counts and amounts with a log link: mu = exp(f) times the mean label (McCullagh and Nelder 1989).

f is the output of the model, y the label, mu the prediction and g the residual, the derivative of the loss by f. Each
loss is half the unit deviance, so it is 0 if the prediction equals the label. Labels are divided by their mean, which
changes only the intercept. The negative binomial loss does not divide them, because its dispersion is in their units.

exp is unbounded, but step sizes, lookup tables and encrypted numbers need a bound. Above f = MAX_LOG_MEAN, where mu is
20 times the mean, exp continues along its tangent, so the loss becomes quadratic. Below -MAX_LOG_MEAN, exp(-f)
continues as a line of slope -1; only rows with labels near 0 are predicted that low. Between these two bounds, g is the
usual gradient. `curvature` bounds the second derivative for a label equal to the mean, and in the negative binomial
loss for every mean that it admits; larger labels may exceed it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import LabelError
from securevfl.models.loss import (
    InvertedResidual,
    Loss,
    check_numeric_labels,
    constant_labels_error,
)

MAX_LOG_MEAN = 3.0
MIN_COUNT_MEAN, MAX_COUNT_MEAN = 0.05, 10.0
"""Range of the mean of counts that are not scaled."""

TINY = 1e-300


class LogLinkLoss(Loss):
    """A loss of numbers >= 0 whose expected value is exp(f) times their mean.

    Attributes:
        variance_power: the variance is proportional to this power of the mean; None if it is not.
        positive: whether labels must be greater than 0.
        counts: whether labels are counts, whose variance follows from the mean alone.
    """

    classifies = False
    bound = 256.0
    spacing = 0.25
    smooth = True
    reports_standard_errors = True
    label_scale = "times their mean"
    variance_power: float | None = None
    positive = False
    counts = False

    def of_unit(self, exposed: Floats) -> tuple[LogLinkLoss, Floats]:
        """Return the loss for labels per unit, and its factor (n, 1) in rows of `exposed` units (n, 1)."""
        assert self.variance_power is not None, "subclasses without a variance power override this method"
        return self, exposed ** (2 - self.variance_power)

    @abstractmethod
    def deviance(self, y: Floats, mu: Floats) -> Floats:
        """Return the unit deviance (n,) of labels and means in the same units, as scikit-learn and statsmodels do."""

    def deviance_scale(self, classes: NDArray[Any]) -> float:
        """Return the factor from the mean loss to the mean unit deviance, in the units of the labels.

        Args:
            classes: the result of `classes`.

        Returns:
            The factor. It is the same for all labels and means, because the loss is half the deviance of scaled labels.
        """
        mean = np.array([float(classes[1])])
        loss = self.value(np.zeros((1, 1)), self.targets(2 * mean, classes))
        return float(self.deviance(2 * mean, mean)[0] / loss[0])

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return 0 and the mean of the labels, by which they are divided.

        Args:
            y: the labels (n,).

        Returns:
            An array of two numbers.

        Raises:
            LabelError: if labels are negative, or 0 although they must be positive, or all equal.
        """
        check_numeric_labels(self.name, y)
        y = np.asarray(y, np.float64)
        low = float(y.min())
        if low < 0 or (self.positive and low == 0):
            problem = "that are not above 0" if self.positive else "below 0"
            raise LabelError(
                f"{self.name} loss cannot use labels {problem}",
                "leave these rows out, or use another loss (poisson and tweedie accept 0, square any number)",
                code="SVFL-LABEL-VALUES",
            )
        if float(y.max()) == low:
            raise constant_labels_error(self.name)
        return np.array([0.0, y.mean()])

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Return the targets (n, c)."""
        return (np.asarray(y, np.float64) / classes[1])[:, None]

    def minimizer(self, y: Floats) -> Floats:
        """Return the outputs f (n, c) that minimise the loss of each row."""
        minimizer: Floats = np.log(np.clip(y, math.exp(-MAX_LOG_MEAN), math.exp(MAX_LOG_MEAN)))
        return minimizer

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the predicted numbers (n,), in the units of the labels."""
        return growth(f)[:, 0] * classes[1]

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return the factor and the summand that convert f to log of the prediction in the units of the labels."""
        return 1.0, math.log(classes[1])

    def synthetic_labels(self, scores: Floats) -> Floats:
        """Return labels (n,) generated from normally distributed scores (n,)."""
        return np.floor(np.exp(scores)) if self.counts else np.exp(scores)


class PoissonLoss(LogLinkLoss):
    """Loss of counts with Poisson distribution: y * log(y / mu) - y + mu."""

    name = "poisson"
    assumes_zero_labels = True
    counts = True
    variance_power = 1.0
    curvature = math.exp(MAX_LOG_MEAN)
    step_factor = 2.5  # `curvature` is that of the largest mu; a correct fit has a mean mu of 1, so steps may be longer

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        return (growth_integral(f) - y * f - y + _y_log_y(y))[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return growth(f) - y

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute labels and outputs f from residuals.

        Rows with a positive g are assumed to have label 0, as most of them do; then g = mu.
        """
        return _assuming_zeros(g, growth_inverse(g))

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        """Return the unit deviance (n,)."""
        return 2 * (_y_log_y(y) - y * np.log(np.maximum(mu, TINY)) - y + mu)


class GammaLoss(LogLinkLoss):
    """Loss of positive amounts with Gamma distribution: y / mu - log(y / mu) - 1.

    The standard deviation is proportional to the mean.
    """

    name = "gamma"
    retains_targets = True
    variance_power = 2.0
    curvature = 4.0  # the second derivative is y / mu, which is at most 4 unless mu is less than a fourth of y
    positive = True

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        return (y * decay_integral(f) + f - 1 - np.log(np.maximum(y, TINY)))[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return 1 - y * decay(f)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Return NaN for the labels, which g does not determine, and log(1 - g).

        log(1 - g) equals log(y) - f for f between the two bounds beyond which exp is replaced by a straight line.
        """
        return InvertedResidual(np.full_like(g, np.nan), -np.log(np.maximum(1 - g, TINY)))

    def target_term(self, y: Floats) -> Floats:
        """Return the function of targets y (n, c) that the sums of `invert_residual` still contain."""
        return np.log(y)

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        """Return the unit deviance (n,)."""
        ratio = np.maximum(y, TINY) / np.maximum(mu, TINY)
        return 2 * (ratio - np.log(ratio) - 1)


class TweedieLoss(LogLinkLoss):
    """Loss of amounts that are often 0, such as yearly claims; their variance is mu^p with 1 < p < 2.

    The loss is mu^(2 - p) / (2 - p) + y * mu^(1 - p) / (p - 1) minus its minimum (Jorgensen 1987).
    """

    name = "tweedie"
    assumes_zero_labels = True

    def __init__(self, power: float = 1.5) -> None:
        self.power = self.variance_power = power
        ends = [
            (2 - power) * math.exp((2 - power) * f) + (power - 1) * math.exp((1 - power) * f)
            for f in (-MAX_LOG_MEAN, MAX_LOG_MEAN)
        ]
        self.curvature = max(ends)  # type: ignore[misc]  # per object

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        p = self.power
        return (growth_integral(f, 2 - p) + y * decay_integral(f, p - 1) - y ** (2 - p) * (1 / (2 - p) + 1 / (p - 1)))[
            :, 0
        ]

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return growth(f, 2 - self.power) - y * decay(f, self.power - 1)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute labels and outputs f from residuals.

        Rows with a positive g are assumed to have label 0, as most of them do; then g = mu^(2 - p) with p = `power`.
        """
        return _assuming_zeros(g, growth_inverse(g, 2 - self.power))

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        """Return the unit deviance (n,)."""
        p, mu = self.power, np.maximum(mu, TINY)
        minimum = y ** (2 - p) / ((1 - p) * (2 - p))
        return 2 * (minimum - y * mu ** (1 - p) / (1 - p) + mu ** (2 - p) / (2 - p))


class NegativeBinomialLoss(LogLinkLoss):
    """Loss of counts with variance mu + a * mu^2, where a is the dispersion (NB2: Cameron and Trivedi 1986).

    The loss is y * log(y / mu) - (y + 1 / a) * log((1 + a * y) / (1 + a * mu)). f is log mu itself, so predictions
    above 20 follow the tangent of exp. At a mean of 10, this increases the deviance by about 0.4 %; larger means are
    refused.
    """

    name = "negative_binomial"
    assumes_zero_labels = True
    counts = True

    def __init__(self, dispersion: float = 1.0) -> None:
        self.dispersion = dispersion
        # only the party with labels knows their mean, so the bound is that of the largest mean
        mu = min(1 / dispersion, math.exp(MAX_LOG_MEAN))
        slope = mu * (1 + dispersion * MAX_COUNT_MEAN) / (1 + dispersion * mu) ** 2
        self.curvature = slope  # type: ignore[misc]  # per object

    def of_unit(self, exposed: Floats) -> tuple[LogLinkLoss, Floats]:
        """Return the loss for labels per unit, and its factor (n, 1) in rows of `exposed` units (n, 1)."""
        unit = copy(self)
        unit.dispersion = exposed * self.dispersion  # type: ignore[assignment]  # one dispersion for each row
        return unit, exposed

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return 0 and 1, since counts are not scaled.

        Args:
            y: the labels (n,).

        Returns:
            An array of two numbers.

        Raises:
            LabelError: if the mean of the labels is not between 1/20 and 10.
        """
        mean = super().classes(y)[1]
        if not MIN_COUNT_MEAN <= mean <= MAX_COUNT_MEAN:
            raise LabelError(
                f"{self.name} loss needs counts with a mean between 1/20 and 10",
                "use the poisson loss, which accepts counts of any mean",
                code="SVFL-LABEL-RANGE",
            )
        return np.array([0.0, 1.0])

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        a = self.dispersion
        mu, beyond = growth(f), np.maximum(f - MAX_LOG_MEAN, 0.0)
        inner = -y * np.minimum(f, MAX_LOG_MEAN) + (y + 1 / a) * np.log1p(a * growth(np.minimum(f, MAX_LOG_MEAN)))
        edge = math.exp(MAX_LOG_MEAN)  # beyond it, mu is linear in f
        tail = (mu - edge) / a - (1 + a * y) / a**2 * (np.log1p(a * mu) - np.log1p(a * edge))
        minimum = -_y_log_y(y) + (y + 1 / a) * np.log1p(a * y)
        return (inner + np.where(beyond > 0, tail / edge, 0.0) - minimum)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        mu = growth(f)
        return (mu - y) / (1 + self.dispersion * mu)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute labels and outputs f from residuals.

        Rows with a positive g are assumed to have label 0, as most of them do; then g = mu / (1 + a * mu).
        """
        odds = np.clip(self.dispersion * g, TINY, 1 - 1e-12)
        return _assuming_zeros(g, growth_inverse(odds / (1 - odds) / self.dispersion))

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        """Return the unit deviance (n,)."""
        a, mu = self.dispersion, np.maximum(mu, TINY)
        dispersion_term = (y + 1 / a) * (np.log1p(a * y) - np.log1p(a * mu))
        return 2 * (_y_log_y(y) - y * np.log(mu) - dispersion_term)


def growth(f: Floats, rate: float = 1.0) -> Floats:
    """Return exp(rate * f), continued along its tangent beyond MAX_LOG_MEAN."""
    inside = np.minimum(f, MAX_LOG_MEAN)
    return np.exp(rate * inside) + rate * math.exp(rate * MAX_LOG_MEAN) * (f - inside)


def growth_inverse(value: Floats, rate: float = 1.0) -> Floats:
    """Return the f at which `growth` has this value."""
    edge, safe = math.exp(rate * MAX_LOG_MEAN), np.maximum(value, TINY)
    return np.where(value <= edge, np.log(safe) / rate, MAX_LOG_MEAN + (value - edge) / (rate * edge))


def growth_integral(f: Floats, rate: float = 1.0) -> Floats:
    """Return the integral of `growth`: exp(rate * f) / rate, continued as a parabola beyond MAX_LOG_MEAN."""
    inside = np.minimum(f, MAX_LOG_MEAN)
    beyond, edge = f - inside, math.exp(rate * MAX_LOG_MEAN)
    return np.exp(rate * inside) / rate + edge * beyond + rate * edge * beyond**2 / 2


def decay(f: Floats, rate: float = 1.0) -> Floats:
    """Return exp(-rate * f), continued as a line of slope -1 below -MAX_LOG_MEAN."""
    inside = np.maximum(f, -MAX_LOG_MEAN)
    return np.exp(-rate * inside) + (inside - f)


def decay_integral(f: Floats, rate: float = 1.0) -> Floats:
    """Return the negative integral of `decay`: exp(-rate * f) / rate, continued as a parabola below -MAX_LOG_MEAN."""
    inside = np.maximum(f, -MAX_LOG_MEAN)
    below = inside - f
    return np.exp(-rate * inside) / rate + math.exp(rate * MAX_LOG_MEAN) * below + below**2 / 2


def _assuming_zeros(g: Floats, f: Floats) -> InvertedResidual:
    """Return label 0 and the outputs `f` for rows with a positive residual g, and NaN for all others."""
    return InvertedResidual(np.where(g > 0, 0.0, np.nan), np.where(g > 0, f, np.nan))


def _y_log_y(y: Floats) -> Floats:
    """Return y * log(y), and 0 for y = 0."""
    return y * np.log(np.where(y > 0, y, 1.0))

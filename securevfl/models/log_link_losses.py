"""Losses of counts and amounts with a log link: mu = exp(f) times the mean label (McCullagh and Nelder 1989).

Each loss is half the unit deviance, so it is 0 when the prediction equals the label. Labels are divided by their
mean, which changes only the intercept (the negative binomial loss keeps its labels, because its dispersion is in
their units).

exp is unbounded, but step sizes, lookup tables and encrypted numbers need a bound. Beyond CAP (20 times the mean) exp
continues along its tangent, so the loss becomes quadratic. A term that decreases in f continues below -CAP with slope
-1 times the label; only rows with labels near 0 are predicted that far below the mean. Therefore g equals the usual
gradient for every mu between a twentieth and 20 times the mean, and is finite beyond.

`curvature` bounds the second derivative for a label equal to the mean. Single rows with large labels exceed it; the
mean over a table rarely does.
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
)

MAX_LOG_MEAN = 3.0

TINY = 1e-300


class LogLinkLoss(Loss):
    """A loss of numbers of 0 or more whose mean is exp(f) in units of their mean."""

    classifies = False
    bound = 256.0
    spacing = 0.25
    smooth = True
    reports_standard_errors = True
    label_scale = "times their mean"
    variance_power: float | None = None  # the variance goes with this power of the mean, if with one
    positive = False  # whether labels of 0 have no place
    counts = False  # whether the variance follows from the mean alone

    def of_unit(self, exposed: Floats) -> tuple[LogLinkLoss, Floats]:
        """Return the loss of the label of one unit of exposure, and how many times it counts in rows of `exposed` units
        (n x 1)."""
        assert self.variance_power is not None, "a loss whose variance goes otherwise says it itself"
        return self, exposed ** (2 - self.variance_power)

    @abstractmethod
    def deviance(self, y: Floats, mu: Floats) -> Floats:
        """Return the unit deviance (n,) of labels against means in the same units, as scikit-learn and statsmodels have
        it."""

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """0 and the mean of the labels, in which targets are counted."""
        y = np.asarray(y, np.float64)
        low = float(y.min())
        if low < 0 or (self.positive and low == 0):
            kind = "above 0" if self.positive else "of 0 or more"
            raise LabelError(
                f"{self.name} loss: labels {kind} were expected, smaller ones came; leave these rows out, or use "
                "another loss (poisson and tweedie take 0, square takes any number)"
            )
        if float(y.max()) == low:
            raise LabelError(f"{self.name} loss: labels that vary were expected, all are equal; check the label column")
        return np.array([0.0, y.mean()])

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        return (np.asarray(y, np.float64) / classes[1])[:, None]

    def minimizer(self, y: Floats) -> Floats:
        least: Floats = np.log(np.clip(y, math.exp(-MAX_LOG_MEAN), math.exp(MAX_LOG_MEAN)))
        return least

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        return growth(f)[:, 0] * classes[1]

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        return 1.0, math.log(classes[1])

    def synthetic_labels(self, scores: Floats) -> Floats:
        return np.floor(np.exp(scores)) if self.counts else np.exp(scores)


class PoissonLoss(LogLinkLoss):
    """Counts: y log(y / mu) - y + mu."""

    name = "poisson"
    assumes_zero_labels = True
    counts = True
    variance_power = 1.0
    curvature = math.exp(MAX_LOG_MEAN)
    step_factor = 2.5  # the mean of mu is 1 where the fit is right

    def value(self, f: Floats, y: Floats) -> Floats:
        return (grown(f) - y * f - y + _y_log_y(y))[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return growth(f) - y

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Read labels and sums off residuals g: every row with a positive g is taken to have label 0, as most of them
        do, where mu = g."""
        return _of_zeros(g, growth_inverse(g))

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        return 2 * (_y_log_y(y) - y * np.log(np.maximum(mu, TINY)) - y + mu)


class GammaLoss(LogLinkLoss):
    """Amounts above 0, whose deviation goes with their mean: y / mu - log(y / mu) - 1."""

    name = "gamma"
    retains_targets = True
    variance_power = 2.0
    curvature = 4.0  # y / mu: room for a fit that is off by as much
    positive = True

    def value(self, f: Floats, y: Floats) -> Floats:
        return (y * sunk(f) + f - 1 - np.log(np.maximum(y, TINY)))[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return 1 - y * sinking(f)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """log(1 - g) = log y - f where nothing is cut off."""
        return InvertedResidual(np.full_like(g, np.nan), -np.log(np.maximum(1 - g, TINY)))

    def target_term(self, y: Floats) -> Floats:
        return np.log(y)

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        part = np.maximum(y, TINY) / np.maximum(mu, TINY)
        return 2 * (part - np.log(part) - 1)


class TweedieLoss(LogLinkLoss):
    """Amounts that are often 0, such as claims a year: variance mu^power, between Poisson's 1 and Gamma's 2.

    mu^(2 - p) / (2 - p) + y mu^(1 - p) / (p - 1) less its least (Jorgensen 1987).
    """

    name = "tweedie"
    assumes_zero_labels = True

    def __init__(self, power: float = 1.5) -> None:
        self.power = self.variance_power = power
        ends = [
            (2 - power) * math.exp((2 - power) * f) + (power - 1) * math.exp((1 - power) * f)
            for f in (-MAX_LOG_MEAN, MAX_LOG_MEAN)
        ]
        self.curvature = max(ends)  # type: ignore[misc]  # of this one

    def value(self, f: Floats, y: Floats) -> Floats:
        p = self.power
        return (grown(f, 2 - p) + y * sunk(f, p - 1) - y ** (2 - p) * (1 / (2 - p) + 1 / (p - 1)))[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return growth(f, 2 - self.power) - y * sinking(f, self.power - 1)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Read labels and sums off residuals g: every row with a positive g is taken to have label 0, as most of them
        do, where g = mu^(2 - p)."""
        return _of_zeros(g, growth_inverse(g, 2 - self.power))

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        p, mu = self.power, np.maximum(mu, TINY)
        least = y ** (2 - p) / ((1 - p) * (2 - p))
        return 2 * (least - y * mu ** (1 - p) / (1 - p) + mu ** (2 - p) / (2 - p))


class NegativeBinomialLoss(LogLinkLoss):
    """Counts that vary more than Poisson's: variance mu + dispersion mu^2 (NB2: Cameron and Trivedi 1986).

    y log(y / mu) - (y + 1/a) log((1 + a y) / (1 + a mu)), a the dispersion. f is log mu itself, so the mean of all
    labels is expected to be far from where exp is cut off.
    """

    name = "negative_binomial"
    assumes_zero_labels = True
    counts = True

    def __init__(self, dispersion: float = 1.0) -> None:
        self.dispersion = dispersion
        mu = min(1 / dispersion, math.exp(MAX_LOG_MEAN))
        self.curvature = mu * (1 + dispersion) / (1 + dispersion * mu) ** 2  # type: ignore[misc]  # of this one

    def of_unit(self, exposed: Floats) -> tuple[LogLinkLoss, Floats]:
        unit = copy(self)
        unit.dispersion = exposed * self.dispersion  # type: ignore[assignment]  # of each row
        return unit, exposed

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """0 and 1: counts stay as they are."""
        mean = super().classes(y)[1]
        if abs(math.log(mean)) > MAX_LOG_MEAN:
            raise LabelError(
                f"{self.name} loss: counts of a mean from 1/20 to 20 were expected, others came; count in other units, "
                "or use poisson"
            )
        return np.array([0.0, 1.0])

    def value(self, f: Floats, y: Floats) -> Floats:
        a = self.dispersion
        mu, beyond = growth(f), np.maximum(f - MAX_LOG_MEAN, 0.0)
        inner = -y * np.minimum(f, MAX_LOG_MEAN) + (y + 1 / a) * np.log1p(a * growth(np.minimum(f, MAX_LOG_MEAN)))
        edge = math.exp(MAX_LOG_MEAN)  # along the tangent mu is a straight line, and g a quotient of two
        tail = (mu - edge) / a - (1 + a * y) / a**2 * (np.log1p(a * mu) - np.log1p(a * edge))
        least = -_y_log_y(y) + (y + 1 / a) * np.log1p(a * y)
        return (inner + np.where(beyond > 0, tail / edge, 0.0) - least)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        mu = growth(f)
        return (mu - y) / (1 + self.dispersion * mu)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Read labels and sums off residuals g: every row with a positive g is taken to have label 0, as most of them
        do, where g = mu / (1 + a mu)."""
        odds = np.clip(self.dispersion * g, TINY, 1 - 1e-12)
        return _of_zeros(g, growth_inverse(odds / (1 - odds) / self.dispersion))

    def deviance(self, y: Floats, mu: Floats) -> Floats:
        a, mu = self.dispersion, np.maximum(mu, TINY)
        spread = (y + 1 / a) * (np.log1p(a * y) - np.log1p(a * mu))
        return 2 * (_y_log_y(y) - y * np.log(mu) - spread)


def growth(f: Floats, rate: float = 1.0) -> Floats:
    """exp(rate f), and beyond CAP its tangent there."""
    inside = np.minimum(f, MAX_LOG_MEAN)
    return np.exp(rate * inside) + rate * math.exp(rate * MAX_LOG_MEAN) * (f - inside)


def growth_inverse(found: Floats, rate: float = 1.0) -> Floats:
    """Invert `growth`: return the f at which it has this value."""
    edge, safe = math.exp(rate * MAX_LOG_MEAN), np.maximum(found, TINY)
    return np.where(found <= edge, np.log(safe) / rate, MAX_LOG_MEAN + (found - edge) / (rate * edge))


def grown(f: Floats, rate: float = 1.0) -> Floats:
    """Integrate `growth`: return exp(rate f) / rate, continued as a square beyond CAP."""
    inside = np.minimum(f, MAX_LOG_MEAN)
    beyond, edge = f - inside, math.exp(rate * MAX_LOG_MEAN)
    return np.exp(rate * inside) / rate + edge * beyond + rate * edge * beyond**2 / 2


def sinking(f: Floats, rate: float = 1.0) -> Floats:
    """exp(-rate f), and below -CAP a line of slope -1."""
    inside = np.maximum(f, -MAX_LOG_MEAN)
    return np.exp(-rate * inside) + (inside - f)


def sunk(f: Floats, rate: float = 1.0) -> Floats:
    """Integrate `sinking`, with the opposite sign: return exp(-rate f) / rate, continued as a square below -CAP."""
    inside = np.maximum(f, -MAX_LOG_MEAN)
    below = inside - f
    return np.exp(-rate * inside) / rate + math.exp(rate * MAX_LOG_MEAN) * below + below**2 / 2


def _of_zeros(g: Floats, f: Floats) -> InvertedResidual:
    """Return label 0 and the sums f for the rows whose residual g is positive; NaN, for not known, in all others."""
    return InvertedResidual(np.where(g > 0, 0.0, np.nan), np.where(g > 0, f, np.nan))


def _y_log_y(y: Floats) -> Floats:
    """y log y, 0 where y is."""
    return y * np.log(np.where(y > 0, y, 1.0))

"""The usual losses of classification and regression.

The square, logistic and smooth hinge losses are those of FDSKL 2020, Table 1; softmax is multinomial logistic
regression. f (n, c) are outputs, y (n, c) targets, and g (n, c) residuals, the derivatives of a row's loss by f.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import LabelError
from securevfl.models.loss import InvertedResidual, Loss, NumberLoss, log_sum_exp, logistic, single_class_error, softmax

MAX_START = 8.0
"""Largest absolute output of a constant model from which a training starts."""


class LogisticLoss(Loss):
    """The logistic loss log(1 + exp(-y * f)) of targets -1 and +1."""

    name = "logistic"
    curvature = 0.25
    smooth = True
    has_unit_range = True

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        return np.logaddexp(0.0, -y * f)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return -y * logistic(-y * f)

    def constant_outputs(self, y: Floats, weights: Floats | None = None) -> Floats:
        """Return the log odds (c,) of targets of +1, at most MAX_START on either side."""
        rate = np.average(y > 0, axis=0, weights=weights)
        with np.errstate(divide="ignore"):
            return np.asarray(np.clip(np.log(rate) - np.log1p(-rate), -MAX_START, MAX_START))

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute targets and outputs from residuals g (n, c)."""
        return _of_logistic(g)


class SmoothHingeLoss(Loss):
    """The smooth hinge: 1/2 - z for z <= 0, (1 - z)^2 / 2 for 0 < z < 1, 0 for z >= 1, with z = y f.

    Its probabilities are the logistic function of f.
    """

    name = "smooth_hinge"
    curvature = 1.0
    has_unit_range = True

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        z = (y * f)[:, 0]
        return np.where(z <= 0, 0.5 - z, 0.5 * np.clip(1 - z, 0, 1) ** 2)

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return -y * np.clip(1 - y * f, 0, 1)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute y for rows whose g is not 0, and f = y * (1 - |g|) for those whose |g| is also below 1."""
        size = np.abs(g)
        y = np.where(size > 0, -np.sign(g), np.nan)
        f: Floats = np.where(size < 1, y * (1 - size), np.nan)
        return InvertedResidual(y, f)


class SquareLoss(NumberLoss):
    """The squared error (f - y)^2 / 2 on targets scaled to mean 0 and deviation 1."""

    name = "square"
    bound = 64.0
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        return 0.5 * ((f - y) ** 2)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return f - y

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Return f - y, which is g itself: a residual of this loss determines neither f nor y."""
        return InvertedResidual(np.full_like(g, np.nan), g)


class SoftmaxLoss(Loss):
    """Multinomial logistic loss -log softmax(f)[y], with one output for each class.

    The matrix of its second derivatives by f is at most (I - 1 1^T / c) / 2 (Boehning 1992, Multinomial logistic
    regression algorithm). Its eigenvalues are 1/2, and 0 for equal changes of all outputs.
    """

    name = "softmax"
    single = False
    elementwise = False
    curvature = 0.5

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        return log_sum_exp(f) - (f * y).sum(axis=1)

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return softmax(f) - y

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute y from the sign of g, and from g + y = softmax(f) the outputs up to a constant."""
        y = (g == g.min(axis=1, keepdims=True)).astype(np.float64)
        return InvertedResidual(y, self.revealed_outputs(np.log((g + y).clip(1e-300))))

    def revealed_outputs(self, f: Floats) -> Floats:
        """Return each output minus the first one (n, c - 1)."""
        return f[:, 1:] - f[:, :1]

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted classes of the labels y (n,)."""
        classes = np.unique(y)
        if len(classes) < 2:
            raise single_class_error(self.name)
        if len(classes) > max(2, len(y) // 2):
            raise LabelError(
                f"softmax loss needs labels of a few classes, and the labels have {len(classes)} values",
                "use the square loss for numbers, or check the label column",
                code="SVFL-LABEL-CLASSES",
                classes=len(classes),
            )
        return classes

    def outputs(self, classes: NDArray[Any]) -> int:
        """Return c, the number of columns of f."""
        return len(classes)

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Return 1 in the column of a row's class, and 0 in all others (n, c)."""
        return (y[:, None] == classes[None, :]).astype(np.float64)

    def proba(self, f: Floats) -> Floats:
        """Return the probability of each class (n, classes)."""
        return softmax(f)


class OneVsRestLoss(SoftmaxLoss):
    """Sum of the logistic losses of each class against all others, with one output for each class."""

    name = "one_vs_rest"
    curvature = 0.25
    smooth = True
    has_unit_range = True
    elementwise = True

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        return np.logaddexp(0.0, -y * f).sum(axis=1)

    residual = LogisticLoss.residual
    constant_outputs = LogisticLoss.constant_outputs
    invert_residual = LogisticLoss.invert_residual

    def revealed_outputs(self, f: Floats) -> Floats:
        """Return f: a residual reveals all outputs."""
        return f

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Return -1 and +1, with one column for each class (n, classes)."""
        return np.where(y[:, None] == classes[None, :], 1.0, -1.0)

    def proba(self, f: Floats) -> Floats:
        """Return the probability of each class against the rest, normalised to a sum of 1."""
        p = logistic(f)
        return p / p.sum(axis=1, keepdims=True)


def _of_logistic(g: Floats) -> InvertedResidual:
    """Compute targets and outputs from residuals g = -y * s(-y * f), with s the logistic function."""
    size = np.abs(g).clip(1e-12, 1 - 1e-12)
    f: Floats = np.sign(g) * np.log(size / (1 - size))
    return InvertedResidual(-np.sign(g), f)

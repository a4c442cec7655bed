"""The usual losses of classification and regression.

The square, logistic and smooth hinge losses are those of FDSKL 2020, Table 1; softmax is multinomial logistic
regression.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import LabelError
from securevfl.models.loss import InvertedResidual, Loss, NumberLoss, log_sum_exp, logistic, single_class_error, softmax


class LogisticLoss(Loss):
    """The logistic loss log(1 + exp(-y f)) of labels -1 and 1."""

    name = "logistic"
    curvature = 0.25
    smooth = True

    def value(self, f: Floats, y: Floats) -> Floats:
        return np.logaddexp(0.0, -y * f)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return -y * logistic(-y * f)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        return _of_logistic(g)


class SmoothHingeLoss(Loss):
    """1/2 - z for z <= 0, (1 - z)^2 / 2 for 0 < z < 1, 0 beyond; z = y f. Its probabilities are a logistic of f."""

    name = "smooth_hinge"
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        z = (y * f)[:, 0]
        return np.where(z <= 0, 0.5 - z, 0.5 * np.clip(1 - z, 0, 1) ** 2)

    def residual(self, f: Floats, y: Floats) -> Floats:
        return -y * np.clip(1 - y * f, 0, 1)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """y where g is not 0, f = y (1 - |g|) where it is not at its bound either."""
        size = np.abs(g)
        y = np.where(size > 0, -np.sign(g), np.nan)
        f: Floats = np.where(size < 1, y * (1 - size), np.nan)
        return InvertedResidual(y, f)


class SquareLoss(NumberLoss):
    """(f - y)^2 / 2 on targets scaled to mean 0 and deviation 1."""

    name = "square"
    bound = 64.0
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        return 0.5 * ((f - y) ** 2)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return f - y

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """f - y, of which neither is told alone."""
        return InvertedResidual(np.full_like(g, np.nan), g)


class SoftmaxLoss(Loss):
    """-log softmax(f)[y], one output a class.

    Its second derivatives by f are at most (I - 1 1^T / c) / 2 (Boehning 1992, Multinomial logistic regression
    algorithm), whose eigenvalues are 1/2 and, along equal changes of all outputs, 0.
    """

    name = "softmax"
    single = False
    elementwise = False
    curvature = 0.5

    def value(self, f: Floats, y: Floats) -> Floats:
        return log_sum_exp(f) - (f * y).sum(axis=1)

    def residual(self, f: Floats, y: Floats) -> Floats:
        return softmax(f) - y

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """y is 1 where g is least, as g < 0 there alone; g + y = softmax(f) gives f up to one number a row."""
        y = (g == g.min(axis=1, keepdims=True)).astype(np.float64)
        return InvertedResidual(y, self.revealed_outputs(np.log((g + y).clip(1e-300))))

    def revealed_outputs(self, f: Floats) -> Floats:
        """Each output less the first (n x c - 1)."""
        return f[:, 1:] - f[:, :1]

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        found = np.unique(y)
        if len(found) < 2:
            raise single_class_error(self.name)
        if len(found) > max(2, len(y) // 2):
            raise LabelError(
                f"softmax loss: labels of a few classes were expected, {len(found)} values came; use square loss for "
                "numbers, or check the label column"
            )
        return found

    def outputs(self, classes: NDArray[Any]) -> int:
        return len(classes)

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        return (y[:, None] == classes[None, :]).astype(np.float64)

    def proba(self, f: Floats) -> Floats:
        return softmax(f)


class OneVsRestLoss(SoftmaxLoss):
    """Logistic loss of each class against all others, added up; one output a class, each fitted by itself."""

    name = "one_vs_rest"
    curvature = 0.25
    smooth = True
    elementwise = True

    def value(self, f: Floats, y: Floats) -> Floats:
        return np.logaddexp(0.0, -y * f).sum(axis=1)

    residual = LogisticLoss.residual
    invert_residual = LogisticLoss.invert_residual

    def revealed_outputs(self, f: Floats) -> Floats:
        return f

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """-1 and +1, one column a class (n x classes)."""
        return np.where(y[:, None] == classes[None, :], 1.0, -1.0)

    def proba(self, f: Floats) -> Floats:
        """Each class against the rest, made to sum to 1."""
        p = logistic(f)
        return p / p.sum(axis=1, keepdims=True)


def _of_logistic(g: Floats) -> InvertedResidual:
    """Read targets and sums off residuals g = -y s(-y f), with s the logistic function, whose inverse is the log of the
    odds."""
    size = np.abs(g).clip(1e-12, 1 - 1e-12)
    f: Floats = np.sign(g) * np.log(size / (1 - size))
    return InvertedResidual(-np.sign(g), f)

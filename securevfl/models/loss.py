"""What a loss over f = sum_k H_k (n x c) is: value, residual g = df/dH, targets, and what g tells whoever reads it.

The usual losses of classes and of numbers are here too; others have a file each, and all are named in losses.py.

Square, logistic and smooth hinge are FDSKL 2020, Table 1; softmax is multinomial logistic regression.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import LabelError


def logistic(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), to full relative precision at both ends."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def log_sum_exp(f: Floats) -> Floats:
    """log sum_j exp f_ij for each row (n,) of f (n x c)."""
    largest = f.max(axis=1, keepdims=True)
    return largest[:, 0] + np.log(np.exp(f - largest).sum(axis=1))


def softmax(f: Floats) -> Floats:
    """exp f_ij / sum_j exp f_ij for each row of f (n x c)."""
    raised = np.exp(f - f.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


class InvertedResidual(NamedTuple):
    """What residuals g (n x c) tell whoever reads them of each row; NaN where they leave it open.

    targets: y (n x c). sums: `Loss.revealed_outputs(f)` (n x k), less `Loss.target_term(y)` where the loss
    `retains_targets` among them.
    """

    targets: Floats
    sums: Floats


class Loss(ABC):
    """A loss of one row; sums and means are the caller's."""

    name: ClassVar[str]
    classifies: ClassVar[bool] = True
    single: ClassVar[bool] = True  # whether f has one column
    elementwise: ClassVar[bool] = True  # whether each entry of g follows from that of f and of y alone
    retains_targets: ClassVar[bool] = False  # whether y is still in the sums that `invert_residual` gives
    assumes_zero_labels: ClassVar[bool] = (
        False  # whether `invert_residual` takes labels for 0 that it cannot tell from it
    )
    smooth: ClassVar[bool] = False  # whether g has a continuous derivative by f and is not linear
    bound: ClassVar[float] = 1.0  # |g| of one entry never exceeds it
    curvature: ClassVar[float | None] = None  # largest eigenvalue of a row's second derivatives by f (c x c)
    spacing: ClassVar[float] = 1.0  # of a table of g by f: between so near entries it is straight enough
    step_factor: ClassVar[float] = (
        1.0  # times the step that the curvature allows, which hardly any table makes too long
    )
    reports_standard_errors: ClassVar[bool] = (
        False  # whether coefficients are read with standard errors, so that trainings end later
    )
    label_scale: ClassVar[str] = "deviations of their mean"  # what labels of a bounded g are measured in

    @abstractmethod
    def value(self, f: Floats, y: Floats) -> Floats:
        """Loss of each row (n,), from f (n x c) and targets y (n x c)."""

    @abstractmethod
    def residual(self, f: Floats, y: Floats) -> Floats:
        """g (n x c), the derivative of each row's loss by f."""

    @abstractmethod
    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Read targets and sums off residuals g (n x c), as one who receives them can: audits attack with it."""

    def minimizer(self, y: Floats) -> Floats:
        """Return the f at which rows of targets y (n x c) have the least loss (n x c), infinite where it falls for
        ever."""
        least: Floats = np.where(y > 0, np.inf, -np.inf)
        return least

    def revealed_outputs(self, f: Floats) -> Floats:
        """Return the linear map (n x k) of f (n x c) that a residual can tell: all of f, unless g is blind to some of
        it."""
        return f

    def target_term(self, y: Floats) -> Floats:
        """Return the part of targets y (n x c) that is taken off the sums that `invert_residual` gives, where the loss
        `retains_targets`."""
        return y

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the number (n,) that f predicts, in the units of the labels. Raises LabelError for a loss of
        classes."""
        raise LabelError(f"{self.name} loss predicts classes, not numbers; use predict_proba")

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return a factor and a summand that turn f into the units of what it predicts."""
        return 1.0, 0.0

    def synthetic_labels(self, scores: Floats) -> Floats:
        """Labels (n,) such as this loss of numbers takes, made up from normal scores (n,)."""
        return scores

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the classes among the labels, sorted. Raises LabelError if the loss cannot use them."""
        found = np.unique(y)
        if len(found) < 2:
            raise single_class_error(self.name)
        if len(found) > 2:
            raise LabelError(
                f"{self.name} loss: labels of exactly two values were expected, {len(found)} came; merge them into "
                "two, or train loss one_vs_rest or softmax for several classes (trees take one_vs_rest, fedbcd trains "
                "softmax), or square for numbers"
            )
        return found

    def outputs(self, classes: NDArray[Any]) -> int:
        """c, the width of f."""
        return 1

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Labels as targets (n x c): -1 and +1 for two classes."""
        return np.where(y == classes[1], 1.0, -1.0)[:, None]

    def proba(self, f: Floats) -> Floats:
        """Probability of each class (n x classes). Raises LabelError for a loss of numbers."""
        if not self.classifies:
            raise LabelError(f"{self.name} loss predicts numbers, not probabilities; use predict")
        p = logistic(f[:, 0])
        return np.column_stack([1 - p, p])


class NumberLoss(Loss):
    """A loss of numbers, whose targets are scaled to mean 0 and deviation 1, so that a bound on g can be agreed."""

    classifies = False
    retains_targets = True
    spacing = 0.25

    def minimizer(self, y: Floats) -> Floats:
        return y

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        return f[:, 0] * classes[1] + classes[0]

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        return float(classes[1]), float(classes[0])

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Mean and deviation of the labels, which scale the targets."""
        deviation = float(np.std(y))
        if deviation == 0:
            raise LabelError(f"{self.name} loss: labels that vary were expected, all are equal; check the label column")
        return np.array([np.mean(y), deviation])

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        return ((y - classes[0]) / classes[1])[:, None]


def single_class_error(name: str) -> LabelError:
    """Return the error of labels that are all the same."""
    return LabelError(
        f"{name} loss: labels of two or more classes were expected, all rows have the same; check the label column, "
        "and whether the rows that all parties share have several"
    )


def check_split(loss: Loss, train: NDArray[Any], test: NDArray[Any], classes: NDArray[Any]) -> None:
    """LabelError if a class is in no training row, or one of two classes in no row of those held out."""
    if not loss.classifies:
        return
    if absent := len(classes) - len(np.unique(train)):
        raise LabelError(
            f"{loss.name} loss: training rows of all {len(classes)} classes were expected, {absent} have none, as they "
            "are rare; hold out fewer rows (test_fraction), merge classes or add rows"
        )
    if loss.single and len(test) and len(np.unique(test)) < len(classes):
        raise LabelError(
            f"{loss.name} loss: held-out rows of both classes were expected, one has none, so that they cannot be "
            "ranked; hold out more rows (test_fraction), or none"
        )

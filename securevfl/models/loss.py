"""What a loss over f = sum_k H_k (n x c) is: value, residual g = df/dH, targets, and what g tells whoever reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.special import logistic
from securevfl.errors import LabelError


class Undone(NamedTuple):
    """What residuals g (n x c) tell whoever reads them of each row; NaN where they leave it open.

    targets: y (n x c). sums: `Loss.shown(f)` (n x k), less `Loss.kept(y)` where the loss `keeps_targets` among them.
    """

    targets: Floats
    sums: Floats


class Loss(ABC):
    """A loss of one row; sums and means are the caller's."""

    name: ClassVar[str]
    classifies: ClassVar[bool] = True
    single: ClassVar[bool] = True  # whether f has one column
    elementwise: ClassVar[bool] = True  # whether each entry of g follows from that of f and of y alone
    keeps_targets: ClassVar[bool] = False  # whether y is still in the sums that `undo` gives
    guesses: ClassVar[bool] = False  # whether `undo` takes labels for 0 that it cannot tell from it
    bound: ClassVar[float] = 1.0  # |g| of one entry never exceeds it
    curvature: ClassVar[float | None] = None  # largest eigenvalue of a row's second derivatives by f (c x c)
    spacing: ClassVar[float] = 1.0  # of a table of g by f: between so near entries it is straight enough
    spread: ClassVar[str] = "deviations of their mean"  # what labels of a bounded g are measured in

    @abstractmethod
    def value(self, f: Floats, y: Floats) -> Floats:
        """Loss of each row (n,), from f (n x c) and targets y (n x c)."""

    @abstractmethod
    def residual(self, f: Floats, y: Floats) -> Floats:
        """g (n x c), the derivative of each row's loss by f."""

    @abstractmethod
    def undo(self, g: Floats) -> Undone:
        """Read targets and sums off residuals g (n x c), as one who receives them can: audits attack with it."""

    def shown(self, f: Floats) -> Floats:
        """Return the linear map (n x k) of f (n x c) that a residual can tell: all of f, unless g is blind to some of
        it."""
        return f

    def kept(self, y: Floats) -> Floats:
        """Return the part of targets y (n x c) that is taken off the sums that `undo` gives, where the loss
        `keeps_targets`."""
        return y

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the number (n,) that f predicts, in the units of the labels. Raises LabelError for a loss of
        classes."""
        raise LabelError(f"{self.name} loss predicts classes, not numbers; use predict_proba")

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return a factor and a summand that turn f into the units of what it predicts."""
        return 1.0, 0.0

    def stand_in(self, scores: Floats) -> Floats:
        """Labels (n,) such as this loss of numbers takes, made up from normal scores (n,)."""
        return scores

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the classes among the labels, sorted. Raises LabelError if the loss cannot use them."""
        found = np.unique(y)
        if len(found) < 2:
            raise one_class(self.name)
        if len(found) > 2:
            raise LabelError(
                f"{self.name} loss: labels of exactly two values were expected, {len(found)} came; merge them into "
                "two, or train a softmax model for several classes or square loss for numbers (fedbcd trains a softmax "
                "model)"
            )
        return found

    def outputs(self, classes: NDArray[Any]) -> int:
        """c, the width of f."""
        return 1

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Labels as targets (n x c): -1 and +1 for two classes."""
        return np.where(y == classes[1], 1.0, -1.0)[:, None]

    def proba(self, f: Floats) -> Floats:
        """Probability of each class (n x classes)."""
        p = logistic(f[:, 0])
        return np.column_stack([1 - p, p])


class NumberLoss(Loss):
    """A loss of numbers, whose targets are scaled to mean 0 and deviation 1, so that a bound on g can be agreed."""

    classifies = False
    keeps_targets = True
    spacing = 0.25

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        mean: Floats = f[:, 0] * classes[1] + classes[0]
        return mean

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        return float(classes[1]), float(classes[0])

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Mean and deviation of the labels, which scale the targets."""
        deviation = float(np.std(y))
        if deviation == 0:
            raise LabelError(f"{self.name} loss: labels that vary were expected, all are equal; check the label column")
        return np.array([np.mean(y), deviation])

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        targets: Floats = ((y - classes[0]) / classes[1])[:, None]
        return targets

    def proba(self, f: Floats) -> Floats:
        raise LabelError(f"{self.name} loss predicts numbers, not probabilities; use predict")


def one_class(name: str) -> LabelError:
    """Return the error of labels that are all the same."""
    return LabelError(
        f"{name} loss: labels of two or more classes were expected, all rows have the same; check the label column, "
        "and whether the rows that all parties share have several"
    )

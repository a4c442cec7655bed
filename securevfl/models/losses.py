"""Losses over f = sum_k H_k (n x c): value, residual g = df/dH, and how labels become targets.

Square, logistic and smooth hinge are FDSKL 2020, Table 1; softmax is multinomial logistic regression.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.errors import LabelError
from securevfl.special import log_sum_exp, logistic, softmax


class Loss(ABC):
    """A loss of one row; sums and means are the caller's."""

    name: ClassVar[str]
    classifies: ClassVar[bool] = True
    single: ClassVar[bool] = True  # whether f has one column
    elementwise: ClassVar[bool] = True  # whether each entry of g follows from that of f and of y alone
    bound: ClassVar[float] = 1.0  # |g| of one entry never exceeds it
    curvature: ClassVar[float | None] = None  # largest eigenvalue of a row's second derivatives by f (c x c)

    @abstractmethod
    def value(self, f: Floats, y: Floats) -> Floats:
        """Loss of each row (n,), from f (n x c) and targets y (n x c)."""

    @abstractmethod
    def residual(self, f: Floats, y: Floats) -> Floats:
        """g (n x c), the derivative of each row's loss by f."""

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """The classes among the labels, sorted. LabelError if the loss cannot use them."""
        found = np.unique(y)
        if len(found) < 2:
            raise _one_class(self.name)
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


class LogisticLoss(Loss):
    """log(1 + exp(-y f))."""

    name = "logistic"
    curvature = 0.25

    def value(self, f: Floats, y: Floats) -> Floats:
        value: Floats = np.logaddexp(0.0, -y * f)[:, 0]
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        g: Floats = -y * logistic(-y * f)
        return g


class SmoothHingeLoss(Loss):
    """1/2 - z for z <= 0, (1 - z)^2 / 2 for 0 < z < 1, 0 beyond; z = y f. Its probabilities are a logistic of f."""

    name = "smooth_hinge"
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        z = (y * f)[:, 0]
        value: Floats = np.where(z <= 0, 0.5 - z, 0.5 * np.clip(1 - z, 0, 1) ** 2)
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        g: Floats = -y * np.clip(1 - y * f, 0, 1)
        return g


class SquareLoss(Loss):
    """(f - y)^2 / 2 on targets scaled to mean 0 and deviation 1, so that a bound on g can be agreed beforehand."""

    name = "square"
    classifies = False
    bound = 64.0
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        value: Floats = 0.5 * ((f - y) ** 2)[:, 0]
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        g: Floats = f - y
        return g

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Mean and deviation of the labels, which scale the targets."""
        deviation = float(np.std(y))
        if deviation == 0:
            raise LabelError("square loss: labels that vary were expected, all are equal; check the label column")
        return np.array([np.mean(y), deviation])

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        targets: Floats = ((y - classes[0]) / classes[1])[:, None]
        return targets

    def proba(self, f: Floats) -> Floats:
        raise LabelError("square loss predicts numbers, not probabilities; use predict")


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
        value: Floats = log_sum_exp(f) - (f * y).sum(axis=1)
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        g: Floats = softmax(f) - y
        return g

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        found = np.unique(y)
        if len(found) < 2:
            raise _one_class(self.name)
        if len(found) > max(2, len(y) // 2):
            raise LabelError(
                f"softmax loss: labels of a few classes were expected, {len(found)} values came; use square loss for "
                "numbers, or check the label column"
            )
        return found

    def outputs(self, classes: NDArray[Any]) -> int:
        return len(classes)

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        targets: Floats = (y[:, None] == classes[None, :]).astype(np.float64)
        return targets

    def proba(self, f: Floats) -> Floats:
        return softmax(f)


class OneVsRestLoss(SoftmaxLoss):
    """Logistic loss of each class against all others, added up; one output a class, each fitted by itself."""

    name = "one_vs_rest"
    curvature = 0.25
    elementwise = True

    def value(self, f: Floats, y: Floats) -> Floats:
        value: Floats = np.logaddexp(0.0, -y * f).sum(axis=1)
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        g: Floats = -y * logistic(-y * f)
        return g

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """-1 and +1, one column a class (n x classes)."""
        return np.where(y[:, None] == classes[None, :], 1.0, -1.0)

    def proba(self, f: Floats) -> Floats:
        """Each class against the rest, made to sum to 1."""
        p = logistic(f)
        proba: Floats = p / p.sum(axis=1, keepdims=True)
        return proba


def _one_class(name: str) -> LabelError:
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


# adding one is one line here; models take it by name, as `securevfl.models.linear.GeneralLinear` does
LOSSES: dict[str, Loss] = {
    loss.name: loss for loss in (LogisticLoss(), SmoothHingeLoss(), SquareLoss(), SoftmaxLoss(), OneVsRestLoss())
}


def known_loss(value: str, *, single: bool = False) -> str:
    """The name of a loss, of one that has a single output if so wanted. ValueError names those there are."""
    known = [name for name, loss in LOSSES.items() if loss.single or not single]
    if value not in known:
        raise ValueError(f"must be one of {', '.join(known)}; choose one of these")
    return value

"""What a loss over f = sum_k H_k (n x c) is: value, residual g = df/dH, targets, and what g tells whoever reads it.

The usual losses of classes and of numbers are here too; others have a file each, and all are named in losses.py.

Square, logistic and smooth hinge are FDSKL 2020, Table 1; softmax is multinomial logistic regression.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import some
from securevfl.errors import ClassError, LabelError


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
    smooth: ClassVar[bool] = False  # whether g has a continuous derivative by f and is not linear
    bound: ClassVar[float] = 1.0  # |g| of one entry never exceeds it
    curvature: ClassVar[float | None] = None  # largest eigenvalue of a row's second derivatives by f (c x c)
    spacing: ClassVar[float] = 1.0  # of a table of g by f: between so near entries it is straight enough
    slack: ClassVar[float] = 1.0  # times the step that the curvature allows, which hardly any table makes too long
    estimates: ClassVar[bool] = False  # whether coefficients are read with standard errors, so that trainings end later
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

    def least(self, y: Floats) -> Floats:
        """Return the f at which rows of targets y (n x c) have the least loss (n x c), infinite where it falls for
        ever."""
        least: Floats = np.where(y > 0, np.inf, -np.inf)
        return least

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
    keeps_targets = True
    spacing = 0.25

    def least(self, y: Floats) -> Floats:
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


def one_class(name: str) -> LabelError:
    """Return the error of labels that are all the same."""
    return LabelError(
        f"{name} loss: labels of two or more classes were expected, all rows have the same; check the label column, "
        "and whether the rows that all parties share have several"
    )


class LogisticLoss(Loss):
    """The logistic loss log(1 + exp(-y f)) of labels -1 and 1."""

    name = "logistic"
    curvature = 0.25
    smooth = True

    def value(self, f: Floats, y: Floats) -> Floats:
        return np.logaddexp(0.0, -y * f)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return -y * logistic(-y * f)

    def undo(self, g: Floats) -> Undone:
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

    def undo(self, g: Floats) -> Undone:
        """y where g is not 0, f = y (1 - |g|) where it is not at its bound either."""
        size = np.abs(g)
        y = np.where(size > 0, -np.sign(g), np.nan)
        f: Floats = np.where(size < 1, y * (1 - size), np.nan)
        return Undone(y, f)


class SquareLoss(NumberLoss):
    """(f - y)^2 / 2 on targets scaled to mean 0 and deviation 1."""

    name = "square"
    bound = 64.0
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        return 0.5 * ((f - y) ** 2)[:, 0]

    def residual(self, f: Floats, y: Floats) -> Floats:
        return f - y

    def undo(self, g: Floats) -> Undone:
        """f - y, of which neither is told alone."""
        return Undone(np.full_like(g, np.nan), g)


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

    def undo(self, g: Floats) -> Undone:
        """y is 1 where g is least, as g < 0 there alone; g + y = softmax(f) gives f up to one number a row."""
        y = (g == g.min(axis=1, keepdims=True)).astype(np.float64)
        return Undone(y, self.shown(np.log((g + y).clip(1e-300))))

    def shown(self, f: Floats) -> Floats:
        """Each output less the first (n x c - 1)."""
        return f[:, 1:] - f[:, :1]

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        found = np.unique(y)
        if len(found) < 2:
            raise one_class(self.name)
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
    undo = LogisticLoss.undo

    def shown(self, f: Floats) -> Floats:
        return f

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """-1 and +1, one column a class (n x classes)."""
        return np.where(y[:, None] == classes[None, :], 1.0, -1.0)

    def proba(self, f: Floats) -> Floats:
        """Each class against the rest, made to sum to 1."""
        p = logistic(f)
        return p / p.sum(axis=1, keepdims=True)


def _of_logistic(g: Floats) -> Undone:
    """Read targets and sums off residuals g = -y s(-y f), with s the logistic function, whose inverse is the log of the
    odds."""
    size = np.abs(g).clip(1e-12, 1 - 1e-12)
    f: Floats = np.sign(g) * np.log(size / (1 - size))
    return Undone(-np.sign(g), f)


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


# A loss that takes one more number of each row than its label, which rides beside the targets as a last column.


AS_IT_IS = (  # of a loss that a number of each row changes
    *("name", "classifies", "single", "elementwise", "bound", "curvature", "spacing", "spread", "estimates", "slack"),
    *("keeps_targets", "guesses", "smooth"),
)


class RowLoss(Loss):
    """Another loss, changed by a number of each row: its targets are (n x c + 1), of which the last column is that."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        for name in AS_IT_IS:
            setattr(self, name, getattr(loss, name))

    def least(self, y: Floats) -> Floats:
        return self._loss.least(y[:, :-1])

    def undo(self, g: Floats) -> Undone:
        return self._loss.undo(g)

    def shown(self, f: Floats) -> Floats:
        return self._loss.shown(f)

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        return self._loss.mean(f, classes)

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        return self._loss.units(classes)

    def stand_in(self, scores: Floats) -> Floats:
        return self._loss.stand_in(scores)

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        return self._loss.classes(y)

    def outputs(self, classes: NDArray[Any]) -> int:
        return self._loss.outputs(classes)

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Targets (n x c), without the column that goes beside them."""
        return self._loss.targets(y, classes)

    def proba(self, f: Floats) -> Floats:
        return self._loss.proba(f)


# Which of two classes is the positive one: the one that probabilities, AUC, lift, odds and points are of.
#
# A job may name it. Without that it is 1, true or yes against 0, -1, false or no, and else the rarer one, of classes
# that are as rare the later. The order of the classes says it: the positive one is the second. The party with labels
# alone knows; no message has a class or its name.


AFFIRMED = frozenset({"1", "true", "yes"})
DENIED = frozenset({"0", "-1", "false", "no"})
SHOWN = 8  # names of classes in an error


def class_name(label: Any) -> str:
    """How a class is called in a job and on the screen: a whole number without its point."""
    value = label.item() if isinstance(label, np.generic) else label
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def class_names(classes: NDArray[Any]) -> list[str]:
    """Return the names of all these classes, in their order."""
    return [class_name(each) for each in classes.tolist()]


def classes_of(name: str, loss: Loss, y: NDArray[Any], positive: str | None = None) -> NDArray[Any]:
    """Return the classes of party `name` by its labels (n,), as the loss has them; of two the positive one last.

    ClassError if the job names one that is not among them, LabelError if the loss cannot use the labels.
    """
    found = loss.classes(y)
    if not (loss.classifies and loss.single):
        return found
    names = class_names(found)
    if positive is None:
        place = _usual(names, [int((y == each).sum()) for each in found])
    elif positive in names:
        place = names.index(positive)
    else:
        raise unknown_class(name, "positive", [positive], names)
    return found if place else found[::-1]


def positive_of(loss: Loss, classes: NDArray[Any] | None) -> str | None:
    """Return the name of the positive class, of a loss of two."""
    return class_names(classes)[1] if classes is not None and loss.classifies and loss.single else None


def unknown_class(name: str, key: str, given: Sequence[str], names: Sequence[str]) -> ClassError:
    """Make the error of a key that names classes which party `name` does not have; it lists those that the party
    has."""
    came = ", ".join(given)
    return ClassError(f"party {name}: {key}: of the classes {some(names, SHOWN)} was expected, {came} came; correct it")


def _usual(names: Sequence[str], counts: Sequence[int]) -> int:
    """Choose the place of the positive one of two classes, if nobody names it."""
    words = [name.lower() for name in names]
    for place in (0, 1):
        if words[place] in AFFIRMED and words[1 - place] in DENIED:
            return place
    return 0 if counts[0] < counts[1] else 1

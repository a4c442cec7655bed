"""The base classes of losses, and helpers that losses share.

A loss is a function of the outputs f (n, c), summed over the parties, and of the targets y (n, c), which encode the
labels. Its residual g (n, c) is the derivative of each row's loss by f. Parties send g, so a loss also states what a
recipient can compute from g about a row (`InvertedResidual`): y, and f or a linear function of f (n, k). For some
losses g is a function of f minus y only; the recipient then obtains that difference (`retains_targets`).

The usual losses are in `securevfl.models.standard_losses`; `securevfl.models.losses` lists all losses by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.text_values import is_number
from securevfl.errors import LabelError


def logistic(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)), to full relative precision at both ends."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def log_sum_exp(f: Floats) -> Floats:
    """Return log sum_j exp f_ij for each row (n,) of f (n, c)."""
    largest = f.max(axis=1, keepdims=True)
    return largest[:, 0] + np.log(np.exp(f - largest).sum(axis=1))


def softmax(f: Floats) -> Floats:
    """Return exp f_ij / sum_j exp f_ij for each row of f (n, c)."""
    exponentials = np.exp(f - f.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class InvertedResidual(NamedTuple):
    """What a recipient of residuals can compute about each row; NaN where it cannot.

    Attributes:
        targets: the targets y (n, c).
        sums: the outputs f, or the linear function of them that `Loss.revealed_outputs` returns (n, k). If the loss
            `retains_targets`, the function `Loss.target_term` of the unknown y is subtracted from them.
    """

    targets: Floats
    sums: Floats


class Loss(ABC):
    """A loss; it is computed for each row, and the caller computes sums and means over rows.

    Attributes:
        name: the name in a job.
        classifies: whether the labels are classes.
        single: whether the model has one output for each row (c = 1).
        elementwise: whether each entry of g depends only on the same entry of f and y.
        retains_targets: whether a recipient of g obtains f only minus a function of the unknown y (`target_term`).
        assumes_zero_labels: whether `invert_residual` returns label 0 for rows whose label it cannot compute.
        smooth: whether g has a continuous derivative by f and is not linear in f.
        has_unit_range: whether, for each target, all entries of g lie from -1 to 0, or all from 0 to 1.
        bound: upper bound of |g| for each entry.
        curvature: upper bound of the eigenvalues of a row's second derivatives by f (c, c); None if there is none.
        spacing: distance between the entries of a lookup table of g, at which linear interpolation is accurate enough.
        step_factor: factor by which steps may exceed the step size that follows from the curvature.
        reports_standard_errors: whether coefficients are published with standard errors, so that training must converge
            further.
        label_scale: in messages about the bound, the unit in which distances of labels are stated.
    """

    name: ClassVar[str]
    classifies: ClassVar[bool] = True
    single: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    retains_targets: ClassVar[bool] = False
    assumes_zero_labels: ClassVar[bool] = False
    smooth: ClassVar[bool] = False
    has_unit_range: ClassVar[bool] = False
    bound: ClassVar[float] = 1.0
    curvature: ClassVar[float | None] = None
    spacing: ClassVar[float] = 1.0
    step_factor: ClassVar[float] = 1.0
    reports_standard_errors: ClassVar[bool] = False
    label_scale: ClassVar[str] = "deviations of their mean"

    @abstractmethod
    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,), from outputs f (n, c) and targets y (n, c)."""

    @abstractmethod
    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c), the derivative of each row's loss by f."""

    @abstractmethod
    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute targets and outputs from residuals g (n, c), as a recipient could do. Audits use it as an attack."""

    def minimizer(self, y: Floats) -> Floats:
        """Return the f (n, c) that minimises the loss for targets y; infinite if there is no minimum."""
        minimizer: Floats = np.where(y > 0, np.inf, -np.inf)
        return minimizer

    def constant_outputs(self, y: Floats, weights: Floats | None = None) -> Floats:
        """Return outputs (c,) from which a training starts, near those of least loss that are equal for all rows.

        Args:
            y: the targets (n, c).
            weights: the weights of rows (n,); by default all are equal.

        Returns:
            The outputs; 0 for a loss whose targets are scaled to it.
        """
        return np.zeros(y.shape[1])

    def revealed_outputs(self, f: Floats) -> Floats:
        """Return the linear function (n, k) of f (n, c) that a residual reveals; by default f itself."""
        return f

    def target_term(self, y: Floats) -> Floats:
        """Return the function of targets y (n, c) that is subtracted from `sums` in the result of `invert_residual`."""
        return y

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the predicted numbers (n,), in the units of the labels.

        Args:
            f: the outputs (n, c).
            classes: the result of the method `classes`.

        Returns:
            The predictions.

        Raises:
            LabelError: for a classification loss.
        """
        raise LabelError(
            f"a {self.name} loss predicts classes, so there are no predicted numbers",
            "use predict_proba",
            code="SVFL-JOB-UNSUPPORTED",
        )

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return a and b such that a * f + b is in the units of the labels."""
        return 1.0, 0.0

    def synthetic_labels(self, scores: Floats) -> Floats:
        """Return labels (n,) that this regression loss accepts, generated from normal scores (n,)."""
        return scores

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted classes of labels; for regression losses, two numbers that scale the labels.

        Args:
            y: the labels (n,).

        Returns:
            The classes.

        Raises:
            LabelError: if the loss cannot use the labels.
        """
        classes = np.unique(y)
        if len(classes) < 2:
            raise single_class_error(self.name)
        if len(classes) > 2:
            raise LabelError(
                f"{self.name} loss needs labels with two values, and the labels have {len(classes)}",
                "merge them into two; or use the loss one_vs_rest or softmax for several classes (trees accept "
                "one_vs_rest, fedbcd trains softmax), or square for numbers",
                code="SVFL-LABEL-CLASSES",
                classes=len(classes),
            )
        return classes

    def outputs(self, classes: NDArray[Any]) -> int:
        """Return c, the number of columns of f."""
        return 1

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Return labels as targets (n, c): -1 and +1 for two classes."""
        return np.where(y == classes[1], 1.0, -1.0)[:, None]

    def proba(self, f: Floats) -> Floats:
        """Return the probability of each class.

        Args:
            f: the outputs (n, c).

        Returns:
            The probabilities (n, classes).

        Raises:
            LabelError: for a regression loss.
        """
        if not self.classifies:
            raise LabelError(
                f"{self.name} loss predicts numbers instead of probabilities",
                "use predict",
                code="SVFL-JOB-UNSUPPORTED",
            )
        p = logistic(f[:, 0])
        return np.column_stack([1 - p, p])


class NumberLoss(Loss):
    """A regression loss; targets are scaled to mean 0 and standard deviation 1, so that g can be bounded."""

    classifies = False
    retains_targets = True
    spacing = 0.25

    def minimizer(self, y: Floats) -> Floats:
        """Return the targets: the loss is smallest if the prediction equals the label."""
        return y

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the predicted numbers (n,), in the units of the labels."""
        return f[:, 0] * classes[1] + classes[0]

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return the standard deviation and the mean of the labels."""
        return float(classes[1]), float(classes[0])

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the mean and the standard deviation of the labels, which scale the targets.

        Args:
            y: the labels (n,).

        Returns:
            An array of two numbers.

        Raises:
            LabelError: if all labels are equal.
        """
        check_numeric_labels(self.name, y)
        deviation = float(np.std(y))
        if deviation == 0:
            raise constant_labels_error(self.name)
        return np.array([np.mean(y), deviation])

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Return the scaled labels (n, 1)."""
        return ((y - classes[0]) / classes[1])[:, None]


SHARED_ROWS = "the rows that all parties share"
"""The table to which the row numbers of a message refer if nothing else is known."""


def check_numeric_labels(
    name: str, y: NDArray[Any], rows: NDArray[np.intp] | None = None, of_what: str = SHARED_ROWS
) -> None:
    """Check that labels are numbers.

    Args:
        name: the name of the loss, for messages, which contain no label.
        y: the labels (n,).
        rows: the row of each label (n,), from 0; by default their positions.
        of_what: the table to which the rows belong.

    Raises:
        LabelError: if a label is a text.
    """
    if np.asarray(y).dtype.kind not in "biuf":
        are_texts = [not is_number(str(label)) for label in y.tolist()]
        texts = sum(are_texts) or len(y)  # all of them if numbers are stored as texts
        position = are_texts.index(True) if any(are_texts) else 0
        row = position + 1 if rows is None else int(rows[position]) + 1
        raise LabelError(
            f"{name} loss needs labels that are numbers, and {texts:,} of {len(y):,} labels are texts, first in row "
            f"{row} of {of_what}",
            "write each label as a plain number (230000.50), and leave out rows without one; or train a logistic or "
            "softmax model on classes",
            code="SVFL-LABEL-CLASSES",
            row=row,
            texts=texts,
        )


def single_class_error(name: str) -> LabelError:
    """Return the error that the labels are all of one class, for the loss with this name."""
    return LabelError(
        f"{name} loss needs labels of two or more classes, and all labels are equal",
        "check the label column, and whether the rows that all parties share have several classes",
        code="SVFL-LABEL-CONSTANT",
    )


def constant_labels_error(name: str) -> LabelError:
    """Return the error that all numeric labels are equal, for the loss with this name."""
    return LabelError(f"{name} loss needs labels that vary, and all labels are equal", code="SVFL-LABEL-CONSTANT")


def check_split(loss: Loss, train: NDArray[Any], test: NDArray[Any], classes: NDArray[Any]) -> None:
    """Check that training and held-out rows have all classes that are needed.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        train: labels of the training rows.
        test: labels of the held-out rows.
        classes: all classes.

    Raises:
        LabelError: if a class has no training row, or one of two classes no held-out row.
    """
    if not loss.classifies:
        return
    if absent := len(classes) - len(np.unique(train)):
        raise LabelError(
            f"{absent} of {len(classes)} classes are so rare that they have no training row",
            "hold out fewer rows (test_fraction), merge classes or add rows",
            code="SVFL-LABEL-SPLIT",
            absent=absent,
        )
    if loss.single and len(test) and len(np.unique(test)) < len(classes):
        raise LabelError(
            "one of the two classes has no held-out row, so the held-out rows cannot be ranked",
            "hold out more rows (test_fraction), or none",
            code="SVFL-LABEL-SPLIT",
        )

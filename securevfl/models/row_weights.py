"""Weights of rows in a loss, from the classes of rows and from a column of the active party, which has the labels.

A row's loss, and so its residual, is multiplied by its weight. Weights have the mean 1 over the training rows, so l2
and step sizes keep their meaning. They are the last column of the targets; no message contains them, and other parties
see only weighted residuals. All parties agree on the maximum weight, `max_weight`. It multiplies the bound on
residuals, which determines the scale of encrypted numbers, and the curvature, which determines step sizes; so the
smallest value that fits trains fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import Config
from securevfl.data.schedule import Rows
from securevfl.errors import ClassError, LabelError, TableError
from securevfl.models.class_labels import class_names, unknown_class_error
from securevfl.models.loss import InvertedResidual, Loss
from securevfl.models.row_loss import RowLoss

DEFAULT_MAX_WEIGHT = 4.0
"""Maximum weight of a row, in units of the mean weight, if the job does not state one."""


class Weights(Config):
    """Options of row weights. Only the party with labels knows the weights."""

    classes: Literal["balanced"] | dict[str, float] | None = None
    """"balanced" gives all classes the same total weight; otherwise a weight for each class by its label."""
    column: str | None = None
    """A column of the party with labels that holds the weights of rows; it is not a feature of the model."""
    max_weight: float | None = Field(default=None, ge=1, le=1e6)
    """Maximum weight of a row, in units of the mean. All parties know it, because number ranges and step sizes depend
    on it. Default: 4; for class weights on one computer the smallest power of two that fits, which reveals roughly how
    rare the rarest class is."""

    @property
    def limit(self) -> float:
        """The maximum weight of a row, in units of the mean."""
        return DEFAULT_MAX_WEIGHT if self.max_weight is None else self.max_weight


class WeightedLoss(RowLoss):
    """A loss whose targets (n, c + 1) contain the weight of each row in the last column; f (n, c) are the outputs.

    Args:
        loss: the loss without weights.
        max_weight: the maximum weight.
    """

    def __init__(self, loss: Loss, max_weight: float) -> None:
        super().__init__(loss)
        self.curvature = None if loss.curvature is None else max_weight * loss.curvature  # type: ignore[misc]
        self.bound = max_weight * loss.bound  # type: ignore[misc]

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the weighted loss of each row (n,)."""
        return y[:, -1] * self._loss.value(f, y[:, :-1])

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the weighted residual g (n, c)."""
        return y[:, -1:] * self._loss.residual(f, y[:, :-1])

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute targets as without weights; outputs are NaN, because a recipient of g does not know the weights."""
        targets, sums = self._loss.invert_residual(g / self.bound * self._loss.bound)
        return InvertedResidual(targets, np.full_like(sums, np.nan))


def row_weights(
    name: str,
    options: Weights,
    loss: Loss,
    y: NDArray[Any],
    classes: NDArray[Any],
    column: Floats | None,
    train: Rows,
) -> Floats:
    """Compute the weights of rows, with the mean 1 over the training rows.

    Args:
        name: name of the party, which error messages state; they never contain a weight.
        options: the job's options for weights of rows.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        y: the labels (n,).
        classes: the classes of the labels.
        column: the column of weights (n,), or None.
        train: the training rows.

    Returns:
        The weights (n,). Raises LabelError if class weights do not fit the labels.

    Raises:
        TableError: if the weights cannot be used, or exceed the limit.
    """
    weights = np.ones(len(y)) if column is None else np.asarray(column, dtype=np.float64)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights[train].any()):
        raise TableError(
            f"party {name}: the weights in column {options.column!r} contain missing or negative values, or only zeros",
            "use weights of 0 or more in every row",
            code="SVFL-TABLE-WEIGHTS",
            party=name,
            column=options.column,
        )
    if options.classes is not None:
        weights = weights * _class_weights(name, options.classes, loss, y, classes, train)
    weights = np.asarray(weights / weights[train].mean())
    if float(weights[train].max()) > options.limit:
        raise TableError(
            f"party {name}: a row weighs more than {options.limit:g} times the mean",
            f"set weights.max_weight to {next_power_of_two(weights[train]):g}, which all parties learn, or use more "
            "even weights",
            code="SVFL-TABLE-WEIGHTS",
            party=name,
        )
    return weights


def check_row_weights(weights: ArrayLike, rows: int) -> Floats:
    """Check the weights of rows that a model is evaluated on.

    Args:
        weights: the weights (rows,).
        rows: the number of rows.

    Returns:
        The weights as floats.

    Raises:
        TableError: if there is another number of weights, or one is no number of 0 or more, or all are 0.
    """
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.full(rows, np.nan)
    if values.shape != (rows,):
        raise TableError(
            f"there are {rows} rows and weights of shape {values.shape}",
            "pass one weight for each row",
            code="SVFL-TABLE-SHAPE",
        )
    if not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
        raise TableError(
            "the weights of rows contain missing or negative values, texts, or only zeros",
            "pass a number of 0 or more for each row",
            code="SVFL-TABLE-WEIGHTS",
        )
    return values


def next_power_of_two(weights: Floats) -> float:
    """Return the smallest power of two that is not below any of the weights (n,)."""
    return float(2.0 ** max(0, int(np.ceil(np.log2(float(weights.max())) - 1e-9))))


def with_max_weight(
    name: str, options: Weights, loss: Loss, y: NDArray[Any], classes: NDArray[Any], train: Rows
) -> Weights:
    """Return the options with a maximum weight that fits the class weights, if the job states none."""
    if options.max_weight is not None or options.classes is None or options.column is not None:
        return options
    weights = _class_weights(name, options.classes, loss, y, classes, train)[train]
    return options.model_copy(update={"max_weight": next_power_of_two(weights / weights.mean())})


def _class_weights(
    name: str,
    chosen: Literal["balanced"] | Mapping[str, float],
    loss: Loss,
    y: NDArray[Any],
    classes: NDArray[Any],
    train: Rows,
) -> Floats:
    """Return the weight of each row's class (n,)."""
    if not loss.classifies:
        raise LabelError(
            f"party {name}: {loss.name} loss predicts numbers, so there are no classes to weigh",
            "leave weights.classes out of the job",
            code="SVFL-JOB-COMBINATION",
            party=name,
        )
    class_index = (y[:, None] == classes).argmax(axis=1)
    if chosen == "balanced":
        counts = np.bincount(class_index[train], minlength=len(classes))
        return np.asarray((1 / np.maximum(counts, 1))[class_index])
    names = class_names(classes)
    if unknown := [label for label in chosen if label not in names]:
        raise unknown_class_error(name, "weights.classes", unknown, names)
    if missing := [label for label in names if label not in chosen]:
        raise ClassError(
            f"party {name}: weights.classes has no weight for the classes {', '.join(missing)}",
            "add them",
            code="SVFL-LABEL-CLASSES",
            party=name,
        )
    if min(chosen.values()) <= 0:
        raise LabelError(
            f"party {name}: weights.classes contains weights that are not above 0",
            "use positive weights",
            code="SVFL-JOB-OPTION",
            party=name,
        )
    return np.array([chosen[label] for label in names])[class_index]

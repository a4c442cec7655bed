"""Weights of rows in a loss: of classes, and a column of the active party's own.

A weighted loss is that of a row times its weight, and so is its residual. Weights have the mean 1 over the training
rows, so that l2 and step sizes mean what they mean without. They ride beside the targets, as a last column, and no
message has them: what others see is g. Their largest, `most`, is agreed, as it is part of the bound on g, which the
scale of encrypted numbers follows, and of the curvature, which steps follow: the smallest that fits trains fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import Config
from securevfl.data.schedule import Rows
from securevfl.errors import ClassError, LabelError, TableError
from securevfl.models.class_labels import class_names, unknown_class_error
from securevfl.models.loss import InvertedResidual, Loss
from securevfl.models.row_loss import RowLoss

DEFAULT_MAX_WEIGHT = 4.0  # times their mean, where a job says nothing of it


class Weights(Config):
    """How much each row counts. The party with labels knows, and nobody else."""

    classes: Literal["balanced"] | dict[str, float] | None = None
    """"balanced" lets each class count the same in all, or a weight for each class by its label."""
    column: str | None = None
    """A column of the party with labels that holds a weight of each row; no model sees it."""
    most: float | None = Field(default=None, ge=1)
    """No row counts more than so many times the mean. All know it: numbers have room for it, steps allow for it. If
    left out 4; of classes on one computer the least power of two that fits, which tells how rare the rarest is."""

    @property
    def room(self) -> float:
        """The most that a row counts, in units of the mean."""
        return DEFAULT_MAX_WEIGHT if self.most is None else self.most


class WeightedLoss(RowLoss):
    """A loss whose targets (n x c + 1) hold the weight of each row in their last column."""

    def __init__(self, loss: Loss, most: float) -> None:
        super().__init__(loss)
        self.curvature = None if loss.curvature is None else most * loss.curvature  # type: ignore[misc]
        self.bound = most * loss.bound  # type: ignore[misc]

    def value(self, f: Floats, y: Floats) -> Floats:
        return y[:, -1] * self._loss.value(f, y[:, :-1])

    def residual(self, f: Floats, y: Floats) -> Floats:
        return y[:, -1:] * self._loss.residual(f, y[:, :-1])

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Targets as without weights, which change no sign; sums lie behind a factor a row that one party knows."""
        targets, sums = self._loss.invert_residual(g / self.bound * self._loss.bound)
        return InvertedResidual(targets, np.full_like(sums, np.nan))


def row_weights(
    name: str, options: Weights, loss: Loss, y: NDArray[Any], classes: NDArray[Any], own: Floats | None, train: Rows
) -> Floats:
    """Return the weight of each row (n,) of party `name`, scaled to a mean of 1 over the training rows.

    own: its column of weights. LabelError or TableError for weights that cannot be used; no message has one of them.
    """
    found = np.ones(len(y)) if own is None else np.asarray(own, dtype=np.float64)
    if not (np.isfinite(found).all() and (found >= 0).all() and found[train].any()):
        raise TableError(
            f"party {name}: weights of 0 or more in every row were expected in column {options.column}, some are "
            "missing or negative, or all are 0; correct them"
        )
    if options.classes is not None:
        found = found * _of_classes(name, options.classes, loss, y, classes, train)
    found = np.asarray(found / found[train].mean())
    if float(found[train].max()) > options.room:
        raise TableError(
            f"party {name}: weights of at most {options.room:g} times their mean were expected, larger ones came; "
            f"raise weights.most to {next_power_of_two(found[train]):g}, which all parties learn, or even the "
            "weights out"
        )
    return found


def next_power_of_two(weights: Floats) -> float:
    """Return the least power of two that no weight (n,) of mean 1 is above."""
    return float(2.0 ** max(0, int(np.ceil(np.log2(float(weights.max())) - 1e-9))))


def with_max_weight(
    name: str, options: Weights, loss: Loss, y: NDArray[Any], classes: NDArray[Any], train: Rows
) -> Weights:
    """Return the weights of classes with the room that the training rows of these labels need, if a job leaves it
    open."""
    if options.most is not None or options.classes is None or options.column is not None:
        return options
    found = _of_classes(name, options.classes, loss, y, classes, train)[train]
    return options.model_copy(update={"most": next_power_of_two(found / found.mean())})


def _of_classes(
    name: str,
    chosen: Literal["balanced"] | Mapping[str, float],
    loss: Loss,
    y: NDArray[Any],
    classes: NDArray[Any],
    train: Rows,
) -> Floats:
    """Return the weight of each row's class (n,)."""
    if not loss.classifies:
        raise LabelError(f"party {name}: classes were expected to weigh, {loss.name} loss fits numbers; leave them out")
    place = (y[:, None] == classes).argmax(axis=1)
    if chosen == "balanced":
        counts = np.bincount(place[train], minlength=len(classes))
        return np.asarray((1 / np.maximum(counts, 1))[place])
    labels = class_names(classes)
    if unknown := [each for each in chosen if each not in labels]:
        raise unknown_class_error(name, "weights.classes", unknown, labels)
    if lacking := [each for each in labels if each not in chosen]:
        raise ClassError(
            f"party {name}: weights.classes: a weight for each class was expected, {', '.join(lacking)} has none; add "
            "it"
        )
    if min(chosen.values()) <= 0:
        raise LabelError(f"party {name}: weights.classes: weights above 0 were expected, others came; correct them")
    return np.array([chosen[label] for label in labels])[place]

"""A loss that takes one more number of each row than its label, which rides beside the targets as a last column."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import Loss, Undone


class RowLoss(Loss):
    """Another loss, changed by a number of each row: its targets are (n x c + 1), of which the last column is that."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.name, self.classifies, self.single = loss.name, loss.classifies, loss.single  # type: ignore[misc]
        self.elementwise, self.bound, self.curvature = loss.elementwise, loss.bound, loss.curvature  # type: ignore[misc]
        self.spacing, self.spread = loss.spacing, loss.spread  # type: ignore[misc]
        self.estimates, self.slack = loss.estimates, loss.slack  # type: ignore[misc]
        self.keeps_targets, self.guesses = loss.keeps_targets, loss.guesses  # type: ignore[misc]

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

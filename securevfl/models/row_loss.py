"""A loss that depends on one number of each row in addition to its label, such as a weight or an exposure.

The number is the last column of the targets.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import InvertedResidual, Loss

AS_IT_IS = (  # of a loss that a number of each row changes
    *(
        "name",
        "classifies",
        "single",
        "elementwise",
        "bound",
        "curvature",
        "spacing",
        "label_scale",
        "reports_standard_errors",
        "step_factor",
    ),
    *("retains_targets", "assumes_zero_labels", "smooth"),
)


class RowLoss(Loss):
    """Another loss, changed by a number of each row: its targets are (n x c + 1), of which the last column is that."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        for name in AS_IT_IS:
            setattr(self, name, getattr(loss, name))

    def minimizer(self, y: Floats) -> Floats:
        return self._loss.minimizer(y[:, :-1])

    def invert_residual(self, g: Floats) -> InvertedResidual:
        return self._loss.invert_residual(g)

    def revealed_outputs(self, f: Floats) -> Floats:
        return self._loss.revealed_outputs(f)

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        return self._loss.mean(f, classes)

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        return self._loss.units(classes)

    def synthetic_labels(self, scores: Floats) -> Floats:
        return self._loss.synthetic_labels(scores)

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        return self._loss.classes(y)

    def outputs(self, classes: NDArray[Any]) -> int:
        return self._loss.outputs(classes)

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Targets (n x c), without the column that goes beside them."""
        return self._loss.targets(y, classes)

    def proba(self, f: Floats) -> Floats:
        return self._loss.proba(f)

"""A loss that depends on one number of each row in addition to its label, such as a weight or an exposure.

The number is the last column of the targets. f (n, c) are the outputs of the model.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import InvertedResidual, Loss

INHERITED_ATTRIBUTES = (
    *("name", "classifies", "single", "elementwise", "retains_targets", "assumes_zero_labels", "smooth"),
    *("bound", "curvature", "spacing", "step_factor", "reports_standard_errors", "label_scale"),
)


class RowLoss(Loss):
    """A loss modified by one number of each row, the last column of the targets (n, c + 1); f (n, c) are the outputs.

    Args:
        loss: the loss without the additional number.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        for name in INHERITED_ATTRIBUTES:
            setattr(self, name, getattr(loss, name))

    def minimizer(self, y: Floats) -> Floats:
        """Return the outputs f (n, c) that minimise the loss of each row."""
        return self._loss.minimizer(y[:, :-1])

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute targets and outputs from residuals g (n, c), as `Loss.invert_residual` describes."""
        return self._loss.invert_residual(g)

    def revealed_outputs(self, f: Floats) -> Floats:
        """Return the part (n, k) of the outputs f (n, c) that a residual reveals; see `Loss.revealed_outputs`."""
        return self._loss.revealed_outputs(f)

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the predicted numbers (n,), in the units of the labels."""
        return self._loss.mean(f, classes)

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return a and b such that a * f + b is in the units of the labels."""
        return self._loss.units(classes)

    def synthetic_labels(self, scores: Floats) -> Floats:
        """Return labels (n,) generated from normal scores (n,)."""
        return self._loss.synthetic_labels(scores)

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the classes of the labels y (n,); see `Loss.classes`."""
        return self._loss.classes(y)

    def outputs(self, classes: NDArray[Any]) -> int:
        """Return c, the number of columns of f."""
        return self._loss.outputs(classes)

    def targets(self, y: NDArray[Any], classes: NDArray[Any]) -> Floats:
        """Return the targets (n, c), without the additional column."""
        return self._loss.targets(y, classes)

    def proba(self, f: Floats) -> Floats:
        """Return the probability of each class (n, classes)."""
        return self._loss.proba(f)

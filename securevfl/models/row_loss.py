"""A loss that depends on one number of each row in addition to its label, such as a weight or an exposure.

The number is the last column of the targets.
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
    """A loss, modified by a number of each row, which is the last column of the targets (n, c + 1).

    Args:
        loss: the loss that is modified.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        for name in INHERITED_ATTRIBUTES:
            setattr(self, name, getattr(loss, name))

    def minimizer(self, y: Floats) -> Floats:
        """Return the f (n, c) at which rows have the smallest loss."""
        return self._loss.minimizer(y[:, :-1])

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute targets and sums from residuals g (n, c)."""
        return self._loss.invert_residual(g)

    def revealed_outputs(self, f: Floats) -> Floats:
        """Return the linear map (n, k) of f (n, c) that a residual reveals."""
        return self._loss.revealed_outputs(f)

    def mean(self, f: Floats, classes: NDArray[Any]) -> Floats:
        """Return the predicted numbers (n,), in the units of the labels."""
        return self._loss.mean(f, classes)

    def units(self, classes: NDArray[Any]) -> tuple[float, float]:
        """Return the factor and the summand that convert f to the units of the prediction."""
        return self._loss.units(classes)

    def synthetic_labels(self, scores: Floats) -> Floats:
        """Return labels (n,) generated from normal scores (n,)."""
        return self._loss.synthetic_labels(scores)

    def classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the classes of labels (n,)."""
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

"""What the party with labels brings to a measurement on shares, and makes of the pairs that come out of it.

Of classes each pair is marked by its label. Of numbers the targets are taken off the sums, so that levels are
residuals; as these wrap where a target lies far out, rows whose target does, on the side where most do, are marked
instead, if they are not too few, and their residuals are looked for on the other side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models import metrics, pair_metrics
from securevfl.models.loss import Loss
from securevfl.protocols.shares.score_label_pairs import MIN_ROWS_PER_LABEL, ScoreLabelPairs


@dataclass(frozen=True)
class MetricLabels:
    """The labels of the rows that are measured: targets (n x c), marks (n x c), and what is taken off the sums (n x c),
    if anything; reach: how far the levels go on either side."""

    loss: Loss
    classes: NDArray[Any]
    targets: Floats
    marks: NDArray[np.bool_]
    less: Floats | None
    reach: float
    side: float = 1.0

    @classmethod
    def of(cls, loss: Loss, labels: NDArray[Any], classes: NDArray[Any], reach: float) -> MetricLabels:
        """Make the targets and marks from labels (n,) and the classes of the training."""
        targets = loss.targets(labels, classes)
        if loss.classifies:
            return cls(loss, classes, targets, targets > 0, None, reach)
        side = 1.0 if targets.max() >= -targets.min() else -1.0
        wide = side * targets > reach / 2
        return cls(loss, classes, targets, wide & (wide.sum() >= MIN_ROWS_PER_LABEL), targets, reach, side)

    @property
    def none(self) -> float:
        """The mean loss without a model."""
        return float(self.loss.value(np.zeros_like(self.targets), self.targets).mean())

    def metrics(self, found: ScoreLabelPairs) -> tuple[dict[str, float], list[list[float]]]:
        """All metrics that pairs tell, and of two classes the calibration."""
        if self.less is not None:
            return pair_metrics.residual_metrics(self.loss, self._residuals(found), self.targets, self.classes), []
        told = pair_metrics.class_metrics(self.loss, found.f, found.marked, self.classes)
        if not self.loss.single:
            return told, []
        proba = self.loss.proba(found.f)[:, 1]
        return told, metrics.calibration(found.marked[:, 0], proba).tolist()

    def spread(self, found: ScoreLabelPairs) -> dict[str, float]:
        """Return the standard errors of the metrics that pairs tell."""
        if self.less is not None:
            return pair_metrics.residual_standard_errors(self.loss, self._residuals(found), self.targets, self.classes)
        return pair_metrics.class_standard_errors(self.loss, found.f, found.marked, self.classes)

    def _residuals(self, found: ScoreLabelPairs) -> Floats:
        """Read the residuals (n x c) off the levels."""
        r = self.side * found.f
        return self.side * np.where(found.marked & (r > self.reach / 2), r - 2 * self.reach, r)

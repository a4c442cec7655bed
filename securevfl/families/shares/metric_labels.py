"""The labels for one measurement on secret shares, and the metrics that follow from the opened pairs.

A measurement opens one pair (score, flag) for each row, in random order. For classes, the score is the model output and
the flag is the label. For numbers, the targets are subtracted from the outputs, so the scores are residuals. Scores are
integers modulo a range, so a residual wraps around if the target is far from 0. Therefore rows with far targets, on the
side (positive or negative) with the farthest one, are flagged, unless they are too few, and their residuals are
unwrapped.
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
    """The labels of the measured rows.

    Attributes:
        loss: the loss.
        classes: the classes of the training.
        targets: the labels in the encoding of the loss (n, c).
        flags: which pairs are flagged (n, c).
        subtracted: values that are subtracted from the outputs (n, c); None for classes.
        reach: the largest absolute score that can be represented.
        side: the sign of the targets that are flagged: 1 or -1.
    """

    loss: Loss
    classes: NDArray[Any]
    targets: Floats
    flags: NDArray[np.bool_]
    subtracted: Floats | None
    reach: float
    side: float = 1.0

    @classmethod
    def of(cls, loss: Loss, labels: NDArray[Any], classes: NDArray[Any], reach: float) -> MetricLabels:
        """Compute targets and flags.

        Args:
            loss: the loss.
            labels: labels (n,).
            classes: the classes of the training.
            reach: the largest absolute score that can be represented.

        Returns:
            Targets and flags of the rows.
        """
        targets = loss.targets(labels, classes)
        if loss.classifies:
            return cls(loss, classes, targets, targets > 0, None, reach)
        side = 1.0 if targets.max() >= -targets.min() else -1.0
        is_far = side * targets > reach / 2
        return cls(loss, classes, targets, is_far & (is_far.sum() >= MIN_ROWS_PER_LABEL), targets, reach, side)

    @property
    def zero_model_loss(self) -> float:
        """The mean loss of the zero model, whose output is 0 for every row."""
        return float(self.loss.value(np.zeros_like(self.targets), self.targets).mean())

    def metrics(self, pairs: ScoreLabelPairs) -> tuple[dict[str, float], list[list[float]]]:
        """Return all metrics that pairs determine and, for two classes, the reliability curve."""
        if self.subtracted is not None:
            return pair_metrics.residual_metrics(self.loss, self._residuals(pairs), self.targets, self.classes), []
        values = pair_metrics.class_metrics(self.loss, pairs.f, pairs.marked, self.classes)
        if not self.loss.single:
            return values, []
        proba = self.loss.proba(pairs.f)[:, 1]
        return values, metrics.calibration(pairs.marked[:, 0], proba).tolist()

    def standard_errors(self, pairs: ScoreLabelPairs) -> dict[str, float]:
        """Return the standard errors of the metrics that pairs determine."""
        if self.subtracted is not None:
            return pair_metrics.residual_standard_errors(self.loss, self._residuals(pairs), self.targets, self.classes)
        return pair_metrics.class_standard_errors(self.loss, pairs.f, pairs.marked, self.classes)

    def _residuals(self, pairs: ScoreLabelPairs) -> Floats:
        """Return the residuals (n, c); those of flagged rows that have wrapped around are corrected."""
        r = self.side * pairs.f
        return self.side * np.where(pairs.marked & (r > self.reach / 2), r - 2 * self.reach, r)

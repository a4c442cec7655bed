"""The labels for one measurement on secret shares, and the metrics that follow from the opened pairs.

A *measurement* (an evaluation of the model) *opens* (reveals) one pair (score, flag) for each row, in random order, to
the party with labels. For classes, the score is the model output and the flag is the label. For numbers, the party
subtracts the targets (labels in the encoding of the loss) from the outputs, so the scores are residuals.

Scores outside the range [-reach, reach] wrap around. Numeric targets are therefore clipped to half of this range. Rows
with a clipped target are *far*, and their pairs are flagged. It is unknown which flagged pair belongs to which far row.
A metric is therefore computed for two extreme assignments, and its value is the mean of the two. It counts as measured
if they differ by at most two standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models import metrics, pair_metrics
from securevfl.models.class_figures import pair_class_figures
from securevfl.models.loss import Loss
from securevfl.models.robust_losses import QuantileLoss
from securevfl.models.standard_losses import LogisticLoss, SquareLoss
from securevfl.protocols.shares.score_label_pairs import MIN_ROWS_PER_LABEL, ScoreLabelPairs


@dataclass(frozen=True)
class MetricLabels:
    """The labels of the measured rows.

    Attributes:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        classes: the classes of the training.
        targets: the labels in the encoding of the loss (n, c).
        flags: which pairs are flagged (n, c).
        subtracted: values to subtract from the outputs (n, c), if labels are numbers.
        reach: the largest absolute score that a pair can represent.
        spacing: the distance between two scores that can be represented. A score was rounded up or down at random.
    """

    loss: Loss
    classes: NDArray[Any]
    targets: Floats
    flags: NDArray[np.bool_]
    subtracted: Floats | None
    reach: float
    spacing: float = 0.0

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The code of each pair (n, c): 1 if it is flagged, otherwise 0."""
        return self.flags.astype(np.uint8)

    @classmethod
    def of(
        cls, loss: Loss, labels: NDArray[Any], classes: NDArray[Any], reach: float, spacing: float = 0.0
    ) -> MetricLabels:
        """Compute the targets of labels, and the flags of their pairs.

        Args:
            loss: the loss function that the training minimises (`securevfl.models.loss`).
            labels: the labels of the measured rows (n,).
            classes: the classes of the training.
            reach: the largest absolute score that a pair can represent.
            spacing: the distance of two scores that can be represented.

        Returns:
            Targets and flags of the rows.
        """
        targets = loss.targets(labels, classes)
        if loss.classifies:
            return cls(loss, classes, targets, targets > 0, None, reach, spacing)
        clipped = np.clip(targets, -reach / 2, reach / 2)
        is_far = clipped != targets
        return cls(loss, classes, targets, is_far & (is_far.sum() >= MIN_ROWS_PER_LABEL), clipped, reach, spacing)

    def loss_metrics(self, loss: float) -> dict[str, float]:
        """Return the metrics that follow from the mean loss alone, which is measured without rounding of scores."""
        if isinstance(self.loss, LogisticLoss):
            return {"loss": loss, "log_loss": loss}
        if isinstance(self.loss, SquareLoss):
            deviation = self.loss.units(self.classes)[0]
            rmse = deviation * np.sqrt(2 * max(0.0, loss))
            return {"loss": loss, "rmse": float(rmse), "r2": float(1 - 2 * loss / self.targets.var())}
        if isinstance(self.loss, QuantileLoss):
            return {"loss": loss, "pinball": loss * self.loss.units(self.classes)[0]}
        return {"loss": loss}

    def metrics(self, pairs: ScoreLabelPairs) -> tuple[dict[str, float], list[list[float]]]:
        """Return all metrics that the pairs determine and, for two classes, the reliability curve."""
        if self.subtracted is not None:
            least, largest = self._residual_metrics(pairs)
            return self._without_rounding({name: (least[name] + largest[name]) / 2 for name in least}, pairs), []
        values = pair_metrics.class_metrics(self.loss, pairs.f, pairs.marked, self.classes)
        if not self.loss.single:
            return values, []
        bias, is_subtracted = self.auc_bias(pairs)
        if is_subtracted:
            values["auc"] = min(1.0, max(0.0, values["auc"] - bias))
        proba = self.loss.proba(pairs.f)[:, 1]
        return values, metrics.calibration(pairs.marked[:, 0], proba).tolist()

    def auc_bias(self, pairs: ScoreLabelPairs) -> tuple[float, bool]:
        """Estimate by how much the rounding of scores changes the AUC.

        Args:
            pairs: the (score, flag) pairs that an evaluation has opened.

        Returns:
            The mean change over the classes, and whether `metrics` subtracts it from the AUC, which it does only if
            there are two classes.
        """
        if self.subtracted is not None or not self.spacing:
            return 0.0, False
        columns = list(zip(pairs.marked.T, pairs.f.T, strict=True))
        bias = float(np.mean([pair_metrics.auc_rounding_bias(marked, f, self.spacing) for marked, f in columns]))
        return bias, self.loss.single

    def by_class(self, pairs: ScoreLabelPairs) -> dict[str, dict[str, float]]:
        """Return the figures of each class against all others; empty unless there are several classes."""
        if self.subtracted is not None or self.loss.single:
            return {}
        return pair_class_figures(pairs.f, pairs.marked, self.classes)

    def standard_errors(self, pairs: ScoreLabelPairs) -> dict[str, float]:
        """Return the standard errors of the metrics that pairs determine."""
        if self.subtracted is not None:
            r = self._residuals(pairs, 1)
            return pair_metrics.residual_standard_errors(self.loss, r, self.targets, self.classes)
        return pair_metrics.class_standard_errors(self.loss, pairs.f, pairs.marked, self.classes)

    def unmeasured(self, pairs: ScoreLabelPairs) -> list[str]:
        """Return the metrics whose values for the two extreme assignments of pairs to far rows differ too much."""
        if self.subtracted is None:
            return []
        least, largest = self._residual_metrics(pairs)
        errors = self.standard_errors(pairs)
        limits = {name: 2 * errors[name] for name in least if name in errors}
        return [name for name, limit in limits.items() if not abs(largest[name] - least[name]) <= limit]

    def _without_rounding(self, values: dict[str, float], pairs: ScoreLabelPairs) -> dict[str, float]:
        """Return the metrics of a regression without the effect of rounding scores up or down at random.

        Rounding adds spacing^2 / 6 to the mean square of a smooth distribution (Sheppard's correction for a random
        rounding). `coverage` is the share of labels at or below the prediction. A rounded score of 0 can belong to a
        label below or above it, so only half of these scores count.
        """
        added = self.spacing**2 / 6
        if "rmse" in values:
            in_units = added * self.loss.units(self.classes)[0] ** 2
            values["rmse"] = float(np.sqrt(max(0.0, values["rmse"] ** 2 - in_units)))
            values["r2"] = float(values["r2"] + added / self.targets.var())
        if "coverage" in values and self.spacing:
            values["coverage"] -= float((pairs.f == 0).mean()) / 2
        return values

    def _residual_metrics(self, pairs: ScoreLabelPairs) -> tuple[dict[str, float], dict[str, float]]:
        """Return the metrics for both assignments of pairs to far rows.

        The first assigns the smallest outputs to the smallest targets, the second to the largest ones.
        """
        equal, opposite = (
            pair_metrics.residual_metrics(self.loss, self._residuals(pairs, order), self.targets, self.classes)
            for order in (1, -1)
        )
        return equal, opposite

    def _residuals(self, pairs: ScoreLabelPairs, order: int) -> Floats:
        """Return the residuals (n, c), with the clipped parts of targets.

        Args:
            pairs: the (score, flag) pairs that an evaluation has opened.
            order: 1 pairs the smallest outputs of far rows with their smallest targets, -1 with their largest.

        Returns:
            The residuals. If pairs are not flagged, the rows with the smallest scores are assumed to be the far rows.
        """
        assert self.subtracted is not None, "scores are residuals"
        r, excess = pairs.f.copy(), self.targets - self.subtracted
        for side in (1.0, -1.0):
            parts = np.sort(side * excess[side * excess > 0])
            scores = side * r[:, 0]
            if self.flags.any():
                scores = np.where(pairs.marked[:, 0], scores, np.inf)
            rows = np.argsort(scores, kind="stable")[: len(parts)]
            r[rows, 0] -= side * parts[::order]
        return r

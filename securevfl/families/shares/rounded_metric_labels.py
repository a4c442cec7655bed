"""The labels for one measurement of counts or amounts on secret shares, and the metrics that follow from the pairs.

The evaluation of the final model reveals one pair (score, code) for each row, in random order, to the party with
labels. The code is the label, rounded at random to one of four values (`securevfl.models.rounded_labels`), and the
score is the model output, rounded at random to one of 64 levels. If too few rows would have one of the codes, all rows
have code 0, and the pairs determine no metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.pair_metrics import ROUNDED_LABEL_BITS
from securevfl.models.rounded_labels import Codes, RankedMetrics, choose_knots, ranked_metrics, round_labels
from securevfl.protocols.shares.score_label_pairs import ScoreLabelPairs

_DRAW_BITS = 53


@dataclass(frozen=True)
class RoundedMetricLabels:
    """The labels of the measured rows.

    Attributes:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        classes: the two numbers that define the scale of the labels: 0, and the mean label of the training rows.
        targets: the labels in the encoding of the loss (n, 1).
        labels: the labels of the measured rows, not rounded (n,).
        knots: the values of the codes in rising order; None if too few rows would have one of the codes.
        codes: the code of each row (n, 1).
        reach: the largest absolute score that a pair can represent.
        spacing: the distance between two scores that can be represented.
        subtracted: None, because nothing is subtracted from the scores.
    """

    loss: LogLinkLoss
    classes: NDArray[Any]
    targets: Floats
    labels: Floats
    knots: Floats | None
    codes: Codes
    reach: float
    spacing: float
    subtracted: None = None

    @classmethod
    def of(
        cls, loss: LogLinkLoss, labels: NDArray[Any], classes: NDArray[Any], reach: float, spacing: float
    ) -> RoundedMetricLabels:
        """Round labels with fresh random numbers.

        Args:
            loss: the loss function that the training minimises (`securevfl.models.loss`).
            labels: the labels (n,) of the measured rows.
            classes: the two numbers that define the scale of the labels: 0, and the mean label of the training rows.
            reach: the largest absolute score that a pair can represent.
            spacing: the distance between two scores that can be represented.

        Returns:
            The labels with their codes.
        """
        y = np.asarray(labels, np.float64)
        knots, codes = choose_knots(y, 2**ROUNDED_LABEL_BITS), np.zeros(len(y), np.uint8)
        if knots is not None:
            drawn = Prg.fresh("rounding of labels").array((len(y),), np.uint64) >> np.uint64(64 - _DRAW_BITS)
            codes = round_labels(y, knots, drawn / 2.0**_DRAW_BITS)
        return cls(loss, classes, loss.targets(y, classes), y, knots, codes[:, None], reach, spacing)

    def loss_metrics(self, loss: float) -> dict[str, float]:
        """Return the metrics that follow from the mean loss, which is measured without rounding of scores."""
        return {"deviance": loss * self.loss.deviance_scale(self.classes), "loss": loss}

    def metrics(self, pairs: ScoreLabelPairs) -> tuple[dict[str, float], list[list[float]]]:
        """Return the metrics that the pairs determine, and the mean labels and predictions of ten groups of rows."""
        ranked = self._ranked(pairs)
        return ({}, []) if ranked is None else (dict(ranked.values), ranked.curve)

    def standard_errors(self, pairs: ScoreLabelPairs) -> dict[str, float]:
        """Return the standard errors of the metrics that the pairs determine."""
        ranked = self._ranked(pairs)
        return {} if ranked is None else dict(ranked.errors)

    def auc_bias(self, pairs: ScoreLabelPairs) -> tuple[float, bool]:
        """Return a bias of 0: counts and amounts have no AUC."""
        return 0.0, False

    def by_class(self, pairs: ScoreLabelPairs) -> dict[str, dict[str, float]]:
        """Return an empty dict: counts and amounts have no classes."""
        return {}

    def unmeasured(self, pairs: ScoreLabelPairs) -> list[str]:
        """Return an empty list: the standard errors include the effect of rounding labels, so all metrics count."""
        return []

    def _ranked(self, pairs: ScoreLabelPairs) -> RankedMetrics | None:
        if self.knots is None:
            return None
        f, rounded = pairs.f[:, 0], self.knots[pairs.codes[:, 0]]
        return ranked_metrics(f, self.loss.mean(pairs.f, self.classes), rounded, self.labels, self.spacing)

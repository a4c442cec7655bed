"""The result of an evaluation: the metrics of a model on the evaluated rows, with their standard errors.

Some protocols round the values from which the loss is computed at random, so that they disclose less. A measured loss
then has a random error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from securevfl.data.baseline import Baseline

TOLERATED_ROUNDINGS = 3.0
"""Two measured losses count as different only if they differ by more than this number of standard deviations of the
rounding error of one loss."""


@dataclass(frozen=True)
class Measurement:
    """The metrics of one evaluation. All fields are empty at a party that receives no metrics.

    Attributes:
        metrics: values by name.
        calibration: points of the reliability curve (`securevfl.models.metrics.calibration`).
        standard_errors: standard errors of the metrics by name.
        start_loss: loss of the model from which the training starts on the measured rows, if it is known.
        score_baseline: distribution of the scores, if this party receives scores.
        loss_rounding: largest standard deviation that random rounding adds to the loss; 0 if nothing is rounded.
        by_class: with several classes, the figures of each class against all others, by the name of the class.
        notes: statements about the metrics: which ones are not measured and why, and how exact they are.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    calibration: Sequence[list[float]] = ()
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    score_baseline: Baseline | None = None
    start_loss: float = math.inf
    loss_rounding: float = 0.0
    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: Sequence[str] = ()

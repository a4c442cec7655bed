"""The results of scoring rows and of measuring a model's metrics. f (m, c) are the outputs for m rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.baseline import Baseline


@dataclass(frozen=True)
class RowHistory:
    """Facts that a requesting party knows about new rows (m,) before it requests their scores.

    Attributes:
        trained: whether the model was trained on the row (m,).
        changed: whether the party has already requested a score of the row with different columns (m,).
        scores: scores (m, c) that the party has received earlier; nan for all other rows.
    """

    trained: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    scores: Floats


@dataclass(frozen=True)
class RowScores:
    """The outcome of one request for scores of m rows.

    Attributes:
        outputs: model outputs f (m, c), nan for rows without a score; None at a party that receives no scores.
        scored: whether the row received a score (m,).
        fresh: whether that score was computed now, not repeated from an earlier request (m,).
    """

    outputs: Floats | None
    scored: NDArray[np.bool_]
    fresh: NDArray[np.bool_]

    @classmethod
    def of_all(cls, rows: int, outputs: Floats | None) -> RowScores:
        """Return the result of a request in which all rows were scored."""
        return cls(outputs, np.ones(rows, np.bool_), np.ones(rows, np.bool_))


@dataclass(frozen=True)
class Measurement:
    """The metrics of one evaluation. All fields are empty at a party that receives no metrics.

    Attributes:
        metrics: values by name.
        calibration: points of the reliability curve (`securevfl.models.metrics.calibration`).
        standard_errors: standard errors of the metrics by name.
        score_baseline: distribution of the scores, if this party receives scores.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    calibration: Sequence[list[float]] = ()
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    score_baseline: Baseline | None = None

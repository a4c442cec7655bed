"""The error of metrics if model outputs are rounded at random, as they are if residuals are encrypted.

Parties without labels then round their outputs by a secret dither, so that the key holder cannot derive their columns
(`securevfl.families.output_rounding`). The metrics are those of the rounded outputs. Noise of the same size, added to
these outputs once more, moves the metrics by about as much as rounding has moved them from those of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import Loss
from securevfl.models.metrics import METRICS, ScoredRows, metric_names

SAME_AS = {"loss": "log_loss", "error": "accuracy"}
"""Metrics that the statement leaves out next to another one that shows the same."""
REPETITIONS = 8
"""Number of times that noise is drawn."""


def rounding_errors(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], weights: Floats | None, deviation: float
) -> dict[str, float]:
    """Return the root mean square by which rounding moves each metric.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the rounded outputs (n, c).
        y: the labels (n,).
        classes: the classes of the labels.
        weights: the weights of rows (n,), or None.
        deviation: standard deviation of the rounding in an output.

    Returns:
        The errors by name of the metric.
    """
    w, generator, names = (
        np.ones(len(f)) if weights is None else np.asarray(weights, np.float64),
        np.random.default_rng(0),
        metric_names(loss),
    )

    def measured(outputs: Floats) -> Floats:
        rows = ScoredRows(loss, outputs, y, classes, w)
        return np.array([METRICS[name](rows) for name in names])

    values = measured(f)
    moved = [measured(f + deviation * generator.normal(size=f.shape)) - values for _ in range(REPETITIONS)]
    errors = np.sqrt(np.mean(np.square(moved), axis=0))
    return {name: float(error) for name, error in zip(names, errors, strict=True) if np.isfinite(error)}


def rounding_note(errors: Mapping[str, float]) -> str:
    """Return a statement for the report about the errors of metrics because outputs are rounded."""
    distinct = {name: error for name, error in errors.items() if SAME_AS.get(name, "") not in errors and error > 0}
    figures = ", ".join(f"{name} {error:.1g}" for name, error in distinct.items()) or "0"
    return (
        "the other parties round their outputs at random, so that the party that decrypts them cannot derive columns. "
        f"Metrics therefore differ from those of the model, and between runs, by about: {figures}"
    )

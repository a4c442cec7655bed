"""Metrics by group, such as sex or region, at a party that has both the labels and the groups.

For two classes each group has these metrics, in addition to the usual ones: `rate`, the share of rows of the positive
class; `selected`, the share predicted to be positive; `true_positive` and `false_positive`, this share among the rows
of the positive and of the negative class (equalised odds, Hardt, Price and Srebro 2016); and `predicted`, the mean
probability, which calibration compares with `rate`. A regression has the mean label and the mean prediction instead.
Groups of fewer than MIN_GROUP_ROWS rows are left out: their metrics are noisy and reveal something about each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import Loss
from securevfl.models.metrics import evaluate

MIN_GROUP_ROWS = 100
"""Minimum number of rows of a group."""


def metrics_by_group(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], groups: NDArray[Any]
) -> dict[str, dict[str, float]]:
    """Compute metrics for each group of rows.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the outputs (n, c).
        y: the labels (n,).
        classes: the classes of the labels.
        groups: the group of each row (n,).

    Returns:
        The metrics of each group with at least MIN_GROUP_ROWS rows, by its name. With more than two classes these are
        the usual metrics only.
    """
    names, group_index, counts = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    metrics = {}
    for k in np.flatnonzero(counts >= MIN_GROUP_ROWS).tolist():
        rows = group_index == k
        figures = {"rows": float(counts[k])} | _rates(loss, f[rows], y[rows], classes)
        metrics[str(names[k])] = figures | evaluate(loss, f[rows], y[rows], classes)
    return metrics


def rates_from_counts(
    true_positives: float, false_positives: float, false_negatives: float, true_negatives: float
) -> dict[str, float]:
    """Compute the rates of one group from its confusion matrix."""
    positive, negative = true_positives + false_negatives, false_positives + true_negatives
    rows, selected = positive + negative, true_positives + false_positives
    return {
        "rows": rows,
        "rate": positive / rows if rows else float("nan"),
        "selected": selected / rows if rows else float("nan"),
        "true_positive": true_positives / positive if positive else float("nan"),
        "false_positive": false_positives / negative if negative else float("nan"),
    }


def _rates(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> dict[str, float]:
    if not loss.classifies:
        return {"label": float(np.mean(y)), "predicted": float(loss.mean(f, classes).mean())}
    if len(classes) != 2:
        return {}
    positive, selected = y == classes[1], f[:, 0] > 0
    return {
        "rate": float(positive.mean()),
        "predicted": float(loss.proba(f)[:, 1].mean()),
        "selected": float(selected.mean()),
        "true_positive": float(selected[positive].mean()) if positive.any() else float("nan"),
        "false_positive": float(selected[~positive].mean()) if not positive.all() else float("nan"),
    }

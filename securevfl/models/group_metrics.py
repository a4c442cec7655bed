"""Metrics by group, such as sex or region, at a party that has both the labels and the groups.

For two classes each group has: the share of rows of the positive class (rate); the share predicted to be positive
(selected); this share among rows of the positive and of the negative class (true_positive, false_positive; equalised
odds, Hardt, Price and Srebro 2016); and the mean probability, which calibration compares with the rate. The usual
metrics follow. A regression has the mean label and the mean prediction, and the usual metrics. Groups of fewer than
MIN_GROUP_ROWS rows are left out: their figures are noisy and reveal something about each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import Loss
from securevfl.models.metrics import evaluate

FEWEST = 100  # rows of a group


def metrics_by_group(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], groups: NDArray[Any]
) -> dict[str, dict[str, float]]:
    """Figures of f (n x c) against labels y (n,) for each group (n,) of enough rows, by its name; several classes have
    the usual metrics alone."""
    names, place, counts = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    found = {}
    for k in np.flatnonzero(counts >= FEWEST).tolist():
        rows = place == k
        own = {"rows": float(counts[k])} | _rates(loss, f[rows], y[rows], classes)
        found[str(names[k])] = own | evaluate(loss, f[rows], y[rows], classes)
    return found


def rates_from_counts(hit: float, false: float, missed: float, rest: float) -> dict[str, float]:
    """Figures of one group from its counts of rows: said to be of the positive class and of it, said but not of it, of
    it but not said, and neither."""
    rows, positive, negative = hit + false + missed + rest, hit + missed, false + rest
    return {
        "rows": rows,
        "rate": positive / rows if rows else float("nan"),
        "selected": (hit + false) / rows if rows else float("nan"),
        "true_positive": hit / positive if positive else float("nan"),
        "false_positive": false / negative if negative else float("nan"),
    }


def _rates(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> dict[str, float]:
    if not loss.classifies:
        return {"label": float(np.mean(y)), "said": float(loss.mean(f, classes).mean())}
    if len(classes) != 2:
        return {}
    positive, selected = y == classes[1], f[:, 0] > 0
    return {
        "rate": float(positive.mean()),
        "said": float(loss.proba(f)[:, 1].mean()),
        "selected": float(selected.mean()),
        "true_positive": float(selected[positive].mean()) if positive.any() else float("nan"),
        "false_positive": float(selected[~positive].mean()) if not positive.all() else float("nan"),
    }

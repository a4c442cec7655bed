"""Metrics of pairs (quantised score, label) in random order, if the scores of rows stay hidden.

Scores are rounded to a grid at random, so rows may tie that did not tie before; precision averages over all orders of
tied rows. With several classes each output has pairs of its own, in another order, so only metrics of one class
against the rest are available. For a regression the scores are residuals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.metrics import area_under_curve, evaluate, metric_names, standard_errors
from securevfl.models.standard_losses import LogisticLoss

SEVERAL = ("auc", "loss")


def pair_metric_names(loss: Loss) -> list[str]:
    """List the metrics that `of_classes` or `of_residuals` gives for this loss."""
    if not supports_pairs(loss):
        return ["loss"]
    return metric_names(loss) if loss.single else list(SEVERAL)


def supports_pairs(loss: Loss) -> bool:
    """Whether pairs tell the loss: it is of classes, or of the difference of f and a number."""
    return not isinstance(loss, LogLinkLoss)


def class_metrics(loss: Loss, f: Floats, marked: NDArray[np.bool_], classes: NDArray[Any]) -> dict[str, float]:
    """Metrics of pairs, a column for each output: sums f (n x c), and whether rows are of the output's class."""
    if loss.single:
        positive = marked[:, 0]
        found = evaluate(loss, f, np.where(positive, classes[1], classes[0]), classes)
        return found | {"pr_auc": mean_average_precision(positive, f[:, 0])}
    signs = np.where(marked, 1.0, -1.0)
    areas = [area_under_curve(own, column) for own, column in zip(marked.T, f.T, strict=True)]
    losses = [loss.value(column[:, None], own[:, None]).mean() for own, column in zip(signs.T, f.T, strict=True)]
    return {"auc": float(np.mean(areas)), "loss": float(np.sum(losses))}


def residual_metrics(loss: Loss, r: Floats, targets: Floats, classes: NDArray[Any]) -> dict[str, float]:
    """Metrics of residuals r = f - y (n x 1) of targets y (n x 1), in whatever order, of a loss of their difference."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = evaluate(loss, r, np.full(len(r), classes[0]), classes)  # as of targets that are all 0
    return found | ({"r2": 1 - float((r**2).mean() / targets.var())} if "r2" in found else {})


def class_standard_errors(loss: Loss, f: Floats, marked: NDArray[np.bool_], classes: NDArray[Any]) -> dict[str, float]:
    """Return the standard errors of `of_classes`; of several classes, whose pairs go by themselves, as if these were of
    other rows each."""
    if loss.single:
        return standard_errors(loss, f, np.where(marked[:, 0], classes[1], classes[0]), classes, None)
    two, signs = LogisticLoss(), np.array([-1.0, 1.0])
    each = [
        standard_errors(two, f[:, k, None], np.where(own, 1.0, -1.0), signs, None) for k, own in enumerate(marked.T)
    ]
    errors = {name: np.sqrt(sum(own.get(name, 0.0) ** 2 for own in each)) for name in SEVERAL}
    return {"auc": float(errors["auc"] / len(each)), "loss": float(errors["loss"])}


def residual_standard_errors(loss: Loss, r: Floats, targets: Floats, classes: NDArray[Any]) -> dict[str, float]:
    """Return the standard errors of `of_residuals`."""
    found = standard_errors(loss, r, np.full(len(r), classes[0]), classes, None)
    squares = float(np.std(r**2) / np.sqrt(len(r)) / targets.var())
    return found | ({"r2": squares} if "rmse" in found else {})


def mean_average_precision(positive: NDArray[np.bool_], score: Floats) -> float:
    """`average_precision` in the mean over all orders of rows whose score (n,) is the same; nan without a
    positive row."""
    count = float(positive.sum())
    if not count:
        return float("nan")
    _, place = np.unique(-score, return_inverse=True)
    found, rows = np.bincount(place, weights=positive), np.bincount(place)
    of = np.repeat(np.arange(len(rows)), rows)
    at = np.arange(len(score))
    within = at - (np.cumsum(rows) - rows)[of]
    before = (np.cumsum(found) - found)[of] + within * (found[of] - 1) / np.maximum(rows[of] - 1, 1)
    return float((found[of] / rows[of] * (before + 1) / (at + 1)).sum() / count)

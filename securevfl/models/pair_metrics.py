"""Metrics computed from pairs (quantised score, label) in random order, so that no party learns a row's score.

Scores are rounded up or down at random to multiples of a spacing, the levels, so rows may tie that did not tie before;
precision is averaged over all orders of such rows. With several classes, each output has its own pairs in another
order, so the only metrics are those of one class against the rest. For a regression the score of a pair is its
residual. f (n, c) are the outputs of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.metrics import area_under_curve, evaluate, metric_names
from securevfl.models.standard_errors import mean_influence, standard_errors
from securevfl.models.standard_losses import LogisticLoss

MULTICLASS_METRICS = ("auc", "loss")

ROUNDED_LABEL_BITS = 2
"""The bits of a rounded label (`securevfl.models.rounded_labels`)."""


def pair_metric_names(loss: Loss) -> list[str]:
    """Return the names of the metrics that `class_metrics` or `residual_metrics` computes for this loss."""
    return metric_names(loss) if loss.single else list(MULTICLASS_METRICS)


MIN_TIED_ROWS = 20
"""Minimum number of rows of one or two levels between empty ones that are taken for one score."""


def supports_pairs(loss: Loss) -> bool:
    """Return whether pairs determine the loss, as for classes and for losses of the difference f - y.

    The loss of a count or an amount depends on both the output and the label, and a pair has a rounded label only.
    """
    return not isinstance(loss, LogLinkLoss)


def code_bits(loss: Loss) -> int:
    """Return the number of bits for the label in a pair: 1, or 2 for the rounded label of a count or an amount."""
    return 1 if supports_pairs(loss) else ROUNDED_LABEL_BITS


def class_metrics(loss: Loss, f: Floats, marked: NDArray[np.bool_], classes: NDArray[Any]) -> dict[str, float]:
    """Compute the metrics of a classification from pairs.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the quantised outputs (n, c), in a random order for each column.
        marked: whether the label of each pair is the class that its column stands for (n, c).
        classes: the classes.

    Returns:
        The metrics by name.
    """
    if loss.single:
        positive = marked[:, 0]
        metrics = evaluate(loss, f, np.where(positive, classes[1], classes[0]), classes)
        return metrics | {"pr_auc": mean_average_precision(positive, f[:, 0])}
    signs = np.where(marked, 1.0, -1.0)
    areas = [area_under_curve(members, scores) for members, scores in zip(marked.T, f.T, strict=True)]
    losses = [loss.value(scores[:, None], y[:, None]).mean() for y, scores in zip(signs.T, f.T, strict=True)]
    return {"auc": float(np.mean(areas)), "loss": float(np.sum(losses))}


def residual_metrics(loss: Loss, r: Floats, targets: Floats, classes: NDArray[Any]) -> dict[str, float]:
    """Compute the metrics of a regression from residuals.

    Args:
        loss: a loss that depends on the difference of f and y.
        r: residuals f - y (n, 1), in any order.
        targets: y (n, 1), in any order.
        classes: mean and standard deviation of the labels, as `loss.classes` returns them.

    Returns:
        The metrics by name.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        # the loss depends on f - y only, so residuals r are the outputs f of rows whose target y is 0
        metrics = evaluate(loss, r, np.full(len(r), classes[0]), classes)
    return metrics | ({"r2": 1 - float((r**2).mean() / targets.var())} if "r2" in metrics else {})


def class_standard_errors(loss: Loss, f: Floats, marked: NDArray[np.bool_], classes: NDArray[Any]) -> dict[str, float]:
    """Return the standard errors of `class_metrics`, as if the errors of the single classes were independent."""
    if loss.single:
        return standard_errors(loss, f, np.where(marked[:, 0], classes[1], classes[0]), classes, None)
    binary, signs = LogisticLoss(), np.array([-1.0, 1.0])
    errors_of = [
        standard_errors(binary, f[:, k, None], np.where(members, 1.0, -1.0), signs, None, MULTICLASS_METRICS)
        for k, members in enumerate(marked.T)
    ]
    errors = {name: np.sqrt(sum(other.get(name, 0.0) ** 2 for other in errors_of)) for name in MULTICLASS_METRICS}
    return {"auc": float(errors["auc"] / len(errors_of)), "loss": float(errors["loss"])}


def residual_standard_errors(loss: Loss, r: Floats, targets: Floats, classes: NDArray[Any]) -> dict[str, float]:
    """Return the standard errors of the metrics of a regression that `residual_metrics` computes from residuals."""
    errors = standard_errors(loss, r, np.full(len(r), classes[0]), classes, None)
    if "rmse" not in errors:
        return errors
    # the sampling error of the targets' variance is ignored, because pairs do not link targets to residuals
    influence = mean_influence((r**2).ravel(), np.ones(len(r)))
    return errors | {"r2": float(np.sqrt((influence**2).sum()) / targets.var())}


def mean_average_precision(positive: NDArray[np.bool_], score: Floats) -> float:
    """Return the average precision; if different scores were rounded to one level, its mean over their orders.

    Rows on one level usually had different scores, whose order is lost. Therefore `average_precision` is averaged over
    all orders of these rows. If a model has few different scores, however, many rows have exactly the same score, which
    is rounded to one or two neighbouring levels. One or two levels with empty levels on either side and at least
    `MIN_TIED_ROWS` rows are taken for such a score; their rows tie, as in `average_precision`.

    Args:
        positive: which rows (n,) are positive.
        score: the rounded scores (n,).

    Returns:
        The mean; nan without positive rows.
    """
    total = float(positive.sum())
    if not total:
        return float("nan")
    levels, level = np.unique(-score, return_inverse=True)
    group, is_tied = _scores_of_levels(levels, np.bincount(level))
    level = group[level]
    positives, rows = np.bincount(level, weights=positive), np.bincount(level)
    level_of_rank = np.repeat(np.arange(len(rows)), rows)
    rank = np.arange(len(score))
    rank_in_level = rank - (np.cumsum(rows) - rows)[level_of_rank]
    others = (positives[level_of_rank] - 1) / np.maximum(rows[level_of_rank] - 1, 1)
    positives_before = (np.cumsum(positives) - positives)[level_of_rank] + rank_in_level * others
    share = positives[level_of_rank] / rows[level_of_rank]
    precision = (positives_before + 1) / (rank + 1)
    tied = (np.cumsum(positives) / np.cumsum(rows))[level_of_rank]
    return float((share * np.where(is_tied[level_of_rank], tied, precision)).sum() / total)


def _scores_of_levels(levels: Floats, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Group one or two neighbouring levels if all their rows probably had the same score before rounding.

    Every other level is a group of its own.

    Args:
        levels: the k levels that have rows (k,), increasing.
        rows: the number of rows of each level (k,).

    Returns:
        The index of the group of each level (k,), and for each group whether its rows probably had the same score.
    """
    gaps = np.diff(levels)
    starts_run = np.append(True, gaps > 1.5 * gaps.min(initial=np.inf))
    run = np.cumsum(starts_run) - 1
    is_score = (np.bincount(run) <= 2) & (np.bincount(run, weights=rows) >= MIN_TIED_ROWS)
    group = np.cumsum(starts_run | ~is_score[run]) - 1
    return group, is_score[run[np.append(True, np.diff(group) > 0)]]


def auc_rounding_bias(marked: NDArray[np.bool_], f: Floats, spacing: float) -> float:
    """Estimate by how much rounding of scores changes the AUC, in the mean.

    The scores are multiples of the spacing, each rounded up or down at random without bias. The effect on the AUC grows
    with the square of the spacing, so rounding the same scores to twice the spacing changes the AUC by three times the
    effect of the first rounding.

    Args:
        marked: which rows (n,) are positive.
        f: the rounded scores (n,).
        spacing: the distance between neighbouring levels.

    Returns:
        The mean AUC from rounded scores minus the AUC from exact scores: negative as a rule.
    """
    odd = np.rint(f / spacing) % 2 == 1
    scores = np.concatenate([f[~odd], f[odd] - spacing, f[odd] + spacing])
    positive = np.concatenate([marked[~odd], marked[odd], marked[odd]])
    weights = np.concatenate([np.ones((~odd).sum()), np.full(2 * odd.sum(), 0.5)])  # both roundings are equally likely
    return (area_under_curve(positive, scores, weights) - area_under_curve(marked, f)) / 3

"""Figures of each class against all others, if labels have several classes.

A figure is a measure of model quality such as AUC. The figures in RANKING_FIGURES describe how well the scores of one
class rank its rows above all others. They can be computed from pairs (score, whether the row is of the class) whose
order differs from class to class. Precision and recall compare the scores of all classes in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.class_labels import class_names
from securevfl.models.loss import Loss
from securevfl.models.metrics import area_under_curve, average_precision, kolmogorov_smirnov, lift
from securevfl.models.standard_errors import auc_influence

RANKING_FIGURES = ("share", "auc", "auc_std_error", "ks", "pr_auc", "lift")
"""Names of the figures that need only the scores of one class."""


def class_figures(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], weights: Floats | None = None
) -> dict[str, dict[str, float]]:
    """Compute the figures of each class from scores of all classes.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the outputs (n, c).
        y: the labels (n,).
        classes: the classes of the labels.
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The figures by name of the class: those of the ranking by the class's probability, and precision and recall of
        predicting the likeliest class. Empty unless there are more than two classes.
    """
    if not loss.classifies or loss.single:
        return {}
    w = np.ones(len(f)) if weights is None else np.asarray(weights, np.float64)
    proba = loss.proba(f)
    likeliest, figures = proba.argmax(axis=1), {}
    for k, name in enumerate(class_names(classes)):
        members, predicted = np.asarray(y == classes[k]), likeliest == k
        correct = float(w[members & predicted].sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            more = {
                "precision": float(np.divide(correct, w[predicted].sum())),
                "recall": float(np.divide(correct, w[members].sum())),
            }
        figures[name] = _finite(ranking_figures(members, proba[:, k], w) | more)
    return figures


def pair_class_figures(f: Floats, marked: NDArray[np.bool_], classes: NDArray[Any]) -> dict[str, dict[str, float]]:
    """Compute the figures of each class from pairs, which are in another order for each class.

    Args:
        f: the scores (n, c).
        marked: whether the row of a pair is of the class of its column (n, c).
        classes: the classes (c,).

    Returns:
        The figures in RANKING_FIGURES, by name of the class.
    """
    columns = zip(class_names(classes), marked.T, f.T, strict=True)
    return {name: _finite(ranking_figures(members, scores)) for name, members, scores in columns}


def ranking_figures(members: NDArray[np.bool_], scores: Floats, weights: Floats | None = None) -> dict[str, float]:
    """Compute the figures of a ranking of rows by the score of one class.

    Args:
        members: which rows (n,) are of the class.
        scores: the scores (n,).
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The figures in RANKING_FIGURES; nan if they are not defined.
    """
    w = np.ones(len(scores)) if weights is None else weights
    influence = auc_influence(members, scores, w)
    return {
        "share": float(np.average(members, weights=w)),
        "auc": area_under_curve(members, scores, w),
        "auc_std_error": float(np.sqrt((influence**2).sum())),
        "ks": kolmogorov_smirnov(members, scores, w),
        "pr_auc": average_precision(members, scores, w),
        "lift": lift(members, scores, weights=w),
    }


def _finite(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if np.isfinite(value)}

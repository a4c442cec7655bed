"""Metrics of f (n x c) against labels, by name: what a loss is judged by, and in which direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.models.losses import Loss

LOWER_IS_BETTER = frozenset({"loss", "rmse", "error"})


def evaluate(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> dict[str, float]:
    """All metrics that fit the loss."""
    return {name: metric(loss, f, y, classes) for name, metric in _fitting(loss).items()}


def names(loss: Loss) -> list[str]:
    """The metrics that `evaluate` gives for this loss."""
    return list(_fitting(loss))


def reached(name: str, value: float, target: float) -> bool:
    """Whether `value` is at least as good as `target`."""
    return value <= target if name in LOWER_IS_BETTER else value >= target


Metric = Callable[[Loss, Floats, NDArray[Any], NDArray[Any]], float]


def _fitting(loss: Loss) -> dict[str, Metric]:
    if not loss.classifies:
        return {"r2": _r2, "rmse": _rmse, "loss": _loss}
    ranked = {"auc": _auc} if loss.single else {}
    return ranked | {"accuracy": _accuracy, "error": _error, "loss": _loss}


def _auc(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return area_under_curve(y == classes[1], f[:, 0])


def area_under_curve(positive: NDArray[np.bool_], score: Floats) -> float:
    """How often a positive row has the higher score (n,) of one of each kind, a tie being half (Mann and Whitney 1947).

    nan unless there are rows of both kinds.
    """
    count = int(positive.sum())
    if not 0 < count < len(positive):
        return float("nan")
    _, place, ties = np.unique(score, return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2  # of equal scores, the mean of their ranks
    return float((ranks[place[positive]].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def _accuracy(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    best = (f[:, 0] > 0).astype(int) if f.shape[1] == 1 else f.argmax(axis=1)
    return float(np.mean(classes[best] == y))


def _error(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return 1.0 - _accuracy(loss, f, y, classes)


def _loss(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return float(loss.value(f, loss.targets(y, classes)).mean())


def _r2(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    targets = loss.targets(y, classes)
    return float(1 - ((f - targets) ** 2).sum() / ((targets - targets.mean()) ** 2).sum())


def _rmse(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return float(np.sqrt(((f - loss.targets(y, classes)) ** 2).mean()) * classes[1])

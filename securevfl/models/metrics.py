"""Metrics of f (n x c) against labels, by name: what a loss is judged by, and in which direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.models.losses import Loss

LOWER_IS_BETTER = frozenset({"loss", "rmse", "error", "log_loss", "brier"})
TOP = 0.1  # the share of rows of highest score that lift looks at
TINY = 1e-15  # the least probability that a log-loss is taken of


def evaluate(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> dict[str, float]:
    """All metrics that fit the loss."""
    return {name: metric(loss, f, y, classes) for name, metric in _fitting(loss).items()}


def names(loss: Loss) -> list[str]:
    """The metrics that `evaluate` gives for this loss."""
    return list(_fitting(loss))


def reached(name: str, value: float, target: float) -> bool:
    """Whether `value` is at least as good as `target`."""
    return value <= target if name in LOWER_IS_BETTER else value >= target


def stale(name: str, values: Sequence[float], evaluations: int, tolerance: float) -> bool:
    """Whether none of the last `evaluations` values is better by more than `tolerance` than the best before them."""
    sign = -1.0 if name in LOWER_IS_BETTER else 1.0
    before, last = values[:-evaluations], values[-evaluations:]
    return bool(before) and not max(sign * value for value in last) > max(sign * value for value in before) + tolerance


def improves(name: str, value: float, before: Sequence[float]) -> bool:
    """Whether it is better than all values before."""
    return all(value < past if name in LOWER_IS_BETTER else value > past for past in before)


Metric = Callable[[Loss, Floats, NDArray[Any], NDArray[Any]], float]


def _fitting(loss: Loss) -> dict[str, Metric]:
    if not loss.classifies:
        return {"r2": _r2, "rmse": _rmse, "loss": _loss}
    common: dict[str, Metric] = {"accuracy": _accuracy, "error": _error, "loss": _loss, "log_loss": _log_loss}
    if not loss.single:
        return {"auc": _auc_of_each} | common | {"brier": _brier}
    return {"auc": _auc} | common | {"brier": _brier, "ks": _ks, "pr_auc": _pr_auc, "lift": _lift}


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


def _auc_of_each(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    """The mean over the classes of the AUC of each against all others (Provost and Domingos 2000), by probability."""
    proba = loss.proba(f)
    return float(np.mean([area_under_curve(y == each, proba[:, k]) for k, each in enumerate(classes)]))


def _ks(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return kolmogorov_smirnov(y == classes[1], f[:, 0])


def _pr_auc(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return average_precision(y == classes[1], f[:, 0])


def _lift(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    return lift(y == classes[1], f[:, 0])


def kolmogorov_smirnov(positive: NDArray[np.bool_], score: Floats) -> float:
    """The largest distance of the distributions of the score (n,) of the two kinds of rows; nan of one kind alone."""
    found, all_ = _above(positive, score)
    if not 0 < found[-1] < all_[-1]:
        return float("nan")
    return float(np.abs(found / found[-1] - (all_ - found) / (all_[-1] - found[-1])).max())


def average_precision(positive: NDArray[np.bool_], score: Floats) -> float:
    """The area under precision over recall: the sum over falling scores (n,) of precision times the gain in recall.

    nan without a positive row.
    """
    found, all_ = _above(positive, score)
    if not found[-1]:
        return float("nan")
    return float((np.diff(found, prepend=0) / found[-1] * found / all_).sum())


def lift(positive: NDArray[np.bool_], score: Floats, top: float = TOP) -> float:
    """How many times as often a row is positive among the share `top` of rows of highest score (n,) as among all.

    Of rows that tie at the edge it counts the mean. nan without a positive row.
    """
    found, all_ = _above(positive, score)
    if not found[-1]:
        return float("nan")
    taken = top * len(score)
    return float(np.interp(taken, np.append(0, all_), np.append(0, found)) / taken / (found[-1] / all_[-1]))


def calibration(positive: NDArray[np.bool_], proba: Floats, bins: int = 10) -> Floats:
    """A row (mean probability, share of positive rows, rows) for each of at most `bins` parts of the rows, which are as
    many in each part, by rising probability (n,)."""
    parts = np.array_split(np.argsort(proba, kind="stable"), min(bins, len(proba)))
    return np.array([[proba[rows].mean(), positive[rows].mean(), len(rows)] for rows in parts])


def _above(positive: NDArray[np.bool_], score: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each different score from the highest on, how many positive rows and how many rows have as much or more."""
    _, place = np.unique(-score, return_inverse=True)
    return np.cumsum(np.bincount(place, weights=positive)).astype(np.int64), np.cumsum(np.bincount(place))


def _log_loss(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    own = (loss.proba(f) * (y[:, None] == classes)).sum(axis=1)
    return float(-np.log(np.clip(own, TINY, 1)).mean())


def _brier(loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any]) -> float:
    """The mean squared error of the later class's probability of two; of several, summed over the classes."""
    squares = ((loss.proba(f) - (y[:, None] == classes)) ** 2).sum(axis=1)
    return float(squares.mean() / (2 if len(classes) == 2 else 1))


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

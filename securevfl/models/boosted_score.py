"""What one party with labels can say of them by its own columns alone: boosted trees, out of fold on training rows.

The score becomes a column among others. On a row that trees were fitted to it would be too good, and the weight it then
gets too large: so each training row is scored by trees of the other folds, and all other rows by trees of all training
rows (stacked generalisation, Wolpert 1992). Nothing is sent for it.

scikit-learn fits the trees; what is kept of them are plain numbers, so that scoring needs no more than these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.base.extras import is_installed
from securevfl.crypto.prg import Prg
from securevfl.data.scaling import on_grid
from securevfl.errors import ConfigError

ROUNDS = 60
FOLDS = 5
SCORE_WEIGHT = 0.3  # what the standardised own score is multiplied by, beside leaves
MAX_SCORE_DEVIATIONS = 8.0  # where a column of it is cut off


def check_installed(who: str) -> None:
    """ConfigError where scikit-learn is not there."""
    if not is_installed("sklearn"):
        raise ConfigError(
            f"{who}: scikit-learn was expected, which fits the score of a party's own columns, it is not installed; "
            "pip install 'securevfl[sklearn]', or train with boosted_score = false"
        )


@dataclass(frozen=True, repr=False)
class BoostedTree(SerializableFields):
    """One binary tree by its nodes (k,), the root first: the column and the threshold of each, its children, what it
    adds (at a leaf), how many training rows were in it. A node whose `left` is 0 is a leaf."""

    column: NDArray[np.intp]
    threshold: Floats
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    value: Floats
    rows: Floats

    def __call__(self, X: Floats) -> Floats:
        """Return what the tree adds for rows X (m x d), as (m,)."""
        node = np.zeros(len(X), np.intp)
        inner = self.left[node] > 0
        while inner.any():
            at, rows = node[inner], np.flatnonzero(inner)
            low = X[rows, self.column[at]] <= self.threshold[at]
            node[rows] = np.where(low, self.left[at], self.right[at])
            inner = self.left[node] > 0
        return self.value[node]


@dataclass(frozen=True, repr=False)
class Boosted(SerializableFields):
    """Trees by output whose values add up to the score (m x c), from `base` (c,) on."""

    base: Floats
    trees: tuple[tuple[BoostedTree, ...], ...]

    @classmethod
    def fit(cls, X: Floats, targets: Floats, *, classifies: bool, weights: Floats | None = None) -> Boosted:
        """Fits ROUNDS trees an output on rows X (n x d): one against the rest where `targets` (n x c) are -1 and 1."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        made = HistGradientBoostingClassifier if classifies else HistGradientBoostingRegressor
        base, trees = list[float](), list[tuple[BoostedTree, ...]]()
        for y in targets.T:
            if classifies and len(np.unique(y)) < 2:  # a fold without rows of a class
                base.append(float(y[0]))
                trees.append(())
                continue
            fitted = made(max_iter=ROUNDS, early_stopping=False, random_state=0)
            with threadpool_limits(1, user_api="openmp"):  # several wait busily for each other where cores are taken
                fitted.fit(X, y > 0 if classifies else y, sample_weight=weights)
            base.append(float(np.ravel(fitted._baseline_prediction)[0]))
            trees.append(tuple(_tree(predictor.nodes) for (predictor,) in fitted._predictors))
        return cls(np.array(base), tuple(trees))

    def __call__(self, X: Floats) -> Floats:
        """Return the score (m x c) of rows X (m x d)."""
        found = np.tile(self.base, (len(X), 1))
        for total, trees in zip(found.T, self.trees, strict=True):
            for tree in trees:
                total += tree(X)
        return found


@dataclass(frozen=True, repr=False)
class ScoreColumn(SerializableFields):
    """A party's own score: its trees, that of each training row (n x c) out of fold, and where that lies (c,).

    Where the part is that predicts, `trained` is empty.
    """

    trees: Boosted
    trained: Floats
    mean: Floats
    deviation: Floats

    def scaled(self, own: Floats) -> Floats:
        """Scores (m x c) as a column of inputs has them."""
        return on_grid(SCORE_WEIGHT * (own - self.mean) / self.deviation, MAX_SCORE_DEVIATIONS)

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        return super().state(whole=whole) | ({} if whole else {"trained": self.trained[:0]})


def out_of_fold(
    X: Floats,
    targets: Floats,
    key: bytes,
    *,
    classifies: bool,
    weights: Floats | None = None,
    order: NDArray[np.intp] | None = None,
) -> tuple[Floats, Boosted]:
    """Score training rows X (n x d), each by trees of the other folds; return the scores (n x c) and the trees fitted
    to all rows.

    targets (n x c), weights (n,): of these rows. key: 32 bytes that nobody else has, by which rows are dealt to folds
    from `order` (n,) on, or as they stand.
    """
    drawn = np.argsort(Prg(key, "folds of a party's own score").array(len(X), np.uint64), kind="stable")
    order = drawn if order is None else order[drawn]
    found = np.empty(targets.shape)
    for fold in _folds(order, targets, classifies=classifies):
        others = np.setdiff1d(order, fold)
        own = None if weights is None else weights[others]
        found[fold] = Boosted.fit(X[others], targets[others], classifies=classifies, weights=own)(X[fold])
    return found, Boosted.fit(X, targets, classifies=classifies, weights=weights)


def _folds(order: NDArray[np.intp], targets: Floats, *, classifies: bool) -> Sequence[NDArray[np.intp]]:
    """Deal the rows, in this order, to folds in turn; the rows of each class are dealt by themselves."""
    if classifies:
        classes = targets[order].argmax(axis=1) if targets.shape[1] > 1 else targets[order, 0]
        order = order[np.argsort(classes, kind="stable")]
    count = min(FOLDS, max(2, len(order) // 2))
    return [order[start::count] for start in range(count)]


def _tree(nodes: Any) -> BoostedTree:
    """Copy a tree from scikit-learn's form into plain arrays."""
    leaf = nodes["is_leaf"].astype(bool)
    return BoostedTree(
        nodes["feature_idx"].astype(np.intp),
        np.where(leaf, 0.0, nodes["num_threshold"]),
        np.where(leaf, 0, nodes["left"]).astype(np.intp),
        np.where(leaf, 0, nodes["right"]).astype(np.intp),
        np.where(leaf, nodes["value"], 0.0),
        nodes["count"].astype(np.float64),
    )

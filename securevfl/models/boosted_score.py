"""The boosted score: the label party predicts the labels from its own columns, and this score becomes one more column.

scikit-learn fits boosted trees to the label party's columns. On the rows that the trees were fitted to, they predict
too well, so the score would get too large a weight. Each training row is therefore scored out of fold, by trees fitted
to the other folds; all other rows are scored by trees fitted to all training rows (stacked generalisation, Wolpert
1992). No message is sent for the score.

The trees are stored as plain arrays, so scoring does not need scikit-learn. n or m is a number of rows, d the number of
columns and c the number of outputs of the model.
"""

from __future__ import annotations

import math
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

BOOSTING_ROUNDS = 60
FOLDS = 5
SCORE_WEIGHT = 0.3
"""Factor by which the standardised score is multiplied before it becomes an input of the model."""
MAX_SCORE_DEVIATIONS = 8.0
"""Absolute value at which the multiplied score is clipped."""


def check_installed(party: str) -> None:
    """Check that scikit-learn is installed.

    Args:
        party: name of the party, which error messages state.

    Raises:
        ConfigError: if scikit-learn is not installed.
    """
    if not is_installed("sklearn"):
        raise ConfigError(
            f"party {party}: scikit-learn, which fits the boosted score, is not installed",
            "pip install 'securevfl[sklearn]', or train with boosted_score = false",
            code="SVFL-EXTRA-MISSING",
            party=party,
        )


@dataclass(frozen=True, repr=False)
class BoostedTree(SerializableFields):
    """A binary tree as arrays over its k nodes, the root first. A node whose `left` is 0 is a leaf.

    Attributes:
        column: the column that each node compares (k,).
        threshold: the threshold: values at or below it go to the left (k,).
        left: the left child (k,).
        right: the right child (k,).
        value: the value of each leaf (k,).
        rows: training rows in each node (k,).
    """

    column: NDArray[np.intp]
    threshold: Floats
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    value: Floats
    rows: Floats

    def __call__(self, X: Floats) -> Floats:
        """Return for each row of X (m, d) the value of the leaf that it reaches (m,)."""
        node = np.zeros(len(X), np.intp)
        inner = self.left[node] > 0
        while inner.any():
            parents, rows = node[inner], np.flatnonzero(inner)
            low = X[rows, self.column[parents]] <= self.threshold[parents]
            node[rows] = np.where(low, self.left[parents], self.right[parents])
            inner = self.left[node] > 0
        return self.value[node]


@dataclass(frozen=True, repr=False)
class Boosted(SerializableFields):
    """Boosted trees of each output. The score (m, c) is `base` (c,) plus the values of all trees."""

    base: Floats
    trees: tuple[tuple[BoostedTree, ...], ...]

    @classmethod
    def fit(cls, X: Floats, targets: Floats, *, classifies: bool, weights: Floats | None = None) -> Boosted:
        """Fit ROUNDS trees for each output to rows X (n, d) with `targets` (n, c), -1 or +1 for classes."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        model_class = HistGradientBoostingClassifier if classifies else HistGradientBoostingRegressor
        base, trees = list[float](), list[tuple[BoostedTree, ...]]()
        for y in targets.T:
            # all rows have the same class, so the score is constant: the log odds if the other class had half a row
            if classifies and len(np.unique(y)) < 2:
                base.append(float(y[0]) * math.log(2 * len(y) + 1))
                trees.append(())
                continue
            model = model_class(max_iter=BOOSTING_ROUNDS, early_stopping=False, random_state=0)
            with threadpool_limits(1, user_api="openmp"):  # more threads would wait in a busy loop if cores are busy
                model.fit(X, y > 0 if classifies else y, sample_weight=weights)
            base.append(float(np.ravel(model._baseline_prediction)[0]))
            trees.append(tuple(_tree(predictor.nodes) for (predictor,) in model._predictors))
        return cls(np.array(base), tuple(trees))

    def __call__(self, X: Floats) -> Floats:
        """Return the score (m, c) of rows X (m, d)."""
        scores = np.tile(self.base, (len(X), 1))
        for total, trees in zip(scores.T, self.trees, strict=True):
            for tree in trees:
                total += tree(X)
        return scores


@dataclass(frozen=True, repr=False)
class ScoreColumn(SerializableFields):
    """The score as a column, with the numbers that scale it.

    Attributes:
        trees: the trees fitted to all training rows.
        trained: the out-of-fold scores of the training rows (n, c); empty if the model was loaded to predict only.
        mean: mean of these scores (c,).
        deviation: their standard deviation (c,).
    """

    trees: Boosted
    trained: Floats
    mean: Floats
    deviation: Floats

    def scaled(self, scores: Floats) -> Floats:
        """Return scores (m, c) as inputs: standardised, weighted, clipped and rounded to the grid."""
        return on_grid(SCORE_WEIGHT * (scores - self.mean) / self.deviation, MAX_SCORE_DEVIATIONS)

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the stored arrays; the scores of training rows only if `whole`, because only training needs them."""
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
    """Score training rows out of fold.

    Args:
        X: the training rows (n, d).
        targets: their targets (n, c).
        key: 32 secret bytes of this party, from which the folds are drawn.
        classifies: whether the targets are classes.
        weights: the weights of the rows (n,), or None.
        order: positions of the rows sorted by id (n,); None if they are sorted already.

    Returns:
        The scores (n, c), and the trees fitted to all rows.
    """
    drawn = np.argsort(Prg(key, "folds of a party's own score").array(len(X), np.uint64), kind="stable")
    order = drawn if order is None else order[drawn]
    scores = np.empty(targets.shape)
    for fold in _folds(order, targets, classifies=classifies):
        others = np.setdiff1d(order, fold)
        fold_weights = None if weights is None else weights[others]
        scores[fold] = Boosted.fit(X[others], targets[others], classifies=classifies, weights=fold_weights)(X[fold])
    return scores, Boosted.fit(X, targets, classifies=classifies, weights=weights)


def _folds(order: NDArray[np.intp], targets: Floats, *, classifies: bool) -> Sequence[NDArray[np.intp]]:
    """Assign the rows to folds in turn, in this order, so that every fold has rows of each class."""
    if classifies:
        classes = targets[order].argmax(axis=1) if targets.shape[1] > 1 else targets[order, 0]
        order = order[np.argsort(classes, kind="stable")]
    count = min(FOLDS, max(2, len(order) // 2))
    return [order[start::count] for start in range(count)]


def _tree(nodes: Any) -> BoostedTree:
    """Convert a tree of scikit-learn to plain arrays."""
    leaf = nodes["is_leaf"].astype(bool)
    return BoostedTree(
        nodes["feature_idx"].astype(np.intp),
        np.where(leaf, 0.0, nodes["num_threshold"]),
        np.where(leaf, 0, nodes["left"]).astype(np.intp),
        np.where(leaf, 0, nodes["right"]).astype(np.intp),
        np.where(leaf, nodes["value"], 0.0),
        nodes["count"].astype(np.float64),
    )

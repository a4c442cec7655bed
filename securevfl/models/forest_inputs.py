"""One party's input features in a model of random trees, which is linear in them (`securevfl.models.trees`).

A leaf is a feature that is not 0 for the rows in it. Linear features, a boosted score (a prediction by boosted trees
of the label party's own columns) and cosine features may follow.
`breadth` is the number of features, m a number of rows and d the number of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.data.cosine_features import CosineFeatures
from securevfl.data.forest import Forest
from securevfl.data.linear_features import LinearFeatures
from securevfl.data.scaling import on_grid
from securevfl.models.boosted_score import ScoreColumn
from securevfl.models.inputs import Inputs
from securevfl.models.shapley import shapley_values


@dataclass(eq=False, repr=False)
class ForestInputs(SerializableFields, Inputs):
    """One party's features, in this order: leaves, linear features, boosted score, cosine features, intercept.

    Attributes:
        forest: the trees.
        lines: the linear features (scaled columns, `securevfl.data.linear_features`), or None.
        score: the boosted score, or None.
        cosines: the cosine features, or None.
        intercept: whether there is an intercept.
        leaf_weight: factor of the leaves' features relative to the other features.
    """

    forest: Forest
    lines: LinearFeatures | None
    score: ScoreColumn | None
    cosines: CosineFeatures | None = None
    intercept: bool = False
    leaf_weight: float = 1.0

    @property
    def value(self) -> float:
        """The value of a leaf's feature for the rows in the leaf; it is 0 for all others."""
        return float(on_grid(np.array(self.leaf_weight * len(self.forest) ** -0.5), 1.0))

    def __call__(self, X: Floats) -> Floats:
        """Return the inputs (m, breadth) of rows X (m, d)."""
        return self._features(X, None if self.score is None else self.score.trees(X))

    def trained(self, X: Floats, rows: NDArray[np.intp]) -> Floats:
        """Return the features (m, breadth) of training rows X (m, d), whose out-of-fold scores are at `rows`."""
        return self._features(X, None if self.score is None else self.score.trained[rows])

    def _features(self, X: Floats, scores: Floats | None) -> Floats:
        leaves, leaves_per_tree = self.forest.leaves(X), 2**self.forest.depth
        line_count = 0 if self.lines is None else X.shape[1]
        score_count = 0 if scores is None else scores.shape[1]
        cosine_count = 0 if self.cosines is None else len(self.cosines)
        start = leaves_per_tree * len(self.forest)
        features = np.zeros((len(X), start + line_count + score_count + cosine_count + self.intercept))
        for tree, leaf in enumerate(leaves.T):
            features[np.arange(len(X)), tree * leaves_per_tree + leaf.astype(np.intp)] = self.value
        if self.lines is not None:
            features[:, start : start + line_count] = self.lines(X)
        start += line_count
        if scores is not None and self.score is not None:
            features[:, start : start + score_count] = self.score.scaled(scores)
        start += score_count
        if self.cosines is not None:
            features[:, start : start + cosine_count] = self.cosines(X)
        if self.intercept:
            features[:, -1] = 1.0
        return features

    def constant(self, breadth: int) -> Floats | None:
        """Return weights (breadth,) with which the features of every row add up to 1; None with an intercept."""
        if self.intercept:
            return None
        weights, leaves = np.zeros(breadth), self.forest.merged.size
        weights[:leaves] = 1 / (self.value * len(self.forest))  # a row is in one leaf of each tree, so the sum is 1
        return weights

    def importance(self, theta: Floats, X: Floats) -> dict[str, list[float]]:
        """Return the mean absolute Shapley value of each column (`securevfl.models.shapley`)."""
        columns = shapley_values(self, theta, X).columns
        return {name: np.abs(values).mean(axis=0).tolist() for name, values in columns.items()}

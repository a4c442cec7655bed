"""One party's inputs in a model of trees: leaves, linear features, boosted score and cosine features."""

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
    """One party's leaves, lines, own score, cosines and intercept, in this order. curved: what the leaves are
    multiplied by."""

    forest: Forest
    lines: LinearFeatures | None
    score: ScoreColumn | None
    cosines: CosineFeatures | None = None  # earlier parts have none
    intercept: bool = False
    curved: float = 1.0

    @property
    def value(self) -> float:
        """What stands in a row's leaf."""
        return float(on_grid(np.array(self.curved * len(self.forest) ** -0.5), 1.0))

    def __call__(self, X: Floats) -> Floats:
        return self._beside(X, None if self.score is None else self.score.trees(X))

    def trained(self, X: Floats, rows: NDArray[np.intp]) -> Floats:
        return self._beside(X, None if self.score is None else self.score.trained[rows])

    def _beside(self, X: Floats, own: Floats | None) -> Floats:
        leaves, each = self.forest.leaves(X), 2**self.forest.depth
        lines = 0 if self.lines is None else X.shape[1]
        scores = 0 if own is None else own.shape[1]
        at = each * len(self.forest)
        cosines = 0 if self.cosines is None else len(self.cosines)
        found = np.zeros((len(X), at + lines + scores + cosines + self.intercept))
        for tree, own_leaves in enumerate(leaves.T):
            found[np.arange(len(X)), tree * each + own_leaves.astype(np.intp)] = self.value
        if self.lines is not None:
            found[:, at : at + lines] = self.lines(X)
        if own is not None and self.score is not None:
            found[:, at + lines : at + lines + scores] = self.score.scaled(own)
        if self.cosines is not None:
            found[:, at + lines + scores : at + lines + scores + cosines] = self.cosines(X)
        if self.intercept:
            found[:, -1] = 1.0
        return found

    def constant(self, breadth: int) -> Floats | None:
        if self.intercept:
            return None
        found, leaves = np.zeros(breadth), self.forest.merged.size
        found[:leaves] = 1 / (self.value * len(self.forest))  # a row has one leaf of each tree
        return found

    def importance(self, theta: Floats, X: Floats) -> dict[str, list[float]]:
        """Return the mean size of each column's Shapley values (`securevfl.models.shapley`)."""
        return {name: np.abs(own).mean(axis=0).tolist() for name, own in shapley_values(self, theta, X).columns.items()}

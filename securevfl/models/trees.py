"""Trees of each party's own columns, as a linear model of their leaves: additive, trained on shares, nothing opened.

    f = sum over parties k, trees t of k:  theta_kt[leaf of the row in t]  +  lines of the columns  +  own score
        or, at parties without one, cosines of the columns

Each party draws its trees at random from its own training rows (`securevfl.data.forest`), before anything is exchanged,
and what is trained are the weights of their leaves. So the training sends what that of a linear model on shares sends,
about columns whose number follows from public sizes alone. No tree asks about columns of two parties: what hangs on
pairs of them, as an exclusive or does, is not learnt. It is an additive ensemble of trees and no boosting.

The party with labels has one more column of its own: what boosted trees say of the labels by its columns alone
(`securevfl.models.boosted_score`). Nothing is sent for it, as it has both. Parties without such a score have cosines of
their columns beside the leaves (`securevfl.data.forest`), but where their weights are told to them: what these say is
of single columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from securevfl.data.cosine_features import CosineFeatures
from securevfl.data.forest import MAX_BINS, MAX_DEPTH, Forest, two_valued
from securevfl.data.linear_features import MAX_LINEAR_DEVIATIONS, LinearFeatures
from securevfl.models.boosted_score import MAX_SCORE_DEVIATIONS, ScoreColumn, check_installed, out_of_fold
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.inputs import Inputs, InputShape, MakeFittingData
from securevfl.models.linear import LinearModel
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES

MOST_LEAVES = 8192  # of one party
VISITS = 12
FEWEST = 20  # training rows in a leaf of a party that is told its weights
RIDGE, LEAST_RIDGE = 60.0, 1e-4  # over the training rows
LEAVES_A_COSINE = 3
CURVED_OF_TWO, LINEAR_OF_TWO = 0.5, 1.0  # what leaves and lines are multiplied by where columns have two values


class Trees(LinearModel):
    """Random trees of each party's own columns, their leaf weights trained on shares; no tree mixes parties."""

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "trees"
    family: ClassVar[str | None] = "shares"
    by_column: ClassVar[bool] = False
    scales: ClassVar[bool] = False
    spare_bits: ClassVar[int] = 0
    step_bits: ClassVar[int | None] = 18
    risen: ClassVar[float] = 1.1  # less is what leaves learn of the training rows alone

    trees: int | None = Field(default=None, ge=1)
    """Trees of a party, in the mean; 100 up to 10,000 training rows, 50 up to 50,000 and 25 beyond if left out. With an
    own score the party with labels has half as many, and the others have more."""
    depth: int = Field(default=4, ge=1)
    """Questions from root to leaf, so that a tree has 2^depth leaves."""
    bins: int = Field(default=16, ge=2)
    """A column is asked about at up to bins - 1 of its quantiles."""
    linear: float = Field(default=0.3, ge=0, le=8)
    """Weight of the columns themselves beside the leaves; 0 leaves them out."""
    cosines: int | None = Field(default=None, ge=0, le=MOST_LEAVES)
    """Cosines of all columns of a party at once, at parties that have no own score and are not told their weights; one
    for every three leaves if left out, 0 for none."""
    ridge: Literal["auto"] | float = "auto"
    """What holds weights back: 60 over the number of training rows, or a number. With 30 over the rows fine structure
    comes out, with 100 noise stays away; the lower opened loss says which."""
    boosted_score: bool = True
    """Gives the party with labels a column of what its own columns say of them, by scikit-learn (extra `sklearn`)."""
    loss_name: Literal["logistic", "smooth_hinge", "square", "one_vs_rest"] = Field(default="logistic", alias="loss")
    """Which [loss](#loss): logistic, smooth_hinge, square, or one_vs_rest for several classes."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Trees:
        if self.depth > MAX_DEPTH:
            raise ValueError(f"depth: at most {MAX_DEPTH} was expected; a leaf has a number of one byte")
        if self.bins > MAX_BINS:
            raise ValueError(f"bins: at most {MAX_BINS} was expected; use fewer")
        if self.ridge != "auto" and not LEAST_RIDGE <= self.ridge <= 1e3:
            raise ValueError(f'ridge: "auto" or a number from {LEAST_RIDGE:g} to 1000 was expected; correct it')
        fits = self._fit
        if self.trees is not None and self.trees > fits:
            raise ValueError(
                f"trees: at most {fits} trees of depth {self.depth} fit, as a party has at most {MOST_LEAVES} leaves; "
                "use fewer trees or a smaller depth"
            )
        return self

    @property
    def loss(self) -> Loss:
        return LOSSES[self.loss_name]

    @property
    def note(self) -> str:
        lines = [
            f"each party draws trees of {self.depth} questions about its own columns, with no label",
            "trees are added up and none is boosted; none asks about columns of two parties, so that what hangs on",
            "pairs of these, such as an exclusive or, is not learnt",
        ]
        if self.boosted_score:
            lines.append("the party with labels adds a score of its own columns, which it makes alone")
        if self.cosines != 0:
            who = "others add" if self.boosted_score else "each party adds"
            lines.append(f"{who} cosines of all their columns at once, unless open_weights names them: these mix")
            lines.append("a party's columns, so that none of them has an exact share in a score")
        return "\n".join(lines)

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"optimizer": {"name": "block_descent"}, "batch_size": "growing", "epochs": VISITS}

    @property
    def ends_early(self) -> bool:
        return True

    def ridge_of(self, rows: int) -> float | None:
        return max(LEAST_RIDGE, RIDGE / rows) if self.ridge == "auto" else float(self.ridge)

    @property
    def reach(self) -> float:
        """No input is larger on either side."""
        lines = MAX_LINEAR_DEVIATIONS * max(self.linear, LINEAR_OF_TWO) if self.linear else 0.0
        return max(1.0, lines, MAX_SCORE_DEVIATIONS if self.boosted_score else 0.0)

    def count(self, spread: InputShape) -> int:
        """Trees of one party."""
        mean = self.trees or min(100 if spread.rows <= 10_000 else 50 if spread.rows <= 50_000 else 25, self._fit)
        if not self.boosted_score:
            return mean
        own = max(1, mean // 2)
        others: int = -(-(mean * spread.parties - own) // (spread.parties - 1))
        return own if spread.active else others

    @property
    def _fit(self) -> int:
        """The most trees in the mean: with an own score a party may have half as many more."""
        return MOST_LEAVES // 2**self.depth * 2 // (3 if self.boosted_score else 2)

    def breadth(self, spread: InputShape) -> int:
        score = spread.outputs if self.boosted_score and spread.active else 0
        lines = spread.columns if self.linear else 0
        leaves: int = self.count(spread) * 2**self.depth
        return leaves + lines + score + self._cosines(spread) + spread.active

    def _cosines(self, spread: InputShape) -> int:
        """Cosines of one party; one that is told its weights has none, as they mix its columns."""
        if spread.opened or (self.boosted_score and spread.active):
            return 0
        leaves: int = self.count(spread) * 2**self.depth
        return leaves // LEAVES_A_COSINE if self.cosines is None else self.cosines

    def inputs(self, spread: InputShape, kept: Mapping[str, Any] | None, make: MakeFittingData) -> Inputs:
        return self._drawn(spread, make) if kept is None else ForestInputs.read(kept)

    def _drawn(self, spread: InputShape, make: MakeFittingData) -> ForestInputs:
        seen = make()
        forest = Forest.draw(
            seen.X,
            seen.sources,
            seen.key,
            trees=self.count(spread),
            depth=self.depth,
            bins=self.bins,
            min_leaf_rows=FEWEST if spread.opened else 1,
        )
        score = None
        if self.boosted_score and seen.targets is not None:
            check_installed(seen.who)
            own, trees = out_of_fold(
                seen.X, seen.targets, seen.key, classifies=self.loss.classifies, weights=seen.weights, order=seen.order
            )
            deviation = own.std(axis=0)
            score = ScoreColumn(trees, own, own.mean(axis=0), np.where(deviation > 0, deviation, np.inf))
        two, linear, curved = two_valued(seen.X), self.linear, 1.0
        if two:
            linear, curved = max(linear, LINEAR_OF_TWO) if linear else 0.0, CURVED_OF_TWO
        lines, count = LinearFeatures.fit(seen.X, linear) if linear else None, self._cosines(spread)
        cosines = CosineFeatures.draw(seen.X, seen.key, count=count, weight=curved) if count else None
        return ForestInputs(forest, lines, score, cosines, intercept=spread.active, curved=curved)

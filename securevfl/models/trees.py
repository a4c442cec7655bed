"""Random trees of each party's columns, as a linear model of their leaves that is trained on secret shares.

    f = sum over parties k and trees t of k of theta_kt[leaf of the row in t]
        + linear features + boosted score (or cosine features, at parties without a boosted score)

Each party draws its trees at random from its training rows (`securevfl.data.forest`), before anything is exchanged. The
training then fits theta_kt, one weight for each leaf, with the messages of a linear model on shares. No tree uses
columns of two parties, so interactions between columns of different parties, such as XOR, are not learned.

boosted score     a prediction by boosted trees of the label party's own columns (`securevfl.models.boosted_score`)
cosine features   cosines of random mixtures of a party's columns (`securevfl.data.cosine_features`); a party that
                  learns its weights at the end has none, because these weights would refer to mixtures of columns
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from securevfl.data.cosine_features import CosineFeatures
from securevfl.data.forest import MAX_BINS, MAX_TREE_DEPTH, Forest, two_valued
from securevfl.data.linear_features import MAX_LINEAR_DEVIATIONS, LinearFeatures
from securevfl.models.boosted_score import MAX_SCORE_DEVIATIONS, ScoreColumn, check_installed, out_of_fold
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.inputs import Inputs, InputShape, MakeFittingData
from securevfl.models.linear import LinearModel
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from securevfl.models.pair_components import MAX_COMPONENTS, PAIRS_NOTE

MAX_LEAVES = 8192
"""Maximum number of leaves of one party."""
ITERATIONS = 12
"""Default number of iterations of a training."""
MIN_LEAF_ROWS = 20
"""Minimum number of training rows in a leaf of a party that learns its weights."""
RIDGE, MIN_RIDGE = 60.0, 1e-4
"""The ridge penalty is RIDGE divided by the number of training rows, and at least MIN_RIDGE."""
LEAVES_PER_COSINE = 3
"""Default number of leaves of a party for each of its cosine features."""
BINARY_LEAF_WEIGHT, BINARY_LINEAR_WEIGHT = 0.5, 1.0
"""Factors of leaves and of linear features if every column has only two values."""


class Trees(LinearModel):
    """Random trees of each party's columns, whose leaf weights are trained on shares."""

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "trees"
    family: ClassVar[str | None] = "shares"
    by_column: ClassVar[bool] = False
    scales: ClassVar[bool] = False
    spare_bits: ClassVar[int] = 0
    step_bits: ClassVar[int | None] = 18
    risen: ClassVar[float] = 1.1  # smaller rises of the loss are normal, since leaf weights overfit

    trees: int | None = Field(default=None, ge=1, le=10_000)
    """Mean number of trees over all parties. Default: 100 up to 10,000 training rows, 50 up to 50,000, and 25 above.
    With a boosted score the party with labels has half of them, and the others have more."""
    depth: int = Field(default=4, ge=1, le=MAX_TREE_DEPTH)
    """Number of questions of a tree, which has 2^depth leaves."""
    bins: int = Field(default=16, ge=2, le=MAX_BINS)
    """Number of quantile bins of a column; questions compare it with up to bins - 1 quantiles."""
    linear: float = Field(default=0.3, ge=0, le=8)
    """Weight of linear features relative to the leaves; 0 leaves them out."""
    cosines: int | None = Field(default=None, ge=0, le=MAX_LEAVES)
    """Number of cosine features at parties that have no boosted score and do not learn their weights. Default: one for
    every three leaves; 0 for none."""
    ridge: Literal["auto"] | float = "auto"
    """Ridge penalty: "auto" for 60 divided by the number of training rows, or a number. A smaller penalty fits finer
    structure, a larger one suppresses noise; compare the held-out losses."""
    boosted_score: bool = True
    """Adds a score of boosted trees at the party with labels, fitted by scikit-learn (extra `sklearn`)."""
    pairs: int = Field(default=0, ge=0, le=MAX_COMPONENTS)
    """Number of components of each share holder, such as 16. The model has an input for each product of a component of
    one and a component of the other, so that it learns interactions between their columns. 0 for none."""
    loss_name: Literal["logistic", "smooth_hinge", "square", "one_vs_rest"] = Field(default="logistic", alias="loss")
    """The name of the [loss](#loss): logistic, smooth_hinge, square, or one_vs_rest for several classes."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Trees:
        if self.ridge != "auto" and not MIN_RIDGE <= self.ridge <= 1e3:
            raise ValueError(f'ridge: must be "auto" or a number from {MIN_RIDGE:g} to 1000')
        max_trees = self._max_trees
        if self.trees is not None and self.trees > max_trees:
            raise ValueError(
                f"trees: must be at most {max_trees} for depth {self.depth}, because a party has at most "
                f"{MAX_LEAVES} leaves"
            )
        return self

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return LOSSES[self.loss_name]

    @property
    def note(self) -> str:
        """Lines that a consent sheet prints about the model."""
        lines = [
            f"each party draws random trees with {self.depth} questions about its columns; labels are not used",
            "the trees are added up and not boosted; no tree uses columns of two parties"
            + (", so interactions between" if not self.pairs else ""),
        ]
        lines += [PAIRS_NOTE] if self.pairs else ["such columns, such as an exclusive or, are not learned"]
        if self.boosted_score:
            lines.append("the party with labels adds a score that it computes from its columns alone")
        if self.cosines != 0:
            who = "the other parties add" if self.boosted_score else "each party adds"
            lines.append(f"{who} cosine features, unless open_weights names them: they mix all columns of a party,")
            lines.append("so no column has an exact share of a score")
        return "\n".join(lines)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Options of a job with this model whose defaults differ from those of other models, by option."""
        return {"optimizer": {"name": "block_descent"}, "batch_size": "growing", "epochs": ITERATIONS}

    @property
    def ends_early(self) -> bool:
        """Always true: early stopping regularises the leaf weights."""
        return True

    @property
    def pair_rank(self) -> int:
        """The largest number of components of each share holder whose products are inputs; 0 for no products."""
        return self.pairs

    def ridge_of(self, rows: int) -> float | None:
        """Return the ridge penalty on leaf weights for n = `rows` training rows."""
        return max(MIN_RIDGE, RIDGE / rows) if self.ridge == "auto" else float(self.ridge)

    @property
    def reach(self) -> float:
        """Upper bound of the absolute value of an input of the linear model, such as a leaf."""
        lines = MAX_LINEAR_DEVIATIONS * max(self.linear, BINARY_LINEAR_WEIGHT) if self.linear else 0.0
        return max(1.0, lines, MAX_SCORE_DEVIATIONS if self.boosted_score else 0.0)

    def count(self, shape: InputShape) -> int:
        """Return the number of trees of a party, given the public sizes of the party and of the run."""
        mean = self.trees or min(100 if shape.rows <= 10_000 else 50 if shape.rows <= 50_000 else 25, self._max_trees)
        if not self.boosted_score:
            return mean
        label_party = max(1, mean // 2)
        others: int = -(-(mean * shape.parties - label_party) // (shape.parties - 1))
        return label_party if shape.active else others

    @property
    def _max_trees(self) -> int:
        """The maximum of `trees`, the mean number of trees of a party.

        With a boosted score, a party may have 1.5 times the mean.
        """
        return MAX_LEAVES // 2**self.depth * 2 // (3 if self.boosted_score else 2)

    def breadth(self, shape: InputShape) -> int:
        """Return the number of inputs of a party for each output."""
        score = shape.outputs if self.boosted_score and shape.active else 0
        lines = shape.columns if self.linear else 0
        leaves: int = self.count(shape) * 2**self.depth
        return leaves + lines + score + self._cosines(shape) + shape.active

    def _cosines(self, shape: InputShape) -> int:
        """Return the number of cosine features of one party; 0 if it learns its weights."""
        if shape.opened or (self.boosted_score and shape.active):
            return 0
        leaves: int = self.count(shape) * 2**self.depth
        return leaves // LEAVES_PER_COSINE if self.cosines is None else self.cosines

    def inputs(self, shape: InputShape, stored: Mapping[str, Any] | None, make: MakeFittingData) -> Inputs:
        """Return a party's stored inputs, or fit them."""
        return self._drawn(shape, make) if stored is None else ForestInputs.read(stored)

    def _drawn(self, shape: InputShape, make: MakeFittingData) -> ForestInputs:
        data = make()
        forest = Forest.draw(
            data.X,
            data.sources,
            data.key,
            trees=self.count(shape),
            depth=self.depth,
            bins=self.bins,
            min_leaf_rows=MIN_LEAF_ROWS if shape.opened else 1,
        )
        score = None
        if self.boosted_score and data.targets is not None:
            check_installed(data.party)
            scores, trees = out_of_fold(
                data.X, data.targets, data.key, classifies=self.loss.classifies, weights=data.weights, order=data.order
            )
            deviation = scores.std(axis=0)
            score = ScoreColumn(trees, scores, scores.mean(axis=0), np.where(deviation > 0, deviation, np.inf))
        linear, leaf_weight = self.linear, 1.0
        if two_valued(data.X):
            linear, leaf_weight = max(linear, BINARY_LINEAR_WEIGHT) if linear else 0.0, BINARY_LEAF_WEIGHT
        lines, count = LinearFeatures.fit(data.X, linear) if linear else None, self._cosines(shape)
        cosines = CosineFeatures.draw(data.X, data.key, count=count, weight=leaf_weight) if count else None
        return ForestInputs(forest, lines, score, cosines, intercept=shape.active, leaf_weight=leaf_weight)

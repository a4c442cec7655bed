"""Trees of each party's own columns, as a linear model of their leaves: additive, trained on shares, nothing opened.

    f = sum over parties k, trees t of k:  theta_kt[leaf of the row in t]  +  lines of the columns  +  own score
        or, at parties without one, cosines of the columns

Each party draws its trees at random from its own training rows (`securevfl.data.forest`), before anything is exchanged,
and what is trained are the weights of their leaves. So the training sends what that of a linear model on shares sends,
about columns whose number follows from public sizes alone. No tree asks about columns of two parties: what hangs on
pairs of them, as an exclusive or does, is not learnt. It is an additive ensemble of trees and no boosting.

The party with labels has one more column of its own: what boosted trees say of the labels by its columns alone
(`securevfl.models.own_score`). Nothing is sent for it, as it has both. Parties without such a score have cosines of
their columns beside the leaves (`securevfl.data.forest`), but where their weights are told to them: what these say is
of single columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from securevfl.base.arrays import Floats, KeptFields
from securevfl.data.bins import decimal
from securevfl.data.forest import DEEPEST, FARTHEST, MOST_BINS, Cosines, Forest, Lines, two_valued
from securevfl.data.scaling import on_grid
from securevfl.models.base import Inputs, Making, Spread
from securevfl.models.linear import LinearModel
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from securevfl.models.own_score import FARTHEST as SCORE_FARTHEST
from securevfl.models.own_score import ScoreColumn, check_installed, out_of_fold
from securevfl.models.shapley import explained

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
    method: ClassVar[str | None] = "shares"
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
    own_score: bool = True
    """Gives the party with labels a column of what its own columns say of them, by scikit-learn (extra `sklearn`)."""
    loss_name: Literal["logistic", "smooth_hinge", "square", "one_vs_rest"] = Field(default="logistic", alias="loss")
    """Which [loss](#loss): logistic, smooth_hinge, square, or one_vs_rest for several classes."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Trees:
        if self.depth > DEEPEST:
            raise ValueError(f"depth: at most {DEEPEST} was expected; a leaf has a number of one byte")
        if self.bins > MOST_BINS:
            raise ValueError(f"bins: at most {MOST_BINS} was expected; use fewer")
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
        if self.own_score:
            lines.append("the party with labels adds a score of its own columns, which it makes alone")
        if self.cosines != 0:
            who = "others add" if self.own_score else "each party adds"
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
        lines = FARTHEST * max(self.linear, LINEAR_OF_TWO) if self.linear else 0.0
        return max(1.0, lines, SCORE_FARTHEST if self.own_score else 0.0)

    def count(self, spread: Spread) -> int:
        """Trees of one party."""
        mean = self.trees or min(100 if spread.rows <= 10_000 else 50 if spread.rows <= 50_000 else 25, self._fit)
        if not self.own_score:
            return mean
        own = max(1, mean // 2)
        others: int = -(-(mean * spread.parties - own) // (spread.parties - 1))
        return own if spread.active else others

    @property
    def _fit(self) -> int:
        """The most trees in the mean: with an own score a party may have half as many more."""
        return MOST_LEAVES // 2**self.depth * 2 // (3 if self.own_score else 2)

    def breadth(self, spread: Spread) -> int:
        score = spread.outputs if self.own_score and spread.active else 0
        lines = spread.columns if self.linear else 0
        leaves: int = self.count(spread) * 2**self.depth
        return leaves + lines + score + self._cosines(spread) + spread.active

    def _cosines(self, spread: Spread) -> int:
        """Cosines of one party; one that is told its weights has none, as they mix its columns."""
        if spread.opened or (self.own_score and spread.active):
            return 0
        leaves: int = self.count(spread) * 2**self.depth
        return leaves // LEAVES_A_COSINE if self.cosines is None else self.cosines

    def inputs(self, spread: Spread, kept: Mapping[str, Any] | None, make: Making) -> Inputs:
        return self._drawn(spread, make) if kept is None else ForestInputs.read(kept)

    def _drawn(self, spread: Spread, make: Making) -> ForestInputs:
        seen = make()
        forest = Forest.draw(
            seen.X,
            seen.sources,
            seen.key,
            trees=self.count(spread),
            depth=self.depth,
            bins=self.bins,
            fewest=FEWEST if spread.opened else 1,
        )
        score = None
        if self.own_score and seen.targets is not None:
            check_installed(seen.who)
            own, trees = out_of_fold(
                seen.X, seen.targets, seen.key, classifies=self.loss.classifies, weights=seen.weights, order=seen.order
            )
            deviation = own.std(axis=0)
            score = ScoreColumn(trees, own, own.mean(axis=0), np.where(deviation > 0, deviation, np.inf))
        two, linear, curved = two_valued(seen.X), self.linear, 1.0
        if two:
            linear, curved = max(linear, LINEAR_OF_TWO) if linear else 0.0, CURVED_OF_TWO
        lines, count = Lines.fit(seen.X, linear) if linear else None, self._cosines(spread)
        cosines = Cosines.draw(seen.X, seen.key, count=count, weight=curved) if count else None
        return ForestInputs(forest, lines, score, cosines, intercept=spread.active, curved=curved)


@dataclass(eq=False, repr=False)
class ForestInputs(KeptFields, Inputs):
    """One party's leaves, lines, own score, cosines and intercept, in this order. curved: what the leaves are
    multiplied by."""

    forest: Forest
    lines: Lines | None
    score: ScoreColumn | None
    cosines: Cosines | None = None  # earlier parts have none
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
        return {name: np.abs(own).mean(axis=0).tolist() for name, own in explained(self, theta, X).columns.items()}


# A party's trees for people: what each asks, how many training rows are in its leaves, and their weights if known.


CELL, LINE = 76, 34  # pixels of a leaf, and between levels


@dataclass(frozen=True)
class TreeView:
    """One tree of a party: its questions from the root down, the same for all nodes of a level.

    rows (2^depth,): training rows in each leaf; leaf i is where question k has the answer that bit k of i says, 1 for
    yes. weights (2^depth x c): what each leaf adds to f; None where weights were not opened.
    """

    questions: tuple[str, ...]
    rows: NDArray[np.intp]
    weights: Floats | None

    def __str__(self) -> str:
        lines = [f"{level + 1}. {question}" for level, question in enumerate(self.questions)]
        for leaf, rows in enumerate(self.rows.tolist()):
            answers = " ".join("yes" if leaf >> level & 1 else "no " for level in range(len(self.questions)))
            lines.append(f"   {answers}  {rows:>8,} rows{self._adds(leaf)}")
        return "\n".join(lines)

    def _repr_svg_(self) -> str:
        """Draw the trees as an SVG picture: the root at the top, "no" to the left and "yes" to the right."""
        depth, leaves = len(self.questions), len(self.rows)
        width, height = max(leaves * CELL, 320), (depth + 1) * LINE + 40
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="11">']
        for level in range(depth):
            for node in range(2**level):
                x, y = width * (2 * node + 1) / 2 ** (level + 1), 20 + level * LINE
                for side in (0, 1):
                    to = width * (2 * (2 * node + side) + 1) / 2 ** (level + 2)
                    parts.append(f'<line x1="{x}" y1="{y}" x2="{to}" y2="{y + LINE}" stroke="#888"/>')
            parts.append(f'<text x="4" y="{24 + level * LINE}">{escape(self.questions[level])}</text>')
        for place in range(leaves):
            leaf = int(f"{place:0{depth}b}"[::-1], 2)  # from the left: the first question's "no" before its "yes"
            x, y = width * (2 * place + 1) / (2 * leaves), 20 + depth * LINE
            label = f"{self.rows[leaf]:,}" if self.weights is None else f"{self.weights[leaf, 0]:+.3f}"
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{self._colour(leaf)}"/>')
            parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{label}</text>')
        return "".join([*parts, "</svg>"])

    def _adds(self, leaf: int) -> str:
        return "" if self.weights is None else "".join(f"  {each:+.4f}" for each in self.weights[leaf])

    def _colour(self, leaf: int) -> str:
        if self.weights is None:
            return "#888"
        return "#b2182b" if self.weights[leaf, 0] < 0 else "#2166ac"


class TreeViews(tuple[TreeView, ...]):
    """All trees of a party, in a row."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} trees of {len(self[0].questions) if self else 0} questions>"


def trees_of(inputs: ForestInputs, theta: Floats | None) -> TreeViews:
    """Return the trees of a party for display, with leaf weights from its weights (breadth x c) where these are
    known."""
    forest, each = inputs.forest, 2**inputs.forest.depth
    made = []
    for tree in range(len(forest)):
        at = tree * each + forest.merged[tree].astype(np.intp)
        weights = None if theta is None else inputs.value * theta[at]
        questions = tuple(_question(forest, tree, level) for level in range(forest.depth))
        made.append(TreeView(questions, forest.counts[tree], weights))
    return TreeViews(made)


def _question(forest: Forest, tree: int, level: int) -> str:
    """One question in words, with where rows go that lack the column."""
    j: Any = forest.columns[tree, level]
    source, cut = forest.sources[j], float(forest.cuts[tree, level])
    if source.levels:
        above = [text for text, place in zip(source.levels, forest.orders[j], strict=True) if place > cut]
        return f"{source.name} is {_some(above)}"
    lacking = "" if source.missing is None else f" (missing: {'yes' if forest.sides[tree, level] else 'no'})"
    return f"{source.name} > {decimal(cut)}{lacking}"


def _some(texts: Sequence[str]) -> str:
    return " or ".join(texts[:4]) + (f" or one of {len(texts) - 4} more" if len(texts) > 4 else "")

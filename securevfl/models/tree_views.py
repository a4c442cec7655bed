"""Trees of a party for display: their questions, the training rows in each leaf, and the leaf weights if known.

Bit k of a leaf's number is the answer to question k of the tree: 1 for yes, 0 for no.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.bin_edges import format_number
from securevfl.data.forest import Forest
from securevfl.models.forest_inputs import ForestInputs

LEAF_PIXELS, LEVEL_PIXELS = 76, 34
"""Width of a leaf and height of a level in pictures, in pixels."""


@dataclass(frozen=True)
class TreeView:
    """One tree of a party.

    Attributes:
        questions: the questions from the root down; all nodes of a level ask the same one.
        rows: number of training rows in each leaf (2^depth,).
        weights: the value that each leaf adds to each of c model outputs (2^depth, c); None if the party does not
            learn its weights.
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
        """Return the tree as an SVG picture, with the root at the top, "no" to the left and "yes" to the right."""
        depth, leaves = len(self.questions), len(self.rows)
        width, height = max(leaves * LEAF_PIXELS, 320), (depth + 1) * LEVEL_PIXELS + 40
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="11">']
        for level in range(depth):
            for node in range(2**level):
                x, y = width * (2 * node + 1) / 2 ** (level + 1), 20 + level * LEVEL_PIXELS
                for side in (0, 1):
                    to = width * (2 * (2 * node + side) + 1) / 2 ** (level + 2)
                    parts.append(f'<line x1="{x}" y1="{y}" x2="{to}" y2="{y + LEVEL_PIXELS}" stroke="#888"/>')
            parts.append(f'<text x="4" y="{24 + level * LEVEL_PIXELS}">{escape(self.questions[level])}</text>')
        for column in range(leaves):
            leaf = int(f"{column:0{depth}b}"[::-1], 2)  # question 0, at the root, comes first
            x, y = width * (2 * column + 1) / (2 * leaves), 20 + depth * LEVEL_PIXELS
            label = f"{self.rows[leaf]:,}" if self.weights is None else f"{self.weights[leaf, 0]:+.3f}"
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{self._colour(leaf)}"/>')
            parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{label}</text>')
        return "".join([*parts, "</svg>"])

    def _adds(self, leaf: int) -> str:
        return "" if self.weights is None else "".join(f"  {weight:+.4f}" for weight in self.weights[leaf])

    def _colour(self, leaf: int) -> str:
        if self.weights is None:
            return "#888"
        return "#b2182b" if self.weights[leaf, 0] < 0 else "#2166ac"


class TreeViews(tuple[TreeView, ...]):
    """All trees of a party."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} trees of {len(self[0].questions) if self else 0} questions>"


def tree_views_of(inputs: ForestInputs, theta: Floats | None) -> TreeViews:
    """Return the trees of a party for display.

    Args:
        inputs: the features of the party.
        theta: the weights of the features (breadth, c), with breadth the number of features; None if the party does not
            learn its weights.

    Returns:
        The trees.
    """
    forest, leaves_per_tree = inputs.forest, 2**inputs.forest.depth
    views = []
    for tree in range(len(forest)):
        columns = tree * leaves_per_tree + forest.merged[tree].astype(np.intp)
        weights = None if theta is None else inputs.value * theta[columns]
        questions = tuple(_question(forest, tree, level) for level in range(forest.depth))
        views.append(TreeView(questions, forest.counts[tree], weights))
    return TreeViews(views)


def _question(forest: Forest, tree: int, level: int) -> str:
    """Return a question in words, with the answer for missing values."""
    j: Any = forest.columns[tree, level]
    source, cut = forest.sources[j], float(forest.cuts[tree, level])
    if source.categories:
        above = [text for text, rank in zip(source.categories, forest.orders[j], strict=True) if rank > cut]
        return f"{source.name} is {_alternatives(above)}"
    missing = "" if source.missing is None else f" (missing: {'yes' if forest.sides[tree, level] else 'no'})"
    return f"{source.name} > {format_number(cut)}{missing}"


def _alternatives(texts: Sequence[str]) -> str:
    return " or ".join(texts[:4]) + (f" or one of {len(texts) - 4} more" if len(texts) > 4 else "")

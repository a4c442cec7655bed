"""Trees of a party for display: their questions, the number of training rows in each leaf, and the weights if known."""

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


def tree_views_of(inputs: ForestInputs, theta: Floats | None) -> TreeViews:
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
    if source.categories:
        above = [text for text, place in zip(source.categories, forest.orders[j], strict=True) if place > cut]
        return f"{source.name} is {_some(above)}"
    lacking = "" if source.missing is None else f" (missing: {'yes' if forest.sides[tree, level] else 'no'})"
    return f"{source.name} > {format_number(cut)}{lacking}"


def _some(texts: Sequence[str]) -> str:
    return " or ".join(texts[:4]) + (f" or one of {len(texts) - 4} more" if len(texts) > 4 else "")

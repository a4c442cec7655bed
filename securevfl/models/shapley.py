"""Exact Shapley values of one party's trees: how much each of its columns contributes to the model output of a row.

The output of a row is divided among columns as a payoff in a cooperative game (Shapley 1953). The worth of a set of
columns is the expected output if only these columns are known: at a question about another column both answers are
followed, weighted by the share of training rows that gave them (Lundberg et al. 2020, path-dependent tree SHAP).

Each leaf, of value v, is a game. For column i on its path, o_i is 1 if the row follows the path at every question about
column i, otherwise 0, and z_i is the share of training rows that do. `game` computes the values of one leaf. A linear
feature contributes its weight times its distance from the mean. The contribution of the boosted score, a prediction by
boosted trees, is divided among the columns that its trees use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.forest import Forest
from securevfl.data.linear_features import LinearFeatures
from securevfl.models.boosted_score import SCORE_WEIGHT, BoostedTree, ScoreColumn


@dataclass(frozen=True)
class ShapleyValues:
    """The contributions of columns to a party's outputs H (m, c) for m rows.

    Attributes:
        base: the expected output (c,).
        columns: the contributions of each column (m, c), by its name.
    """

    base: Floats
    columns: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """The outputs H (m, c): the sum of all contributions."""
        return self.base + np.sum(list(self.columns.values()), axis=0)


class TreePart(Protocol):
    """The attributes of `securevfl.models.forest_inputs.ForestInputs` that this module uses."""

    forest: Forest
    lines: LinearFeatures | None
    score: ScoreColumn | None
    intercept: bool

    @property
    def value(self) -> float:
        """The number that the feature of a leaf has for rows in the leaf; for all other rows the feature is 0."""


def shapley_values(inputs: TreePart, theta: Floats, X: Floats) -> ShapleyValues:
    """Compute the contribution of each column of a party to its outputs.

    Args:
        inputs: the features of the party.
        theta: the weights of the features (breadth, c); breadth is the number of features.
        X: prepared columns (m, d).

    Returns:
        The contributions.
    """
    sources, outputs = inputs.forest.sources, theta.shape[1]
    values = np.zeros((len(sources), len(X), outputs))
    base = np.zeros(outputs)
    owner = np.zeros(X.shape[1], np.intp)
    for index, source in enumerate(sources):
        owner[[*source.at, *([] if source.missing is None else [source.missing])]] = index
    start = len(inputs.forest) * 2**inputs.forest.depth
    base += _leaves(inputs, theta[:start], X, values)
    if inputs.lines is not None:
        weights = theta[start : start + X.shape[1]]
        deviations = inputs.lines(X) - inputs.lines.centre
        for j, at in enumerate(owner):
            values[at] += deviations[:, j, None] * weights[j]
        base += inputs.lines.centre @ weights
        start += X.shape[1]
    if inputs.score is not None:
        base += _score(inputs.score, theta[start : start + outputs], owner, X, values)
        start += outputs
    if inputs.intercept:
        base += theta[-1]
    return ShapleyValues(base, {source.name: column for source, column in zip(sources, values, strict=True)})


def game(o: NDArray[np.bool_], z: Floats) -> Floats:
    """Return the Shapley values (rows, m) of a leaf of value v = 1, from o (rows, m) and z (m,).

    m is the number of columns on the leaf's path. A set S of these columns has the worth (product over i in S of o_i) *
    (product over i not in S of z_i). The Shapley value of column i is the integral of a polynomial, which
    Gauss-Legendre quadrature computes exactly: (o_i - z_i) * integral over t from 0 to 1 of (product over j != i of
    (t * o_j + (1 - t) * z_j)).
    """
    m = len(z)
    points, weights = np.polynomial.legendre.leggauss(-(-m // 2))
    values = np.zeros(o.shape)
    for t, weight in zip((points + 1) / 2, weights / 2, strict=True):
        factors = t * o + (1 - t) * z
        before, after = np.ones(o.shape), np.ones(o.shape)
        np.cumprod(factors[:, :-1], axis=1, out=before[:, 1:])
        np.cumprod(factors[:, :0:-1], axis=1, out=after[:, -2::-1])
        values += weight * before * after
    return (o - z) * values


def _leaves(inputs: TreePart, theta: Floats, X: Floats, values: Floats) -> Floats:
    """Add the trees' contributions to `values` (columns before preparation, m, c); return their mean output (c,)."""
    forest, leaves_per_tree = inputs.forest, 2**inputs.forest.depth
    numbers, base = forest.numbers(X), np.zeros(theta.shape[1])
    bits = (np.arange(leaves_per_tree)[:, None] >> np.arange(forest.depth)) & 1
    for tree, questions in enumerate(forest.columns):
        leaf_values = inputs.value * theta[tree * leaves_per_tree + forest.merged[tree].astype(np.intp)]
        players, which = np.unique(questions, return_inverse=True)
        table = np.zeros((leaves_per_tree, len(players), theta.shape[1]))
        for leaf in range(leaves_per_tree):
            shares = _shares(forest.counts[tree], leaf, forest.depth)
            z = np.array([shares[which == k].prod() for k in range(len(players))])
            same = bits == bits[leaf]
            o = np.stack([same[:, which == k].all(axis=1) for k in range(len(players))], axis=1)
            table += game(o, z)[:, :, None] * leaf_values[leaf]
            base += z.prod() * leaf_values[leaf]
        for k, at in enumerate(players):
            values[at] += table[numbers[:, tree], k]
    return base


def _shares(counts: NDArray[np.intp], leaf: int, depth: int) -> Floats:
    """Return for each node on the path to a leaf the share of the node's rows that follow the path; 0.5 if empty."""
    shares, node_counts = np.empty(depth), counts
    for level in range(depth):
        pair = node_counts.reshape(-1, 2).sum(axis=0)
        bit = leaf >> level & 1
        shares[level] = pair[bit] / pair.sum() if pair.sum() else 0.5
        node_counts = node_counts[bit::2]
    return shares


def _score(score: ScoreColumn, theta: Floats, owner: NDArray[np.intp], X: Floats, values: Floats) -> Floats:
    """Add the contributions of the boosted score to `values`; return its expected output (c,).

    theta (c, c) are the weights of the score in the model. Rounding and clipping change the score. This change is
    divided among a row's columns in proportion to their contributions.
    """
    weights = theta * (SCORE_WEIGHT / score.deviation)[:, None]
    base = (score.trees.base - score.mean) @ weights
    contributions = np.zeros(values.shape)
    for trees, weight in zip(score.trees.trees, weights, strict=True):
        for tree in trees:
            for path, value in _paths(tree):
                columns = [owner[tree.column[node]] for node, _ in path]
                players, which = np.unique(columns, return_inverse=True)
                z, o = np.ones(len(players)), np.ones((len(X), len(players)), bool)
                for (node, low), k in zip(path, which, strict=True):
                    child = tree.left[node] if low else tree.right[node]
                    z[k] *= tree.rows[child] / tree.rows[node]
                    o[:, k] &= (X[:, tree.column[node]] <= tree.threshold[node]) == low
                contributions[players] += (value * game(o, z)).T[:, :, None] * weight
                base = base + value * z.prod() * weight
    remainder = score.scaled(score.trees(X)) @ theta - base - contributions.sum(axis=0)
    size = np.abs(contributions).sum(axis=(0, 2))
    share = np.where(
        size > 0, np.abs(contributions).sum(axis=2) / np.where(size > 0, size, 1.0), 1 / len(contributions)
    )
    values += contributions + share[:, :, None] * remainder
    return np.asarray(base)


def _paths(tree: BoostedTree) -> Sequence[tuple[list[tuple[int, bool]], float]]:
    """Return for each leaf its path, a list of (node, whether the path turns left there), and its value."""
    leaves, pending = list[tuple[list[tuple[int, bool]], float]](), [(0, list[tuple[int, bool]]())]
    while pending:
        node, path = pending.pop()
        if tree.left[node] == 0:
            leaves += [(path, float(tree.value[node]))] if path else []
            continue
        pending.append((int(tree.left[node]), [*path, (node, True)]))
        pending.append((int(tree.right[node]), [*path, (node, False)]))
    return leaves

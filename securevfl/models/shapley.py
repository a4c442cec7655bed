"""Exact Shapley values of one party's part of a model of trees, by its own columns alone, since no tree mixes parties.

A row's value is split among columns as in a game of several players (Shapley 1953). A set of columns is worth what the
part is expected to give where these alone are known: where a question asks about another one, both answers are
followed, each as often as training rows took it (Lundberg et al. 2020, tree SHAP by paths). A leaf of value v, whose
path asks about m columns, is then a game whose sets S are worth

    v  prod over i in S of o_i  prod over i not in S of z_i

o_i: whether the row goes the leaf's way wherever column i is asked about; z_i: the share of training rows that do. Its
Shapley values are integrals of polynomials, which sums at Gauss's points give exactly:

    phi_i = v (o_i - z_i)  int_0^1  prod over j != i of (t o_j + (1 - t) z_j)  dt

Lines are worth their weight times the distance from their mean; the own score passes its value on to the columns that
its trees ask about.
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
    """What each column adds to the values of rows: base (c,), and by the name of a column (m x c). They add up to what
    the part gives, its forward sum H (m x c)."""

    base: Floats
    columns: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """H (m x c), the sum of all."""
        return self.base + np.sum(list(self.columns.values()), axis=0)


class TreePart(Protocol):
    """A party's part of a model of trees, as `securevfl.models.trees.ForestInputs` holds it."""

    forest: Forest
    lines: LinearFeatures | None
    score: ScoreColumn | None
    intercept: bool

    @property
    def value(self) -> float:
        """What a leaf's column holds on its rows."""


def shapley_values(inputs: TreePart, theta: Floats, X: Floats) -> ShapleyValues:
    """Return what each column adds on rows of prepared columns X (m x d), with this party's weights (breadth x c)."""
    sources, outputs = inputs.forest.sources, theta.shape[1]
    found = np.zeros((len(sources), len(X), outputs))
    base = np.zeros(outputs)
    owner = np.zeros(X.shape[1], np.intp)
    for place, source in enumerate(sources):
        owner[[*source.at, *([] if source.missing is None else [source.missing])]] = place
    rest = len(inputs.forest) * 2**inputs.forest.depth
    base += _leaves(inputs, theta[:rest], X, found)
    if inputs.lines is not None:
        weights = theta[rest : rest + X.shape[1]]
        apart = inputs.lines(X) - inputs.lines.centre
        for j, at in enumerate(owner):
            found[at] += apart[:, j, None] * weights[j]
        base += inputs.lines.centre @ weights
        rest += X.shape[1]
    if inputs.score is not None:
        base += _score(inputs.score, theta[rest : rest + outputs], owner, X, found)
        rest += outputs
    if inputs.intercept:
        base += theta[-1]
    return ShapleyValues(base, {source.name: values for source, values in zip(sources, found, strict=True)})


def game(o: NDArray[np.bool_], z: Floats) -> Floats:
    """Return the Shapley values (rows x m) of a leaf of value 1, from o (rows x m) and z (m,)."""
    m = len(z)
    points, weights = np.polynomial.legendre.leggauss(-(-m // 2))
    found = np.zeros(o.shape)
    for t, weight in zip((points + 1) / 2, weights / 2, strict=True):
        factors = t * o + (1 - t) * z
        before, after = np.ones(o.shape), np.ones(o.shape)
        np.cumprod(factors[:, :-1], axis=1, out=before[:, 1:])
        np.cumprod(factors[:, :0:-1], axis=1, out=after[:, -2::-1])
        found += weight * before * after
    return (o - z) * found


def _leaves(inputs: TreePart, theta: Floats, X: Floats, found: Floats) -> Floats:
    """Add to `found` (sources x m x c) what the trees give; return the base (c,)."""
    forest, each = inputs.forest, 2**inputs.forest.depth
    numbers, base = forest.numbers(X), np.zeros(theta.shape[1])
    bits = (np.arange(each)[:, None] >> np.arange(forest.depth)) & 1
    for tree, own in enumerate(forest.columns):
        values = inputs.value * theta[tree * each + forest.merged[tree].astype(np.intp)]
        players, which = np.unique(own, return_inverse=True)
        table = np.zeros((each, len(players), theta.shape[1]))
        for leaf in range(each):
            shares = _shares(forest.counts[tree], leaf, forest.depth)
            z = np.array([shares[which == k].prod() for k in range(len(players))])
            same = bits == bits[leaf]
            o = np.stack([same[:, which == k].all(axis=1) for k in range(len(players))], axis=1)
            table += game(o, z)[:, :, None] * values[leaf]
            base += z.prod() * values[leaf]
        for k, at in enumerate(players):
            found[at] += table[numbers[:, tree], k]
    return base


def _shares(counts: NDArray[np.intp], leaf: int, depth: int) -> Floats:
    """Return, for each node on a leaf's path, the share of its rows that goes the path's way; a half where the node has
    none."""
    found, held = np.empty(depth), counts
    for level in range(depth):
        pair = held.reshape(-1, 2).sum(axis=0)
        bit = leaf >> level & 1
        found[level] = pair[bit] / pair.sum() if pair.sum() else 0.5
        held = held[bit::2]
    return found


def _score(score: ScoreColumn, theta: Floats, owner: NDArray[np.intp], X: Floats, found: Floats) -> Floats:
    """Add to `found` what the column of the party's own score gives by its weights theta (outputs x c); return the base
    (c,).

    What the column loses on its grid and where it is cut off goes by the size of what the columns of a row add.
    """
    weights = theta * (SCORE_WEIGHT / score.deviation)[:, None]
    base = (score.trees.base - score.mean) @ weights
    own = np.zeros(found.shape)
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
                own[players] += (value * game(o, z)).T[:, :, None] * weight
                base = base + value * z.prod() * weight
    lost = score.scaled(score.trees(X)) @ theta - base - own.sum(axis=0)
    size = np.abs(own).sum(axis=(0, 2))
    share = np.where(size > 0, np.abs(own).sum(axis=2) / np.where(size > 0, size, 1.0), 1 / len(own))
    found += own + share[:, :, None] * lost
    return np.asarray(base)


def _paths(tree: BoostedTree) -> Sequence[tuple[list[tuple[int, bool]], float]]:
    """Every leaf with its value, and the nodes on its way with whether it goes to the left there."""
    found, waiting = list[tuple[list[tuple[int, bool]], float]](), [(0, list[tuple[int, bool]]())]
    while waiting:
        node, path = waiting.pop()
        if tree.left[node] == 0:
            found += [(path, float(tree.value[node]))] if path else []
            continue
        waiting.append((int(tree.left[node]), [*path, (node, True)]))
        waiting.append((int(tree.right[node]), [*path, (node, False)]))
    return found

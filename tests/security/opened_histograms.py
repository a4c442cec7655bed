"""A stand-in for boosted trees with opened histograms: the values that each side sees when other systems train trees.

The party with labels knows the gradient and the second derivative of each row. For every node of a level it receives
their sums in each bin of every column of the other party. It picks the best split and receives the side of every row at
a split of the other party. No message is hidden here: the code generates the input of two attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

Bins = NDArray[np.intp]  # n x d
Rows = NDArray[np.intp]
LAMBDA, RATE = 1.0, 0.3
STEPS = 60  # of gradients, relative to a box
FALL = 0.5  # points of a level relative to the level above


@dataclass(frozen=True)
class ChosenSplit:
    """A chosen split of the passive party: its level, its rows, and which of them are above."""

    level: int
    rows: Rows
    above: NDArray[np.bool_]


@dataclass
class OpenedHistograms:
    """The values disclosed in a run.

    To the party with labels: for each node (k, n) the gradients of its rows, 0 for others, and for each column of the
    other party their sums in each bin (k, bins). To the other party: the `chosen` splits.
    """

    gradients: list[Floats] = field(default_factory=list)
    sums: list[list[Floats]] = field(default_factory=list)
    chosen: list[ChosenSplit] = field(default_factory=list)


def opened(local: Bins, other: Bins, y: NDArray[np.intp], *, bins: int, trees: int, depth: int = 3) -> OpenedHistograms:
    """Train on bin numbers (n, d) of the party with labels and of the other party; labels are 0 and 1."""
    displayed, f = OpenedHistograms(), np.zeros(len(y))
    for _ in range(trees):
        p = 1 / (1 + np.exp(-f))
        g, h = p - y, p * (1 - p)
        nodes: list[Rows] = [np.arange(len(y))]
        for level in range(depth):
            nodes = [side for rows in nodes for side in _split(displayed, local, other, g, h, rows, bins, level)]
        for rows in nodes:
            f[rows] -= RATE * g[rows].sum() / (h[rows].sum() + LAMBDA)
    return displayed


def _split(
    displayed: OpenedHistograms, local: Bins, other: Bins, g: Floats, h: Floats, rows: Rows, bins: int, level: int
) -> list[Rows]:
    if len(rows) < 2:
        return [rows]
    for values in (g, h):
        masked = np.zeros(len(g))
        masked[rows] = values[rows]
        displayed.gradients.append(masked)
        displayed.sums.append([np.bincount(column[rows], values[rows], bins).astype(np.float64) for column in other.T])
    best, disclosed = 0.0, False
    at: tuple[int, int] | None = None
    for theirs, table in ((False, local), (True, other)):
        for j, column in enumerate(table.T):
            G, H = (np.cumsum(np.bincount(column[rows], item[rows], bins))[:-1] for item in (g, h))
            G_all, H_all = g[rows].sum(), h[rows].sum()
            gain = G**2 / (H + LAMBDA) + (G_all - G) ** 2 / (H_all - H + LAMBDA) - G_all**2 / (H_all + LAMBDA)
            if gain.max() > best:
                best, at, disclosed = float(gain.max()), (j, int(gain.argmax())), theirs
    if at is None:
        return [rows]
    above = (other if disclosed else local)[rows, at[0]] > at[1]
    if disclosed:
        displayed.chosen.append(ChosenSplit(level, rows, above))
    return [rows[~above], rows[above]]


def bins_of(A: Floats, sums: Floats) -> NDArray[np.intp]:
    """Return the bin of each row (n,), from gradients (k, n) of nodes and the sums (k, bins) of one column.

    A histogram is A Z, where A (nodes, rows) has the gradients of each node's rows and Z (rows, bins) the bin of each
    row. A few trees give more sums than there are rows, and then Z is their solution. Before that, the largest entry of
    the solution nearest to equal shares between 0 and 1 is mostly the right one (Fu et al. 2022, label inference).
    """
    bins = sums.shape[1]
    Z = np.clip(np.linalg.lstsq(A, sums - A.sum(axis=1, keepdims=True) / bins, rcond=1e-9)[0] + 1 / bins, 0, 1)
    rate = 1 / max(float(np.linalg.norm(A, 2)) ** 2, 1e-12)
    for _ in range(STEPS):
        Z = np.clip(Z - rate * A.T @ (A @ Z - sums), 0, 1)
    return np.asarray(Z.argmax(axis=1))


def points(chosen: Sequence[ChosenSplit], rows: int) -> Floats:
    """Score each row (n,), higher for the rarer class, which the smaller side of a chosen split contains more of."""
    result = np.zeros(rows)
    for item in chosen:
        smaller = item.above if item.above.mean() <= 0.5 else ~item.above
        result[item.rows[smaller]] += FALL**item.level
    return result

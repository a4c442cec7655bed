"""A stand-in for boosted trees of opened histograms, in numpy: what each side is shown when other systems train trees.

The party with labels knows each row's gradient and second derivative. For every node of a level it is told their sums
in each bin of every column of the other party, picks the best split, and is told on which side of a split of the other
party's every row is. No message is hidden here: this is what two attacks read, not a way to train.
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
STEPS = 60  # of gradients, in a box
FALL = 0.5  # of a level's points to those of the one above it


@dataclass(frozen=True)
class ChosenSplit:
    """A split of the passive party's that was chosen: at which level, of which rows, which of them are above."""

    level: int
    rows: Rows
    above: NDArray[np.bool_]


@dataclass
class OpenedHistograms:
    """What is shown in a run. To the party with labels: for each node (k x n) the gradients of its rows, 0 for others,
    and by column of the other party their sums in each bin (k x bins). To the other: its `chosen` splits."""

    gradients: list[Floats] = field(default_factory=list)
    sums: list[list[Floats]] = field(default_factory=list)
    chosen: list[ChosenSplit] = field(default_factory=list)


def opened(local: Bins, other: Bins, y: NDArray[np.intp], *, bins: int, trees: int, depth: int = 3) -> OpenedHistograms:
    """Trains on bin numbers of the party with labels (n x d) and of the other; labels 0 and 1."""
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
    """Find the bin of each row (n,), from gradients (k x n) of nodes and the sums (k x bins) of one column.

    A histogram is A Z: A (nodes x rows) are the gradients of each node's rows, Z (rows x bins) says in which bin each
    row is. Some trees give more sums than there are rows, and then Z is their solution; before that the solution
    nearest to even shares between 0 and 1 has its largest entry mostly there (Fu et al. 2022, label inference).
    """
    bins = sums.shape[1]
    Z = np.clip(np.linalg.lstsq(A, sums - A.sum(axis=1, keepdims=True) / bins, rcond=1e-9)[0] + 1 / bins, 0, 1)
    rate = 1 / max(float(np.linalg.norm(A, 2)) ** 2, 1e-12)
    for _ in range(STEPS):
        Z = np.clip(Z - rate * A.T @ (A @ Z - sums), 0, 1)
    return np.asarray(Z.argmax(axis=1))


def points(chosen: Sequence[ChosenSplit], rows: int) -> Floats:
    """Score each row (n,), higher for the rarer class.

    The smaller side of a split that was worth choosing holds more of it, and more so near the root.
    """
    result = np.zeros(rows)
    for item in chosen:
        smaller = item.above if item.above.mean() <= 0.5 else ~item.above
        result[item.rows[smaller]] += FALL**item.level
    return result

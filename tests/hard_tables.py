"""Small tables that contain what tests forget by accident: edges, zeros, ties, gaps, rare classes and exact multiples.

`discrete_columns` and `rare_labels` are strategies of hypothesis, whose examples are the same in every run.
`scored_rows` draws rows with tied scores, weights of zero and a class of 1 %; `around` returns an edge with its two
neighbours; `sizes_around` returns the sizes at which a loop over blocks goes wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from securevfl.models.loss import Loss

RARE_SHARE = 0.01
"""Share of the rarer class in generated labels."""


def around(values: ArrayLike) -> NDArray[np.float64]:
    """Return each value with the floating-point numbers just below and just above it, in increasing order."""
    edges = np.unique(np.asarray(values, np.float64))
    return np.unique(np.concatenate([np.nextafter(edges, -np.inf), edges, np.nextafter(edges, np.inf)]))


def sizes_around(block: int, blocks: int = 3) -> list[int]:
    """Return k * block - 1, k * block and k * block + 1 for k from 1 to `blocks`, without 0."""
    return sorted({k * block + step for k in range(1, blocks + 1) for step in (-1, 0, 1)} - {0})


def discrete_column(rows: int, generator: np.random.Generator, *, gaps: float = 0.1) -> NDArray[np.float64]:
    """Return a column (rows,) of whole numbers from -2 to 4, half of them 0, with this share of missing values."""
    values = np.where(generator.random(rows) < 0.5, 0.0, generator.integers(-2, 5, rows).astype(np.float64))
    values[generator.random(rows) < gaps] = np.nan
    return values


class HardRows(NamedTuple):
    """Outputs f (n, c) of a loss, labels y (n,), classes and weights w (n,)."""

    f: NDArray[np.float64]
    y: NDArray[Any]
    classes: NDArray[Any]
    w: NDArray[np.float64]


def scored_rows(loss: Loss, rows: int = 300, seed: int = 0) -> HardRows:
    """Return rows of a loss: outputs with ties and exact zeros, at least three rows of a class of 1 %, some weights 0.

    Labels of regressions contain exact zeros and ties, as far as the loss allows them.
    """
    generator = np.random.default_rng([rows, seed])
    if loss.classifies:
        count = 2 if loss.single else 4
        few = max(3, round(RARE_SHARE * rows))
        y: NDArray[Any] = np.concatenate([np.full(few, count - 1), generator.integers(0, count - 1, rows - few)])
        generator.shuffle(y)
    else:
        y = np.maximum(np.round(generator.gamma(2.0, size=rows), 1), 0.1)
    classes = loss.classes(y)
    f = np.round(generator.normal(size=(rows, loss.outputs(classes))), 1)
    f[::7] = 0.0
    rare = np.flatnonzero(y == classes[-1]) if loss.classifies else np.arange(3)
    f[rare[0]], f[rare[1]] = f.min() - 1, f.max() + 1  # the rarer class has the lowest and the highest score
    w = np.where(generator.random(rows) < 0.1, 0.0, generator.gamma(1.0, size=rows))
    w[rare[:2]] = 0.5
    return HardRows(f, y, classes, w)


@st.composite
def discrete_columns(draw: st.DrawFn, min_rows: int = 40, max_rows: int = 300) -> NDArray[np.float64]:
    """Draw a column: few distinct values with many ties, perhaps gaps, codes far away, or a constant."""
    rows = draw(st.integers(min_rows, max_rows))
    values = draw(st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 7.0, 96.0, 1e6]), min_size=1, unique=True))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    column = generator.choice(values, rows, p=generator.dirichlet(np.ones(len(values)) / 2))
    column[generator.random(rows) < draw(st.sampled_from([0.0, 0.0, 0.2]))] = np.nan
    column[0] = values[0]
    return np.asarray(column, np.float64)


@st.composite
def rare_labels(draw: st.DrawFn, rows: int) -> NDArray[np.bool_]:
    """Draw which rows are positive: one row, 1 %, a half, all but one, or none."""
    count = draw(st.sampled_from([0, 1, max(1, round(RARE_SHARE * rows)), rows // 2, rows - 1, rows]))
    return np.random.default_rng(draw(st.integers(0, 2**16))).permutation(rows) < count

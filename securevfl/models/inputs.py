"""The inputs of a model that is trained on secret shares: a party's columns, or features derived from them.

All parties can compute the number of inputs of a party (`breadth`) from public sizes, so this number reveals nothing
about a table. The fitted transformation from columns to inputs (`Inputs`) is private to the party and is stored in its
part of the model. n or m is a number of rows, d the number of columns, c the number of outputs.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.preparation import SourceColumn


@dataclass(frozen=True)
class InputShape:
    """Public sizes of a party and of the run.

    Attributes:
        active: whether the party has the labels.
        columns: the number of its columns, d.
        outputs: the number of outputs, c.
        parties: the number of parties.
        rows: the number of training rows, n.
        opened: whether the party learns its weights at the end.
    """

    active: bool
    columns: int
    outputs: int
    parties: int
    rows: int
    opened: bool = False


@dataclass(frozen=True, repr=False)
class FittingData:
    """The data from which a party derives its inputs: some of its training rows, and no held-out rows.

    Attributes:
        party: name of the party.
        X: the rows (n, d) before scaling.
        sources: the original columns, before preparation.
        targets: the targets (n, c) at the party with labels, otherwise None.
        weights: the weights of the rows (n,), or None.
        key: 32 secret bytes of this party, from which random features are drawn.
        order: positions of the rows sorted by id (n,); None if they are sorted already.
    """

    party: str
    X: Floats
    sources: tuple[SourceColumn, ...]
    targets: Floats | None
    weights: Floats | None
    key: bytes
    order: NDArray[np.intp] | None = None


def private_stream(label: str, *tables: Floats) -> Callable[[int], bytes]:
    """Return a function that returns pseudorandom bytes, derived from private tables with SHAKE-256.

    Nobody without the tables can compute the bytes, and equal tables and labels give equal bytes everywhere. Values are
    rounded to 12 significant bits, so that rounding errors of means and deviations, which depend on the order of
    summation, do not change the bytes.

    Args:
        label: the purpose, with the seed of the job.
        *tables: arrays that only this party has.

    Returns:
        A function from a number of bytes to these bytes.
    """
    stream = hashlib.shake_256(f"securevfl {label} {[table.shape for table in tables]}".encode())
    for table in tables:
        mantissa, exponent = np.frexp(np.asarray(table, np.float64))
        stream.update(np.rint(np.ldexp(mantissa, 12)).astype("<i4").tobytes() + exponent.astype("<i4").tobytes())
    return stream.digest


class Inputs(ABC):
    """One party's transformation from columns to inputs, fitted to its training rows."""

    @abstractmethod
    def __call__(self, X: Floats) -> Floats:
        """Return the inputs (m, breadth) of rows X (m, d) to which the inputs were not fitted."""

    def trained(self, X: Floats, rows: NDArray[np.intp]) -> Floats:
        """Return the inputs (m, breadth) of rows X (m, d) to which the inputs were fitted.

        `rows` (m,) are their positions.
        """
        return self(X)

    def constant(self, breadth: int) -> Floats | None:
        """Return weights (breadth,) with which the inputs of every row add up to 1.

        None if there are no such weights, or if an intercept is among the inputs.
        """
        return None

    def state(self, *, whole: bool) -> dict[str, Any]:
        """Return the arrays to store; `whole` includes those that only training needs."""
        return {}

    def importance(self, theta: Floats, X: Floats) -> dict[str, list[float]]:
        """Return the importance of each column for each output.

        Args:
            theta: the weights (breadth, c).
            X: rows (m, d) over which the importance is averaged.

        Returns:
            c numbers for each column, by its name; empty if the weights themselves are the importance.
        """
        return {}


@dataclass(frozen=True)
class IdentityInputs(Inputs):
    """The columns themselves, with a column of ones at the party with the labels."""

    intercept: bool

    def __call__(self, X: Floats) -> Floats:
        """Return the inputs (m, breadth) of rows X (m, d)."""
        return np.column_stack([X, np.ones(len(X))]) if self.intercept else X


def inputs_at(inputs: Inputs, X: Floats, positions: NDArray[np.intp]) -> Floats:
    """Return the inputs of rows, some of which were used to fit them.

    Args:
        inputs: the fitted inputs.
        X: the rows (m, d).
        positions: position of each row among the fitting rows (m,); -1 for all other rows.

    Returns:
        The inputs (m, breadth).
    """
    known = positions >= 0
    if known.all() or not known.any():
        return inputs.trained(X, positions) if known.any() else inputs(X)
    values = inputs(X)
    values[known] = inputs.trained(X[known], positions[known])
    return values


MakeFittingData = Callable[[], FittingData]
"""A function that returns the fitting data; it is called only if inputs have to be fitted."""

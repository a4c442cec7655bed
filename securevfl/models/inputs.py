"""The inputs of a model on shares: a party's columns, or features that the party derives from them.

A model defines the number of inputs of a party (`breadth`) from sizes that all parties know, so the number reveals
nothing about a table. The fitted transformation (`Inputs`) is private to the party and is stored in its part of the
model.
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
    """The sizes of a party among others: whether it has the labels, d of its columns, c outputs, how many parties there
    are, n training rows, whether its weights are told to it at the end. All of it is public."""

    active: bool
    columns: int
    outputs: int
    parties: int
    rows: int
    opened: bool = False


@dataclass(frozen=True, repr=False)
class FittingData:
    """What inputs may be made by: one party's own training rows, or many of them, and nothing of held-out ones.

    X (n x d): these rows before any scaling. sources: what the columns were. targets (n x c), weights (n,): where the
    party has labels. key: 32 bytes that nobody else can compute. order (n,): the places of these rows in the order of
    ids; as they stand if None.
    """

    who: str
    X: Floats
    sources: tuple[SourceColumn, ...]
    targets: Floats | None
    weights: Floats | None
    key: bytes
    order: NDArray[np.intp] | None = None


def private_stream(label: str, *tables: Floats) -> Callable[[int], bytes]:
    """Return so many bytes, as SHAKE-256 gives them, of one party's own rows, targets and what else nobody but it has;
    `label` names the use, with the job's seed. Nobody else can compute them, and the same tables and seed give the same
    everywhere.

    Of a value 12 bits count, so that means and deviations which were added up in another order, and differ in their
    last bits, change nothing.
    """
    stream = hashlib.shake_256(f"securevfl {label} {[own.shape for own in tables]}".encode())
    for own in tables:
        part, power = np.frexp(np.asarray(own, np.float64))
        stream.update(np.rint(np.ldexp(part, 12)).astype("<i4").tobytes() + power.astype("<i4").tobytes())
    return stream.digest


class Inputs(ABC):
    """One party's inputs, once they are made."""

    @abstractmethod
    def __call__(self, X: Floats) -> Floats:
        """Return the inputs (m x breadth) of rows X (m x d) from which these inputs were not made."""

    def trained(self, X: Floats, rows: NDArray[np.intp]) -> Floats:
        """Return the inputs (m x breadth) of training rows X (m x d); `rows` are their places among those from which
        these inputs were made."""
        return self(X)

    def constant(self, breadth: int) -> Floats | None:
        """Return weights (breadth,) by which these inputs add up to 1 in every row; None where there are none, or where
        an intercept is among them, whose part the constant is."""
        return None

    def state(self, *, whole: bool) -> dict[str, Any]:
        """Return what is kept of these inputs; with `whole` also what only the training rows need."""
        return {}

    def importance(self, theta: Floats, X: Floats) -> dict[str, list[float]]:
        """How much each column matters for each output, by weights (breadth x c) on rows X (m x d); empty where weights
        of columns say it."""
        return {}


@dataclass(frozen=True)
class IdentityInputs(Inputs):
    """The columns as they are, and at the party with the labels a column of ones."""

    intercept: bool

    def __call__(self, X: Floats) -> Floats:
        return np.column_stack([X, np.ones(len(X))]) if self.intercept else X


def inputs_at(inputs: Inputs, X: Floats, at: NDArray[np.intp]) -> Floats:
    """Return the inputs (m x breadth) of rows X (m x d), at their places among the rows from which the inputs were
    made; -1 of others."""
    known = at >= 0
    if known.all() or not known.any():
        return inputs.trained(X, at) if known.any() else inputs(X)
    found = inputs(X)
    found[known] = inputs.trained(X[known], at[known])
    return found


MakeFittingData = Callable[[], FittingData]  # asked once inputs have to be made

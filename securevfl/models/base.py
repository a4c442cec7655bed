"""What every model that a job can name has in common."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import Named
from securevfl.data.preparation import Source
from securevfl.errors import ConfigError
from securevfl.models.loss import Loss

# What a party's columns become before they meet weights that are shared: the columns themselves, or more of its own.
#
# A model says how many inputs a party has (`breadth`), from sizes that all parties know, so that these tell nothing of
# a table. What they are made by (`Inputs`) is the party's own and is kept in its part.


@dataclass(frozen=True)
class Spread:
    """The sizes of a party among others: whether it has the labels, d of its columns, c outputs, how many parties there
    are, n training rows, whether its weights are told to it at the end. All of it is public."""

    active: bool
    columns: int
    outputs: int
    parties: int
    rows: int
    opened: bool = False


@dataclass(frozen=True, repr=False)
class Seen:
    """What inputs may be made by: one party's own training rows, or many of them, and nothing of held-out ones.

    X (n x d): these rows before any scaling. sources: what the columns were. targets (n x c), weights (n,): where the
    party has labels. key: 32 bytes that nobody else can compute. order (n,): the places of these rows in the order of
    ids; as they stand if None.
    """

    who: str
    X: Floats
    sources: tuple[Source, ...]
    targets: Floats | None
    weights: Floats | None
    key: bytes
    order: NDArray[np.intp] | None = None


def own_stream(label: str, *tables: Floats) -> Callable[[int], bytes]:
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
class Asis(Inputs):
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


Making = Callable[[], Seen]  # asked once inputs have to be made


class Model(Named, ABC):
    """`l2` is the weight of ||theta||^2 / 2.

    method: the family of training that it takes, whatever the optimizer; else the optimizer's. by_column: whether
    forward outputs are X theta, with weights for each column. embeds: whether a column of codes, which name values and
    measure nothing, has a use in it. scales: whether columns are scaled for it; else it does so itself. Where
    residuals go down, `static_jacobian` and `shares_outputs` say what the Jacobians of the passive parties' parts are
    (`securevfl.protocols.differentiable`): all parties know it from the job.
    """

    method: ClassVar[str | None] = None
    by_column: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    scales: ClassVar[bool] = True
    static_jacobian: ClassVar[bool]
    shares_outputs: ClassVar[bool]
    l2: float = Field(default=0.0, ge=0)
    """Weight of half the squared norm of the weights in what is minimised; it spares the intercept."""

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""

    @property
    def note(self) -> str:
        """What a consent sheet says of it beside its name, in lines; empty where that says it all."""
        return ""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What a job of it says where it is silent, if that is not as for any model."""
        return {}

    @property
    def ends_early(self) -> bool:
        """Whether it is held back by ending its training where the loss of rows held out no longer falls."""
        return False

    @property
    def residual_bound(self) -> float:
        """No number of a residual that goes down is larger."""
        return self.loss.bound

    @property
    def shows_parts(self) -> bool:
        """Whether the active party is fed the outputs of each passive party apart."""
        return False

    def shown(self, outputs: int) -> int:
        """How many numbers a row a passive party's part has, for f with c outputs."""
        return outputs

    def openings(self, steps: int) -> int:
        """How many gradients a party has opened for so many local steps on one exchange, where its Jacobian moves."""
        return steps

    @abstractmethod
    def parameters(self, columns: int, outputs: int) -> int:
        """p, the weights of a passive party with so many columns (d), for c outputs."""

    def brought(self, who: str, model: object) -> int:
        """p of what a party brings as its own model (`Party.model`); 0 where it brings none and p is `parameters`.

        ConfigError where there is no place for it.
        """
        if model is not None:
            raise ConfigError(
                f"{who}: a {self.name} model has no place for a module of its own; use Neural, or drop it"
            )
        return 0

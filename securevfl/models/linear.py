"""Blocks of weights that parties have, and linear models: H_k = X_k theta_k. The active party's theta has one more row,
the intercept.

The Jacobian of H_k by theta_k is X_k itself and does not move with the weights, so one opened data gradient serves
all Q local steps of a round (FedBCD 2019, eq. 57).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field

from securevfl.base.arrays import Floats, normal_quantile
from securevfl.models.base import Asis, Inputs, Making, Model, Spread, own_stream
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, HuberLoss, NegativeBinomialLoss, QuantileLoss, TweedieLoss, known_loss
from securevfl.protocols.differentiable import Jacobian

START = 0.5  # spread of f at the start


@dataclass(frozen=True)
class Place:
    """The place of a block of weights: its party and whether that has the labels, d columns, c outputs, the party's own
    module, and which of how many passive parties it is."""

    who: str
    active: bool
    columns: int
    outputs: int
    model: object = field(default=None, repr=False)
    passives: int = 1
    place: int = 0  # among the passive parties


class Block(ABC):
    """One party's block of weights, theta, of any shape, `securevfl.protocols.differentiable.Differentiable`; its
    outputs are added to the others': f = sum_k H_k (FedBCD 2019, eq. 2)."""

    static_jacobian: bool
    shares_outputs: bool
    theta: Floats

    @property
    def parameters(self) -> int:
        """The number p of weights, an intercept included."""
        return int(self.theta.size)

    @abstractmethod
    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Draws the weights to begin from, if they are drawn: from some of its own rows X (m x d), and as scaled, the
        targets (n x c) of a party with labels, and the job's seed. The same of these give the same weights."""

    @abstractmethod
    def forward(self, X: Floats) -> Floats:
        """H (n x c)."""

    @abstractmethod
    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g for plain g (n x c), summed over the rows, in the shape of the parameters."""

    @abstractmethod
    def jacobian(self, X: Floats) -> Jacobian:
        """J on the rows X, at the weights as they are."""

    def rows(self, X: Floats) -> int:
        """Return n: g has a row for each of X."""
        return len(X)

    def joined(self, X: Floats, others: Floats) -> Floats:
        """f (n x c), of its own rows and of what the others' outputs were collected to; at the active party."""
        return self.forward(X) + others

    def gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the gradient by its own weights, in their shape, from g = df (n x c); at the active party."""
        return self.vjp(X, g)

    def down(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the residual that goes down, in the shape of what was collected from the others; at the active party.
        The derivative by any summand is that by f."""
        return g

    @abstractmethod
    def regularised(self, gradient: Floats) -> Floats:
        """Add the gradient of the penalty to that of the mean loss, which gives the gradient of the objective."""

    def state(self) -> dict[str, Any]:
        """All that is kept of it, theta by this name."""
        return {"theta": self.theta}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.theta = state["theta"]


class BlockModel(Model):
    """A model that every party has a block of weights of."""

    def collected(self, outputs: int, passives: int) -> int:
        """How many numbers a row are collected of all passive parties together, for f with c outputs."""
        return outputs

    @abstractmethod
    def build(self, place: Place) -> Block:
        """Build a party's own block. Raises ConfigError if what it brings cannot be used."""


class LinearModel(BlockModel):
    """What every linear model is told: `l2`, which spares the intercept.

    On shares, spare_bits: how many bits that a ring has to spare steps may take. step_bits: beyond so many an entry of
    a step is cut off. risen: times the least loss so far, from which a training of long steps has lost its way.
    """

    by_column: ClassVar[bool] = True
    static_jacobian: ClassVar[bool] = True
    shares_outputs: ClassVar[bool] = True
    spare_bits: ClassVar[int] = 3
    step_bits: ClassVar[int | None] = None
    risen: ClassVar[float] = 1.02

    @property
    def loss(self) -> Loss:
        """The loss of the same name."""
        return LOSSES[self.name]

    def breadth(self, spread: Spread) -> int:
        """How many weights a party has for each output on shares, its intercept among them."""
        return spread.columns + spread.active

    def inputs(self, spread: Spread, kept: Mapping[str, Any] | None, make: Making) -> Inputs:
        """Make the inputs of a party's columns for training on shares: as they were `kept` (`Inputs.state`), or
        anew."""
        return Asis(spread.active)

    def ridge_of(self, rows: int) -> float | None:
        """Return the ridge that holds weights back in steps by a party's own curvature, for n training rows; None for
        the optimizer's."""
        return None

    def parameters(self, columns: int, outputs: int) -> int:
        return columns * outputs

    def build(self, place: Place) -> Linear:
        """Build a party's own part with its weights at zero; the active party's has an intercept."""
        self.brought(place.who, place.model)
        return Linear(np.zeros((place.columns + place.active, place.outputs)), l2=self.l2, intercept=place.active)


class Logistic(LinearModel):
    """Logistic regression on two classes, as a linear model."""

    name: ClassVar[str] = "logistic"


class SmoothHinge(LinearModel):
    """Linear support vector machine with the smooth hinge of FDSKL Table 1."""

    name: ClassVar[str] = "smooth_hinge"


class Square(LinearModel):
    """Linear regression by least squares, ridge regression where l2 is above 0."""

    name: ClassVar[str] = "square"


class Softmax(LinearModel):
    """Multinomial logistic regression, one output a class."""

    name: ClassVar[str] = "softmax"


class OneVsRest(LinearModel):
    """Logistic regression of each of several classes against the rest."""

    name: ClassVar[str] = "one_vs_rest"


class Poisson(LinearModel):
    """Poisson regression of counts, log link."""

    name: ClassVar[str] = "poisson"


class Gamma(LinearModel):
    """Gamma regression of amounts above 0, log link."""

    name: ClassVar[str] = "gamma"


class Tweedie(LinearModel):
    """Tweedie regression of amounts that are often 0, log link."""

    name: ClassVar[str] = "tweedie"
    power: float = Field(default=1.5, gt=1, lt=2)
    """The variance goes with this power of the mean, between counts (1) and amounts above 0 (2)."""

    @property
    def loss(self) -> Loss:
        return TweedieLoss(self.power)


class NegativeBinomial(LinearModel):
    """Negative binomial regression of counts that vary more than Poisson's, log link."""

    name: ClassVar[str] = "negative_binomial"
    dispersion: float = Field(default=1.0, gt=0, le=100)
    """The variance is mu + dispersion mu^2."""

    @property
    def loss(self) -> Loss:
        return NegativeBinomialLoss(self.dispersion)


class Quantile(LinearModel):
    """Linear regression of a quantile of the label."""

    name: ClassVar[str] = "quantile"
    quantile: float = Field(default=0.5, gt=0, lt=1)
    """The share of rows whose label is below what is predicted; .5 is the median."""

    @property
    def loss(self) -> Loss:
        return QuantileLoss(self.quantile)


class Huber(LinearModel):
    """Linear regression that far labels hardly move."""

    name: ClassVar[str] = "huber"
    width: float = Field(default=1.0, gt=0, le=64)
    """How many deviations of the labels off a label counts no more than in proportion."""

    @property
    def loss(self) -> Loss:
        return HuberLoss(self.width)


class GeneralLinear(LinearModel):
    """A linear model under any loss, by its name."""

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "linear"
    loss_name: Annotated[str, AfterValidator(known_loss)] = Field(alias="loss")
    """Which [loss](#loss)."""

    @property
    def loss(self) -> Loss:
        return LOSSES[self.loss_name]


def starting_weights(X: Floats, scaled: Floats, targets: Floats, seed: int) -> Floats:
    """Draw the first weights of the active party, theta (d + 1 x c): f spreads by START over `scaled` (m x d), the
    intercept is 0.

    From zero weights the first residuals of a classifier take two values that everyone knows, and then a few opened
    gradients determine every label of their batches (`securevfl.audit.attacks.opened_gradients`). So the start is drawn
    at random, from a hash of the active party's own columns X (m x d, before scaling) and its targets (n x c), rows in
    the order of ids: nobody else can compute it, and the same data and seed give the same model everywhere.
    """
    stream = own_stream(f"starting weights {seed}", X, targets)
    shape = X.shape[1], targets.shape[1]
    uniform = (np.frombuffer(stream(8 * shape[0] * shape[1]), "<u8").reshape(shape) >> 11) + 0.5
    spread = np.sqrt((scaled**2).mean(axis=0) * X.shape[1])
    theta = START * normal_quantile(uniform * 2.0**-53) / np.where(spread > 0, spread, 1.0)[:, None]
    return np.vstack([theta, np.zeros((1, targets.shape[1]))])


class Linear(Block):
    """One party's part: theta (d x c), and for the active party the intercept as its last row."""

    static_jacobian = True
    shares_outputs = True

    def __init__(self, theta: Floats, *, l2: float, intercept: bool) -> None:
        self.theta = theta
        self.intercept = intercept
        self.decay = np.full((len(theta), 1), l2)  # of each row of theta
        if intercept:
            self.decay[-1] = 0.0

    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Set the first weights: as `starting_weights` draws them at the party with labels, zero elsewhere."""
        if targets is not None:
            self.theta = starting_weights(X, scaled, targets, seed)

    def jacobian(self, X: Floats) -> Jacobian:
        """X (n x d), with a column of ones where there is an intercept; the same for each output."""
        return Jacobian(np.column_stack([X, np.ones(len(X))]) if self.intercept else X)

    def forward(self, X: Floats, theta: Floats | None = None) -> Floats:
        """H (n x c), with these weights (d x c) in place of its own if any are given."""
        own = self.theta if theta is None else theta
        return X @ own[:-1] + own[-1] if self.intercept else X @ own

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g (d x c), summed over the rows."""
        product = X.T @ g
        return np.vstack([product, g.sum(axis=0)]) if self.intercept else product

    def regularised(self, gradient: Floats) -> Floats:
        """gradient + l2 theta (d x c), from the gradient of the mean loss; the intercept is spared."""
        return gradient + self.decay * self.theta

    def penalty(self) -> float:
        """l2 |theta|^2 / 2, which this part adds to the mean loss."""
        return float((self.decay * self.theta**2).sum()) / 2

    def gram(self, X: Floats) -> Floats:
        """J^T J (d x d) over the rows of X, by which a step can follow the curvature of the block."""
        own = X.T @ X
        if not self.intercept:
            return own
        sums = X.sum(axis=0)[:, None]
        return np.block([[own, sums], [sums.T, np.full((1, 1), float(len(X)))]])


# Columns that separate classes: all rows of one class lie on one side of a value, or on it.
#
# No finite weights fit best then (Albert and Anderson 1984): they grow with every step, so coefficients say how long a
# training went on. Each party sees this of what it knows: the one with labels of its own columns, and of the model by
# its metrics; a party that knows its weights by how far one moves f.

FAR = 20.0  # how far the sum of one column moves between its ends: odds of e^20
GROW = "their coefficients grow with every visit and are no estimates"


def separating(X: Floats, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which columns (d,) of rows X (n x d) separate one of the classes, marked (n x c), from all others."""
    found = np.zeros(X.shape[1], np.bool_)
    varies = X.min(axis=0) < X.max(axis=0)
    for own in marked.T:
        if 0 < own.sum() < len(own):
            inside, outside = X[own], X[~own]
            above, below = outside.max(axis=0) <= inside.min(axis=0), inside.max(axis=0) <= outside.min(axis=0)
            found |= varies & (above | below)
    return found


def far_moved(theta: Floats, X: Floats) -> NDArray[np.bool_]:
    """Return which columns (d,) of rows X (n x d) move f by more than FAR between their ends, by weights (d x c)."""
    return np.asarray(np.abs(theta).max(axis=1) * np.ptp(X, axis=0) > FAR)

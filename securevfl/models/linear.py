"""Blocks of weights that parties have, and linear models: H_k = X_k theta_k. The active party's theta has one more row,
the intercept.

The Jacobian of H_k by theta_k is X_k itself and does not move with the weights, so one opened data gradient serves
all Q local steps of a round (FedBCD 2019, eq. 57).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from securevfl.models.block import BlockModel, Place
from securevfl.models.inputs import IdentityInputs, Inputs, InputShape, MakeFittingData
from securevfl.models.linear_block import Linear
from securevfl.models.log_link_losses import NegativeBinomialLoss, TweedieLoss
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, known_loss
from securevfl.models.robust_losses import HuberLoss, QuantileLoss


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

    def breadth(self, spread: InputShape) -> int:
        """How many weights a party has for each output on shares, its intercept among them."""
        return spread.columns + spread.active

    def inputs(self, spread: InputShape, kept: Mapping[str, Any] | None, make: MakeFittingData) -> Inputs:
        """Make the inputs of a party's columns for training on shares: as they were `kept` (`Inputs.state`), or
        anew."""
        return IdentityInputs(spread.active)

    def ridge_of(self, rows: int) -> float | None:
        """Return the ridge that holds weights back in steps by a party's own curvature, for n training rows; None for
        the optimizer's."""
        return None

    def parameters(self, columns: int, outputs: int) -> int:
        return columns * outputs

    def build(self, place: Place) -> Linear:
        """Build a party's own part with its weights at zero; the active party's has an intercept."""
        self.module_parameters(place.who, place.model)
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

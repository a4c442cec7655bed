"""Linear models: party k's outputs are H_k = X_k @ theta_k; the active party, which has the labels, adds an intercept.

Each class names a loss; `securevfl.models.linear_block` computes the outputs. "On shares" means that the model is
trained on secret shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from securevfl.models.block import BlockModel, BlockSpec
from securevfl.models.inputs import IdentityInputs, Inputs, InputShape, MakeFittingData
from securevfl.models.linear_block import Linear
from securevfl.models.log_link_losses import NegativeBinomialLoss, TweedieLoss
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, known_loss
from securevfl.models.pair_components import MAX_COMPONENTS, PAIRS_NOTE
from securevfl.models.robust_losses import HuberLoss, QuantileLoss

PAIR_ITERATIONS = 12
"""Default number of iterations of a logistic model with pairs if nothing is evaluated."""


class LinearModel(BlockModel):
    """The base class of models that are linear in the columns, or in features that are computed from the columns.

    Attributes:
        spare_bits: on shares, the width of a number in bits is a multiple of 8; this is how many of the bits that a
            number does not need for its range may make steps more precise.
        step_bits: on shares, entries of a step (a column times the step size) are clipped to [-2^step_bits,
            2^step_bits]; None for no clipping.
        risen: on shares, the factor by which the loss may exceed the minimum so far before the training rolls back.
    """

    by_column: ClassVar[bool] = True
    static_jacobian: ClassVar[bool] = True
    shares_outputs: ClassVar[bool] = True
    spare_bits: ClassVar[int] = 3
    step_bits: ClassVar[int | None] = None
    risen: ClassVar[float] = 1.02

    @property
    def loss(self) -> Loss:
        """The loss that training minimises; by default the loss that has the name of the model."""
        return LOSSES[self.name]

    def breadth(self, shape: InputShape) -> int:
        """Return the number of inputs of a party, and so of its weights for each output, with the intercept."""
        return shape.columns + shape.active

    def inputs(self, shape: InputShape, stored: Mapping[str, Any] | None, make: MakeFittingData) -> Inputs:
        """Return the transformation from a party's columns to the inputs of a training on shares.

        Args:
            shape: the public sizes of the party and of the run.
            stored: the stored inputs (`Inputs.state`), or None to fit them.
            make: returns the party's training rows, to which inputs are fitted.

        Returns:
            The inputs.
        """
        return IdentityInputs(shape.active)

    def ridge_of(self, rows: int) -> float | None:
        """Return the ridge penalty for steps that divide by a party's curvature, for n = `rows` training rows.

        None means that the optimizer's penalty applies.
        """
        return None

    def parameters(self, columns: int, outputs: int) -> int:
        """Return the number of weights of a passive party with d columns, for c outputs."""
        return columns * outputs

    def build(self, spec: BlockSpec) -> Linear:
        """Build a party's block with zero weights; the active party's block has an intercept."""
        self.module_parameters(spec.party, spec.model)
        return Linear(np.zeros((spec.columns + spec.active, spec.outputs)), l2=self.l2, intercept=spec.active)


class Logistic(LinearModel):
    """Logistic regression of two classes, on request with products of two parties' components."""

    name: ClassVar[str] = "logistic"
    pairs: int = Field(default=0, ge=0, le=MAX_COMPONENTS)
    """Number of components of each share holder, such as 16. The model has an input for each product of a component of
    one and a component of the other, so that it learns interactions between their columns. 0 for none."""

    @property
    def pair_rank(self) -> int:
        """The largest number of components of each share holder whose products are inputs; 0 for no products."""
        return self.pairs

    @property
    def note(self) -> str:
        """Lines about products of components for the consent sheet."""
        return PAIRS_NOTE if self.pairs else ""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Options of a job with products of components, by option; empty without them."""
        if not self.pairs:
            return {}
        return {"optimizer": {"name": "block_descent"}, "batch_size": "growing", "epochs": PAIR_ITERATIONS}

    @property
    def ends_early(self) -> bool:
        """Whether the model has products of components, whose weights early stopping regularises."""
        return self.pairs > 0


class SmoothHinge(LinearModel):
    """Linear support vector machine with the smooth hinge loss of FDSKL (Gu et al. 2020), Table 1."""

    name: ClassVar[str] = "smooth_hinge"


class Square(LinearModel):
    """Linear regression by least squares; ridge regression if l2 is above 0."""

    name: ClassVar[str] = "square"


class Softmax(LinearModel):
    """Multinomial logistic regression, with one output for each class."""

    name: ClassVar[str] = "softmax"


class OneVsRest(LinearModel):
    """Logistic regression of each class against all others."""

    name: ClassVar[str] = "one_vs_rest"


class Poisson(LinearModel):
    """Poisson regression of counts, with a log link."""

    name: ClassVar[str] = "poisson"


class Gamma(LinearModel):
    """Gamma regression of positive amounts, with a log link."""

    name: ClassVar[str] = "gamma"


class Tweedie(LinearModel):
    """Tweedie regression of amounts that are often 0, with a log link."""

    name: ClassVar[str] = "tweedie"
    power: float = Field(default=1.5, gt=1, lt=2)
    """The variance is proportional to this power of the mean; 1 would be Poisson counts, 2 gamma amounts."""

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return TweedieLoss(self.power)


class NegativeBinomial(LinearModel):
    """Negative binomial regression of counts that vary more than Poisson counts, with a log link."""

    name: ClassVar[str] = "negative_binomial"
    dispersion: float = Field(default=1.0, gt=0, le=100)
    """The variance of a count is mu + dispersion * mu^2, with mu its mean."""

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return NegativeBinomialLoss(self.dispersion)


class Quantile(LinearModel):
    """Linear regression of a quantile of the label."""

    name: ClassVar[str] = "quantile"
    quantile: float = Field(default=0.5, gt=0, lt=1)
    """The share of rows whose label is below the prediction; 0.5 is the median."""

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return QuantileLoss(self.quantile)


class Huber(LinearModel):
    """Linear regression that is robust against outliers among the labels."""

    name: ClassVar[str] = "huber"
    width: float = Field(default=1.0, gt=0, le=64)
    """Errors above this many standard deviations of the labels count linearly instead of quadratically."""

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return HuberLoss(self.width)


class GeneralLinear(LinearModel):
    """A linear model with any loss, by the name of the loss."""

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "linear"
    loss_name: Annotated[str, AfterValidator(known_loss)] = Field(alias="loss")
    """The name of the [loss](#loss)."""

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return LOSSES[self.loss_name]

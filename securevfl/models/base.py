"""What every model that a job can name has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from securevfl.base.config import NamedOption
from securevfl.errors import ConfigError
from securevfl.models.loss import Loss


class Model(NamedOption, ABC):
    """`l2` is the weight of ||theta||^2 / 2.

    method: the family of training that it takes, whatever the optimizer; else the optimizer's. by_column: whether
    forward outputs are X theta, with weights for each column. embeds: whether a column of codes, which name values and
    measure nothing, has a use in it. scales: whether columns are scaled for it; else it does so itself. Where
    residuals go down, `static_jacobian` and `shares_outputs` say what the Jacobians of the passive parties' parts are
    (`securevfl.protocols.differentiable`): all parties know it from the job.
    """

    family: ClassVar[str | None] = None
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
    def separates_outputs(self) -> bool:
        """Whether the active party is fed the outputs of each passive party apart."""
        return False

    def output_width(self, outputs: int) -> int:
        """How many numbers a row a passive party's part has, for f with c outputs."""
        return outputs

    def openings(self, steps: int) -> int:
        """How many gradients a party has opened for so many local steps on one exchange, where its Jacobian moves."""
        return steps

    @abstractmethod
    def parameters(self, columns: int, outputs: int) -> int:
        """p, the weights of a passive party with so many columns (d), for c outputs."""

    def module_parameters(self, who: str, model: object) -> int:
        """p of what a party brings as its own model (`Party.model`); 0 where it brings none and p is `parameters`.

        ConfigError where there is no place for it.
        """
        if model is not None:
            raise ConfigError(
                f"{who}: a {self.name} model has no place for a module of its own; use Neural, or drop it"
            )
        return 0

"""What every model that a job can name has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import Field

from securevfl.config import Named
from securevfl.models.losses import Loss


class Model(Named, ABC):
    """`l2` is the weight of ||theta||^2 / 2.

    by_column: whether forward outputs are X theta, with weights for each column. Where residuals go down,
    `static_jacobian` and `shares_outputs` say what the Jacobians of the passive parties' parts are
    (`securevfl.protocols.differentiable`): all parties know it from the job.
    """

    by_column: ClassVar[bool] = False
    static_jacobian: ClassVar[bool]
    shares_outputs: ClassVar[bool]
    l2: float = Field(default=0.0, ge=0)
    """Weight of half the squared norm of the weights in what is minimised; it spares the intercept."""

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """What it minimises."""

    @abstractmethod
    def parameters(self, columns: int, outputs: int) -> int:
        """p, the weights of a passive party with so many columns (d), for c outputs."""

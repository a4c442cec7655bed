"""The base class of all models that a job can name.

f (n, c) are the outputs of the model for n rows. The active party has the labels, passive parties have none. A residual
is the derivative of the loss by f; a Jacobian is the derivative of a party's outputs by its weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from securevfl.base.config import NamedOption
from securevfl.errors import ConfigError
from securevfl.models.loss import Loss


class Model(NamedOption, ABC):
    """A kind of model that a job can name, such as logistic regression.

    Attributes:
        family: the protocol family that trains the model; None if it follows from the optimizer.
        by_column: whether a party's outputs are its columns times weights, one weight for each column and output.
        embeds: whether the model accepts columns of category codes (integers), each of which it maps to a vector.
        scales: whether columns are scaled for the model; otherwise it scales them itself.
        static_jacobian: whether the Jacobians of passive parties do not depend on the weights
            (`securevfl.protocols.differentiable`). All parties know this from the job.
        shares_outputs: whether all c outputs have the same Jacobian, each by the weights of that output.
    """

    family: ClassVar[str | None] = None
    by_column: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    scales: ClassVar[bool] = True
    static_jacobian: ClassVar[bool]
    shares_outputs: ClassVar[bool]
    l2: float = Field(default=0.0, ge=0, le=1e12)
    """The penalty l2 / 2 * |weights|^2 is added to the mean loss; the intercept is not penalised."""

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""

    @property
    def note(self) -> str:
        """Lines about the model for the consent sheet, in addition to its name; empty if there are none."""
        return ""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Options of a job with this model whose defaults differ from those of other models, by option."""
        return {}

    @property
    def ends_early(self) -> bool:
        """Whether early stopping regularises the model: training ends when the held-out loss no longer falls."""
        return False

    @property
    def pair_rank(self) -> int:
        """The largest number of components of each share holder whose products are inputs; 0 for no products."""
        return 0

    @property
    def residual_bound(self) -> float:
        """Upper bound of |g| for each number g of a residual that is sent."""
        return self.loss.bound

    @property
    def separates_outputs(self) -> bool:
        """Whether the active party receives each passive party's outputs separately, not only their sum."""
        return False

    def output_width(self, outputs: int) -> int:
        """Return the number of columns of a passive party's outputs, if f has c = `outputs` columns."""
        return outputs

    def openings(self, steps: int) -> int:
        """Return how many gradients a passive party decrypts for `steps` local steps if its Jacobian changes."""
        return steps

    @abstractmethod
    def parameters(self, columns: int, outputs: int) -> int:
        """Return p, the number of weights of a passive party with `columns` columns, for c = `outputs`."""

    def named_module(self, party: str, folder: Path) -> object:
        """Return the module that the job names for a party in files of this folder; None if it names none."""
        return None

    def module_parameters(self, party: str, model: object) -> int:
        """Return the number of weights of a party's torch module (`Party.model`).

        Args:
            party: name of the party.
            model: its module, or None.

        Returns:
            The number, or 0 if the party has no module and `parameters` applies.

        Raises:
            ConfigError: if the model does not use modules.
        """
        if model is not None:
            raise ConfigError(
                f"party {party} brings a module, and a {self.name} model does not use modules",
                "use the model Neural, or leave the module out",
                code="SVFL-JOB-COMBINATION",
                party=party,
            )
        return 0

    def accepts_module_parameters(self, party: str, parameters: int) -> bool:
        """Return whether a party may state that its module has this number of weights; 0 means that it has none."""
        return parameters == 0

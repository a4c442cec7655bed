"""Neural parties: H_k = module_k(X_k), the loss on sum_k H_k (FedBCD 2019, eq. 2 with neural local models, section 6),
or on a top model of the active party's that is fed all outputs apart (`securevfl.models.torch_block`).

Every party brings a module of its own (`securevfl.TorchModel`), or has one dense layer without it; nobody else sees it
but for its number of parameters. J_k moves with the weights, so a sealed gradient is a homomorphic product and an
opening in every local step, on the residual of one exchange.

A network has more parameters than a small batch has residuals. From p >= n c on an opened gradient determines g, and g
the labels: then sealing protects nothing, and such a job is refused (`securevfl.consent.ledger_session`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from securevfl.models.block import Block, BlockModel, Place
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, known_loss


class Neural(BlockModel):
    """A sum of the parties' modules under a loss.

    `modules` is for parties that do not bring one as an object. All parties agree on the names; each runs its own file
    and nobody else's, and no file goes over the wire.
    """

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "neural"
    static_jacobian: ClassVar[bool] = False
    shares_outputs: ClassVar[bool] = False
    embeds: ClassVar[bool] = True
    loss_name: Annotated[str, AfterValidator(known_loss)] = Field(default="logistic", alias="loss")
    """Which [loss](#loss)."""
    modules: dict[str, str] = Field(default_factory=dict)
    """The name of each party's module, in a file of that party's own: "file.py:name"."""

    joint: Literal["sum", "top"] = "sum"
    """Outputs are added up, or fed to a top model of the active party's, which sees each party's."""
    width: int = Field(default=8, ge=1)
    """w, outputs of each passive party under a top model."""
    clip: float = Field(default=4.0, gt=0)
    """Largest number of a residual that a top model sends down; larger ones are cut to it."""

    @property
    def loss(self) -> Loss:
        return LOSSES[self.loss_name]

    @property
    def residual_bound(self) -> float:
        return self.clip if self.separates_outputs else self.loss.bound

    @property
    def separates_outputs(self) -> bool:
        return self.joint == "top"

    def output_width(self, outputs: int) -> int:
        return self.width if self.separates_outputs else outputs

    def collected_width(self, outputs: int, passives: int) -> int:
        return self.width * passives if self.separates_outputs else outputs

    def parameters(self, columns: int, outputs: int) -> int:
        """p of a party that brings no module: of one dense layer with its biases."""
        return (columns + 1) * self.output_width(outputs)

    def module_parameters(self, who: str, model: object) -> int:
        from securevfl.models.torch_model import module_of_party

        module = module_of_party(who, model, self.modules.get(who))
        return 0 if module is None else module.parameters(who)

    def build(self, place: Place) -> Block:
        from securevfl.models.torch_block import TorchBlock
        from securevfl.models.torch_model import TorchModel, module_of_party, torch
        from securevfl.models.torch_top import TorchBottom, TorchTop, default_top

        c, fed = place.outputs, self.collected_width(place.outputs, place.passives)
        top, width = self.separates_outputs and place.active, self.output_width(c)

        def default() -> Any:
            if top:
                return default_top(place.columns, fed, c)
            return torch().nn.Linear(place.columns, width, dtype=torch().float64)

        module = module_of_party(place.who, place.model, self.modules.get(place.who)) or TorchModel(default)
        if top:
            return TorchTop(place.who, module, place.columns, c, l2=self.l2, fed=fed, bound=self.clip)
        if self.separates_outputs and place.passives > 1:
            slot, slots = place.place, place.passives
            return TorchBottom(place.who, module, place.columns, width, l2=self.l2, place=slot, slots=slots)
        return TorchBlock(place.who, module, place.columns, width, l2=self.l2)

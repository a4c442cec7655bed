"""Neural networks: each party has a module, H_k = module_k(X_k), and the loss is that of the sum of all H_k.

See FedBCD 2019, eq. 2 and section 6. Alternatively the active party, which has the labels, applies a top model to the
outputs of all parties (`securevfl.models.torch_top`). Every party supplies its own module (`securevfl.TorchModel`) or
has one dense layer; other parties learn only its number of weights. The Jacobian J_k of the outputs by the weights
changes with the weights. With encrypted residuals, every local step therefore multiplies J_k with the ciphertexts and
has one gradient decrypted.

A network often has more weights than a small batch has residuals. If a party has p >= n * c weights for n rows and c
outputs, a decrypted gradient determines the residuals, and these determine the labels: encryption then protects
nothing, and such a job is refused (`securevfl.consent.ledger_session`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from securevfl.models.block import Block, BlockModel, BlockSpec
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, known_loss


class Neural(BlockModel):
    """A sum of the parties' networks, or a top model on their outputs.

    The option `modules` is for parties that do not pass a module as an object. All parties agree on the names; each
    party runs
    only its own file, and no file is sent.
    """

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "neural"
    static_jacobian: ClassVar[bool] = False
    shares_outputs: ClassVar[bool] = False
    embeds: ClassVar[bool] = True
    loss_name: Annotated[str, AfterValidator(known_loss)] = Field(default="logistic", alias="loss")
    """The name of the [loss](#loss)."""
    modules: dict[str, str] = Field(default_factory=dict)
    """The module of each party, in a file of that party: "file.py:name"."""

    joint: Literal["sum", "top"] = "sum"
    """"sum" adds up all outputs; "top" passes them to a top model of the active party, which sees the outputs of each
    party separately."""
    width: int = Field(default=8, ge=1)
    """Number of outputs of each passive party if `joint` is "top"."""
    clip: float = Field(default=4.0, gt=0)
    """Bound of the residuals that a top model sends to passive parties; larger ones are clipped."""

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return LOSSES[self.loss_name]

    @property
    def residual_bound(self) -> float:
        """Upper bound of each number of a residual that is sent."""
        return self.clip if self.separates_outputs else self.loss.bound

    @property
    def separates_outputs(self) -> bool:
        """Whether the active party receives the outputs of each passive party separately."""
        return self.joint == "top"

    def output_width(self, outputs: int) -> int:
        """Return the number of values for each row that a passive party outputs."""
        return self.width if self.separates_outputs else outputs

    def collected_width(self, outputs: int, passives: int) -> int:
        """Return the number of values for each row that all passive parties output together."""
        return self.width * passives if self.separates_outputs else outputs

    def parameters(self, columns: int, outputs: int) -> int:
        """Return the number of weights of a party without a module: one dense layer with biases."""
        return (columns + 1) * self.output_width(outputs)

    def module_parameters(self, party: str, model: object) -> int:
        """Return the number of weights of a party's module, or 0 if it has none."""
        from securevfl.models.torch_model import module_of_party

        module = module_of_party(party, model, self.modules.get(party))
        return 0 if module is None else module.parameters(party)

    def build(self, spec: BlockSpec) -> Block:
        """Build a party's block."""
        from securevfl.models.torch_block import TorchBlock
        from securevfl.models.torch_model import TorchModel, module_of_party, torch
        from securevfl.models.torch_top import TorchBottom, TorchTop, default_top

        c, fed = spec.outputs, self.collected_width(spec.outputs, spec.passives)
        top, width = self.separates_outputs and spec.active, self.output_width(c)

        def default() -> Any:
            if top:
                return default_top(spec.columns, fed, c)
            return torch().nn.Linear(spec.columns, width, dtype=torch().float64)

        module = module_of_party(spec.party, spec.model, self.modules.get(spec.party)) or TorchModel(default)
        if top:
            return TorchTop(spec.party, module, spec.columns, c, l2=self.l2, fed=fed, bound=self.clip)
        if self.separates_outputs and spec.passives > 1:
            slot, slots = spec.index, spec.passives
            return TorchBottom(spec.party, module, spec.columns, width, l2=self.l2, index=slot, slots=slots)
        return TorchBlock(spec.party, module, spec.columns, width, l2=self.l2)

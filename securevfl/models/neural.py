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

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from securevfl.errors import ConfigError
from securevfl.models.block import Block, BlockModel, BlockSpec
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, known_loss
from securevfl.untrusted import shortened

MAX_MODULE_WEIGHTS = 10**9
"""Largest number of weights of a module that a job may state."""
_MODULE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\.py:[A-Za-z_][A-Za-z0-9_]{0,63}")


class Neural(BlockModel):
    """A sum of the parties' networks, or a top model on their outputs.

    The option `modules` is for parties that do not pass a module as an object. All parties agree on the names and on
    the numbers of weights; no file is sent. A party runs only its own file, only if it has allowed the name, and only
    after it has agreed to its consent sheet.
    """

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "neural"
    static_jacobian: ClassVar[bool] = False
    shares_outputs: ClassVar[bool] = False
    embeds: ClassVar[bool] = True
    loss_name: Annotated[str, AfterValidator(known_loss)] = Field(default="logistic", alias="loss")
    """The name of the [loss](#loss)."""
    modules: dict[str, str] = Field(default_factory=dict)
    """The module of each party, in a file of that party in the folder of the job: "file.py:name"."""
    module_weights: dict[str, int] = Field(default_factory=dict)
    """The number of trained weights of each of `modules`, which consent sheets count before the module is run."""

    joint: Literal["sum", "top"] = "sum"
    """"sum" adds up all outputs; "top" passes them to a top model of the active party, which sees the outputs of each
    party separately."""
    width: int = Field(default=8, ge=1, le=65_536)
    """Number of outputs of each passive party if `joint` is "top"."""
    clip: float = Field(default=4.0, gt=0, le=1e12)
    """Bound of the residuals that a top model sends to passive parties; larger ones are clipped."""

    @model_validator(mode="after")
    def _check_modules(self) -> Neural:
        for party, name in self.modules.items():
            if not _MODULE_NAME.fullmatch(name):
                raise ValueError(
                    f"modules.{shortened(party)}: is not of the form 'file.py:name'. Name a file without its folder"
                )
        if self.modules.keys() != self.module_weights.keys():
            raise ValueError("module_weights: state the number of trained weights of each party in modules")
        if not all(1 <= weights <= MAX_MODULE_WEIGHTS for weights in self.module_weights.values()):
            raise ValueError(f"module_weights: a number is not between 1 and {MAX_MODULE_WEIGHTS:,}")
        return self

    @property
    def loss(self) -> Loss:
        """The loss that the training of this model minimises."""
        return LOSSES[self.loss_name]

    @property
    def residual_bound(self) -> float:
        """Upper bound of |g| for each entry g of a residual that is sent."""
        return self.clip if self.separates_outputs else self.loss.bound

    @property
    def separates_outputs(self) -> bool:
        """Whether the active party receives each passive party's outputs separately, not only their sum."""
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
        """Return the number of weights of a party's module, or 0 if it has none.

        If the job names the module, this is the number that it states, and no code is run.
        """
        from securevfl.models.torch_model import module_of_party

        if party in self.module_weights:
            return self.module_weights[party]
        module = module_of_party(party, model, None)
        return 0 if module is None else module.parameters(party)

    def accepts_module_parameters(self, party: str, parameters: int) -> bool:
        """Return whether a party may state that its module has this number of weights; 0 means that it has none.

        If the job names the module, the number must be the one that the job states.
        """
        return parameters == self.module_weights.get(party, parameters)

    def named_module(self, party: str, folder: Path) -> object:
        """Return the module that the job names for a party, without running its file.

        The caller uses it like a module that the party passes as `Party.model`.

        Args:
            party: name of the party.
            folder: the folder of the job, or of the model file.

        Returns:
            The module, or None if the job names none for this party.
        """
        if party not in self.modules:
            return None
        from securevfl.models.torch_model import allowed_module

        return allowed_module(party, self.modules[party], folder)

    def build(self, spec: BlockSpec) -> Block:
        """Build a party's block; raise ConfigError if its module has another number of weights than the job states."""
        block = self._build(spec)
        stated = self.module_weights.get(spec.party)
        if stated is not None and block.parameters != stated:
            raise ConfigError(
                f"party {spec.party}: the module has {block.parameters:,} trained weights, and the job states "
                f"{stated:,}",
                f"set module_weights.{spec.party} = {block.parameters} in the job at all parties",
                code="SVFL-JOB-MODULE",
                party=spec.party,
            )
        return block

    def _build(self, spec: BlockSpec) -> Block:
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

"""The optimizers that a job can name. Adding one is one line here."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.optim.block_newton import BlockNewton
from securevfl.optim.celu import CeluVFL
from securevfl.optim.fedbcd import FedBCD, FedPBCD, FedSGD
from securevfl.optim.rounds import Pipeline
from securevfl.optim.rules import BlockDescent, Training

OPTIMIZERS: Registry[Training] = Registry(
    "optimizer", FedBCD, FedSGD, FedPBCD, CeluVFL, Pipeline, BlockNewton, BlockDescent
)

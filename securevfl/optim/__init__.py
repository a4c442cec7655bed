"""The optimizers that a job can name. To add an optimizer, add its class to `OPTIMIZERS`."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.block_newton import BlockNewton
from securevfl.optim.celu import CeluVFL
from securevfl.optim.fedbcd import FedBCD, FedPBCD, FedSGD
from securevfl.optim.optimizer import Training
from securevfl.optim.pipeline import Pipeline

OPTIMIZERS: Registry[Training] = Registry(
    "optimizer", FedBCD, FedSGD, FedPBCD, CeluVFL, Pipeline, BlockNewton, BlockDescent
)

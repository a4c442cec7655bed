"""The optimizers that a job can name. Adding one is one line here."""

from __future__ import annotations

from securevfl.config import Registry
from securevfl.optim.base import Optimizer
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fdskl import FDSKL
from securevfl.optim.fedbcd import FedBCD, FedPBCD, FedSGD

OPTIMIZERS: Registry[Optimizer] = Registry("optimizer", FedBCD, FedSGD, FedPBCD, FDSKL, BlockDescent)

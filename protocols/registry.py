"""The sums and residuals that a job can name. Adding one is one line here."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.cipher_sum import CipherSum
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.tree_sum import TreeSum

SUMS: Registry[SumProtocol] = Registry("sum", DirectSum, TreeSum, PairwiseSum, CipherSum)
RESIDUALS: Registry[ResidualProtocol] = Registry("residual", OpenResidual, SealedResidual)


def auto_sum(contributors: int) -> SumProtocol:
    """Return what `sum = "auto"` stands for: direct for one contributor, whom no sum can hide, pairwise from two on."""
    return DirectSum() if contributors < 2 else PairwiseSum()

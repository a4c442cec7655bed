"""Step sizes that nobody has to choose: each party's follow from the curvature of its own columns.

The objective's Hessian by one party's weights is at most c lambda + l2, with c the bound of the loss on its second
derivative and lambda the largest eigenvalue of X_k^T X_k / n on the rows of a batch (`securevfl.optim.curvature`). A
passive party takes its Q local steps on one residual, so they are one step of Q eta; and where K parties move at
once, each by its own curvature, the objective does not rise if each takes 1 / K of the step that is safe alone
(Richtarik and Takac 2016):

    eta_k = 1 / (K Q (c lambda + l2))

Nobody has to be told: no party knows the step of another. In turn only one party moves, and K counts as 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securevfl.models.block import Block
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.optim.curvature import bound
from securevfl.optim.rules import Rule, Updater
from securevfl.protocols.residuals.base import Batch


class CurvatureSteps(Updater):
    """An updater that knows how far a step may go on each batch."""

    def __init__(self, rule: Rule, model: Block, state: Mapping[str, Any] | None) -> None:
        super().__init__(rule, model, state)
        assert isinstance(model, Linear), "FedBCD.check says so"
        self._linear = model
        self._sizes: dict[int, float] = {}

    def size(self, batch: Batch, loss: Loss, *, steps: int, moving: int) -> float:
        """eta on this batch, for so many local steps on one exchange, in which so many parties move at once."""
        if batch.index not in self._sizes:
            lam = float(np.linalg.eigvalsh(self._linear.gram(batch.X))[-1]) / len(batch.X)
            steep = bound(loss) * lam + float(self._linear.decay.max())
            self._sizes[batch.index] = 1 / (moving * steps * steep) if steep > 0 else 1.0
        return self._sizes[batch.index]

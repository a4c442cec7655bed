"""Step sizes from the curvature of each party's columns, so that no user has to choose one.

The Hessian of the objective by one party's weights is at most c * lambda + l2. Here c bounds the second derivative of
the loss, and lambda is the largest eigenvalue of X_k^T X_k / n on the n rows of a batch (`securevfl.optim.curvature`).
A passive party (one without labels) takes its Q local steps with one residual, so together they are one step of Q *
eta. If K parties move at once, the objective does not increase if each takes 1 / K of the step that is safe alone
(Richtarik and Takac 2016):

    eta_k = 1 / (K * Q * (c * lambda + l2))

No party learns the step size of another. If the parties move in turn, K counts as 1. An exchange is one transfer of
outputs and a residual between the parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securevfl.models.block import Block
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.optim.curvature import curvature_bound
from securevfl.optim.rules import Rule, Updater
from securevfl.protocols.residuals.base import Batch


class CurvatureSteps(Updater):
    """Updates a party's weights by a rule, with a step size that it computes for each batch.

    Args:
        rule: the update rule, which turns a gradient into a step.
        model: the party's linear model.
        state: the state of an earlier updater, or None.
    """

    def __init__(self, rule: Rule, model: Block, state: Mapping[str, Any] | None) -> None:
        super().__init__(rule, model, state)
        assert isinstance(model, Linear), "FedBCD.check has checked it"
        self._linear = model
        self._sizes: dict[int, float] = {}

    def size(self, batch: Batch, loss: Loss, *, steps: int, moving: int) -> float:
        """Return the safe step size eta on a batch.

        Args:
            batch: the data of one batch of rows at this party: columns, and targets if it has labels.
            loss: the loss function that the training minimises (`securevfl.models.loss`).
            steps: number of local steps on one exchange.
            moving: number K of parties that update their weights at once.

        Returns:
            The step size.
        """
        if batch.index not in self._sizes:
            largest_eigenvalue = float(np.linalg.eigvalsh(self._linear.gram(batch.X))[-1]) / len(batch.X)
            curvature = curvature_bound(loss) * largest_eigenvalue + float(self._linear.decay.max())
            self._sizes[batch.index] = 1 / (moving * steps * curvature) if curvature > 0 else 1.0
        return self._sizes[batch.index]

"""The options of a job on shares, and which optimizers fit it."""

from __future__ import annotations

from typing import TypeGuard

from securevfl.base.config import mismatched_fields
from securevfl.models.linear import LinearModel
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedBCD
from securevfl.options import JobOptions
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares


class SharesMessages(Protocol, defer_build=True):
    """The messages of a job on shares."""

    shares: Shares


class SharesJob(JobOptions, defer_build=True):
    """A job on shares: a linear model by steps that are linear in residuals."""

    model: LinearModel
    optimizer: FedBCD | BlockDescent
    protocol: SharesMessages


def trains_on_shares(job: JobOptions) -> TypeGuard[SharesJob]:
    """Whether a job trains on shares."""
    return not any(mismatched_fields(job, SharesJob))


def check_optimizer(job: JobOptions) -> None:
    """ValueError, with the remedy, if its steps are not linear or not taken by all parties at once."""
    optimizer = job.optimizer
    if isinstance(optimizer, BlockDescent):
        if job.model.loss.curvature is None:
            raise ValueError(f"loss {job.model.loss.name} states no curvature, which steps rest on; use fedsgd")
        own = isinstance(job.model, LinearModel) and job.model.ridge_of(1) is not None
        if own and optimizer.ridge != BlockDescent().ridge:
            raise ValueError(f"a {job.model.name} model has a ridge of its own; set model.ridge in place of this one")
        return
    if not isinstance(optimizer, FedBCD):
        raise ValueError(
            f"optimizer {optimizer.name}: steps that are linear in the residual were expected under shares; "
            "use fedsgd, fedpbcd, fedbcd or block_descent"
        )
    optimizer.check_set()
    if optimizer.mode != "parallel":
        raise ValueError('under shares all parties step on one residual; use mode = "parallel"')
    if not optimizer.update.linear:
        raise ValueError(
            f"rule {optimizer.update.name} is not linear in gradients, and nobody sees one under shares; use sgd, "
            "momentum or proximal"
        )

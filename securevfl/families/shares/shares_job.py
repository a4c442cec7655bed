"""The options of a job on secret shares, and the check that its optimizer can train on shares."""

from __future__ import annotations

from typing import TypeGuard

from securevfl.base.config import mismatched_fields
from securevfl.models.linear import LinearModel
from securevfl.models.pair_metrics import supports_pairs
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedBCD
from securevfl.options import JobOptions
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares


class SharesMessages(Protocol, defer_build=True):
    """The protocol options of a job on shares."""

    shares: Shares


class SharesJob(JobOptions, defer_build=True):
    """A job on shares: a linear model, and an optimizer whose steps are linear in residuals."""

    model: LinearModel
    optimizer: FedBCD | BlockDescent
    protocol: SharesMessages


def trains_on_shares(job: JobOptions) -> TypeGuard[SharesJob]:
    """Whether a job trains on shares."""
    return not any(mismatched_fields(job, SharesJob))


def takes_scalar_steps(job: SharesJob) -> bool:
    """Return whether block descent multiplies gradients by one public number, so that l2 is a penalty on shares.

    The penalty's gradient is l2 * theta. If every step is a number times a gradient, the weights shrink by a known
    factor, and a share holder multiplies its share by it. If a party multiplied gradients by a matrix that only it
    knows, the other share holder could not do the same to its share.
    """
    return isinstance(job.optimizer, BlockDescent) and job.model.by_column and job.model.l2 > 0


def opens_pairs(job: SharesJob) -> bool:
    """Return whether the final evaluation opens (score, label) pairs: the job asks for them and its loss allows it."""
    return job.protocol.shares.metrics == "pairs" and supports_pairs(job.model.loss)


def check_optimizer(job: JobOptions) -> None:
    """Check that the optimizer's steps are linear in residuals and that all parties take them at the same time.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).

    Raises:
        ValueError: with a remedy, if the optimizer cannot train on shares.
    """
    optimizer = job.optimizer
    if isinstance(optimizer, BlockDescent):
        if job.model.loss.curvature is None:
            raise ValueError(
                f"optimizer: loss {job.model.loss.name} defines no curvature, which step sizes need; use fedsgd"
            )
        if job.model.l2 and job.model.by_column and job.scaling != "standard":
            raise ValueError(
                f"model.l2: with block_descent on shares the step size relies on columns of variance 1, and scale is "
                f'"{job.scaling}"; set scale = "standard", or use fedsgd with lr'
            )
        model_has_ridge = isinstance(job.model, LinearModel) and job.model.ridge_of(1) is not None
        if model_has_ridge and optimizer.ridge != BlockDescent().ridge:
            raise ValueError(f"optimizer.ridge: a {job.model.name} model has its own ridge; set model.ridge instead")
        return
    if not isinstance(optimizer, FedBCD):
        raise ValueError(
            "optimizer: training on shares needs steps that are linear in the residual; "
            "use fedsgd, fedpbcd, fedbcd or block_descent"
        )
    optimizer.check_set()
    if optimizer.mode != "parallel":
        raise ValueError(
            'optimizer.mode: on shares, all parties update their weights with one residual; use mode = "parallel"'
        )
    if not optimizer.update.linear:
        raise ValueError(
            f"optimizer.rule: {optimizer.update.name} is not linear in gradients, and no party sees a gradient on "
            "shares; use sgd, momentum or proximal"
        )

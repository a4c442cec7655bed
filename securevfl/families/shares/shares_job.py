"""The options of a job on secret shares, and the check that its optimizer can train on shares.

Parties hold random-looking shares of weights and residuals; the party with labels and its partner, the share holders,
have shares of all of them. An evaluation *opens* (reveals) values to the party with labels: one sum of losses, and for
the final model pairs of a rounded score and a label in random order.
"""

from __future__ import annotations

from typing import TypeGuard

from securevfl.base.config import mismatched_fields
from securevfl.models.linear import LinearModel
from securevfl.models.pair_metrics import supports_pairs
from securevfl.models.rounded_labels import MIN_ROUNDED_ROWS
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedBCD
from securevfl.options import JobOptions
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares

WHY_NOT = {
    "celu": (
        "each party weighs cached residuals row by row, and on shares no party sees a residual",
        'use "fedbcd" with lr',
    ),
    "pipeline": (
        "it starts an exchange before the weights of the previous one are known, and masks of shares are generated for "
        "one iteration after the other",
        'use "fedsgd" with lr',
    ),
    "block_newton": (
        "parties compare losses and gradients in each round, and on shares no party sees them",
        'use "block_descent", which also derives its steps from the curvature of the columns',
    ),
    "fdml": (
        "workers update at different times with stale sums, and on shares all parties take each step together",
        'use "fedsgd" with lr',
    ),
    "fdskl": (
        "it trains kernel models, and on shares only linear models and trees are trained",
        'use "block_descent" and a linear model',
    ),
}
"""For each optimizer of the package that cannot train on shares: the reason, and the nearest one that can."""
OTHER_OPTIMIZER = (
    "its steps are not known to be linear in residuals",
    'use "fedbcd", "fedsgd" or "fedpbcd" with lr, or "block_descent"',
)
NEAREST_RULES = 'rule = "momentum", "sgd" or "proximal"'


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
    """Return whether block descent multiplies gradients by one public number, as a penalty l2 on shares requires.

    The penalty's gradient is l2 * theta. If every step is a number times a gradient, the weights shrink by a known
    factor, and a share holder multiplies its share by it. If a party multiplied gradients by a matrix that only it
    knows, the other share holder could not do the same to its share.
    """
    return isinstance(job.optimizer, BlockDescent) and job.model.by_column and job.model.l2 > 0


def opens_pairs(job: SharesJob, rows: int | None = None) -> bool:
    """Return whether the final evaluation opens (score, label) pairs.

    The pairs of classes and of differences f - y are opened for any number of rows; a job must accept pairs of few rows
    by name. The pairs of counts and amounts have rounded labels, and are used only for metrics of ranking (gini) and of
    calibration. They are opened if there are enough rows, and if all rows have the same weight, because no party knows
    to which row a pair belongs.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        rows: the number of measured rows; None if it is not known yet.

    Returns:
        Whether the job asks for pairs and its loss, its weights and the number of rows allow them.
    """
    if job.protocol.shares.metrics != "pairs":
        return False
    return supports_pairs(job.model.loss) or (not weighs_rows(job) and (rows is None or rows >= MIN_ROUNDED_ROWS))


def weighs_rows(job: SharesJob) -> bool:
    """Return whether the job weighs rows: by a column of weights, or by an exposure."""
    return job.exposure is not None or (job.weights is not None and job.weights.column is not None)


def _check_early_stop(job: JobOptions) -> None:
    """Check that no other option decides when the training is evaluated or stops, and that early stops are useful."""
    if job.optimizer.smallest_gain is None:
        return
    if job.evaluate_every or job.target is not None or job.patience is not None:
        raise ValueError(
            "optimizer.early_stop: it determines when the training is evaluated and when it stops; leave "
            "evaluate_every, target and patience out"
        )
    if isinstance(job.batch_size, int):
        raise ValueError('optimizer.early_stop: it needs iterations on all rows; set batch_size = "growing", or "all"')
    if job.model.loss.reports_standard_errors:
        raise ValueError(
            f"optimizer.early_stop: coefficients of a {job.model.name} model have standard errors, which need the "
            "optimum; leave it out"
        )


def _check_pairs(job: JobOptions) -> None:
    """Check that the options of a job work with pairs, the products of two parties' components.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).

    Raises:
        ValueError: with a remedy, if an option does not work with pairs.
    """
    optimizer, shares = job.optimizer, job.protocol.shares
    if job.model.loss.name != "logistic":
        raise ValueError(
            f"model.pairs: pairs are trained with the logistic loss of two classes only, not with "
            f"{job.model.loss.name}; leave pairs out, or choose the logistic loss"
        )
    if not isinstance(optimizer, BlockDescent) or not optimizer.momentum:
        raise ValueError(
            'model.pairs: weights of pairs need the steps of "block_descent" with momentum; leave optimizer out, or '
            "leave pairs out"
        )
    if job.model.l2:
        raise ValueError(
            "model.pairs: weights of pairs have no l2 penalty, and early stopping regularises them; leave l2 out, or "
            "leave pairs out"
        )
    if shares is not None and shares.open_weights:
        raise ValueError(
            "protocol.shares.open_weights: weights of pairs belong to two parties, so a model with pairs opens no "
            "weights; leave open_weights out, or leave model.pairs out"
        )


def check_optimizer(job: JobOptions) -> None:
    """Check that the optimizer's steps are linear in residuals and that all parties take them at the same time.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).

    Raises:
        ValueError: with a remedy, if the optimizer cannot train on shares.
    """
    optimizer = job.optimizer
    if job.model.pair_rank:
        _check_pairs(job)
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
        _check_early_stop(job)
        model_has_ridge = isinstance(job.model, LinearModel) and job.model.ridge_of(1) is not None
        if model_has_ridge and optimizer.ridge != BlockDescent().ridge:
            raise ValueError(f"optimizer.ridge: a {job.model.name} model has its own ridge; set model.ridge instead")
        return
    if not isinstance(optimizer, FedBCD):
        reason, remedy = WHY_NOT.get(optimizer.name, OTHER_OPTIMIZER)
        raise ValueError(f"optimizer: {optimizer.name} cannot train on shares, because {reason}; {remedy}")
    optimizer.check_set()
    if optimizer.mode != "parallel":
        raise ValueError(
            "optimizer.mode: parties update in turn in this mode, but on shares all parties update their weights with "
            'one residual; use mode = "parallel"'
        )
    if not optimizer.update.linear:
        wrapped = optimizer.update.inner is not optimizer.update
        remedy = 'the rule "momentum" or "sgd" with the proximal term' if wrapped else NEAREST_RULES
        raise ValueError(
            f"optimizer.rule: {optimizer.update.inner.name} is not linear in gradients, and in a training on shares no "
            f"party sees a gradient; use {remedy}"
        )

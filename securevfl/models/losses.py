"""The losses that a job can name."""

from __future__ import annotations

from securevfl.models.log_link_losses import GammaLoss, NegativeBinomialLoss, PoissonLoss, TweedieLoss
from securevfl.models.loss import Loss
from securevfl.models.robust_losses import HuberLoss, QuantileLoss
from securevfl.models.standard_losses import LogisticLoss, OneVsRestLoss, SmoothHingeLoss, SoftmaxLoss, SquareLoss

# to add a loss, add it here; models refer to it by name, as `securevfl.models.linear.GeneralLinear` does
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        LogisticLoss(),
        SmoothHingeLoss(),
        SquareLoss(),
        SoftmaxLoss(),
        OneVsRestLoss(),
        PoissonLoss(),
        GammaLoss(),
        TweedieLoss(),
        NegativeBinomialLoss(),
        QuantileLoss(),
        HuberLoss(),
    )
}


def known_loss(value: str, *, single: bool = False) -> str:
    """Check the name of a loss.

    Args:
        value: the name.
        single: accept only losses with a single output.

    Returns:
        The name.

    Raises:
        ValueError: if there is no such loss; the message lists the names.
    """
    names = [name for name, loss in LOSSES.items() if loss.single or not single]
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return value

"""The losses by their names, as a job has them."""

from __future__ import annotations

from securevfl.models.log_link_losses import GammaLoss, NegativeBinomialLoss, PoissonLoss, TweedieLoss
from securevfl.models.loss import Loss
from securevfl.models.robust_losses import HuberLoss, QuantileLoss
from securevfl.models.standard_losses import LogisticLoss, OneVsRestLoss, SmoothHingeLoss, SoftmaxLoss, SquareLoss

# adding one is one line here; models take it by name, as `securevfl.models.linear.GeneralLinear` does
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
    """Check that this is the name of a loss, with `single` of one that has a single output, and return it. Raises
    ValueError that names the known ones."""
    known = [name for name, loss in LOSSES.items() if loss.single or not single]
    if value not in known:
        raise ValueError(f"must be one of {', '.join(known)}; choose one of these")
    return value

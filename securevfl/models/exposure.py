"""Exposure of rows in a loss of counts or amounts: the time, or the number of units, that a label covers.

For one unit of exposure the model predicts exp(f) times the mean label. A row with exposure e is predicted e times as
much, so log e is added to f; it is called the offset. Only the party with labels knows the offset, as the last column
of its targets, and no message contains it. Offsets are relative to the mean exposure of the training rows, which keeps
f near 0.
"""

from __future__ import annotations

import warnings

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.errors import DataNotice, TableError
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.row_loss import RowLoss

LARGE_EXPOSURE = 30.0
"""Exposures above this multiple of their mean cause a notice: their residuals are clipped at large predictions."""
MAX_EXPOSURE_RATIO = 1000.0
"""Maximum factor between an exposure and the mean exposure, in both directions."""


class OffsetLoss(RowLoss):
    """A loss whose targets (n, c + 1) contain the offset of f in the last column, the logarithm of the exposure e.

    If the variance is proportional to the p-th power of the mean, the loss of label y with exposure e equals e^(2 - p)
    times the loss of y / e, the label of one unit, without an offset (`LogLinkLoss.of_unit`). So the point beyond which
    the loss replaces exp by a line depends on f alone and not on the exposure. Residuals are clipped at the loss's
    bound.

    What a residual reveals about f includes the offset, which is one more unknown number for each row.

    Args:
        loss: the loss without exposures.
    """

    def __init__(self, loss: LogLinkLoss) -> None:
        super().__init__(loss)
        self.retains_targets = True  # type: ignore[misc]
        self._of_unit = loss.of_unit

    def minimizer(self, y: Floats) -> Floats:
        """Return the outputs f (n, c) that minimise the loss of each row."""
        return self._loss.minimizer(y[:, :-1] / np.exp(y[:, -1:]))

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        exposure = np.exp(y[:, -1:])
        loss, factor = self._of_unit(exposure)
        return factor[:, 0] * loss.value(f, y[:, :-1] / exposure)

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c), clipped at the bound."""
        exposure = np.exp(y[:, -1:])
        loss, factor = self._of_unit(exposure)
        return np.clip(factor * loss.residual(f, y[:, :-1] / exposure), -self.bound, self.bound)


def offsets(name: str, column: str, exposure: Floats, train: Rows) -> tuple[Floats, float]:
    """Compute the offsets of rows.

    Args:
        name: name of the party, which error messages state; they never contain an exposure.
        column: the column of exposures, for messages.
        exposure: the exposures (n,).
        train: the training rows.

    Returns:
        The offset of f for each row (n,), and the mean exposure of the training rows.

    Raises:
        TableError: if an exposure is missing, not positive, or too far from the mean.
    """
    exposure = np.asarray(exposure, dtype=np.float64)
    if not (np.isfinite(exposure).all() and (exposure > 0).all()):
        raise TableError(
            f"party {name}: the exposures in column {column!r} contain values that are missing, 0 or negative",
            "leave these rows out",
            code="SVFL-TABLE-WEIGHTS",
            party=name,
            column=column,
        )
    mean = float(exposure[train].mean())
    if float(exposure.max()) > MAX_EXPOSURE_RATIO * mean or float(exposure.min()) * MAX_EXPOSURE_RATIO < mean:
        raise TableError(
            f"party {name}: column {column!r} contains exposures that differ from their mean by more than a factor of "
            f"{MAX_EXPOSURE_RATIO:g}",
            "leave these rows out",
            code="SVFL-TABLE-WEIGHTS",
            party=name,
            column=column,
        )
    share = float((exposure[train] > LARGE_EXPOSURE * mean).mean())
    if share:
        warnings.warn(
            f"party {name}: in column {column!r}, {share:.2%} of the training rows have an exposure above "
            f"{LARGE_EXPOSURE:g} times the mean, up to {exposure[train].max() / mean:.0f} times. If the model "
            "predicts large values for these rows, their residuals are clipped and they count less. Split such rows.",
            DataNotice,
            stacklevel=2,
        )
    return np.log(exposure / mean), mean

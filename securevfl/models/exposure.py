"""Exposure of rows in a loss of counts or amounts: the time, or the number of units, that a label covers.

A row with exposure e has the mean e exp(f) times the mean label of one unit of exposure, so log e is an offset of f.
Only the party with labels knows it: the offset is a column of the targets, and no message contains it. Offsets are
relative to the mean exposure of the training rows, which keeps f near 0.
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
"""Exposure in units of the mean, from which on residuals are clipped at predictions of about 8 times the average."""
MAX_EXPOSURE_RATIO = 1000.0
"""Maximum ratio of an exposure and the mean exposure, in both directions."""


class OffsetLoss(RowLoss):
    """A loss whose targets (n, c + 1) contain the offset of f in the last column, the logarithm of the exposure e.

    Half the unit deviance with a variance proportional to the p-th power of the mean equals e^(2 - p) times the loss of
    the label of one unit of exposure, y / e, without an offset (`LogLinkLoss.of_unit`). So the continuation of exp
    depends on f alone and not on the exposure. Residuals are clipped at the loss's bound.

    Residuals reveal sums that include the offset, which is one unknown number for each row, as the label is.

    Args:
        loss: the loss without exposures.
    """

    def __init__(self, loss: LogLinkLoss) -> None:
        super().__init__(loss)
        self.retains_targets = True  # type: ignore[misc]
        self._of_unit = loss.of_unit

    def minimizer(self, y: Floats) -> Floats:
        """Return the f (n, c) at which rows have the smallest loss."""
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
        name: the party, for messages, which never contain an exposure.
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
            f"party {name}: {share:.2%} of the training rows have an exposure of more than {LARGE_EXPOSURE:g} times "
            f"the mean of column {column!r}, up to {exposure[train].max() / mean:.0f} times. Their residuals are "
            "clipped if the model predicts large values for them, so they count less. Split such rows.",
            DataNotice,
            stacklevel=2,
        )
    return np.log(exposure / mean), mean

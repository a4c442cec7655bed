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

HEAVY = 30.0  # times the mean exposure: residuals end where a mean is some 8 times the average

MOST = 1000.0  # times the mean exposure, and its inverse


class OffsetLoss(RowLoss):
    """A loss whose targets (n x c + 1) hold in their last column what is added to f, the log of an exposure e.

    A loss of half the unit deviance, whose variance goes with the p-th power of the mean, is e^(2 - p) times that of
    the label of one unit of exposure, y / e, without anything added (`LogLinkLoss.of_unit`). So exp is cut off where f
    alone is far out and not where an exposure is large, and residuals are cut off at the loss's bound.

    Who reads residuals reads sums with the offset in them, one unknown number a row as a label is.
    """

    def __init__(self, loss: LogLinkLoss) -> None:
        super().__init__(loss)
        self.retains_targets = True  # type: ignore[misc]  # of this one
        self._of_unit = loss.of_unit

    def minimizer(self, y: Floats) -> Floats:
        return self._loss.minimizer(y[:, :-1] / np.exp(y[:, -1:]))

    def value(self, f: Floats, y: Floats) -> Floats:
        exposed = np.exp(y[:, -1:])
        loss, counts = self._of_unit(exposed)
        return counts[:, 0] * loss.value(f, y[:, :-1] / exposed)

    def residual(self, f: Floats, y: Floats) -> Floats:
        exposed = np.exp(y[:, -1:])
        loss, counts = self._of_unit(exposed)
        return np.clip(counts * loss.residual(f, y[:, :-1] / exposed), -self.bound, self.bound)


def offsets(name: str, column: str, exposure: Floats, train: Rows) -> tuple[Floats, float]:
    """Return what is added to f of each row (n,) of party `name`, and the mean exposure of the training rows.

    TableError for exposures that cannot be used; no message has one of them.
    """
    found = np.asarray(exposure, dtype=np.float64)
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise TableError(
            f"party {name}: exposures above 0 in every row were expected in column {column}, some are missing, 0 or "
            "negative; leave these rows out"
        )
    mean = float(found[train].mean())
    if float(found.max()) > MOST * mean or float(found.min()) * MOST < mean:
        raise TableError(
            f"party {name}: exposures within {MOST:g} times of their mean were expected in column {column}, some are "
            "farther; leave these rows out"
        )
    share = float((found[train] > HEAVY * mean).mean())
    if share:
        warnings.warn(
            f"party {name}: {share:.2%} of the training rows have more than {HEAVY:g} times the mean of {column}, up "
            f"to {found[train].max() / mean:.0f} times; where a model predicts much for them they count less, as "
            "residuals are cut off: split such rows",
            DataNotice,
            stacklevel=2,
        )
    return np.log(found / mean), mean

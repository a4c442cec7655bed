"""Detection of trainings that diverge.

A party with labels compares the loss of its training with the loss of the zero model, f = 0, on the same rows. A loss
that is not finite aborts the training at once. So does a loss over a window of at least 64 rows that exceeds ten times
the loss of the zero model. The error ends the training at all parties.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import DivergenceError, LabelError
from securevfl.models.loss import Loss

DIVERGENCE_FACTOR = 10.0  # times the loss of f = 0

DIVERGENCE_WINDOW_ROWS = 64  # over at least so many rows, or all there are


class DivergenceDetector:
    """Watches the losses of the latest batches of a table of `rows` training rows."""

    def __init__(self, loss: Loss, rows: int) -> None:
        self._loss = loss
        self._rows = min(DIVERGENCE_WINDOW_ROWS, rows)
        self._seen: deque[tuple[int, float, float]] = deque()  # rows, loss, loss of f = 0; the latest last

    def add_batch(self, round_number: int, f: Floats, y: Floats) -> float:
        """Take in the forward output f (n x c) of a batch with targets y (n x c), and return its mean loss.
        DivergenceError names the round."""
        own, none = _sums(self._loss, f, y)
        self._seen.append((len(f), own, none))
        while sum(rows for rows, _, _ in self._seen) - self._seen[0][0] >= self._rows:
            self._seen.popleft()
        rows, total, start = (sum(each) for each in zip(*self._seen, strict=True))
        if not np.isfinite(own) or (rows >= self._rows and total > DIVERGENCE_FACTOR * start):
            raise divergence_error(round_number)
        return own / len(f)

    def check_residual_bound(self, round_number: int, g: Floats, y: Floats) -> None:
        """Check that no entry of g (n x c) is beyond the loss's bound, up to which residuals are encrypted.

        LabelError if it is so without any model, for targets y (n x c); else DivergenceError.
        """
        bound = self._loss.bound
        if np.abs(g).max(initial=0.0) <= bound:
            return
        if np.abs(self._loss.residual(np.zeros_like(g), y)).max() > bound:
            raise LabelError(
                f"{self._loss.name} loss: labels within {bound:g} {self._loss.label_scale} were expected "
                "under encryption, some are farther; trim them, or train on their logarithm"
            )
        raise divergence_error(round_number)


def check_final_loss(loss: Loss, f: Floats, y: Floats, rounds: int) -> None:
    """DivergenceError if f (n x c), of a model after so many rounds, is far worse than none for targets y (n x c)."""
    own, none = _sums(loss, f, y)
    if not own <= DIVERGENCE_FACTOR * none:
        raise divergence_error(rounds)


def divergence_error(round_number: int) -> DivergenceError:
    """Return the error of a training that diverges at this round."""
    return DivergenceError(
        f"round {round_number}: a loss near or below that of its start was expected, it is not finite or far above: "
        "the training diverges and no model is kept; lower lr"
    )


def _sums(loss: Loss, f: Floats, y: Floats) -> tuple[float, float]:
    """Add up the losses over the rows, for f and for f = 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(loss.value(f, y).sum()), float(loss.value(np.zeros_like(f), y).sum())

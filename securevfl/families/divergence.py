"""Detection of trainings that diverge, at the party with labels.

The party compares the loss of the training with the loss of the zero model, which outputs f = 0 for every row, on the
same rows. Training is aborted at all parties as soon as the loss is not finite, or exceeds ten times the loss of the
zero model over a window: the latest batches with at least 64 rows together. The residual of a row is the derivative of
its loss by the outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import DivergenceError, LabelError
from securevfl.models.loss import Loss

DIVERGENCE_FACTOR = 10.0  # a loss above this multiple of the zero model's loss aborts the training
DIVERGENCE_WINDOW_ROWS = 64  # a window has at least this number of rows, or all rows of a smaller table


class _BatchLoss(NamedTuple):
    rows: int
    loss: float
    zero_model_loss: float


class DivergenceDetector:
    """Compares the losses of the latest batches with those of the zero model.

    Args:
        loss: the loss of the training.
        rows: number of training rows in the table.
    """

    def __init__(self, loss: Loss, rows: int) -> None:
        self._loss = loss
        self._window_rows = min(DIVERGENCE_WINDOW_ROWS, rows)
        self._window: deque[_BatchLoss] = deque()  # losses of the batches of the window, the latest batch at the end

    def add_batch(
        self, round_number: int, f: Floats, y: Floats, describe_row: Callable[[int], str] | None = None
    ) -> float:
        """Add the outputs of one batch to the window; raise DivergenceError if the training diverges.

        Args:
            round_number: the current round, for the error message.
            f: model outputs (n, c).
            y: targets (n, c).
            describe_row: describes the row at a position of the batch for the error message, if one row alone makes the
                loss too large.

        Returns:
            The mean loss of the batch.
        """
        loss, zero_model_loss = _loss_sums(self._loss, f, y)
        self._window.append(_BatchLoss(len(f), loss, zero_model_loss))
        while sum(batch.rows for batch in self._window) - self._window[0].rows >= self._window_rows:
            self._window.popleft()
        rows, window_loss, window_zero_loss = (sum(column) for column in zip(*self._window, strict=True))
        too_large = rows >= self._window_rows and window_loss > DIVERGENCE_FACTOR * window_zero_loss
        if not np.isfinite(loss) or too_large:
            position = _dominant_row(self._loss, f, y, window_loss, DIVERGENCE_FACTOR * window_zero_loss)
            if position is None or describe_row is None:
                raise_divergence(round_number)
            remedy = "clip extreme values (prepare.clip), leave the row out, or lower lr"
            raise_divergence(round_number, remedy, describe_row(position))
        return loss / len(f)

    def check_residual_bound(self, round_number: int, g: Floats, y: Floats) -> None:
        """Check that no residual exceeds the bound up to which residuals can be encrypted.

        If a residual exceeds it although no residual of the zero model does, the training diverges: DivergenceError is
        raised.

        Args:
            round_number: the current round, for the error message.
            g: residuals (n, c).
            y: targets (n, c).

        Raises:
            LabelError: if the residuals of the zero model already exceed the bound.
        """
        bound = self._loss.bound
        if np.abs(g).max(initial=0.0) <= bound:
            return
        if np.abs(self._loss.residual(np.zeros_like(g), y)).max() > bound:
            raise LabelError(
                f"{self._loss.name} loss: some labels are more than {bound:g} {self._loss.label_scale} away, which is "
                "too far for encrypted residuals",
                "clip these labels, or train on their logarithm",
                code="SVFL-LABEL-RANGE",
                loss=self._loss.name,
            )
        raise_divergence(round_number)


def check_final_loss(loss: Loss, f: Floats, y: Floats, rounds: int) -> None:
    """Check that the loss of a model is at most ten times that of the zero model, or raise DivergenceError.

    Args:
        loss: the loss of the training.
        f: model outputs (n, c).
        y: targets (n, c).
        rounds: number of rounds so far, for the error message.
    """
    model_loss, zero_model_loss = _loss_sums(loss, f, y)
    if not model_loss <= DIVERGENCE_FACTOR * zero_model_loss:
        raise_divergence(rounds)


def raise_divergence(round_number: int, remedy: str = "lower lr", cause: str = "") -> NoReturn:
    """Raise the error of a training that diverges in this round.

    Args:
        round_number: the current round.
        remedy: the change that the error recommends before the training is started again.
        cause: the cause, if it is known.

    Raises:
        DivergenceError: always.
    """
    raise DivergenceError(
        f"the training diverges in round {round_number}: the loss is not finite, or far above that of a model whose "
        f"outputs are 0{cause and '. '}{cause}",
        f"{remedy}; no model was stored",
        code="SVFL-TRAINING-DIVERGED",
        round=round_number,
    )


def _dominant_row(loss: Loss, f: Floats, y: Floats, total: float, limit: float) -> int | None:
    """Return the position of the one row whose loss alone makes a sum of losses exceed a limit, or None.

    Args:
        loss: the loss of the training.
        f: model outputs of the latest batch (n, c).
        y: its targets (n, c).
        total: the sum of the losses of a window that ends with this batch.
        limit: the limit of the sum.

    Returns:
        The position in the batch.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        losses = np.nan_to_num(loss.value(f, y), nan=np.inf, posinf=np.inf)
    position = int(losses.argmax())
    others = np.delete(losses, position).sum()
    if np.isfinite(total):
        others = total - losses[position]
    return position if len(losses) > 1 and others <= limit else None


def _loss_sums(loss: Loss, f: Floats, y: Floats) -> tuple[float, float]:
    """Return the sum of the losses of all rows for the outputs f, and the same sum for f = 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(loss.value(f, y).sum()), float(loss.value(np.zeros_like(f), y).sum())

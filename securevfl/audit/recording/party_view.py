"""One party's view of a run: the knowledge from which an attack starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securevfl.audit.recording.party_record import Opening, PartyRecord, Receipt
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.runtime.codec import Message


@dataclass(kw_only=True)
class PartyView(PartyRecord):
    """One party's knowledge at the end. X (m x d) scaled as in training, theta (d x c), rows of batch `index`.

    key: what its random features are drawn from, if it has any.
    """

    name: str
    X: Floats
    theta: Floats
    outputs: int
    rows: dict[int, Rows]
    key: bytes = field(default=b"", repr=False)

    def received(self) -> Iterator[tuple[Rows, Receipt]]:
        """Yield each message that came during a visit, with the rows of its batch."""
        for receipt in self.receipts:
            if receipt.visit >= 0:
                yield self.rows[self.visits[receipt.visit]], receipt

    def residuals(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) that stand in a message as they are, as numbers or as the bytes of numbers, by visit."""
        read = (
            (rows, as_numbers(value, len(rows), self.outputs))
            for rows, receipt in self.received()
            for value in fields(receipt.message)
        )
        return [(rows, numbers) for rows, numbers in read if numbers is not None]

    def equations(self) -> list[tuple[Rows, Floats, Floats]]:
        """Everything the view says about residuals, linear as it is: (rows, A (k x n), A g (k x c)), by visit."""
        plain = [(rows, np.eye(len(rows)), g) for rows, g in self.residuals()]
        return plain or [(self.rows_of(opened), opened.J.T, opened.gradient) for opened in self.opened_gradients]

    def rows_of(self, opened: Opening) -> Rows:
        """Return the rows that the residuals of an opening belong to, in their order."""
        rows = self.rows[opened.index]
        return np.repeat(rows, len(opened.J) // len(rows))

    def estimates(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) by visit: as read, or the least-norm solution of the equations."""
        plain = self.residuals()
        return plain or [(rows, least_norm(A, b)) for rows, A, b in self.equations()]

    def mean_by_row(self, estimates: Sequence[tuple[Rows, Floats]]) -> Floats:
        """Average the estimates of each row (m x c); NaN for rows without any."""
        m, c = len(self.X), estimates[0][1].shape[1] if estimates else self.outputs
        total, count = np.zeros((m, c)), np.zeros((m, 1))
        for rows, values in estimates:
            total[rows] += values
            count[rows] += 1
        return np.divide(total, count, out=np.full((m, c), np.nan), where=count > 0)


def least_norm(A: Floats, b: Floats) -> Floats:
    """Find the shortest g (n x c) of those nearest to A (k x n) g = b (k x c)."""
    return np.linalg.lstsq(A, b)[0].astype(np.float64)


def fields(message: Message) -> list[Any]:
    """List the values in a message, with lists opened up."""
    values = [getattr(message, name) for name in message.__struct_fields__]
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def as_numbers(value: Any, n: int, c: int) -> Floats | None:
    """Return the (n x c) finite numbers of moderate size that the value is or ends in; None for anything else."""
    if isinstance(value, bytes) and len(value) >= 8 * n * c > 0:
        value = np.frombuffer(value[-8 * n * c :], "<f8").reshape(n, c)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != (n, c):
        return None
    size = np.abs(value)
    plausible = bool(np.isfinite(value).all() and size.max() < 2.0**10 and size[size > 0].min(initial=1.0) > 2.0**-60)
    return value.astype(np.float64) if plausible else None

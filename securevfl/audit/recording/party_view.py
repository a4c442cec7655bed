"""One party's view of a run: everything that an attack may use.

g (n, c) are the residuals of a batch. A gradient that was decrypted for the party gives equations A g = b with a known
matrix A (k, n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securevfl.audit.recording.party_record import OpenedGradient, PartyRecord, Receipt
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.runtime.codec import Message


@dataclass(kw_only=True)
class PartyView(PartyRecord):
    """One party's knowledge at the end of a run.

    Attributes:
        name: name of the party.
        X: its columns (m, d), scaled as in training.
        theta: its weights (d, c).
        outputs: number of outputs c of the model.
        rows: rows of each batch, by the index of the batch.
        key: key from which its random features are drawn; empty if it has none.
    """

    name: str
    X: Floats
    theta: Floats
    outputs: int
    rows: dict[int, Rows]
    key: bytes = field(default=b"", repr=False)

    def received(self) -> Iterator[tuple[Rows, Receipt]]:
        """Yield each message that arrived during an iteration, with the rows of its batch."""
        for receipt in self.receipts:
            if receipt.iteration >= 0:
                yield self.rows[self.batches[receipt.iteration]], receipt

    def residuals(self) -> list[tuple[Rows, Floats]]:
        """Return the residuals (n, c) that messages contain in the clear, by iteration.

        A field counts if it is an array of this shape, or ends in the bytes of one.
        """
        candidates = (
            (rows, as_numbers(value, len(rows), self.outputs))
            for rows, receipt in self.received()
            for value in fields(receipt.message)
        )
        return [(rows, numbers) for rows, numbers in candidates if numbers is not None]

    def equations(self) -> list[tuple[Rows, Floats, Floats]]:
        """Return all linear equations about residuals, by iteration: the rows, A (k, n) and A g (k, c)."""
        plain = [(rows, np.eye(len(rows)), g) for rows, g in self.residuals()]
        return plain or [(self.rows_of(opened), opened.J.T, opened.gradient) for opened in self.opened_gradients]

    def rows_of(self, opened: OpenedGradient) -> Rows:
        """Return the row of each residual from which a decrypted gradient was computed, in their order."""
        rows = self.rows[opened.index]
        return np.repeat(rows, len(opened.J) // len(rows))

    def estimates(self) -> list[tuple[Rows, Floats]]:
        """Return residuals (n, c) by iteration: in the clear, or else the least-norm solutions of the equations."""
        plain = self.residuals()
        return plain or [(rows, least_norm(A, b)) for rows, A, b in self.equations()]

    def mean_by_row(self, estimates: Sequence[tuple[Rows, Floats]]) -> Floats:
        """Return the mean estimate of each row (m, c); NaN for rows without an estimate."""
        m, c = len(self.X), estimates[0][1].shape[1] if estimates else self.outputs
        total, count = np.zeros((m, c)), np.zeros((m, 1))
        for rows, values in estimates:
            total[rows] += values
            count[rows] += 1
        return np.divide(total, count, out=np.full((m, c), np.nan), where=count > 0)


def least_norm(A: Floats, b: Floats) -> Floats:
    """Return the shortest g (n, c) that minimises |A g - b| for A (k, n) and b (k, c)."""
    return np.linalg.lstsq(A, b)[0].astype(np.float64)


def fields(message: Message) -> list[Any]:
    """Return the values of a message's fields; lists and tuples are flattened."""
    values = [getattr(message, name) for name in message.__struct_fields__]
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def as_numbers(value: Any, n: int, c: int) -> Floats | None:
    """Return the numbers (n, c) of which a value consists, or with which it ends.

    Args:
        value: the value of a message's field, an array or bytes.
        n: number of rows.
        c: number of outputs.

    Returns:
        The numbers; None if any of them is not finite or not of moderate size.
    """
    if isinstance(value, bytes) and len(value) >= 8 * n * c > 0:
        value = np.frombuffer(value[-8 * n * c :], "<f8").reshape(n, c)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != (n, c):
        return None
    size = np.abs(value)
    plausible = bool(np.isfinite(value).all() and size.max() < 2.0**10 and size[size > 0].min(initial=1.0) > 2.0**-60)
    return value.astype(np.float64) if plausible else None

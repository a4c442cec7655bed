"""Joint prediction: the parties compute the model's outputs on m rows that all of them have.

Every party k computes its forward outputs H_k (m, c) from its columns; c is the number of model outputs per row. The
active party, which has the labels, learns f = sum_k H_k, or what its network computes from this sum. Passive parties,
which have only columns, learn nothing.

1. passive k -> active   H_k as its summand, by the job's sum protocol
   active                adds its H, or passes the sum to its network, and obtains f (m, c)

A sum protocol may disclose more than the sum; its declarations state that. Rows are processed in blocks, so that a
table of any length fits in memory and in messages of limited size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumRole

ROWS_PER_MESSAGE = 65_536


class ScoringPart(Protocol):
    """The interface of one party's part of the model that joint prediction needs."""

    def forward(self, X: Floats) -> Floats:
        """Return the party's forward outputs on the rows X."""

    def combine(self, X: Floats, others: Floats) -> Floats:
        """Return f (m, c) at the active party, from its columns X and the sum of all other parties' outputs."""


@dataclass(frozen=True)
class RowsToScore:
    """New rows for which scores are requested.

    Attributes:
        ids: digests of the rows' ids.
        raw: this party's columns (m, d) before scaling.
        barred: True for rows (m,) about which this party discloses nothing; None if there are no such rows.
    """

    ids: Sequence[bytes]
    raw: Floats
    barred: NDArray[np.bool_] | None = None


def predict(
    context: PartyContext,
    sums: SumRole,
    part: ScoringPart,
    rows: RowSlices,
    outputs: int,
    sanitize: Callable[[Floats, slice], Floats] = lambda H, block: H,
) -> Floats | None:
    """Compute the model's outputs on m rows. All parties call this function at the same point of a run.

    Args:
        context: this party's context.
        sums: this party's role in the sum.
        part: this party's part of the model.
        rows: this party's columns of the m rows.
        outputs: number of final outputs per row.
        sanitize: returns this party's outputs on a block of rows as the party may send them, for example rounded.

    Returns:
        The outputs (m, outputs) at the active party, None at all others.
    """
    f = np.empty((len(rows), outputs))
    for start in range(0, len(rows), ROWS_PER_MESSAGE):
        block = slice(start, min(start + ROWS_PER_MESSAGE, len(rows)))
        if context.me == context.active:
            others = sums.collect((block.stop - start, context.outputs), context.reals)  # 1
            f[block] = part.combine(rows[block], others)
        else:
            sums.contribute(sanitize(part.forward(rows[block]), block), context.reals)  # 1
    return f if context.me == context.active else None
